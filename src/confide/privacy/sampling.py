"""Sampling: which of n items a step draws. One word chooses both the draw and the accountant's assumption.

`poisson`: each item independently with its own probability. `truncated`: a Poisson draw, made anew while it holds more
than a cap.
`bins`: each item in exactly one step of every epoch, which it draws uniformly and independently of the others; anew in
every epoch, unless noise is correlated over steps.
`shuffle`: fixed batches out of a random order, as the papers did. No amplification theorem used here covers it, so a
claim built on it is an estimate.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy import special

from confide.privacy.correlated_noise import correlation_of
from confide.randomness.streams import RunKey


def bins_of(rate: float) -> int:
    """Return the number of steps of an epoch in which each item takes part once, for about this rate a step."""
    return round(1 / rate)


def groups_of(kind: str, bands: int) -> int:
    """Return into how many groups items are dealt whose turns come one after the other; 1 if there are none.

    With noise that is correlated over `bands` steps there are as many groups, except in bins, which are then kept.
    """
    return 1 if kind == "bins" else bands


@dataclass(frozen=True)
class Draw:
    """One logical batch: rows, the groups that are clipped together, and each row's weight within its group.

    Attributes:
        rows: token arrays, one a row.
        group: int64[rows], ascending from 0; rows of one group share a clip.
        weight: float32[rows], the row's weight in its group's gradient.
        labels: int64[rows] or None.
        noise_factor: factor on the noise multiplier in this step; 1 except for a mechanism that adapts it.
        unit_ids: int64[groups], the unit of each group, or its row where rows are drawn; None where nobody may ask.
    """

    rows: list[np.ndarray]
    group: np.ndarray
    weight: np.ndarray
    labels: np.ndarray | None = None
    noise_factor: float = 1.0
    unit_ids: np.ndarray | None = None

    @property
    def groups(self) -> int:
        return int(self.group[-1]) + 1 if len(self.group) else 0

    def only(self, wanted: np.ndarray) -> "Draw":
        """Return the draw of some of its groups.

        Args:
            wanted: bool[groups].
        """
        places = np.flatnonzero(wanted[self.group])
        return replace(
            self,
            rows=[self.rows[i] for i in places],
            group=(np.cumsum(wanted) - 1)[self.group[places]],
            weight=self.weight[places],
            labels=None if self.labels is None else self.labels[places],
            unit_ids=None if self.unit_ids is None else self.unit_ids[wanted],
        )


@dataclass(frozen=True)
class StopTraining:
    """No further step is taken: the run ends here, with the model as it is.

    Attributes:
        reason: in words; whoever gets the model learns it, so it may reveal only what the mechanism releases.
    """

    reason: str


@dataclass(frozen=True)
class Sampling:
    """A rule for drawing from n items: `kind`, the probability of each, and the cap of a truncated draw.

    With `bands` above 1 the items of a Poisson draw are dealt into so many groups, whose turns come one after the
    other. An item whose turn it is has `bands` times the probability. In bins, `bands` above 1 or `buffers` above 0
    means that each item keeps its bin.
    """

    kind: str
    rate: float
    cap: int | None = None
    bands: int = 1
    buffers: int = 0

    def draw(self, n: int, key: RunKey, phase: str, step: int) -> np.ndarray:
        """Draw the indices of `step` (counted from 0), ascending: int64[m]; m may be 0."""
        if self.kind == "bins":
            epoch, place = divmod(step, self.bins)
            epoch = 0 if self.keeps_bins else epoch
            return key.stream(phase, "bins", epoch).chosen((place + 1) / self.bins, n, place / self.bins)
        if self.kind == "shuffle":
            return np.sort(self._shuffled(n, key, phase, step))
        drawn = key.stream(phase, "draw", step).chosen(self.rate * self.groups, n)
        if self.groups > 1:
            group = key.order(phase, "groups", n)[drawn] % self.groups
            drawn = drawn[group == step % self.groups]
        if self.kind == "truncated" and self.cap is not None:
            if self.cap < math.floor(self.rate * n):
                raise ValueError(
                    f"most draws of {n} would be above the cap of {self.cap}: to draw anew would take long"
                )
            again = itertools.count(1)
            while len(drawn) > self.cap:
                drawn = key.stream(phase, "draw anew", step, str(next(again))).chosen(self.rate, n)
        return drawn

    def mean_rate(self, n: int) -> float:
        """Return the probability of each of n items, as a mean over steps; below `rate` if some are drawn anew."""
        if self.kind != "truncated" or self.cap is None:
            return self.rate
        room = special.bdtr(self.cap - 1, n - 1, self.rate) / special.bdtr(min(self.cap, n), n, self.rate)
        return self.rate * float(room)

    @property
    def bins(self) -> int:
        """The number of steps of an epoch."""
        return bins_of(self.rate)

    @property
    def keeps_bins(self) -> bool:
        """True if each item takes part in the same step of every epoch."""
        return self.kind == "bins" and not correlation_of(self.bands, self.buffers).is_independent

    @property
    def groups(self) -> int:
        """The number of groups that have their turns one after the other; 1 if there are none."""
        return groups_of(self.kind, self.bands)

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest probability of an item, in any step."""
        return (0.0, self.rate * self.groups) if self.groups > 1 else (self.rate, self.rate)

    def record(self, fingerprint: Callable[[bytes], str]) -> dict[str, Any]:
        """Return the ledger's description of this sampling."""
        found = asdict(self)
        if not self.buffers:
            del found["buffers"]
        # Earlier versions kept a random part of a draw above the cap. Their runs cannot go on under this accounting.
        return found | ({"above_cap": "drawn anew"} if self.kind == "truncated" else {})

    def _shuffled(self, n: int, key: RunKey, phase: str, step: int) -> np.ndarray:
        """Return the next batch of an endless sequence of random orders of all n."""
        size = max(1, round(self.rate * n))
        first, parts = step * size, []
        while size > 0:
            epoch, offset = divmod(first, n)
            part = key.order(phase, "order", n, epoch)[offset : offset + size].astype(np.int64)
            parts.append(part)
            first, size = first + len(part), size - len(part)
        return np.unique(np.concatenate(parts))


@dataclass(frozen=True, eq=False)
class OwnRates:
    """Poisson sampling of n items, each with its own probability.

    Attributes:
        rates: float64[n], in (0, 1].
    """

    rates: np.ndarray
    kind: str = "poisson"

    def draw(self, n: int, key: RunKey, phase: str, step: int) -> np.ndarray:
        """Draw as `Sampling.draw` does."""
        if n != len(self.rates):
            raise ValueError(f"{n} things and {len(self.rates)} probabilities")
        return key.stream(phase, "draw", step).chosen(self.rates, n)

    @property
    def rate(self) -> float:
        """The mean probability."""
        return float(self.rates.mean())

    def mean_rate(self, n: int) -> float:
        """Return the mean probability, as `Sampling.mean_rate` does."""
        return self.rate

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest probability of an item."""
        return float(self.rates.min()), float(self.rates.max())

    def record(self, fingerprint: Callable[[bytes], str]) -> dict[str, Any]:
        """Return the ledger's description of this sampling; a keyed hash names the rates."""
        low, high = self.range
        digest = fingerprint(np.ascontiguousarray(self.rates, "<f8").tobytes())
        return {"kind": self.kind, "least": low, "greatest": high, "rates": digest}
