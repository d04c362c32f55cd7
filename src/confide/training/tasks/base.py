"""Turn rows into batches for a model, and compute each row's loss.

Every loss here is a function of one row and the weights alone. Rows are padded on the right. Padded positions
carry no loss, and no model learns to predict a mask (Shi et al. 2022, "Just Fine-tune Twice", appendix A.2). A
row's loss is the mean over its own predicted tokens.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from confide.config.task_facts import TaskFacts
from confide.models import loading as models
from confide.models.fast.chunked_loss import chunked_cross_entropy, logits_of, without_head
from confide.models.fast.cross_entropy import IGNORE, cross_entropy
from confide.models.fast.logits import aligned
from confide.randomness.streams import Stream

_PIECE = 1 << 22  # logits whose statistics are computed at a time

Batch = Mapping[str, torch.Tensor]
Loss = Callable[[nn.Module, Batch], torch.Tensor]


def _sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor to a device. A GPU's host does not wait for the copy, which it makes from locked memory."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True)
class Task(ABC):
    """Collates rows and computes their losses for one kind of model.

    A subclass defines `facts` and `targets`. It defines `with_targets`, `padding` or `figures` if those of this
    class do not fit. A row's targets must be a function of that row alone.

    Attributes:
        facts: facts of the task that need no model.
        pad, mask: token ids; mask is None if the tokenizer has none.
        vocabulary: number of token ids.
        special: ids of tokens that are not text and are never hidden.
        extra: per-token inputs that the model takes besides input_ids.
        autocast: run the model in bf16.
        device: where batches go.
        packs_rows: rows of one unit may share a line of a batch; see `row_isolation.detect_packing_support`.
        caches: the model keeps keys and values for a continuation unless it is told not to.
        chunk: tokens whose logits are made at a time to train on; 0 for all at once. See `chunked_loss.chunk_of`.
        loss: a calling program's own loss, called with model and batch, in place of the one below: float32[B].
    """

    facts: ClassVar[TaskFacts]

    pad: int
    mask: int | None
    vocabulary: int
    special: tuple[int, ...]
    extra: frozenset[str]
    autocast: bool
    device: torch.device
    packs_rows: bool = False
    caches: bool = False
    chunk: int = 0
    loss: Loss | None = None

    @classmethod
    def of(
        cls,
        model: nn.Module,
        tokenizer: Any,
        precision: str = "float32",
        device: torch.device | None = None,
        loss: Loss | None = None,
    ) -> Self:
        """Make the task for a model and its tokenizer."""
        return cls(
            pad=cls.padding(model, tokenizer),
            mask=tokenizer.mask_token_id,
            vocabulary=len(tokenizer),
            special=tuple(tokenizer.all_special_ids),
            extra=frozenset(models.accepted(model)),
            autocast=precision == "bf16",
            device=device or next(model.parameters()).device,
            caches=models.caches(model),
            loss=loss,
        )

    # what tasks differ in ------------------------------------------------------------------------------
    @classmethod
    def padding(cls, model: nn.Module, tokenizer: Any) -> int:
        """Return the id that rows are padded with."""
        pad: int = tokenizer.pad_token_id
        return pad

    def with_targets(
        self,
        batch: dict[str, torch.Tensor],
        rows: list[np.ndarray],
        labels: np.ndarray | None,
        hide: Sequence[Stream] | None,
    ) -> dict[str, torch.Tensor]:
        """Add to the batch what `targets` needs besides the tokens themselves; by default nothing."""
        return batch

    @abstractmethod
    def targets(self, batch: Batch) -> torch.Tensor:
        """Return the token or class to predict at each place, IGNORE where there is none: int64[B, n]."""

    def figures(self, loss: float, accuracy: float, predicted: int) -> dict[str, float | int]:
        """Return the figures of an evaluation, from the mean loss and accuracy over `predicted` predictions."""
        perplexity = math.exp(min(loss, 700.0))
        return {"loss": loss, "perplexity": perplexity, "accuracy": accuracy, "tokens": predicted}

    # what all have -------------------------------------------------------------------------------------
    def collate(
        self,
        rows: list[np.ndarray],
        labels: np.ndarray | None = None,
        hide: Sequence[Stream] | None = None,
    ) -> Batch:
        """Collate rows into tensors of shape (B, T).

        Positions and types are given per row, so that the gradient of their embeddings is per row too.

        Args:
            rows: token arrays.
            labels: int64[B], if rows have classes.
            hide: if tokens are hidden, each row's own stream, which chooses them. So the choice does not depend
                on the other rows of the batch.
        """
        width = max(len(row) for row in rows)
        ids = torch.full((len(rows), width), self.pad, dtype=torch.long)
        real = torch.zeros((len(rows), width), dtype=torch.bool)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.from_numpy(row.astype(np.int64))
            real[i, : len(row)] = True
        unpredicted = ids < 0
        ids = torch.where(unpredicted, ~ids, ids)  # as `loss_mask.ids_of` does
        batch = self.with_targets({"input_ids": ids, "real": real}, rows, labels, hide)
        if unpredicted.any():
            batch["unpredicted"] = unpredicted
        if "position_ids" in self.extra:
            batch["position_ids"] = torch.arange(width).expand(len(rows), width).contiguous()
        if "token_type_ids" in self.extra:
            batch["token_type_ids"] = torch.zeros_like(ids)
        return {name: _sent(tensor, self.device) for name, tensor in batch.items()}

    def collate_lines(self, lines: Sequence[Sequence[np.ndarray]], weights: Sequence[np.ndarray]) -> Batch:
        """Collate rows that share lines: tensors of shape (L, T), `weight` of shape (L, R) for up to R rows per line.

        A row's positions count from its own first token. `row` gives the row, within its line, that each token
        belongs to.

        Args:
            lines: token arrays by line.
            weights: float[rows] for each line: each row's weight in its unit's gradient.
        """
        batch = dict(self.collate([np.concatenate(rows) for rows in lines]))
        row, position = (np.zeros(batch["input_ids"].shape, np.int64) for _ in range(2))
        weight = np.zeros((len(lines), max(map(len, lines))), np.float32)
        for line, rows in enumerate(lines):
            lengths = [len(tokens) for tokens in rows]
            end = sum(lengths)
            position[line, :end] = np.concatenate([np.arange(length) for length in lengths])
            row[line, :end] = np.repeat(np.arange(len(rows)), lengths)
            row[line, end:] = (
                len(rows) - 1
            )  # all padding has position 0: the model may have no further positions
            weight[line, : len(rows)] = weights[line]
        batch |= {
            name: _sent(torch.from_numpy(values), self.device)
            for name, values in (("row", row), ("position_ids", position), ("weight", weight))
        }
        return batch

    def logits(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Compute the logits: float[B, T, vocabulary], or float[B, classes]."""
        inputs: dict[str, Any] = {name: batch[name] for name in ("input_ids", *self.extra)}
        if self.caches or "row" in batch:  # positions tell rows apart only if nothing is cached
            inputs["use_cache"] = False
        if not self.facts.is_causal:
            # In a causal model, right padding never affects earlier tokens. Without a mask the model may use
            # its fast path.
            inputs["attention_mask"] = batch["real"].long()
        with self._as_computed(), aligned(model):
            output = model(**inputs)
        logits: torch.Tensor = output.logits
        return logits

    def predicted(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Compute the logits of the places that `targets` speaks of: float[B, n, vocabulary], or float[B, classes]."""
        return self.logits(model, batch)

    def _losses(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        flat = logits.reshape(-1, logits.shape[-1])
        return cross_entropy(flat, targets.reshape(-1)).view(targets.shape)

    def _hidden(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Compute what the output layer would be given at these places: float[B * n, width]."""
        with without_head(model):
            return self.predicted(model, batch).flatten(0, 1)

    def _trained_losses(self, model: nn.Module, batch: Batch, targets: torch.Tensor) -> torch.Tensor:
        if not self.chunk:
            return self._losses(self.predicted(model, batch), targets)
        hidden = self._hidden(model, batch)
        with self._as_computed():
            return chunked_cross_entropy(model, hidden, targets.reshape(-1), self.chunk).view(targets.shape)

    def _as_computed(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast)

    def token_losses(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (loss, counted, correct), each of shape (B, n): one for each place of a row, or n = 1 for a class."""
        targets = self.targets(batch)
        if not self.chunk:
            logits = self.predicted(model, batch)
            best = logits.max(-1).indices.view(targets.shape)  # nearly twice as fast as argmax on a CPU
            return self._losses(logits, targets), targets != IGNORE, best == targets
        flat, counted, at = targets.reshape(-1), targets != IGNORE, self._logits_at(model, batch)
        losses, correct = torch.zeros(len(flat), device=flat.device), torch.zeros_like(flat, dtype=torch.bool)
        for places in counted.reshape(-1).nonzero()[:, 0].split(self.chunk):
            logits = at(places)
            losses[places] = cross_entropy(logits, flat[places])
            correct[places] = logits.max(-1).indices == flat[places]
        return losses.view(targets.shape), counted, correct.view(targets.shape)

    def _logits_at(self, model: nn.Module, batch: Batch) -> Callable[[torch.Tensor], torch.Tensor]:
        """Take a forward pass. Return a function from places, counted over all rows, to their logits in float32."""
        if not self.chunk:
            flat = self.predicted(model, batch).flatten(0, -2)
            return lambda places: flat[places].float()
        hidden = self._hidden(model, batch)

        def logits(places: torch.Tensor) -> torch.Tensor:
            with self._as_computed():
                return logits_of(model, hidden[places])

        return logits

    def token_statistics(
        self, model: nn.Module, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (log-probability, counted, mean, deviation), each of shape (B, n), from one forward pass.

        The log-probability is that of the token to be predicted. Mean and standard deviation are those of the
        log-probability of a token drawn from the model's own prediction there. Zero where nothing is counted. No
        tensor of the size of the logits is made, besides the logits themselves.
        """
        targets, at = self.targets(batch).reshape(-1), self._logits_at(model, batch)
        counted = targets != IGNORE
        found = torch.zeros((3, len(targets)), device=targets.device)
        for places in counted.nonzero()[:, 0].split(self.chunk or max(1, _PIECE // self.vocabulary)):
            logs = at(places).log_softmax(-1)
            found[0, places] = logs.gather(1, targets[places, None])[:, 0]
            logs.clamp_(min=-1e4)  # a token that is ruled out counts as nothing, instead of 0 times infinity
            weights = logs.exp()
            mean = torch.linalg.vecdot(weights, logs)
            logs.sub_(mean[:, None]).square_()
            found[1, places], found[2, places] = mean, torch.linalg.vecdot(weights, logs).sqrt()
        shape = (len(batch["input_ids"]), -1)
        return found[0].view(shape), counted.view(shape), found[1].view(shape), found[2].view(shape)

    def row_loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Compute each row's mean loss over its predicted tokens: float32[B]; 0 for a row that predicts none.

        If rows share lines, the shape is float32[L, R], with 0 where a line has fewer than R rows.
        """
        if self.loss is not None:
            return self.loss(model, batch)
        targets = self.targets(batch)
        losses, counted = self._trained_losses(model, batch, targets), targets != IGNORE
        if "row" not in batch:
            return losses.sum(1) / counted.sum(1).clamp(min=1)
        own = functional.one_hot(batch["row"], batch["weight"].shape[1]).bool()
        return (losses[:, :, None] * own).sum(1) / (counted[:, :, None] & own).sum(1).clamp(min=1)

    def packed_loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Compute each row's loss, or the weighted sum over a line's rows: float32[B]."""
        return each_line(self.row_loss(model, batch), batch)


def each_row(losses: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Select the losses of existing rows from the result of `Task.row_loss`: float32[rows]."""
    if "row" not in batch:
        return losses
    places = torch.arange(losses.shape[1], device=losses.device)
    return losses[places <= batch["row"][:, -1:]]


def each_line(losses: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return the result of `Task.row_loss` by line: a row's loss or the weighted sum over a line's rows, float32[B]."""
    return losses if "row" not in batch else (losses * batch["weight"]).sum(1)
