"""Whether some tensors should count more in the norm that is clipped. Beyond the papers.

A clipped gradient has one norm, and all tensors share it: what one of them takes, the others lack. Noise is alike on
all elements. A tensor whose gradients are multiplied before they are clipped takes more of the norm and has less noise
beside what it learns ("scale-then-privatise"). To move it faster alone, after the noise, is another thing: then the
norm is shared as before. Within the embeddings, rows of common tokens may count less than others. All arms of a place
have the same steps, rows and epsilon, and as many trials. Fewer arms are tried at epsilon 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from confide.config.train_section import EMBEDDINGS
from studies.parts import short_runs
from studies.parts.short_runs import HELPDESK
from studies.runner import users
from studies.runner.findings import Finding
from studies.runner.grid import Arm, Grid, Keys
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.twins import without_repeats

PLAIN = "all alike"
FASTER = "embeddings move 2 times as fast"
_ATTENTION = "*attn"  # as models call it: attn, self_attn
SCALES: Mapping[str, Mapping[str, float]] = {
    "embeddings x 2": {EMBEDDINGS: 2.0},
    "embeddings x 4": {EMBEDDINGS: 4.0},
    "embeddings x 2, attention x 0.5": {EMBEDDINGS: 2.0, _ATTENTION: 0.5},
    "embeddings x 4, attention x 0.5": {EMBEDDINGS: 4.0, _ATTENTION: 0.5},
}
"""What gradients are multiplied by before they are clipped, by the name of the arm."""
COMMON = "common tokens less"
POWER = 0.25  # of what a row of `COMMON` is multiplied by
CHOSEN = "embeddings x 2, attention x 0.5"
ALL = f"{CHOSEN}, {COMMON}"
BASES = dict.fromkeys((FASTER, *SCALES, COMMON, ALL), PLAIN)
ARMS = (PLAIN, FASTER, *SCALES, COMMON, ALL)
FEW = (PLAIN, "embeddings x 2", CHOSEN, ALL)
"""The arms that are compared at a small epsilon as well."""
SMALL_EPSILONS = (1.0,)
FACTORS: Mapping[str, tuple[float, ...]] = {
    "newsgroups": (0.5, 0.7, 1.0, 1.4, 2.0),
    "articles": (0.5, 0.7, 1.0, 1.4, 2.0),
    HELPDESK: (1.0, 1.4, 2.0, 2.8, 4.0),
}
"""The learning rates that are tried, over the rule's, which is for independent noise; correlated noise bears more."""
_BANDS = 8  # on the helpdesk, as the quickstart had it until 2026-11-29


def grids(work: Work, text: str) -> list[Grid]:
    size = short_runs.SIZES[work.scale]
    size = size | {"factors": FACTORS[text][:1] if work.scale == Scale.TINY else FACTORS[text]}
    arms = (
        _arm(PLAIN, text, size, {}),
        _arm(FASTER, text, size, {"train.rate_factors": {EMBEDDINGS: 2.0}}),
        *(_arm(name, text, size, {"privacy.scales": dict(scales)}) for name, scales in SCALES.items()),
        _arm(COMMON, text, size, {"privacy.common_tokens": POWER}),
        _arm(ALL, text, size, {"privacy.scales": dict(SCALES[CHOSEN]), "privacy.common_tokens": POWER}),
    )
    whole = short_runs.grid("scales", work, text, size, arms)
    if work.scale != Scale.SMALL:  # `full` has all arms at epsilon 1
        return [whole]
    small = {short_runs.EPSILON: SMALL_EPSILONS}
    few = tuple(arm for arm in arms if arm.name in FEW)
    return [whole, replace(whole, arms=few, at={**whole.at, **small}, tuned_at={**whole.tuned_at, **small})]


def _arm(name: str, text: str, size: Mapping[str, Any], own: Keys) -> Arm:
    made = short_runs.arm(name, text, size)
    keys = {**made.keys, **own}
    if text == HELPDESK:
        keys |= {"adapter.kind": "matrices", "privacy.sampling": "poisson", "privacy.bands": _BANDS}
    return replace(made, keys=keys)


def measure(work: Work) -> list[Row]:
    texts = work.chosen(tuple(short_runs.SIZES[work.scale]["texts"]))
    rows = [row for text in texts for grid in grids(work, text) for row in grid.measured(work)]
    return without_repeats(rows)


def findings(rows: Sequence[Row]) -> list[Finding]:
    """Check which arms beat the one that multiplies nothing by more than the margin; and one beats its like."""
    whole, tokens = (
        {arm: base for arm, base in BASES.items() if (arm in (COMMON, ALL)) is asks} for asks in (False, True)
    )
    alike = "gradients that are all clipped alike"
    return [
        *short_runs.claims(rows, whole, alike),
        *short_runs.claims(rows, tokens, alike, COMMON),
        *short_runs.claims(rows, {ALL: CHOSEN}, f"{CHOSEN}, with all tokens alike", COMMON),
    ]


def tables(rows: Sequence[Row]) -> list[Table]:
    note = (
        "The learning rates of each arm are five factors on the one that the planner's rule gives: 0.5 to 2, and 1 to "
        "4 on the helpdesk, whose noise is correlated. They were chosen on validation text. Where the lowest or the "
        "highest was chosen, one beyond it might be better. Intervals are of 95% over run keys. Common tokens less: "
        "the gradient of a token that the model expects p times as often as if all were alike is multiplied by "
        f"p^-{POWER}, if p is above 1, and the token moves by as much less. These arms came later; claims of them "
        "are a family of their own."
    )
    heads = ("what is multiplied", "against all alike")
    return [
        short_runs.table(
            "Gradients that are multiplied before they are clipped", rows, ARMS, BASES, heads, note
        )
    ]


STUDY = Study(
    name="scales",
    paper="",
    shows=(),
    question="Should some tensors count more in the norm that is clipped?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=90,
    deviations=f"{short_runs.DEVIATIONS} There biases, norms and embeddings of positions stay as they are, and noise "
    f"is correlated over {_BANDS} steps, with groups in turn. On posts and articles noise is independent.",
    reads=users.READS,
    texts=tuple(short_runs.SIZES[Scale.SMALL]["texts"]),
)
