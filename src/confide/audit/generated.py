"""Canaries that the base model writes: likely text, of all its perplexities."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from confide import models
from confide.noise import Stream

if TYPE_CHECKING:
    from confide.settings import Config

BATCH = 64


@torch.no_grad()
def texts(config: "Config", tokenizer: Any, count: int, spread: int, stream: Stream) -> list[str]:
    """`count` texts sampled from the base model at temperature 1, evenly spread over their perplexities.

    Of `spread` times as many, sorted by their mean log-probability, every `spread`-th is taken, in an order of its own.
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
    chosen = [text for _, text in found[spread // 2 :: spread]]
    order = np.argsort(stream.uniform(count, start=2 * wanted + wanted * length), kind="stable")
    return [chosen[i] for i in order]


def _sampled(model: Any, tokenizer: Any, ids: torch.Tensor, lots: torch.Tensor) -> list[tuple[float, str]]:
    """(mean log-probability, text) of one sample for each line of uniform numbers."""
    special = torch.tensor(tokenizer.all_special_ids)
    total = torch.zeros(len(ids), dtype=torch.float64)
    for step in range(lots.shape[1]):
        logits = model(input_ids=ids).logits[:, -1].double()
        logits[:, special] = -torch.inf  # a text does not end early
        shares = logits.softmax(-1)
        taken = torch.searchsorted(shares.cumsum(-1), lots[:, step : step + 1]).clamp(max=shares.shape[1] - 1)
        total += shares.gather(1, taken)[:, 0].clamp(min=1e-30).log()
        ids = torch.cat([ids, taken], 1)
    prompt = ids.shape[1] - lots.shape[1]
    written = [tokenizer.decode(row, skip_special_tokens=True).strip() for row in ids[:, prompt:]]
    return [(mean, text) for mean, text in zip((total / lots.shape[1]).tolist(), written, strict=True)]
