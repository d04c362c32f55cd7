"""Public conditions: what a text is about, written in front of it, so that a model can be asked for more of the kind.

In front of the text stands a line for each field of `data.condition`, and an empty line:

    topic: billing
    channel: phone

Which conditions there are is a list that the user states (`data.conditions`). It is not computed from the records. How
often each is drawn the list says as well, unless the shares are counted with noise (`privacy.histograms`). A record
whose fields hold a combination that is not in the list gets no lines, so nobody is tempted to put into the list what
only private text holds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confide.data.readers.fields import lookup
from confide.utils.errors import InputError
from confide.utils.rounding import at_least

if TYPE_CHECKING:
    from confide.config.data_section import Data

FILE = "conditions.json"
"""In a release: the list, as it was stated, with the shares as they were stated or counted."""

SHARE = "share"

CLEAR = 2.0
"""A count below so many standard deviations of its noise cannot be told from 0."""
_MUCH = 0.1  # of what is drawn, by such counts


@dataclass(frozen=True)
class Counted:
    """How shares were counted in the private text.

    Attributes:
        unit: what is protected, in words; each adds 1 in all, shared among its documents.
        deviation: the standard deviation of the noise on each count.
        counts: with their noise, rounded; some may be below 0.
    """

    unit: str
    deviation: float
    counts: tuple[int, ...]

    @property
    def shares(self) -> tuple[float, ...]:
        """What counts above 0 say of the shares; all alike if none is above 0."""
        least = [max(count, 0) for count in self.counts]
        whole = sum(least)
        return tuple(count / whole if whole else 1 / len(least) for count in least)

    def doubt(self, what: str, names: Sequence[str]) -> str:
        """Say that much of what is drawn rests on counts that may be noise alone; "" if little does.

        It uses nothing but the counts with their noise, so it may be shown to anyone (post-processing).

        Args:
            what: is counted.
            names: of the counts.
        """
        least = CLEAR * self.deviation
        vague = [name for name, count in zip(names, self.counts, strict=True) if count < least]
        share = sum(part for part, count in zip(self.shares, self.counts, strict=True) if count < least)
        if share <= _MUCH:
            return ""
        never = [name for name, part in zip(names, self.shares, strict=True) if not part]
        return (
            f"{what}: the noise on each count has a standard deviation of {at_least(self.deviation, 3)}. {len(vague)} "
            f"of {len(names)} counts are below twice that, so they cannot be told from 0, and {share:.0%} of the "
            f"documents are drawn by them" + (f"; never drawn: {', '.join(never)}" if never else "")
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Counted:
        """Raise ValueError, LookupError or TypeError if it is not one."""
        return cls(
            str(found["unit"]), float(found["deviation"]), tuple(int(each) for each in found["counts"])
        )


@dataclass(frozen=True)
class Conditions:
    """The public list.

    Attributes:
        fields: that a condition has, in order.
        listed: the values of each condition, in the order of the fields.
        shares: of the documents that are drawn, float each; they add up to 1.
        counted: how they were counted; None if they were stated.
    """

    fields: tuple[str, ...]
    listed: tuple[tuple[str, ...], ...]
    shares: tuple[float, ...]
    counted: Counted | None = None

    @classmethod
    def of(cls, data: Data, counts: bool = False) -> Conditions | None:
        """Read the list of a config; None if it conditions on nothing.

        Args:
            counts: the shares will be counted, so the list states none.

        Raises:
            InputError: the list is not one, or states shares that will be counted.
        """
        if not data.condition:
            return None
        fields = tuple([data.condition] if isinstance(data.condition, str) else data.condition)
        if data.conditions is None:
            raise ValueError("a config that was checked has a list")
        where = data.conditions if isinstance(data.conditions, str) else "data.conditions"
        entries = _records(data.conditions) if isinstance(data.conditions, str) else data.conditions
        if counts and any(SHARE in entry for entry in entries if not isinstance(entry, str)):
            raise InputError(
                f"{where}: states a share, and privacy.histograms counts the shares: leave it out"
            )
        return cls.listing(fields, entries, where)

    @classmethod
    def listing(
        cls, fields: tuple[str, ...], entries: Iterable[Mapping[str, Any] | str], where: str
    ) -> Conditions:
        """Make the list of entries, each with the fields and, if they are not drawn alike, a `share`.

        Of one field, an entry may be the value alone.

        Raises:
            InputError: an entry lacks a field, has another, has no share above 0, or stands there twice.
        """
        found: dict[tuple[str, ...], float] = {}
        for number, given in enumerate(entries, 1):
            here = f"{where}: entry {number}"
            if isinstance(given, str) and len(fields) > 1:
                raise InputError(f"{here} is one value, and data.condition names {', '.join(fields)}")
            entry: Mapping[str, Any] = {fields[0]: given} if isinstance(given, str) else given
            missing = [name for name in fields if plain(entry.get(name)) == ""]
            unknown = [str(name) for name in entry if name not in (*fields, SHARE)]
            if missing or unknown:
                raise InputError(
                    f"{here} has no {missing[0]}"
                    if missing
                    else f"{here} has {unknown[0]}, and data.condition names {', '.join(fields)}"
                )
            values = tuple(plain(entry[name]) for name in fields)
            if values in found:
                raise InputError(f"{here} stands there twice: add up the shares")
            found[values] = _share(entry.get(SHARE, 1), here)
        if not found:
            raise InputError(f"{where}: lists no condition")
        whole = sum(found.values())
        return cls(fields, tuple(found), tuple(share / whole for share in found.values()))

    @classmethod
    def load(cls, release: Path) -> Conditions | None:
        """Read the list of a release; None if it has none.

        Raises:
            InputError: the file is damaged.
        """
        path = release / FILE
        if not path.is_file():
            return None
        try:
            found = json.loads(path.read_text("utf-8"))
            fields, entries = tuple(found["fields"]), found["conditions"]
            if "counted" not in found:
                return cls.listing(fields, entries, str(path))
            plain_entries = [{name: entry[name] for name in fields} for entry in entries]
            counted = cls.listing(fields, plain_entries, str(path)).with_counts(
                Counted.from_json(found["counted"])
            )
            check_shares(path, [entry[SHARE] for entry in entries], counted.shares)
            return counted
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            raise InputError(
                f"{path} is damaged: copy the release again, or remove it and let `confide train` "
                "release again"
            ) from None

    def to_json(self) -> dict[str, Any]:
        entries = [
            self.named(values) | {SHARE: share}
            for values, share in zip(self.listed, self.shares, strict=True)
        ]
        counted = {} if self.counted is None else {"counted": self.counted.to_json()}
        return {"fields": list(self.fields), "conditions": entries} | counted

    @property
    def names(self) -> tuple[str, ...]:
        """What each condition is called: its values."""
        return tuple(", ".join(values) for values in self.listed)

    def doubt(self) -> str:
        """Say that the shares rest on noise, if they were counted and do."""
        return "" if self.counted is None else self.counted.doubt("kinds of documents", self.names)

    def with_counts(self, counted: Counted) -> Conditions:
        """Return the list with shares that were counted.

        Raises:
            ValueError: there is not one count for each condition.
        """
        if len(counted.counts) != len(self.listed):
            raise ValueError("there is not one count for each condition")
        return replace(self, shares=counted.shares, counted=counted)

    def named(self, values: Sequence[str]) -> dict[str, Any]:
        """Return the values by their fields."""
        return dict(zip(self.fields, values, strict=True))

    def prefix(self, values: Sequence[str]) -> str:
        """Write a condition as it stands in front of a text."""
        return "".join(f"{name}: {value}\n" for name, value in zip(self.fields, values, strict=True)) + "\n"

    def prefix_of(self, fields: Mapping[str, Any], where: str) -> str:
        """Write the condition of a record; "" if it is not in the list.

        Raises:
            InputError: the record lacks a field.
        """
        number = self.number_of(fields, where)
        return self.prefix(self.listed[number - 1]) if number else ""

    def number_of(self, fields: Mapping[str, Any], where: str) -> int:
        """Return the place of a record's condition in the list, counted from 1; 0 if it is not there.

        Raises:
            InputError: the record lacks a field.
        """
        values = tuple(plain(lookup(fields, name, where, "data.condition")) for name in self.fields)
        return self._known.get(values, 0)

    @cached_property
    def _known(self) -> dict[tuple[str, ...], int]:
        return {values: number for number, values in enumerate(self.listed, 1)}


def check_shares(path: Path, stated: Sequence[float], counted: Sequence[float]) -> None:
    """Check that the shares of a file are those of its counts.

    Raises:
        InputError: somebody changed a share, which would change nothing that is drawn.
    """
    if any(abs(float(one) - other) > 1e-6 for one, other in zip(stated, counted, strict=True)):
        raise InputError(
            f"{path}: its shares are not those of its counts, which were released. Draw other shares by --prompts, "
            "with a line for each document's beginning"
        )


def plain(value: object) -> str:
    """Write a field's value as one line: blanks at its ends and line ends within it do not tell values apart."""
    return "" if value is None else " ".join(str(value).split())


def _share(value: object, here: str) -> float:
    try:
        share = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        share = math.nan
    if not 0 < share < math.inf:
        raise InputError(f"{here}: share must be a number above 0, such as 0.3 or a count")
    return share


def _records(source: str) -> list[Mapping[str, Any]]:
    from confide.data.readers.readers import records

    try:
        return [record.fields for record in records(source)]
    except InputError as error:
        raise InputError(f"data.conditions: {error}") from None
