"""Define the settings that a sweep tries: for each key of the config a list of values, or a range of numbers."""

import difflib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

import numpy as np

from confide.config.loading import check, is_number, is_whole, keys, parsed
from confide.config.schema import Config
from confide.randomness.streams import Stream
from confide.utils.errors import InputError

Candidate = dict[str, Any]
"""A value for each key of a space."""

_RANGE = re.compile(r"(?P<low>.+?)\.\.(?!\.)(?P<high>.+?)(?P<log>:log)?")
_FIXED = {
    "run": "each trial has a folder of its own in the sweep's",
    "privacy.published_key": "the trials' keys derive from the sweep's",
}
_CORNERS = 256  # combinations of extreme values that are checked before anything runs


@dataclass(frozen=True)
class Listed:
    """Some values, each as likely as another."""

    key: str
    values: tuple[Any, ...]

    def at(self, uniform: float) -> Any:
        return self.values[int(uniform * len(self.values))]

    def edges(self) -> tuple[Any, ...]:
        return self.values

    def describe(self) -> str:
        return ", ".join(map(str, self.values))


@dataclass(frozen=True)
class Range:
    """The numbers, or whole numbers, from `low` to `high`, spread evenly or evenly in their logarithm."""

    key: str
    low: float
    high: float
    log: bool = False
    whole: bool = False

    def at(self, uniform: float) -> float:
        low, high = self.low, self.high + 1 if self.whole else self.high
        value = low * (high / low) ** uniform if self.log else low + uniform * (high - low)
        return self.rounded(value)

    def rounded(self, value: float) -> float:
        """Round down to a whole number, or to four digits, so that what is printed is what was used."""
        found = math.floor(value) if self.whole else float(f"{value:.4g}")
        return min(max(found, self.low), self.high)

    def edges(self) -> tuple[Any, ...]:
        return (self.low, self.high)

    def describe(self) -> str:
        return f"{self.low:g} to {self.high:g}" + (", evenly in the logarithm" if self.log else "")


@dataclass(frozen=True)
class Space:
    """Keys of the config, with the values to try for each. A point is drawn key by key, independently."""

    choices: tuple[Listed | Range, ...]

    @classmethod
    def of(cls, arguments: Sequence[str]) -> "Space":
        """Parse arguments `KEY=VALUE,VALUE...` and `KEY=LOW..HIGH`, with an optional `:log` at the end.

        Raises:
            InputError: an argument names no key that can be tuned, or nothing to choose from.
        """
        choices: list[Listed | Range] = []
        for argument in arguments:
            choice = _choice(argument)
            if choice.key in {other.key for other in choices}:
                raise InputError(f"{argument!r}: {choice.key} stands twice in the space")
            choices.append(choice)
        if not choices:
            raise InputError("--space: say what to try, for example train.learning_rate=1e-4..1e-2:log")
        return cls(tuple(choices))

    def draw(self, stream: Stream) -> Candidate:
        """Draw a point from the first values of the stream."""
        uniform: np.ndarray = stream.uniform(len(self.choices))
        return {choice.key: choice.at(float(u)) for choice, u in zip(self.choices, uniform, strict=True)}

    def corners(self) -> Iterator[Candidate]:
        """Yield points whose values are listed ones or ends of ranges: all, or the first of many."""
        points = product(*(choice.edges() for choice in self.choices))
        for values in islice(points, _CORNERS):
            yield {choice.key: value for choice, value in zip(self.choices, values, strict=True)}

    def describe(self) -> dict[str, str]:
        return {choice.key: choice.describe() for choice in self.choices}


def altered(config: Config, candidate: Candidate, where: str = "--space") -> Config:
    """Return the config with the values of a candidate, checked.

    Args:
        where: source of the values, for a message.

    Raises:
        InputError: a value is impossible, by itself or together with the others.
    """
    raw = config.model_dump(mode="json")
    for key, value in candidate.items():
        *sections, name = key.split(".")
        place = raw
        for section in sections:
            place = place[section]
        place[name] = value
    return check(raw, where)


def _choice(argument: str) -> Listed | Range:
    key, equals, text = (part.strip() for part in argument.partition("="))
    if not equals or not key:
        raise InputError(
            f"{argument!r}: a space is KEY=VALUE,VALUE... or KEY=LOW..HIGH, for example "
            "train.learning_rate=1e-4..1e-2:log"
        )
    if key not in keys():
        near = difflib.get_close_matches(key, keys(), 1, 0.5)
        raise InputError(f"{argument!r}: no such key" + (f", did you mean {near[0]}?" if near else ""))
    if key in _FIXED:
        raise InputError(f"{argument!r}: {key} cannot be tuned: {_FIXED[key]}")
    found = _RANGE.fullmatch(text)
    if found is not None:
        low, high = (parsed(found[end], argument) for end in ("low", "high"))
        return _range(argument, key, low, high, found["log"] is not None)
    values = parsed(f"[{text}]", argument)
    if len(values) < 2:
        a_range = f", or give a range, as {key}=LOW..HIGH" if is_number(key) else ""
        raise InputError(
            f"{argument!r}: {'one value' if values else 'nothing'} is no choice: list two or more, as "
            f"{key}=ONE,OTHER{a_range}"
        )
    return Listed(key, tuple(values))


def _range(argument: str, key: str, low: Any, high: Any, log: bool) -> Range:
    if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in (low, high)):
        raise InputError(f"{argument!r}: a range goes from one number to another")
    if not (low < high and math.isfinite(high - low)):
        raise InputError(
            f"{argument!r}: the first number of a range must be below the second, and both finite"
        )
    if log and low <= 0:
        raise InputError(f"{argument!r}: :log needs numbers above 0")
    return Range(key, low, high, log, is_whole(key))
