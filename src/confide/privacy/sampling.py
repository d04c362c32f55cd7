"""Which of n things a step draws. The accountant's assumption and the draw are chosen by one word.

`poisson`: each by itself with its own probability. `truncated`: a Poisson draw, thinned to a cap.
`shuffle`: fixed batches out of a random order, as the papers did; no amplification theorem used here
covers it, so a claim built on it is an estimate.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from confide.randomness.streams import RunKey


@dataclass(frozen=True)
class Draw:
    """One logical batch: rows, what is clipped together, and each row's weight within its group.

    Attributes:
        rows: token arrays, one a row.
        group: int64[rows], ascending from 0; rows of one group share a clip.
        weight: float32[rows], the row's weight in its group's gradient.
        labels: int64[rows] or None.
        noise_factor: what the noise multiplier is multiplied by in this step; 1 but for a mechanism that adapts it.
        who: int64[groups], the unit of each group, or its row where rows are drawn; None where nobody may ask.
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
        """The draw of some of its groups, bool[groups]."""
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
        reason: in words; known to whoever gets the model, so it may tell only what the mechanism releases.
    """

    reason: str


@dataclass(frozen=True)
class Sampling:
    """How a step draws from n things: `kind`, the probability of each, and the cap of a truncated draw.

    With `bands` above 1 the things are dealt into so many groups, whose turns come one after the other; a thing whose
    turn it is has `bands` times the probability.
    """

    kind: str
    rate: float
    cap: int | None = None
    bands: int = 1

    def draw(self, n: int, key: RunKey, phase: str, step: int) -> np.ndarray:
        """Indices drawn at `step` (counted from 0), ascending: int64[m], m may be 0."""
        if self.kind == "shuffle":
            return np.sort(self._shuffled(n, key, phase, step))
        drawn = np.flatnonzero(key.stream(phase, "draw", step).uniform(n) < self.rate * self.bands)
        if self.bands > 1:
            group = key.stream(phase, "groups").permutation(n) % self.bands
            drawn = drawn[group[drawn] == step % self.bands]
        if self.kind == "truncated" and self.cap is not None and len(drawn) > self.cap:
            order = key.stream(phase, "truncate", step).permutation(len(drawn))
            drawn = np.sort(drawn[order[: self.cap]])
        return drawn

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest probability of a thing, in any step."""
        return (self.rate, self.rate) if self.bands == 1 else (0.0, self.rate * self.bands)

    def record(self, fingerprint: Callable[[bytes], str]) -> dict[str, Any]:
        """What the ledger says of it."""
        return asdict(self)

    def _shuffled(self, n: int, key: RunKey, phase: str, step: int) -> np.ndarray:
        """The next batch of an endless row of random orders of all n."""
        size = max(1, round(self.rate * n))
        first, parts = step * size, []
        while size > 0:
            epoch, offset = divmod(first, n)
            part = key.stream(phase, "order", epoch).permutation(n)[offset : offset + size]
            parts.append(part)
            first, size = first + len(part), size - len(part)
        return np.unique(np.concatenate(parts))


@dataclass(frozen=True, eq=False)
class OwnRates:
    """Poisson sampling of n things, each with a probability of its own.

    Attributes:
        rates: float64[n], in (0, 1].
    """

    rates: np.ndarray
    kind: str = "poisson"

    def draw(self, n: int, key: RunKey, phase: str, step: int) -> np.ndarray:
        """As `Sampling.draw`."""
        if n != len(self.rates):
            raise ValueError(f"{n} things and {len(self.rates)} probabilities")
        return np.flatnonzero(key.stream(phase, "draw", step).uniform(n) < self.rates)

    @property
    def rate(self) -> float:
        """The mean probability."""
        return float(self.rates.mean())

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest probability of a thing."""
        return float(self.rates.min()), float(self.rates.max())

    def record(self, fingerprint: Callable[[bytes], str]) -> dict[str, Any]:
        """What the ledger says of it; the rates are named by a keyed hash."""
        low, high = self.range
        digest = fingerprint(np.ascontiguousarray(self.rates, "<f8").tobytes())
        return {"kind": self.kind, "least": low, "greatest": high, "rates": digest}
