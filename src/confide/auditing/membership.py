"""Membership inference: scores of rows that are higher where a model is more likely to have been trained on them.

Each model reads each row once. A row leaves a handful of float64 numbers (`Columns`), and every attack is computed
from these columns alone. Neither a score nor its failure guarantees anything: a stronger attack may exist.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from confide.auditing.rates import CONFIDENCE, FPRS, Rates, rates
from confide.data.loss_mask import ids_of
from confide.data.unit_graph import UnitGraph
from confide.training.evaluation import batches, row_losses
from confide.training.tasks import Batch, Task
from confide.utils.errors import Diverged

MIN_K = 20
"""The percentage of a row's tokens, the least likely ones, that min-k% and min-k%++ use (Shi et al. 2024)."""

INDIVIDUAL_VARIANCE = 64
"""From this number of reference models on, each row has its own variance (Carlini et al. 2022, section VI-A)."""

OFFLINE_A = 0.9
"""RMIA's default a. Probabilities of tokens are far from 1. At 0.3, which Zarifzadeh et al. (2024) use for the classes
of CIFAR-10, 1 - a would outweigh p_out, and the score would hardly differ from the loss."""

_BLOCK = 1024  # rows whose text is decoded at a time


# what a model says of rows -------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Columns:
    """The numbers that one model assigns to rows of a graph; only to rows that hold something to predict.

    Attributes:
        rows: int64[n], ascending, the numbers of the rows in the graph.
        tokens: int64[n], how many tokens were predicted (1 for classes).
        loss: float64[n], nats a predicted token.
        min_k: float64[n], mean log-probability of the `MIN_K` per cent least likely tokens; None where not asked for.
        min_k_plus_plus: float64[n], the same of the tokens' z-scores; None where not asked for.
    """

    rows: np.ndarray
    tokens: np.ndarray
    loss: np.ndarray
    min_k: np.ndarray | None = None
    min_k_plus_plus: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def places(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which of these rows are here, bool[len(rows)], and their positions, int64."""
        if not len(self.rows):
            return np.zeros(len(rows), dtype=bool), np.zeros(0, dtype=np.int64)
        found = np.minimum(np.searchsorted(self.rows, rows), len(self.rows) - 1)
        here = self.rows[found] == rows
        return here, found[here]

    def check_same(self, reference: "Columns") -> None:
        """Raise ValueError if the other model was asked for other tokens."""
        if not (np.array_equal(self.rows, reference.rows) and np.array_equal(self.tokens, reference.tokens)):
            raise ValueError("the reference must have been asked for the same tokens of the same rows")


@torch.no_grad()
def columns(
    model: nn.Module,
    task: Task,
    graph: UnitGraph,
    among: np.ndarray | None = None,
    micro_tokens: int = 8192,
    progress: Callable[[int], None] | None = None,
    tokenwise: bool = True,
) -> Columns:
    """Read each row once with `model`, in batches of rows of similar length.

    Masked models are asked for the same hidden tokens as in evaluation, and these alone for every model.

    Args:
        among: the rows, int64[n], without repetition; None: all of the graph.
        progress: called after every batch with its number of rows.
        tokenwise: whether to compute min-k% and min-k%++, too; only for a causal model, and reference models need
            none.

    Raises:
        Diverged: a loss is not a finite number.
    """
    among = np.arange(graph.n_rows) if among is None else np.sort(np.asarray(among, dtype=np.int64))
    if tokenwise and task.facts.is_causal:
        sums, counts, least = _tokenwise(model, task, graph, among, micro_tokens, progress)
    else:
        sums, counts, _ = row_losses(model, task, graph, micro_tokens, progress, among=among)
        least = None
    if not np.isfinite(sums).all():
        raise Diverged("the model's loss on some rows is not a finite number: the training diverged")
    some = counts > 0
    loss = sums[some] / counts[some]
    if least is None:
        return Columns(among[some], counts[some], loss)
    return Columns(among[some], counts[some], loss, least[0, some], least[1, some])


def _tokenwise(
    model: nn.Module,
    task: Task,
    graph: UnitGraph,
    among: np.ndarray,
    micro_tokens: int,
    progress: Callable[[int], None] | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (sum of losses, predicted tokens, [min-k%, min-k%++]): float64[n], int64[n], float64[2, n]."""
    found = np.zeros((4, len(among)))
    was_training = model.training
    model.eval()
    for places in batches(graph.lengths_of(among), micro_tokens):
        batch = task.collate(graph.fetch(among[places]))
        found[:, places] = torch.stack(_of_rows(model, task, batch)).cpu().numpy()
        if progress is not None:
            progress(len(places))
    model.train(was_training)
    return found[0], found[1].astype(np.int64), found[2:]


def _of_rows(model: nn.Module, task: Task, batch: Batch) -> tuple[torch.Tensor, ...]:
    logs, counted, mean, deviation = task.token_statistics(model, batch)
    scores = (logs - mean) / deviation.clamp(min=1e-6)
    loss = -(logs * counted).sum(1, dtype=torch.float64)
    return loss, counted.sum(1).double(), least_mean(logs, counted), least_mean(scores, counted)


def least_mean(values: torch.Tensor, counted: torch.Tensor, percent: int = MIN_K) -> torch.Tensor:
    """Compute the mean of the least `percent` per cent of each row's counted values: float64[B].

    At least one value counts; the mean is 0 for a row without counted values.

    Args:
        values: (B, n).
        counted: bool, (B, n).
        percent: the share of the counted values.
    """
    ordered = values.masked_fill(~counted, torch.inf).sort(1).values
    wanted = (counted.sum(1) * percent // 100).clamp(min=1)
    taken = torch.arange(values.shape[1], device=values.device) < wanted[:, None]
    taken &= ordered < torch.inf
    return ordered.masked_fill(~taken, 0.0).sum(1, dtype=torch.float64) / wanted


def compressed_lengths(graph: UnitGraph, rows: np.ndarray, tokenizer: Any) -> np.ndarray:
    """Return the bytes of each row's text as zlib compresses it, special tokens left out: int64[len(rows)]."""
    found = np.zeros(len(rows), dtype=np.int64)
    for start in range(0, len(rows), _BLOCK):
        tokens = [ids_of(row).tolist() for row in graph.fetch(rows[start : start + _BLOCK])]
        texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
        sizes = [len(zlib.compress(text.encode("utf-8", "surrogatepass"))) for text in texts]
        found[start : start + len(sizes)] = sizes
    return found


def unit_of(graph: UnitGraph, rows: np.ndarray) -> np.ndarray:
    """Return the unit that each row is counted with, its first owner, or one of its own: int64[len(rows)]."""
    owners = (graph.owners_of(int(row)) for row in rows)
    return np.array(
        [own[0] if len(own) else -1 - row for own, row in zip(owners, rows, strict=True)], np.int64
    )


# attacks -------------------------------------------------------------------------------------------------------
def scores(
    own: Columns, reference: Columns | None = None, compressed: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Compute the attacks that need at most a reference model: name -> float64[n], higher for likelier members.

    - `loss`: -loss (Yeom et al. 2018).
    - `reference`: loss of the reference less loss, both a token (Carlini et al. 2021, their ratio of perplexities in
      logarithms). The reference has not seen the rows: it is the base model, or one trained on other rows.
    - `zlib`: -(loss of the whole row) / compressed bytes (Carlini et al. 2021). Among rows of one length that orders as
      the loss a token, which they divide, would; among others, that would tell hardly more than the length.
    - `min-k`: mean log-probability of the least likely tokens (Shi et al. 2024).
    - `min-k++`: mean over the least tokens of (log p - mu) / sigma, mu and sigma those of log p under the model's own
      prediction (Zhang et al. 2025).

    Args:
        own: columns of the audited model; reference: columns of the reference model, over the same rows.
        compressed: int64[n], as `compressed_lengths` returns them for the same rows.

    Raises:
        ValueError: the columns are not of the same rows.
    """
    found = {"loss": -own.loss}
    if compressed is not None:
        if len(compressed) != len(own):
            raise ValueError("compressed lengths are needed of the rows that the columns have")
        found["zlib"] = -own.loss * own.tokens / compressed
    if reference is not None:
        own.check_same(reference)
        found["reference"] = reference.loss - own.loss
    if own.min_k is not None and own.min_k_plus_plus is not None:
        found |= {"min-k": own.min_k, "min-k++": own.min_k_plus_plus}
    return found


def lira(loss: np.ndarray, references: np.ndarray, individual_from: int = INDIVIDUAL_VARIANCE) -> np.ndarray:
    """Compute offline LiRA scores (Carlini et al. 2022, equation 4).

    The score says by how many deviations a row stands out among models without it. A row's confidence p = e^-loss, the
    geometric mean of its tokens' probabilities, is put on the logit scale, log(p / (1 - p)), where it is nearly
    normal; the score is (confidence - mean) / deviation over the reference models. The paper's score is the normal
    distribution function of this, which orders rows the same way but is 1 for many.

    With fewer than `individual_from` references all rows share one variance, the mean of their own ones. Being one
    number for all, it changes no order, and neither does the 1 that is used with a single reference. A row's own
    variance is not taken below a thousandth of the shared one: references that happen to agree would make a row stand
    out without bound.

    Args:
        loss: float64[n], nats per token, of the audited model; members and others in one call, since they are compared
            and must share one variance.
        references: float64[k, n], the same of models that have not seen the rows; the base model may be the only one.
        individual_from: the number of references from which on each row has its own variance.

    Raises:
        ValueError: the shapes do not fit.
    """
    _check(loss, references)
    own, others = _logit_confidence(loss), _logit_confidence(references)
    deviation = np.ones(())
    if len(others) > 1:
        variances = others.var(axis=0, ddof=1)
        shared = variances.mean()
        if len(others) < individual_from:
            variances = np.full_like(variances, shared)
        if shared > 1e-20:  # a smaller variance means that the models are all the same
            deviation = np.sqrt(np.maximum(variances, shared / 1000))
    deviations: np.ndarray = (own - others.mean(axis=0)) / deviation
    return deviations


def rmia(
    loss: np.ndarray,
    references: np.ndarray,
    population_loss: np.ndarray,
    population_references: np.ndarray,
    a: float = OFFLINE_A,
    gamma: float = 1.0,
) -> np.ndarray:
    """Compute offline RMIA scores (Zarifzadeh et al. 2024).

    The score of a row is the share of population rows z that it beats by a factor of gamma. A row x beats z if [p(x |
    model) / p(x)] / [p(z | model) / p(z)] >= gamma, where p = e^-loss and p(x) is the mean over models with x and
    models without x. Offline, nothing is known of models with x: their probability is taken to be a p_out(x) + 1 - a,
    so that p(x) = ((1 + a) p_out(x) + 1 - a) / 2, and p(z) likewise. a = 1 compares with models without x alone, a = 0
    with models that know x by heart. Scores take as many values as there are population rows, and one more. Time is n
    log z: no pair of rows is ever formed.

    Args:
        loss, references: as in `lira`.
        population_loss: float64[z], of rows that neither model has seen and that are not among the scored rows.
        population_references: float64[k, z].
        a, gamma: see above.

    Raises:
        ValueError: the shapes do not fit, or a or gamma is impossible.
    """
    _check(loss, references)
    _check(population_loss, population_references)
    if not 0 <= a <= 1 or not gamma > 0:
        raise ValueError(f"RMIA takes a from 0 to 1 and gamma above 0, not {a} and {gamma}")
    beaten = np.sort(_log_ratio(population_loss, population_references, a))
    found = _log_ratio(loss, references, a) - np.log(gamma)
    share: np.ndarray = np.searchsorted(beaten, found, side="right") / len(beaten)
    return share


def _log_ratio(loss: np.ndarray, references: np.ndarray, a: float) -> np.ndarray:
    """Compute the logarithm of p(x | model) / p(x): float64[n]."""
    without = np.logaddexp.reduce(-references, axis=0) - np.log(len(references))
    with np.errstate(divide="ignore"):
        ratio: np.ndarray = -loss - np.logaddexp(np.log((1 + a) / 2) + without, np.log((1 - a) / 2))
    return ratio


def _logit_confidence(loss: np.ndarray) -> np.ndarray:
    """Compute log(p / (1 - p)) of p = e^-loss; it is finite for a loss of zero, too."""
    loss = np.maximum(loss, 1e-12)
    logit: np.ndarray = -loss - np.log(-np.expm1(-loss))
    return logit


def _check(loss: np.ndarray, references: np.ndarray) -> None:
    if not len(loss) or references.ndim != 2 or references.shape[1] != len(loss) or not len(references):
        raise ValueError(
            "losses of reference models are a matrix: one row for each, of as many as there are rows"
        )


# what attacks achieve ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Membership:
    """The rates of each attack, and whether any attack finds members.

    Attributes:
        attacks: name of the attack -> its rates.
        strongest: the one with the least p-value; of equals the one with the larger AUROC.
        p_value: of "no attack's AUROC is above 1/2": the least of them times how many there are (Bonferroni), so that
            trying many is paid for. The rates of `strongest` are those of the luckiest among many, too high on
            average; each interval of `attacks` holds by itself.
    """

    attacks: dict[str, Rates]
    strongest: str
    p_value: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"attacks": {name: found.to_json() for name, found in self.attacks.items()}}


@dataclass(frozen=True, eq=False)
class Side:
    """The columns of members, of others, or of a population.

    Attributes:
        own: columns of the audited model.
        references: columns of models that have not seen these rows, over the same rows; the first is used by
            `reference`.
        compressed: int64[n], as `compressed_lengths` returns them; None: no zlib attack.
        units: int64[n], as `unit_of` returns them; None only if rows are independent of each other.
    """

    own: Columns
    references: tuple[Columns, ...] = ()
    compressed: np.ndarray | None = None
    units: np.ndarray | None = None

    def matrix(self) -> np.ndarray:
        """Return the losses under the reference models: float64[k, n]."""
        for reference in self.references:
            self.own.check_same(reference)
        return np.stack([reference.loss for reference in self.references])

    def scores(self) -> dict[str, np.ndarray]:
        return scores(self.own, self.references[0] if self.references else None, self.compressed)


def attack(
    members: Side,
    others: Side,
    population: Side | None = None,
    fprs: tuple[float, ...] = FPRS,
    confidence: float = CONFIDENCE,
    a: float = OFFLINE_A,
) -> Membership:
    """Run every attack whose inputs are given, under the names of `scores` and as `lira` and `rmia`.

    Args:
        members: rows that were trained on; others: rows of the same distribution that were not.
        population: for RMIA, further rows that were not trained on, of units that are not among the others; None: no
            RMIA.
        a: see `rmia`.

    Raises:
        ValueError: the sides differ in what they have, columns are not of the same rows, or as `rates`.
    """
    found = members.scores(), others.scores()
    if len(members.references) != len(others.references) or (members.units is None) != (others.units is None):
        raise ValueError("members and others need as many reference models, and units both or neither")
    if members.references:
        loss = np.concatenate([members.own.loss, others.own.loss])
        references = np.concatenate([members.matrix(), others.matrix()], axis=1)
        both = {"lira": lira(loss, references)}
        if population is not None:
            both["rmia"] = rmia(loss, references, population.own.loss, population.matrix(), a)
        for name, values in both.items():
            found[0][name], found[1][name] = values[: len(members.own)], values[len(members.own) :]
    units = None if members.units is None or others.units is None else (members.units, others.units)
    return compare(*found, units, fprs, confidence)


def compare(
    members: Mapping[str, np.ndarray],
    non_members: Mapping[str, np.ndarray],
    units: tuple[np.ndarray, np.ndarray] | None = None,
    fprs: tuple[float, ...] = FPRS,
    confidence: float = CONFIDENCE,
) -> Membership:
    """Compute the rates of every attack.

    Args:
        members, non_members: name of an attack -> scores of rows, as `scores` returns them; the same names in both.
        units: the unit of each member row and of each other row, as `unit_of` returns them; None only if rows are
            independent of each other, each a unit of its own.

    Raises:
        ValueError: there is no attack, their names differ, or as `rates`.
    """
    if not members or members.keys() != non_members.keys():
        raise ValueError("members and non-members must have scores of the same attacks")
    found = {name: rates(own, non_members[name], units, fprs, confidence) for name, own in members.items()}
    strongest = min(found, key=lambda name: (found[name].p_value, -found[name].auroc.value))
    return Membership(found, strongest, min(1.0, len(found) * found[strongest].p_value))
