"""Extraction: does a model, given the first n tokens of a training row, give back the next m word for word?

*Greedy* (Ganesh et al. 2025, definition 5.1 and section 5.2): the most probable token at each step is the row's.
*Discoverable* (Hayes et al. 2024, "Measuring memorization in language models via probabilistic extraction"): at least
one of `samples` sampled continuations is the row's, with probability 1 - (1 - p)^samples, where p is the
continuation's probability under the sampling scheme.

Nothing is generated for either. A greedy continuation equals m tokens exactly if each of them is the most probable
after the row's own tokens before it, and p is the product of the tokens' probabilities there. One pass over the row
yields both.

A model need not have learnt from the rows a text that it gives back: the base model knows some texts, too. So every
figure is shown for both models, with the difference.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from scipy import special, stats

from confide.auditing.likelihood import check_numbers, chosen, following, reading, refuse_long, together
from confide.data.loss_mask import ids_of
from confide.data.unit_graph import UnitGraph
from confide.utils.errors import InputError

CONFIDENCE = 0.95


# which rows ----------------------------------------------------------------------------------------------------
def draw_rows(
    graph: UnitGraph, length: int, count: int, generator: np.random.Generator, per_unit: int | None = 1
) -> np.ndarray:
    """Draw up to `count` random rows of at least `length` tokens: int64[], in ascending order.

    Args:
        per_unit: the most rows of a unit. With more than one, rows are not independent, and intervals that assume it
            are too narrow. None: no limit; rows without a unit are then drawn, too.

    Raises:
        InputError: no row is long enough.
    """
    if per_unit is None:
        rows = generator.permutation(graph.n_rows)
        found = rows[graph.lengths_of(rows) >= length][:count]
    else:
        found = np.array(_of_units(graph, length, count, generator, per_unit), dtype=np.int64)
    if not len(found):
        raise InputError(f"extraction: no row has the {length} tokens of a prefix and its continuation")
    return np.sort(found)


def _of_units(
    graph: UnitGraph, length: int, count: int, generator: np.random.Generator, per_unit: int
) -> list[int]:
    taken: dict[int, int] = {}
    found: dict[int, None] = {}
    for unit in generator.permutation(graph.n_units):
        rows = generator.permutation(graph.rows_of(int(unit)))
        for row in rows[graph.lengths_of(rows) >= length].tolist():
            owners = graph.owners_of(row).tolist()
            if len(found) < count and row not in found and all(taken.get(o, 0) < per_unit for o in owners):
                found[row] = None
                taken.update((owner, taken.get(owner, 0) + 1) for owner in owners)
        if len(found) == count:
            break
    return list(found)


# one model -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Sampling:
    """A sampling scheme for continuations: a temperature, then the `top_k` most probable tokens (all, if None).

    Tokens that tie with the last of these are among them, as in transformers.
    """

    temperature: float = 1.0
    top_k: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise InputError(f"extraction.temperature: it must be above 0, not {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"extraction.top_k: it must be at least 1, not {self.top_k}")

    def log_probabilities(self, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Compute the log-probability of sampling each of `ids` (...) from logits (..., V): (...), in nats.

        It is -inf for tokens that are never sampled.
        """
        scaled = logits / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            last = scaled.topk(self.top_k, dim=-1).values[..., -1:]
            scaled = scaled.masked_fill(scaled < last, -torch.inf)
        return chosen(scaled, ids)


@dataclass(frozen=True, eq=False)
class Extraction:
    """The rows that one model gives back. Private: it speaks of single rows.

    Attributes:
        greedy: bool[n], whether greedy decoding gives a row's continuation.
        log_probability: float64[n], nats, of sampling the continuation once; -inf where it is never sampled.
    """

    greedy: np.ndarray
    log_probability: np.ndarray

    def chance(self, samples: int) -> np.ndarray:
        """Compute the probability that one of `samples` sampled continuations is the row's: float64[n]."""
        with np.errstate(divide="ignore"):  # log of 0 where a continuation is certain
            missed = np.log1p(-np.exp(np.minimum(self.log_probability, 0.0)))
        chance: np.ndarray = -np.expm1(samples * missed)
        return chance

    def discoverable(self, samples: int, probability: float) -> np.ndarray:
        """Tell which rows are (samples, probability)-discoverable: bool[n]."""
        return self.chance(samples) >= probability


def extract(
    model: Any,
    graph: UnitGraph,
    rows: np.ndarray,
    prefix: int,
    suffix: int,
    sampling: Sampling | None = None,
    micro_tokens: int = 8192,
) -> Extraction:
    """Tell for each row whether its tokens `prefix` to `prefix + suffix` follow from the tokens before them.

    Special tokens count like any other: a separator in a row is a token that the model must give back. Memory holds
    one batch of rows.

    Args:
        rows: int64[n], row numbers of the graph, each with `prefix + suffix` tokens at least.
        sampling: the sampling scheme of continuations; by default temperature 1 over all tokens.

    Raises:
        InputError: prefix or suffix is less than 1, or a row is too short, or longer than the model can read.
        Diverged: the model's output is not a number.
    """
    length, sampling = prefix + suffix, sampling or Sampling()
    if min(prefix, suffix) < 1:
        raise InputError(
            f"extraction: {prefix} tokens before {suffix} are asked for, and both must be at least 1"
        )
    if not len(rows) or graph.lengths_of(rows).min() < length:
        raise InputError(f"extraction: rows need the {length} tokens of a prefix and its continuation")
    refuse_long(model, length, "extraction")
    device = next(model.parameters()).device
    greedy, log_probability = np.zeros(len(rows), dtype=bool), np.zeros(len(rows))
    at_once = together(model, length, micro_tokens)
    with reading(model):
        for first in range(0, len(rows), at_once):
            part = slice(first, first + at_once)
            tokens = np.stack([ids_of(row[:length]) for row in graph.fetch(rows[part])])
            ids = torch.from_numpy(tokens).to(device)
            logits, wanted = following(model, ids, suffix), ids[:, prefix:]
            greedy[part] = (logits.argmax(-1) == wanted).all(1).cpu().numpy()
            each = sampling.log_probabilities(logits, wanted)
            log_probability[part] = each.double().sum(1).cpu().numpy()
    check_numbers(log_probability)
    return Extraction(greedy, log_probability)


# two models ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Share:
    """A share of rows, with Clopper and Pearson's interval."""

    share: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """The shares of rows that the fine-tuned model and the base model give back, and their difference.

    *Formal guarantee*, for rows that are drawn independently: each interval holds the true share, and that of the
    difference holds the true difference, with at least the stated confidence; `p_value` is valid for the hypothesis
    that fine-tuning makes no more rows extractable than it makes unextractable (McNemar's exact test, one-sided).

    Attributes:
        rows: number of rows that were tested.
        tuned, base: shares of the two models.
        difference: of shares, tuned minus base, from pairs: rows that only one of the models gives back.
        only_tuned, only_base: numbers of these rows.
        confidence: of each interval.
    """

    rows: int
    tuned: Share
    base: Share
    difference: Share
    only_tuned: int
    only_base: int
    p_value: float
    confidence: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(tuned: np.ndarray, base: np.ndarray, confidence: float = CONFIDENCE) -> Difference:
    """Compare two models' outcomes on the same rows: bool[n] each.

    The difference is a - b of the probabilities that a row is given back by the one alone, and by the other alone. Its
    interval comes from exact intervals of a and of b, each at half the error (Bonferroni): wider than the usual
    approximations, but it holds however few rows are given back, where a bootstrap of none at all would say 0 to 0.
    """
    if tuned.shape != base.shape or not len(tuned):
        raise ValueError("two models are compared on the same rows, and at least one")
    n = len(tuned)
    gained, lost = int((tuned & ~base).sum()), int((base & ~tuned).sum())
    up, down = (share(hits, n, (1 + confidence) / 2) for hits in (gained, lost))
    return Difference(
        rows=n,
        tuned=share(int(tuned.sum()), n, confidence),
        base=share(int(base.sum()), n, confidence),
        difference=Share((gained - lost) / n, up.low - down.high, up.high - down.low),
        only_tuned=gained,
        only_base=lost,
        p_value=float(stats.binom.sf(gained - 1, gained + lost, 0.5)),
        confidence=confidence,
    )


def share(hits: int, n: int, confidence: float = CONFIDENCE) -> Share:
    """Compute Clopper and Pearson's interval of a binomial probability."""
    tail = (1 - confidence) / 2
    low = float(special.betaincinv(hits, n - hits + 1, tail)) if hits else 0.0
    high = float(special.betaincinv(hits + 1, n - hits, 1 - tail)) if hits < n else 1.0
    return Share(hits / n, low, high)
