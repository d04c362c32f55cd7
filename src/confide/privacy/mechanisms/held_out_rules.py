"""Rules for held-out losses that decide about what is released: those of `train.patience`, and those of a sweep.

No noise covers these losses, and what they decide is released. Still the claim holds if held-out text is the same in
both worlds: then the losses differ by the weights alone, whose noise is counted. So nothing protected may stand there.

Why that is so, for each kind of mechanism:

- `uls`, `els`, `group`, `concentration` and `owners` protect all rows of a unit. A share holds out whole units, and a
  document with owners on both sides is left out. A file may hold rows of units that train, so names are compared here.
  With `data.eval_within` all held-out rows are of such units.
- `dp-sgd` and `adaptive` protect one row, and `selective`, `redacted` and `crt` what is sensitive in one row. A row
  trains if its document is not held out. The same words in another row are not covered, wherever it stands: each claim
  says so. So held-out text need not be redacted. A file may hold the very documents that train, so names of units are
  compared here as well, though rows of one person need not be the same.
- `secret` protects what all rows tell of a secret. Documents are held out, and not secrets, and held-out text is not
  searched: any of it may hold a secret that trains.
- `none` protects nobody.

Canaries stand in training rows alone, under names of their own. Histograms are counted over training rows, with noise.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confide.config import registry
from confide.data.both_sides import units_that_train
from confide.data.unit_graph import UnitGraph
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from confide.config.schema import Config
    from confide.privacy.mechanisms.base import Mechanism


@dataclass(frozen=True)
class Choice:
    """Something that is decided by held-out losses.

    Attributes:
        key: the key of the config to change if the mechanism is at fault.
        what: what is decided, and "by"; the sentence goes on with the losses that decide.
    """

    key: str
    what: str


PATIENCE = Choice("train.patience", "train.patience ends the run by")
SWEEP = Choice("privacy.mechanism", "a sweep releases a trial by")


def choice_errors(
    mechanism: "type[Mechanism]", config: "Config", choice: Choice
) -> Iterator[tuple[str, str]]:
    """Yield (key, sentence) where the config alone tells that held-out text may hold what is protected."""
    if config.data.eval_within is not None:
        yield (
            "data.eval_within",
            f"{choice.what} held-out losses, and these rows are of the units that the guarantee is about: hold out "
            "other units (data.eval)",
        )
    if mechanism.needs.secrets:
        yield (
            choice.key,
            f"mechanism {mechanism.name} does not look for secrets in held-out text, and {choice.what} its losses: no "
            "noise covers a secret that stands there, so use neither train.patience nor a sweep",
        )


def check_choice(config: "Config", held_out: UnitGraph, trained: Sequence[UnitGraph], choice: Choice) -> None:
    """Refuse to decide by the losses of held-out text that may hold what is protected.

    Args:
        trained: all graphs that steps are taken on.

    Raises:
        InputError: it may; the sentence says what to do.
    """
    mechanism = registry.mechanism(config.privacy.mechanism)
    if mechanism.notion == "none":
        return
    for key, sentence in choice_errors(mechanism, config, choice):
        raise InputError(f"{key}: {sentence}")
    if number := units_that_train(config.data, held_out, trained):
        is_of_rows = not mechanism.needs.named_unit and config.data.unit is not None
        also = ". The claim is of rows: if no document stands in both files, set data.unit: null" * is_of_rows
        raise InputError(
            f"data.eval: {number:,} of its {held_out.n_units:,} units also train, and {choice.what} their losses, "
            "which no noise covers: leave them out of the file, or name a share (data.eval: 0.1), which holds out "
            f"whole units{also}"
        )
