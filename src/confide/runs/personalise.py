"""Personalise: compare each held-out user's loss on half of their rows before and after training on the other half.

The comparison is that of Charles et al. 2024, appendix J.2. It changes no run and releases nothing: the weights
of a user are discarded before the next user's turn.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import nn

from confide.data.unit_graph import UnitGraph
from confide.models import loading as models
from confide.randomness.streams import RunKey
from confide.runs.job import Job
from confide.training.evaluation import batches, row_losses
from confide.training.tasks import Batch, Task
from confide.utils.errors import InputError

RATES = (0.003, 0.01, 0.03)
"""Learning rates that are tried if none is given."""

BATCH = 8
"""Rows of one step of a user's training."""

ROWS = 64
"""First rows of a user, to which the comparison is limited: a few users with thousands would take all the time."""

_CHOOSING = 5  # every fifth user helps choose the learning rate and is not reported on
_KEY = RunKey.from_text("personalisation")  # the same users and hidden tokens for all models

_OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


@dataclass(frozen=True)
class Personalisation:
    """Effect of personalisation on the reported users. It is an estimate over users, not a guarantee.

    Attributes:
        users: number of users; skipped: held-out units that could not be used, with one row or nothing to predict.
        loss_before, loss_after: in nats per token (per row, for classes), the mean over users of each user's own
            mean.
        difference: loss_after - loss_before; interval: 95% interval of the mean difference, by Student's t over
            the users.
        improved: users whose loss fell.
        by_tokens: (before, after) with each user weighted by predicted tokens; tokens: their number.
        learning_rate: that of the reported losses; tried: (rate, loss_after) over `users_choosing` other users,
            empty if one rate was given.
    """

    users: int
    skipped: int
    loss_before: float
    loss_after: float
    difference: float
    interval: tuple[float, float]
    improved: int
    by_tokens: tuple[float, float]
    tokens: int
    learning_rate: float
    tried: tuple[tuple[float, float], ...]
    users_choosing: int
    epochs: int
    optimizer: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class _User:
    """Rows to train on, rows to evaluate, and the loss on these before training, over `tokens` predicted tokens."""

    first: np.ndarray
    second: np.ndarray
    loss: float
    tokens: int


def personalise(
    job: Job,
    users: int = 200,
    epochs: int = 4,
    learning_rate: Sequence[float] = RATES,
    optimizer: str = "sgd",
    progress: Callable[[int], None] | None = None,
) -> Personalisation:
    """Train a copy of the job's model for each held-out user, and compare it with the model on the user's other half.

    A user's rows, the first `ROWS` of them, are divided in the middle, in the order of the text. Rows of the
    second half that repeat one of the first word for word are left out. The first half is trained on in its
    order, in steps of `BATCH` rows. The choice of users follows from their names alone, so that models are
    compared on the same users. The model is left exactly as it was.

    Args:
        users: the most users to report on; a quarter as many others choose the learning rate.
        epochs: over the first half; Charles et al. 2024 take four.
        learning_rate: one, or several to choose from, by the loss of every fifth user, who is then not reported on.
        optimizer: sgd (without momentum, as in Charles et al. 2024) or adam.
        progress: called after every training.

    Raises:
        InputError: there are no such users, an argument is impossible, every learning rate diverges, or several
            ranks were started.
    """
    _check(users, epochs, learning_rate, optimizer)
    if job.ranks.several:
        raise InputError("--personalise: runs in one process, so start it without torchrun")
    if job.prepared.held_out is None:
        raise InputError(
            "data.eval: this run held out no users to personalise for: set data.eval in your config, and train in "
            "another `run` folder"
        )
    copies = _Copies(
        job.model, job.task, job.prepared.held_out, job.micro_tokens, epochs, optimizer, progress
    )
    return _Trial(copies).run(users, sorted(set(learning_rate)))


def _check(users: int, epochs: int, rates: Sequence[float], optimizer: str) -> None:
    if users < 2:
        raise InputError(f"--users: an interval over users takes two of them at least, not {users}")
    if epochs < 1:
        raise InputError(f"--epochs: at least 1, not {epochs}")
    if not rates or not all(0 < rate < math.inf for rate in rates):
        raise InputError("--learning-rate: each must be a finite number above 0")
    if optimizer not in _OPTIMIZERS:
        raise InputError(f"--optimizer: {' or '.join(_OPTIMIZERS)}, not {optimizer!r}")


class _Trial:
    """Choice of users and learning rate, and the results."""

    def __init__(self, copies: "_Copies"):
        self.copies, self.graph = copies, copies.graph
        self.skipped = 0

    def run(self, users: int, rates: list[float]) -> Personalisation:
        order = self._order()
        reported = self._users([unit for place, unit in enumerate(order, 1) if place % _CHOOSING], users)
        if len(reported) < 2:
            raise InputError(
                f"--personalise: {len(reported)} of {self.graph.n_units} held-out units have two rows to divide, and "
                "it takes two such: hold out more (data.eval), or shorten rows (data.max_length)"
            )
        if len(rates) == 1:
            return self._report(reported, rates[0], (), 0)
        judges = [unit for place, unit in enumerate(order, 1) if place % _CHOOSING == 0]
        tried, count = self._tried(judges, math.ceil(users / (_CHOOSING - 1)), rates)
        best = min(tried, key=lambda pair: pair[1])[0]
        return self._report(reported, best, tried, count)

    def _order(self) -> list[int]:
        """Order the units with two rows or more, by a number that follows from each one's own name."""
        units = np.flatnonzero(self.graph.shape().rows_per_unit >= 2)
        self.skipped = self.graph.n_units - len(units)
        lots = np.array([_lot(self.graph.unit_name(int(unit))) for unit in units], dtype=np.uint64)
        return [int(unit) for unit in units[np.argsort(lots, kind="stable")]]

    def _users(self, units: Sequence[int], most: int) -> list[_User]:
        """Return the first of `units` that have something to predict."""
        found: list[_User] = []
        for unit in units:
            if len(found) == most:
                break
            first, second = halves(self.graph, unit)
            loss, tokens = self.copies.loss(second)
            if tokens:
                found.append(_User(first, second, loss, tokens))
            else:
                self.skipped += 1
        return found

    def _tried(
        self, units: Sequence[int], most: int, rates: list[float]
    ) -> tuple[tuple[tuple[float, float], ...], int]:
        """Return each rate with the mean loss of users that are not reported on, and the number of these users."""
        skipped = self.skipped
        judges = self._users(units, most)
        self.skipped = skipped  # counts only users that could have been reported on
        if not judges:
            raise InputError(
                "--learning-rate: too few users are held out to choose one by; give a single one"
            )
        tried = tuple((rate, float(self._after(judges, rate).mean())) for rate in rates)
        if not any(math.isfinite(loss) for _, loss in tried):
            raise InputError(f"--learning-rate: {rates[0]:g} and all above diverge; give lower ones")
        return tried, len(judges)

    def _after(self, users: Sequence[_User], rate: float) -> np.ndarray:
        """Compute each user's mean loss after training: float64; inf if it diverged."""
        return np.array([self.copies.loss_after(user, rate) / user.tokens for user in users])

    def _report(
        self, users: list[_User], rate: float, tried: tuple[tuple[float, float], ...], choosing: int
    ) -> Personalisation:
        tokens = np.array([user.tokens for user in users])
        before = np.array([user.loss for user in users]) / tokens
        after = self._after(users, rate)
        if not np.isfinite(after).all():
            raise InputError(
                f"--learning-rate: {rate:g} diverges for {int((~np.isfinite(after)).sum())} of {len(users)} users; "
                "give a lower one"
            )
        change = after - before
        mean = float(change.mean())
        reach = float(stats.t.ppf(0.975, len(users) - 1) * stats.sem(change))
        return Personalisation(
            users=len(users),
            skipped=self.skipped,
            loss_before=float(before.mean()),
            loss_after=float(after.mean()),
            difference=mean,
            interval=(mean - reach, mean + reach),
            improved=int((change < 0).sum()),
            by_tokens=(float(np.average(before, weights=tokens)), float(np.average(after, weights=tokens))),
            tokens=int(tokens.sum()),
            learning_rate=rate,
            tried=tried,
            users_choosing=choosing,
            epochs=self.copies.epochs,
            optimizer=self.copies.optimizer,
        )


class _Copies:
    """One model, trained for one user after another from the same weights."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        graph: UnitGraph,
        micro_tokens: int,
        epochs: int,
        optimizer: str,
        progress: Callable[[int], None] | None,
    ):
        self.model, self.task, self.graph, self.micro_tokens = model, task, graph, micro_tokens
        self.epochs, self.optimizer, self.progress = epochs, optimizer, progress
        self.parameters = models.trainable(model)
        self.weights = {name: p.detach().clone() for name, p in self.parameters.items()}

    def loss(self, rows: np.ndarray) -> tuple[float, int]:
        """Compute the loss, summed over predicted tokens, and their number."""
        losses, tokens, _ = row_losses(self.model, self.task, self.graph, self.micro_tokens, among=rows)
        return float(losses.sum()), int(tokens.sum())

    def loss_after(self, user: _User, rate: float) -> float:
        """Train on the first half, return the loss on the second (inf: it diverged), and restore the weights."""
        was_training = self.model.training
        try:
            self._train(user.first, rate)
            loss, _ = self.loss(user.second)
        finally:
            self._restore()
            self.model.train(was_training)
        if self.progress is not None:
            self.progress(1)
        return loss if math.isfinite(loss) else math.inf

    def _train(self, rows: np.ndarray, rate: float) -> None:
        optimizer = _OPTIMIZERS[self.optimizer](list(self.parameters.values()), lr=rate)  # type: ignore[call-arg]
        self.model.train()
        for epoch in range(self.epochs):
            for start in range(0, len(rows), BATCH):
                optimizer.zero_grad(set_to_none=True)
                self._add_gradient(rows[start : start + BATCH], epoch)
                optimizer.step()

    def _add_gradient(self, rows: np.ndarray, epoch: int) -> None:
        """Add the gradient of the mean loss of these rows, in micro-batches."""
        for places in batches(self.graph.lengths_of(rows), self.micro_tokens):
            losses = self.task.row_loss(self.model, self._batch(rows[places], epoch))
            (losses.sum() / len(rows)).backward()

    def _batch(self, rows: np.ndarray, epoch: int) -> Batch:
        hide = None
        if self.task.facts.hides_tokens:
            hide = [_KEY.stream("training", "hide", epoch, str(row)) for row in rows]
        labels = None if self.graph.labels is None else np.asarray(self.graph.labels[rows])
        return self.task.collate(self.graph.fetch(rows), labels, hide)

    @torch.no_grad()
    def _restore(self) -> None:
        for name, parameter in self.parameters.items():
            parameter.copy_(self.weights[name])
            parameter.grad = None


def _lot(name: str) -> int:
    """Derive 64 bits from a name."""
    return int(_KEY.stream("users", "order", item=name.encode("utf-8", "surrogatepass").hex()).uint64(1)[0])


def halves(graph: UnitGraph, unit: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a unit's rows to train on and its rows to evaluate: int64 each, of the first `ROWS`.

    The second half is without rows that repeat one of the first word for word, such as a text sent twice.
    """
    rows = graph.rows_of(unit)[:ROWS]
    first, second = np.split(rows, [len(rows) // 2])
    known = {row.tobytes() for row in graph.fetch(first)}
    is_new = [row.tobytes() not in known for row in graph.fetch(second)]
    return first, second[np.array(is_new, dtype=bool)]
