"""The game of numbers: one guess that the number which a model finds most likely was planted.

Who is guessed follows from the config and the canaries' order, whether or not a coin planted them: nothing is chosen
after training.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from confide.audit.canaries import Manifest
from confide.audit.candidates import END, Candidates
from confide.audit.exposure import exceeds
from confide.audit.trie import Trie

GUESSED = 8
"""Canaries that the one guess is about, at most: more are hit more often, and show less."""

MOST_DIGITS = 7  # of which all numbers are ranked


@dataclass(frozen=True, eq=False)
class Numbers:
    """The numbers of some canaries, and those that no canary has.

    Attributes:
        rows: of the guessed numbers' texts, as they are planted: int64 each.
        others: the texts of all numbers that no canary holds.
    """

    rows: list[np.ndarray]
    others: Trie

    @classmethod
    def of(cls, manifest: Manifest, players: np.ndarray, digits: int, tokenizer: Any) -> "Numbers":
        """Of the canaries that play, the first of those with the most insertions."""
        playing = [manifest.canaries[number] for number in players.tolist()]
        most = max(canary.insertions for canary in playing)
        guessed = [canary for canary in playing if canary.insertions == most][:GUESSED]
        candidates = Candidates.digits(manifest.template, digits)
        free = np.ones(candidates.size, dtype=bool)
        free[candidates.numbers([one for canary in manifest.canaries for one in canary.secrets])] = False
        numbers = candidates.numbers([canary.secrets[0] for canary in guessed])
        rows = [row[row != END].astype(np.int64) for row in candidates.tokens(tokenizer, numbers)]
        return cls(rows, Trie.of(candidates, tokenizer, np.flatnonzero(free)))

    @cached_property
    def choices(self) -> np.ndarray:
        """int64[n]: how many numbers each might be, for one who knows all other canaries and how many tokens it has."""
        lengths = self.others.lengths
        return np.array([1 + int((lengths == len(row)).sum()) for row in self.rows])

    def lead(self, model: Any) -> bool:
        """Whether one of the guessed numbers is more likely than every number that no canary holds."""
        return exceeds(model, self.rows, self.others)
