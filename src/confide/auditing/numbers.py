"""The game of numbers: one guess that the number which a model finds most likely is one of some canaries'.

Who is guessed follows from the config and the canaries' order, whether or not a coin planted them: nothing is chosen
after training. Of a canary that holds one of two numbers it is the one that stands there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from confide.auditing.bounds import rate_from_below
from confide.auditing.candidates import END, Candidates
from confide.auditing.exposure import exceeds
from confide.auditing.trie import Trie
from confide.runs.canaries import SAMPLED, Manifest

GUESSED = 8
"""Canaries that the one guess is about, at most: more are hit more often, and show less."""

UNSURE = 0.001
"""Probability that a sample promises more choices than there are, at most: taken from alpha before it is shared out."""


@dataclass(frozen=True, eq=False)
class Numbers:
    """The numbers of some canaries, and those that no canary has.

    Attributes:
        rows: of the guessed numbers' texts, as they are planted: int64 each.
        others: the texts of all numbers that no canary holds.
        size: how many numbers there are in all.
        alike: of the game of values: of each guessed number, how many of `SAMPLED` random ones would change nothing
            that is public.
    """

    rows: list[np.ndarray]
    others: Trie
    size: int
    alike: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        players: np.ndarray,
        digits: int,
        tokenizer: Any,
        alike: Sequence[int] | None = None,
    ) -> "Numbers":
        """Of the canaries that play, the first of those with the most insertions.

        Args:
            alike: of all canaries, of the game of values.
        """
        playing = players.tolist()
        most = max(manifest.canaries[number].insertions for number in playing)
        guessed = [number for number in playing if manifest.canaries[number].insertions == most][:GUESSED]
        candidates = Candidates.digits(manifest.template, digits)
        free = np.ones(candidates.size, dtype=bool)
        free[candidates.numbers([one for canary in manifest.canaries for one in canary.secrets])] = False
        standing = [
            canary.secrets[0 if alike is None else canary.coin]
            for canary in (manifest.canaries[number] for number in guessed)
        ]
        numbers = candidates.numbers(standing)
        rows = [row[row != END].astype(np.int64) for row in candidates.tokens(tokenizer, numbers)]
        kept = None if alike is None else tuple(alike[number] for number in guessed)
        return cls(rows, Trie.of(candidates, tokenizer, np.flatnonzero(free)), candidates.size, kept)

    @cached_property
    def choices(self) -> np.ndarray:
        """int64[n]: how many numbers each might be at least, for one who knows all other canaries and what is public.

        Of the game of presence that is how many tokens a number has. Else all are right but with probability `UNSURE`.
        """
        if self.alike is not None:
            held = self.size - len(self.others)
            shares = [rate_from_below(count, SAMPLED, UNSURE / len(self.rows)) for count in self.alike]
            # those that other canaries hold may all be among them
            return np.array([max(1, int(share * self.size) - held) for share in shares])
        lengths = self.others.lengths
        return np.array([1 + int((lengths == len(row)).sum()) for row in self.rows])

    def lead(self, model: Any) -> bool:
        """Whether one of the guessed numbers is more likely than every number that no canary holds."""
        return exceeds(model, self.rows, self.others)
