"""How long documents are: a histogram with fixed, public bounds, so that `confide synthesize` can draw lengths."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confide.data.conditions import Counted, check_shares
from confide.utils.errors import InputError

FILE = "lengths.json"
"""In a release: the histogram, if it was counted."""

BOUNDS = tuple(2**power for power in range(4, 13))
"""The most tokens of the documents of each cell: 16, 32, ... 4,096. The last cell holds longer ones, too."""


@dataclass(frozen=True)
class Lengths:
    """The histogram of a release.

    Attributes:
        bounds: tokens, the condition and the token that ends a document among them; one for each cell, rising.
        counted: how often documents fall into each.
    """

    bounds: tuple[int, ...]
    counted: Counted

    @property
    def shares(self) -> tuple[float, ...]:
        return self.counted.shares

    def doubt(self) -> str:
        """Say that the lengths rest on noise, if they do."""
        return self.counted.doubt(
            "lengths of documents", [f"up to {bound:,} tokens" for bound in self.bounds]
        )

    @classmethod
    def load(cls, release: Path) -> Lengths | None:
        """Read the histogram of a release; None if it has none.

        Raises:
            InputError: the file is damaged.
        """
        path = release / FILE
        if not path.is_file():
            return None
        try:
            found = json.loads(path.read_text("utf-8"))
            lengths = cls(tuple(int(each) for each in found["bounds"]), Counted.from_json(found["counted"]))
            check_shares(path, found["shares"], lengths.shares)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            raise InputError(f"{path} is damaged: copy the release again, or give --max-new-tokens") from None
        if len(lengths.bounds) != len(lengths.counted.counts) or min(lengths.bounds, default=0) < 1:
            raise InputError(f"{path} is damaged: copy the release again, or give --max-new-tokens")
        return lengths

    def to_json(self) -> dict[str, Any]:
        return {"bounds": list(self.bounds), "shares": list(self.shares), "counted": self.counted.to_json()}
