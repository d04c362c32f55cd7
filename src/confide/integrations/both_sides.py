"""Tell whether rows of `eval_dataset` are of units that train, and refuse to choose a model by them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from transformers import EarlyStoppingCallback

from confide.config.schema import Config
from confide.integrations.rows import Rows
from confide.privacy import mechanisms
from confide.utils.errors import InputError


@dataclass(frozen=True)
class BothSides:
    """Units of an evaluation set that also train.

    Attributes:
        shared: how many there are.
        of: how many units the evaluation set has.
        what: one of them, as users call it.
    """

    shared: int
    of: int
    what: str

    def __str__(self) -> str:
        return f"eval_dataset: {self.shared:,} of its {self.of:,} {self.what} also train"

    def warning(self) -> str:
        return f"{self}: their loss says little about text of others, and no noise covers it"

    def refuse_choice(self, args: Any, callbacks: list[Any]) -> None:
        """Refuse to let their losses decide which model is kept, or when to stop.

        Raises:
            InputError: an argument or a callback does that.
        """
        for name in _deciding(args, callbacks):
            raise InputError(
                f"{self}, and {name} chooses the model by their losses, which no noise covers: split the data by "
                "whose it is and not by row, or choose without it"
            )


def both_sides(trained: Rows, dataset: Any, config: Config) -> BothSides | None:
    """Compare whose rows an evaluation set holds with whose rows train; None if nobody is known to be on both sides.

    Names of units are compared. Without `unit`, or without that column, only the training set itself is recognised.

    Args:
        dataset: one evaluation set, or several by name.
    """
    if (
        dataset is None
        or isinstance(dataset, str)
        or mechanisms.find(config.privacy.mechanism).notion == "none"
    ):
        return None
    several = list(dataset.values()) if isinstance(dataset, dict) else [dataset]
    own = [each for each in several if trained.is_of(each)]
    if own:
        return BothSides(len(trained), len(trained), "rows")
    unit = config.data.unit
    if unit is None:
        return None
    held_out: set[str] = set()
    for each in several:
        if hasattr(each, "__len__") and len(each):
            rows = Rows(each, "eval_dataset")
            if not rows.lacking(unit):
                held_out |= rows.owners(unit)
    shared = held_out & trained.owners(unit) if held_out else set()
    return BothSides(len(shared), len(held_out), "units") if shared else None


def _deciding(args: Any, callbacks: list[Any]) -> Iterator[str]:
    """Yield what decides by evaluation losses."""
    if args.load_best_model_at_end:
        yield "load_best_model_at_end"
    if getattr(args.save_strategy, "value", args.save_strategy) == "best":
        yield "save_strategy='best'"
    if any(isinstance(each, EarlyStoppingCallback) for each in callbacks):
        yield "EarlyStoppingCallback"
