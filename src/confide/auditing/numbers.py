"""The game of numbers: one guess that the number which a model finds most likely is one of some canaries' numbers.

The guessed canaries follow from the config and the canaries' order, whether or not a coin planted them: nothing is
chosen after training. For a canary that holds one of two numbers, the guess is about the number that stands there.
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
"""The most canaries that the one guess is about: more canaries are hit more often, and a hit shows less."""

UNSURE = 0.001
"""The most probability that a sample overstates the number of choices; taken from alpha before it is shared out."""


def guessed_of(manifest: Manifest, players: np.ndarray) -> list[int]:
    """Return the canaries whose numbers are guessed: the first players of those with the most insertions."""
    playing = players.tolist()
    most = max(manifest.canaries[number].insertions for number in playing)
    return [number for number in playing if manifest.canaries[number].insertions == most][:GUESSED]


@dataclass(frozen=True, eq=False)
class Numbers:
    """The guessed canaries' numbers, and the numbers that no canary has.

    Attributes:
        rows: token rows of the guessed numbers' texts, as they are planted: int64 each.
        others: the texts of all numbers that no canary holds.
        size: how many numbers there are in all.
        alike: in the game of values: for each guessed number, how many of `SAMPLED` random ones would change nothing
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
        """Choose, among the canaries that play, the first of those with the most insertions.

        Args:
            alike: the same count as the attribute, for all canaries.
        """
        guessed = guessed_of(manifest, players)
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
        """Lower bounds of how many values each number might have had, for one who knows all else: int64[n].

        This observer knows all other canaries and everything public. In the game of presence the bound is how many
        numbers have as many tokens. In the game of values all bounds are right except with probability `UNSURE`.
        """
        if self.alike is not None:
            held = self.size - len(self.others)
            shares = [rate_from_below(count, SAMPLED, UNSURE / len(self.rows)) for count in self.alike]
            # the numbers that other canaries hold may all be among these
            return np.array([max(1, int(share * self.size) - held) for share in shares])
        lengths = self.others.lengths
        return np.array([1 + int((lengths == len(row)).sum()) for row in self.rows])

    def lead(self, model: Any) -> bool:
        """Tell whether one of the guessed numbers is more likely than every number that no canary holds."""
        return exceeds(model, self.rows, self.others)
