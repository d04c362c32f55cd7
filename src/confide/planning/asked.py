"""What an accounting question states, and which number it asks for."""

import math
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, Literal

from confide.privacy import mechanisms
from confide.utils.errors import InputError

Unknown = Literal["noise_multiplier", "epsilon", "steps", "delta"]


def option(name: str) -> str:
    """Return the option of `confide account` that states a number."""
    return "--noise" if name == "noise_multiplier" else f"--{name.replace('_', '-')}"


@dataclass(frozen=True)
class Asked:
    """The numbers of a question; None where one is not stated. `api.verbs.account` says what each of them is."""

    process: str
    units: int | None = None
    rows: int | None = None
    rows_per_unit: int | None = None
    batch: float | None = None
    rate: float | None = None
    steps: int | None = None
    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float | None = None
    adjacency: str = "zero-out"
    sampling: str = "poisson"
    max_batch: int | None = None
    bands: int = 1
    buffers: int = 0
    trials: float | None = None
    histograms: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None or field.type is str:
                continue
            whole = "int" in str(field.type)
            is_number = isinstance(value, Real) and not isinstance(value, bool)
            if not is_number or (whole and math.isfinite(value) and value != int(value)):
                raise InputError(f"{option(field.name)}: {value!r} is no {'whole ' * whole}number")
            plain: Any = value  # numpy's own numbers would go on counting with few digits
            object.__setattr__(
                self, field.name, int(plain) if whole and math.isfinite(plain) else float(plain)
            )

    @property
    def draws_rows(self) -> bool:
        """True if a step draws rows, and not units."""
        return mechanisms.find(self.process).draws == "rows"

    @property
    def population(self) -> int | None:
        """The number of rows or units that a step draws from."""
        return self.rows if self.draws_rows else self.units

    @property
    def unknown(self) -> Unknown:
        """The one number that follows from the others.

        Raises:
            InputError: there is none, or more than one.
        """
        stated = {
            "--epsilon": self.epsilon,
            "--noise": self.noise_multiplier,
            "--steps": self.steps,
        }
        missing = [option for option, value in stated.items() if value is None]
        if len(missing) > 1:
            raise InputError(
                f"{' and '.join(missing)}: {'both' if len(missing) == 2 else 'all'} are missing; of --epsilon, --noise "
                "and --steps give two, and the third follows, or all three, and delta follows"
            )
        if not missing and self.delta is not None:
            raise InputError(
                "--epsilon, --noise, --steps and --delta are all given, so nothing is left to find: leave one out"
            )
        found: dict[str, Unknown] = {
            "--epsilon": "epsilon",
            "--noise": "noise_multiplier",
            "--steps": "steps",
        }
        return found[missing[0]] if missing else "delta"
