"""Exposure: how high a secret ranks among all values that it might have had (Carlini et al. 2019, "The Secret Sharer").

exposure = log2 |R| - log2 rank, where the rank is by the log-probability that the model gives to the whole text, 1 for
the most probable of the candidates R (Wu et al. 2022, equation 7). Its maximum is log2 |R|: 19.93 for six digits.

The rank counts every other candidate whose log-probability is *at least* the secret's, so ties count against it: no
exposure is overstated by them, and a model that tells no candidate from another gives exposure 0.

*Formal guarantee* of the p-values: if the secret was drawn uniformly from R and the model does not depend on it, then
P(p <= t) <= t for every t, whatever the model prefers. Reason: all candidates are scored alike, so the secret is at
each place with the same probability, and ties only raise p. A secret that a person chose is not covered.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import special, stats

from confide.auditing.candidates import Candidates
from confide.auditing.likelihood import totals
from confide.auditing.skewnormal import SkewNormal
from confide.auditing.trie import Trie, search
from confide.utils.errors import CheckFailed, InputError

CONFIDENCE = 0.95
RESAMPLES = 1000  # of a bootstrap interval
CHECKED = 8  # candidates, besides the secrets, that are also read without a cache

Progress = Callable[[int], None]
Method = Literal["exact", "bounded", "sampled", "extrapolated"]


@dataclass(frozen=True)
class Exposure:
    """The exposure of one secret.

    Attributes:
        exposure: in bits, 0 to log2 |R|. With method `bounded`: an upper bound that certainly holds.
        rank: the secret's rank. With method `exact`: the true rank; `bounded`: a lower bound of it; else an estimate.
        candidates: |R|.
        method: how the rank was found; `sampled` and `extrapolated` are estimates.
        positions: tokens given to the model, for all secrets that were ranked together.
        plain_positions: tokens of all candidates' texts, the cost of reading each text by itself.
        interval: an interval that holds the exposure, in bits: with probability `confidence` for an estimate,
            certainly for `bounded`; None for `exact`.
        p_value: of the secret's place if the model did not depend on it; None where there is no valid one.
        fit: `extrapolated`: p-value of the hypothesis that losses follow the fitted distribution. Where it is small,
            they do not, and nothing but the candidates that were drawn speaks for the exposure.
    """

    exposure: float
    rank: float
    candidates: int
    method: Method
    positions: int
    plain_positions: int
    interval: tuple[float, float] | None = None
    confidence: float | None = None
    p_value: float | None = None
    fit: float | None = None

    @property
    def is_estimate(self) -> bool:
        return self.method in ("sampled", "extrapolated")

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"estimate": self.is_estimate}


def most(candidates: int) -> float:
    """Return the greatest possible exposure, in bits."""
    return math.log2(candidates)


def null_mean(candidates: int) -> float:
    """Compute the mean exposure of a secret that the model does not depend on, in bits.

    It is log2 n - log2(n!) / n, below 1.4427.
    """
    return math.log2(candidates) - math.lgamma(candidates + 1) / candidates / math.log(2)


# exact ---------------------------------------------------------------------------------------------------------
def exact(
    model: Any,
    trie: Trie,
    secrets: Sequence[int] | np.ndarray,
    least: float = 0.0,
    progress: Progress | None = None,
) -> tuple[Exposure, ...]:
    """Compute the exposure of secrets under one template, by their ranks among all candidates.

    All ranks come from one search of the trie, which drops what is below every secret. Without text after the secret
    it takes no more than the nodes of all digits but the last, a ninth of |R|. With such text a pass over each
    candidate that is above the secret comes on top, one for each of the text's tokens: nothing else tells that it stays
    above. An exact rank of r then takes at least r passes, which is much only for secrets that are not exposed.

    Args:
        trie: the trie of all candidates.
        secrets: their numbers, as `Candidates.numbers` returns them.
        least: bits; the search stops for a secret whose exposure is certainly no more than this, which saves most of
            those passes. The result is then `bounded`, and its p-value 1. With 0 all ranks are exact.
        progress: called with how many candidates were dealt with since the last call.

    Raises:
        InputError: a row is longer than the model can read.
        Diverged: a log-probability is not a number.
        CheckFailed: passes with a cache and without one disagree, so the model's ranks cannot be trusted.
    """
    numbers = np.asarray(secrets, dtype=np.int64)
    plain, slack = totals(model, trie.rows(numbers)), _slack(model)
    bar = _Bar(plain, slack, len(trie) / 2**least if least > 0 else math.inf)
    found = search(model, trie, float(plain.min()) - slack, bar.settle, progress)
    closed = bar.above >= bar.enough
    others = np.flatnonzero(np.isfinite(found.totals))
    others = others[np.linspace(0, len(others) - 1, min(CHECKED, len(others))).astype(np.int64)]
    _check(found.totals[numbers[~closed]], plain[~closed], slack)
    _check(found.totals[others], totals(model, trie.rows(others)), slack)
    positions = found.positions + sum(len(row) - 1 for row in trie.rows(np.concatenate([numbers, others])))
    below = np.searchsorted(np.sort(found.totals), found.totals[numbers], side="left")
    ranks = np.where(closed, bar.above + 1, len(trie) - below)
    return tuple(
        _ranked(trie, *pair, positions) for pair in zip(ranks.tolist(), closed.tolist(), strict=True)
    )


def exceeds(model: Any, rows: list[np.ndarray], others: Trie) -> bool:
    """Tell whether the likeliest of some texts is more likely than all others, by more than rounding can explain.

    The search looks only at texts that are not below it, and ends at the first of the others that is not.

    Raises:
        InputError, Diverged: as `exact`.
    """
    floor = float(totals(model, rows).max()) - _slack(model)
    found = search(model, others, floor, lambda some: math.inf if (some >= floor).any() else floor)
    return not bool((found.totals >= floor).any())


def _ranked(trie: Trie, rank: int, closed: bool, positions: int) -> Exposure:
    bits = most(len(trie)) - math.log2(rank)
    return Exposure(
        exposure=bits,
        rank=rank,
        candidates=len(trie),
        method="bounded" if closed else "exact",
        positions=positions,
        plain_positions=trie.plain_positions,
        interval=(0.0, bits) if closed else None,
        p_value=1.0 if closed else rank / len(trie),
    )


def _check(cached: np.ndarray, plain: np.ndarray, slack: float) -> None:
    off = np.abs(cached - plain)
    if (off > slack).any():
        raise CheckFailed(
            f"exposure: with a cache a text's log-probability is off by {off.max():.3g} from what it is without one; "
            "the model's cache cannot be trusted"
        )


def _slack(model: Any) -> float:
    """Return the tolerated difference of a text's log-probability between ways to read it, in nats.

    It is far more than the differences that occur.
    """
    dtypes = {parameter.dtype for parameter in model.parameters()}
    return 0.01 if dtypes <= {torch.float32, torch.float64} else 0.5


class _Bar:
    """The floor of a search: below every secret whose rank is still wanted."""

    def __init__(self, plain: np.ndarray, slack: float, enough: float) -> None:
        self._sure, self._floors, self.enough = plain + slack, plain - slack, enough
        self.above = np.zeros(len(plain), dtype=np.int64)  # candidates that certainly are above each secret

    def settle(self, found: np.ndarray) -> float:
        if math.isinf(self.enough):
            return float(self._floors.min())
        self.above += len(found) - np.searchsorted(np.sort(found), self._sure)
        wanted = self.above < self.enough
        return float(self._floors[wanted].min()) if wanted.any() else math.inf


# estimates -----------------------------------------------------------------------------------------------------
def sampled(
    model: Any,
    tokenizer: Any,
    candidates: Candidates,
    secrets: Sequence[int] | np.ndarray,
    count: int,
    generator: np.random.Generator,
    confidence: float = CONFIDENCE,
    progress: Progress | None = None,
) -> tuple[Exposure, ...]:
    """Estimate exposure from `count` random other candidates for each secret, drawn without replacement.

    The rank's interval is Clopper and Pearson's, of a population of |R| - 1 (the hypergeometric distribution in place
    of the binomial one). p = (1 + drawn ones that are not below the secret) / (count + 1), and the exposure is -log2 p:
    no more than log2(count + 1), however few candidates are above the secret. Each secret has a draw of its own, so
    that p-values of several are independent.

    Raises:
        InputError: there are fewer than `count` other candidates; or as `exact`.
    """
    drawn, own, found = _scores(model, tokenizer, candidates, secrets, count, generator, progress)
    results = []
    for mine, others in zip(own, drawn, strict=True):
        above = int((others >= mine).sum())
        low, high = share_interval(above, count, candidates.size - 1, confidence)
        p = (1 + above) / (count + 1)
        bits = tuple(math.log2(candidates.size / (1 + many)) for many in (high, low))
        results.append(
            Exposure(
                exposure=-math.log2(p),
                rank=candidates.size * p,
                candidates=candidates.size,
                method="sampled",
                positions=found.positions,
                plain_positions=found.plain,
                interval=(bits[0], bits[1]),
                confidence=confidence,
                p_value=p,
            )
        )
    return tuple(results)


@lru_cache(maxsize=1 << 12)
def share_interval(hits: int, drawn: int, population: int, confidence: float = CONFIDENCE) -> tuple[int, int]:
    """Compute an interval for how many of a population have a property that `hits` of `drawn` had.

    The sample was drawn without replacement.

    *Formal guarantee*: the true number lies within the interval with at least this probability (Clopper and Pearson's
    argument: a number is left out if it makes what was seen, or more extreme outcomes, less probable than half of the
    error).
    """
    tail = (1 - confidence) / 2

    def first(holds: Callable[[int], bool], low: int, high: int) -> int:
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle) else (middle + 1, high)
        return low

    least, greatest = hits, population - (drawn - hits)
    low = first(lambda m: stats.hypergeom.sf(hits - 1, population, m, drawn) > tail, least, greatest)
    beyond = first(
        lambda m: m > greatest or stats.hypergeom.cdf(hits, population, m, drawn) <= tail, least, greatest + 1
    )
    return low, max(beyond - 1, low)


def extrapolated(
    model: Any,
    tokenizer: Any,
    candidates: Candidates,
    secrets: Sequence[int] | np.ndarray,
    count: int,
    generator: np.random.Generator,
    confidence: float = CONFIDENCE,
    progress: Progress | None = None,
) -> tuple[Exposure, ...]:
    """Estimate exposure by a skew-normal distribution fitted to losses (Carlini et al. 2019, section 4.3).

    exposure = -log2 of the share of that distribution below the secret's loss, at most log2 |R|. The interval is a
    percentile bootstrap over the candidates that were drawn; it does not allow for a distribution of another shape,
    which `fit` tests (Kolmogorov and Smirnov's distance, against its distribution when the parameters are fitted).
    There is no p-value: nothing proves that the tail follows the fit.

    Raises:
        InputError: fewer than 100 candidates are to be drawn, fewer exist, or all have the same loss; or as `exact`.
    """
    if count < 100:
        raise InputError(f"count: a distribution is fitted to at least 100 candidates, not {count}")
    drawn, own, found = _scores(model, tokenizer, candidates, secrets, count, generator, progress)
    results = []
    for mine, others in zip(own, drawn, strict=True):
        losses, size = -others, candidates.size
        fitted = SkewNormal.fit(losses)
        again = [SkewNormal.fit(generator.choice(losses, count)) for _ in range(RESAMPLES)]
        shares = np.array([each.below(-mine) for each in [fitted, *again]], dtype=np.float64)
        bits = -np.log2(np.clip(shares, 1 / size, 1))
        tails = [(1 - confidence) / 2, (1 + confidence) / 2]
        low, high = np.quantile(bits[1:], tails).tolist()
        results.append(
            Exposure(
                exposure=float(bits[0]),
                rank=float(size / 2 ** bits[0]),
                candidates=size,
                method="extrapolated",
                positions=found.positions,
                plain_positions=found.plain,
                interval=(low, high),
                confidence=confidence,
                fit=fitted.goodness(losses, generator),
            )
        )
    return tuple(results)


@dataclass(frozen=True)
class _Passes:
    positions: int
    plain: int


def _scores(
    model: Any,
    tokenizer: Any,
    candidates: Candidates,
    secrets: Sequence[int] | np.ndarray,
    count: int,
    generator: np.random.Generator,
    progress: Progress | None,
) -> tuple[np.ndarray, np.ndarray, _Passes]:
    """Compute log-probabilities of the others drawn for each secret, (K, count), and of the secrets, (K,).

    All come from one search, whose count of passes is returned third.
    """
    if not 0 < count < candidates.size:
        raise InputError(f"count: {count} others cannot be drawn from {candidates.size} candidates")
    numbers = np.asarray(secrets, dtype=np.int64)
    others = np.stack([generator.choice(candidates.size - 1, count, replace=False) for _ in numbers])
    others += others >= numbers[:, None]
    which, places = np.unique(np.concatenate([others.ravel(), numbers]), return_inverse=True)
    trie = Trie.of(candidates, tokenizer, which)
    found = search(model, trie, progress=progress)
    values = found.totals[places]
    split = others.size
    passes = _Passes(found.positions, trie.plain_positions)
    return values[:split].reshape(others.shape), values[split:], passes


# several secrets -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Combined:
    """The joint evidence of several secrets' exposures.

    Attributes:
        p_value: of "the model depends on none of them", by Fisher's method; None if a secret has no p-value
            (`extrapolated`).
        mean: mean of the exposures, in bits.
        null_mean: the mean for a model that depends on none of them.
        count: number of secrets.
    """

    p_value: float | None
    mean: float
    null_mean: float
    count: int


def fisher(p_values: ArrayLike) -> float:
    """Combine p-values into one: that of -2 sum ln p under chi^2 with two degrees of freedom each (Fisher 1925).

    *Formal guarantee*: P(p <= t) <= t if the p-values are independent and each has P(p <= t) <= t. Ranks among |R|
    are discrete, which makes -2 ln p stochastically smaller than chi^2, so the test errs to the safe side.
    """
    values = np.asarray(p_values, dtype=np.float64)
    return float(special.chdtrc(2 * values.size, -2 * np.log(values).sum()))


def combined(exposures: Sequence[Exposure]) -> Combined:
    """Combine the exposures of secrets that were drawn independently; the p-value is `fisher` of theirs.

    Different secrets of one template are drawn without replacement, and their ranks differ. This makes the sum in
    Fisher's method vary less, by a negligible amount in a space as large as that of canaries.

    Raises:
        InputError: there is no exposure.
    """
    if not exposures:
        raise InputError("exposures: there is none to combine")
    values = [exposure.p_value for exposure in exposures if exposure.p_value is not None]
    together = fisher(values) if len(values) == len(exposures) else None
    means = [null_mean(exposure.candidates) for exposure in exposures]
    mean = float(np.mean([exposure.exposure for exposure in exposures]))
    return Combined(together, mean, float(np.mean(means)), len(exposures))
