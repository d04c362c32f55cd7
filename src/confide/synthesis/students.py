"""Let a language model read texts, place them as points, or learn from them, without any privacy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from confide.data.cutting import Cutter
from confide.models.loading import inner_of
from confide.training.evaluation import batches
from confide.training.tasks.causal_lm import CausalLM
from confide.utils.console import Console

TAUGHT = 60_000
"""Tokens that a student reads, at most, in all its passes."""
_PASSES, _RATE, _ROWS, _TOKENS = 3, 1e-3, 16, 8192

Rows = list[list[np.ndarray]]
"""The rows of each text."""


class Reader:
    """Cuts texts into rows as the training does, and hands them to models.

    Args:
        tokenizer: of all models.
        length: tokens a row.
    """

    def __init__(self, tokenizer: Any, length: int, console: Console):
        self._tokenizer, self._console = tokenizer, console
        self._cutter = Cutter(tokenizer, True, length)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def rows(self, texts: Sequence[str]) -> Rows:
        return [[row.tokens for row in own] for own in self._cutter.rows(texts)]

    @torch.no_grad()
    def losses(self, model: Any, rows: Rows, what: str) -> np.ndarray:
        """Return each text's loss in nats and its predicted tokens: float64[texts, 2]."""
        model.to(self._device).eval()
        task = CausalLM.of(model, self._tokenizer)
        flat, owner = _flat(rows)
        found = np.zeros((len(rows), 2))
        with self._console.track(what, len(flat)) as track:
            for places in batches(np.array([len(row) for row in flat]), _TOKENS):
                loss, counted, _ = task.token_losses(model, task.collate([flat[place] for place in places]))
                sums = torch.stack([(loss * counted).sum(1), counted.sum(1)], 1).double().cpu().numpy()
                np.add.at(found, owner[places], sums)
                track(len(places))
        return found

    @torch.no_grad()
    def points(self, model: Any, rows: Rows) -> np.ndarray:
        """Return the mean of the last layer over each text's first row: float[texts, width]."""
        model.to(self._device).eval()
        task = CausalLM.of(model, self._tokenizer)
        first = [own[0] for own in rows if own]
        found: list[np.ndarray] = [np.zeros(0)] * len(first)
        for places in batches(np.array([len(row) for row in first]), _TOKENS):
            batch = task.collate([first[place] for place in places])
            real = batch["real"].to(self._device)
            out = inner_of(model)(
                input_ids=batch["input_ids"].to(self._device),
                attention_mask=real.long(),
                output_hidden_states=True,
            )
            last = out.hidden_states[-1] * real[..., None]
            means = (last.sum(1) / real.sum(1, keepdim=True)).float().cpu().numpy()
            for place, mean in zip(places, means, strict=True):
                found[place] = mean
        return np.stack(found)

    def taught(self, model: Any, rows: Rows, what: str) -> Any:
        """Train all weights of a model on texts, in three passes or `TAUGHT` tokens; draws and order are fixed."""
        flat, _ = _flat(rows)
        generator = np.random.default_rng(0)
        order = np.concatenate([generator.permutation(len(flat)) for _ in range(_PASSES)])
        read = np.cumsum([len(flat[place]) for place in order])
        order = order[: max(_ROWS, int(np.searchsorted(read, TAUGHT)))]
        model.to(self._device).train()
        task = CausalLM.of(model, self._tokenizer)
        model.requires_grad_(True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=0.0)
        steps = range(0, len(order), _ROWS)
        with self._console.track(what, len(order)) as track, torch.random.fork_rng():
            torch.manual_seed(0)
            for first in steps:
                batch = task.collate([flat[place] for place in order[first : first + _ROWS]])
                loss, counted, _ = task.token_losses(model, batch)
                optimizer.param_groups[0]["lr"] = _RATE * (1 - first / len(order))
                optimizer.zero_grad()
                ((loss * counted).sum() / counted.sum().clamp(min=1)).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                track(min(_ROWS, len(order) - first))
        return model.eval()


def _flat(rows: Rows) -> tuple[list[np.ndarray], np.ndarray]:
    """Return all rows, and the text of each: int64[rows]."""
    flat = [row for own in rows for row in own]
    return flat, np.repeat(np.arange(len(rows)), [len(own) for own in rows])
