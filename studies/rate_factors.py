"""Whether some tensors should have a higher learning rate than others under noise. Beyond the papers.

A rate of zero is one, too: biases, norms and positions take a part of the clipped norm, whatever they teach.

Confide's optimiser moves every tensor by steps of one length. Embeddings are unlike other weights: their best rate does
not fall as a model grows wider, whereas that of matrices between layers does (Yang et al. 2022, "Tensor Programs V").
In both models here the output layer shares the weights of the embeddings. LoRA's two factors are not alike either:
LoRA+ (Hayou et al. 2024) has a rate for the second that is 16 times the first's. All arms of a place have the same
steps, rows and epsilon, and as many trials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from confide.config.train_section import EMBEDDINGS as WORD
from studies.parts import short_runs
from studies.parts.short_runs import HELPDESK
from studies.runner import users
from studies.runner.findings import Finding
from studies.runner.grid import Arm, Grid, Keys
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.twins import without_repeats

FULL, LORA = "all weights, one rate", "LoRA, one rate"
MATRICES = "no biases, norms and positions, one rate"
EMBEDDINGS = (3.0, 9.0)
"""What the embeddings' rate is, over that of all other weights."""
RATIOS = (4.0, 16.0)
"""What the rate of LoRA's B is, over that of A."""
LORA_FACTORS = (0.5, 1.0, 2.0, 4.0)
"""What LoRA's rates are, over the rule's."""
_RANK = 16


def embeddings(factor: float) -> str:
    return f"all weights, embeddings x {factor:g}"


def plus(ratio: float) -> str:
    return f"LoRA, B x {ratio:g}"


BASES = dict.fromkeys((*map(embeddings, EMBEDDINGS), MATRICES), FULL) | {
    plus(ratio): LORA for ratio in RATIOS
}
"""The arm that each arm is held against which has several rates, or trains a part of the tensors."""
ARMS = (FULL, *map(embeddings, EMBEDDINGS), MATRICES, LORA, *map(plus, RATIOS))


def grids(work: Work, text: str) -> list[Grid]:
    """Return the runs that train all weights, and those of LoRA: not at all places, and not of the helpdesk.

    The model of the helpdesk alone has biases and positions that could be left as they are.
    """
    size = short_runs.SIZES[work.scale]
    full = [
        short_runs.arm(FULL, text, size),
        *(_arm(embeddings(factor), text, size, {WORD: factor}) for factor in EMBEDDINGS),
    ]
    if text == HELPDESK:
        full.append(_arm(MATRICES, text, size, {}, {"adapter.kind": "matrices"}))
    made = [short_runs.grid("rate-factors", work, text, size, full)]
    if text == HELPDESK:
        return made
    adapter = {"adapter.kind": "lora", "adapter.rank": _RANK}
    lora = [
        _arm(LORA, text, size, {}, adapter),
        *(_arm(plus(ratio), text, size, _around(ratio), adapter) for ratio in RATIOS),
    ]
    fewest = size | {"texts": {text: size["texts"][text][:1]}}
    return [*made, short_runs.grid("rate-factors", work, text, fewest, lora)]


def _around(ratio: float) -> Mapping[str, float]:
    """Return rates of both factors about their middle, so that the same trials suit every ratio."""
    return {"lora_A": 1 / math.sqrt(ratio), "lora_B": math.sqrt(ratio)}


def _arm(
    name: str,
    text: str,
    size: Mapping[str, Any],
    rate_factors: Mapping[str, float],
    adapter: Keys | None = None,
) -> Arm:
    is_lora = adapter is not None and adapter["adapter.kind"] == "lora"
    factors = LORA_FACTORS[: len(size["factors"])] if is_lora else None
    made = short_runs.arm(name, text, size, factors=factors)
    several = {"train.rate_factors": dict(rate_factors)} if rate_factors else {}
    return replace(made, keys={**made.keys, **(adapter or {}), **several})


def measure(work: Work) -> list[Row]:
    texts = work.chosen(tuple(short_runs.SIZES[work.scale]["texts"]))
    rows = [row for text in texts for grid in grids(work, text) for row in grid.measured(work)]
    return without_repeats(rows)  # both grids of a text measure the model before training


# what was found ------------------------------------------------------------------------------------------------
def findings(rows: Sequence[Row]) -> list[Finding]:
    """Check which arms beat one rate for all tensors by more than the margin."""
    return short_runs.claims(rows, BASES, "one rate for all tensors")


def tables(rows: Sequence[Row]) -> list[Table]:
    note = (
        "The learning rates of each arm are four factors on the one that the planner's rule gives for whole weights, "
        "and were chosen on validation text: 0.7 to 2, for LoRA 0.5 to 4. Where B has a multiple of A's rate, the "
        "factor is of the geometric mean of both. Where the lowest was chosen, a lower one might be better. Intervals "
        "are of 95% over run keys."
    )
    heads = ("learning rates", "against one rate")
    return [short_runs.table("Several learning rates in one model", rows, ARMS, BASES, heads, note)]


STUDY = Study(
    name="rate-factors",
    paper="",
    shows=(),
    question="Should some tensors have a higher learning rate than others under noise, or none?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=45,
    deviations=f"{short_runs.DEVIATIONS} LoRA has rank {_RANK}, in all linear layers.",
    reads=users.READS,
    texts=tuple(short_runs.SIZES[Scale.SMALL]["texts"]),
)
