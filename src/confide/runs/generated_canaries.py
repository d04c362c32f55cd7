"""Generate canaries with the base model: likely texts, spread over perplexities; and report how each was learnt."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from confide.models import loading as models
from confide.randomness.streams import Stream

if TYPE_CHECKING:
    from confide.config.schema import Config

BATCH = 64


@torch.no_grad()
def texts(
    config: "Config", tokenizer: Any, count: int, spread: int, stream: Stream
) -> list[tuple[str, float]]:
    """Sample `count` texts from the base model at temperature 1; return each with its perplexity, in a random order.

    Of `spread` times as many samples, those are taken whose mean log-probabilities lie next to evenly spaced
    ones. Taken by chance alone, nearly all would be of middling perplexity: there are few samples of most others.
    """
    model = models.load_model(config, None, len(tokenizer)).eval()
    wanted, length = count * spread, config.canaries.tokens
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    first = np.array([start]) if start is not None else None
    found: list[tuple[float, str]] = []
    lots = torch.from_numpy(stream.uniform(wanted * length, start=2 * wanted)).view(wanted, length)
    opening = stream.below(np.full(wanted, len(tokenizer)))
    for begin in range(0, wanted, BATCH):
        own = lots[begin : begin + BATCH]
        ids = torch.from_numpy(
            np.tile(first, (len(own), 1)) if first is not None else opening[begin : begin + len(own), None]
        )
        found += _sampled(model, tokenizer, ids, own)
    found.sort()
    chosen = [(text, math.exp(-mean)) for mean, text in _evenly(found, count)]
    order = np.argsort(stream.uniform(count, start=2 * wanted + wanted * length), kind="stable")
    return [chosen[i] for i in order]


def _evenly(found: list[tuple[float, str]], count: int) -> list[tuple[float, str]]:
    """Choose `count` of the sorted pairs, each next to one of evenly spaced numbers, none twice."""
    left, taken = list(found), []
    for wanted in np.linspace(found[0][0], found[-1][0], count):
        taken.append(left.pop(int(np.argmin([abs(mean - wanted) for mean, _ in left]))))
    return taken


@dataclass(frozen=True)
class Bucket:
    """Canaries of similar perplexity under the base model.

    Attributes:
        low, high: range of their perplexities.
        planted, others: how many are in, and how many are not.
        learnt, by_chance: by how many nats the training made the planted and the other ones more likely, on
            average; None if there are none.
    """

    low: float
    high: float
    planted: int
    others: int
    learnt: float | None
    by_chance: float | None


def buckets(perplexity: np.ndarray, learnt: np.ndarray, planted: np.ndarray, count: int = 4) -> list[Bucket]:
    """Divide canaries into equal buckets by perplexity, lowest first; takes float64[m] twice and bool[m]."""
    found = []
    for own in np.array_split(np.argsort(perplexity, kind="stable"), min(count, len(perplexity))):
        sides = [learnt[own][planted[own]], learnt[own][~planted[own]]]
        means = [float(side.mean()) if len(side) else None for side in sides]
        limits = float(perplexity[own].min()), float(perplexity[own].max())
        found.append(Bucket(*limits, *map(len, sides), *means))
    return found


def _sampled(model: Any, tokenizer: Any, ids: torch.Tensor, lots: torch.Tensor) -> list[tuple[float, str]]:
    """Sample one text for each line of uniform numbers: (mean log-probability, text)."""
    special = torch.tensor(tokenizer.all_special_ids, dtype=torch.long)
    total = torch.zeros(len(ids), dtype=torch.float64)
    for step in range(lots.shape[1]):
        logits = model(input_ids=ids).logits[:, -1].double()
        logits[:, special] = -torch.inf  # a text must not end early
        shares = logits.softmax(-1)
        taken = torch.searchsorted(shares.cumsum(-1), lots[:, step : step + 1].contiguous()).clamp(
            max=shares.shape[1] - 1
        )
        total += shares.gather(1, taken)[:, 0].clamp(min=1e-30).log()
        ids = torch.cat([ids, taken], 1)
    prompt = ids.shape[1] - lots.shape[1]
    written = [tokenizer.decode(row, skip_special_tokens=True).strip() for row in ids[:, prompt:]]
    return [(mean, text) for mean, text in zip((total / lots.shape[1]).tolist(), written, strict=True)]
