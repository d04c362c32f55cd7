"""What low-rank adapters cost beside training every weight (Chua et al. 2024, Table 8; 000).

Beyond the paper: whether noise is spent better where only a part of the model trains.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from studies.runner import users
from studies.runner.findings import ABOVE, MARGIN, Finding, has_taught, paired, slopes, taught
from studies.runner.grid import NOTHING, Arm, Grid
from studies.runner.models import stories
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.tables import change, losses, perplexity, target
from studies.runner.users import ULS

FULL, MATRICES = "every weight", "all but biases, norms and positions"
BLOCKS, UPPER = "the blocks, not the embeddings", "the upper half of the blocks"
PARTS = (MATRICES, BLOCKS, UPPER)
"""What of the model's own weights trains, where not every weight does."""
EPSILON, TEXT = "privacy.epsilon", "newsgroups"
SMALL_LOSS = math.log(1.05)
"""What counts as a minor impact: 5% of the perplexity. The paper's largest is 4.6%: 19.39 for 18.53."""
_SMALL: dict[str, Any] = {
    "rows": 192,
    "k": 4,
    "steps": 16,
    "ranks": (64, 32, 16),
    "parts": {BLOCKS: ["h"], UPPER: ["h.2", "h.3"]},
    "full_rates": (1e-3, 2e-3, 4e-3),
    "rates": (4e-3, 8e-3, 1.6e-2),
    "epsilons": (8.0, math.inf),
    "seeds": 3,
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {
        "rows": 8,
        "k": 2,
        "steps": 1,
        "ranks": (4, 2),
        "parts": {BLOCKS: ["layers"], UPPER: ["layers.3", "layers.4"]},
        "full_rates": (5e-3,),
        "rates": (5e-3,),
        "epsilons": (8.0,),
        "seeds": 2,
    },
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL
    | {"rows": 1024, "k": 10, "steps": 1000, "full_rates": (1e-4, 5e-4), "rates": (1e-3, 2e-3)}
    | {"parts": {BLOCKS: ["h"], UPPER: [f"h.{block}" for block in range(6, 12)]}},
}


def base(work: Work) -> Path:
    """Return the bundled model; stories260K at `tiny`, GPT-2 small at `full`."""
    return Path("bundled") if work.scale is Scale.SMALL else stories(work)


def lora(rank: int) -> str:
    return f"LoRA, r = {rank}"


# Chua et al. 2024, Table 8: perplexity on Enron mail and on BookSum, GPT-2 small.
PAPER = {
    FULL: "18.53 / 23.79",
    lora(64): "18.83 / 24.07",
    lora(32): "19.05 / 24.18",
    lora(16): "19.39 / 24.31",
}


def grid(work: Work) -> Grid:
    """Return the study's runs: user-wise DP-SGD. Adapters want larger rates; every arm tries as many."""
    size = _SIZES[work.scale]
    adapters = {FULL: {"adapter.kind": "full"}}
    adapters |= {lora(rank): {"adapter.kind": "lora", "adapter.rank": rank} for rank in size["ranks"]}
    adapters[MATRICES] = {"adapter.kind": "matrices"}
    adapters |= {
        name: {"adapter.kind": "modules", "adapter.targets": modules}
        for name, modules in size["parts"].items()
    }
    arms = []
    for name, adapter in adapters.items():
        rates = size["rates" if adapter["adapter.kind"] == "lora" else "full_rates"]
        made = users.arm(ULS, size["rows"], {"train.learning_rate": rates}, name)
        arms.append(Arm(name, {**made.keys, **adapter}, made.options, made.derived))
    at = {EPSILON: size["epsilons"]}
    return Grid(
        name="adapters",
        texts=(TEXT,),
        model=base,
        keys=users.keys(size["steps"]) | {"privacy.rows_per_unit": size["k"]},
        arms=tuple(arms),
        at=at,
        tuned_at=at,
        seeds=size["seeds"],
    )


def measure(work: Work) -> list[Row]:
    return grid(work).measured(work)


def ranks(rows: Sequence[Row]) -> list[int]:
    """Return the ranks of the adapters, the largest first."""
    beginning = lora(0)[:-1]
    found = {row["arm"].removeprefix(beginning) for row in rows if row["arm"].startswith(beginning)}
    return sorted(map(int, found), reverse=True)


def findings(rows: Sequence[Row]) -> list[Finding]:
    found = []
    before = next(iter(losses(rows, {"text": TEXT, "arm": NOTHING}).values()))
    for epsilon in users.values(rows, EPSILON):
        gains = tuple(loss - before for loss in users.at(rows, TEXT, FULL, epsilon).values())
        is_beyond = math.isfinite(epsilon)  # the paper's perplexities are those of runs without noise
        what = f"At epsilon {target(epsilon)}, training every weight"
        found.append(taught(what, "loss of training every weight less that before", gains))
        if not has_taught(gains):
            continue  # what teaches nothing costs nothing
        for rank in ranks(rows):
            found.append(
                Finding(
                    f"At epsilon {target(epsilon)}, LoRA with rank {rank} costs at most 5% of the perplexity.",
                    "Table 8",
                    "loss with LoRA less that of training every weight; the paper says minor, and loses 4.6% at most",
                    users.gap(rows, TEXT, lora(rank), FULL, epsilon),
                    high=SMALL_LOSS,
                    family=f"LoRA, epsilon {target(epsilon)}",
                    is_beyond=is_beyond,
                )
            )
        found += [
            Finding(
                f"At epsilon {target(epsilon)}, a larger rank is better.",
                "Table 8",
                "slope of the loss in the logarithm of the rank",
                slopes(
                    [math.log(rank) for rank in ranks(rows)],
                    [users.at(rows, TEXT, lora(rank), epsilon) for rank in ranks(rows)],
                ),
                high=-ABOVE,
                unit="nats a factor e",
                is_beyond=is_beyond,
            ),
            Finding(
                f"At epsilon {target(epsilon)}, training every weight is better than the least rank.",
                "Table 8",
                f"loss of training every weight less that with rank {min(ranks(rows))}",
                paired(
                    users.at(rows, TEXT, FULL, epsilon), users.at(rows, TEXT, lora(min(ranks(rows))), epsilon)
                ),
                high=-ABOVE,
                is_beyond=is_beyond,
            ),
        ]
    for part in _parts(rows):
        found += _of_part(rows, part)
    return found


def _of_part(rows: Sequence[Row], part: str) -> Iterator[Finding]:
    """Yield whether a part gains under noise, and whether it gains more than it does without noise, the control."""
    without = users.gap(rows, TEXT, part, FULL, math.inf)
    for epsilon in filter(math.isfinite, users.values(rows, EPSILON)):
        gap = users.gap(rows, TEXT, part, FULL, epsilon)
        yield Finding(
            f"At epsilon {target(epsilon)}, training this alone beats training every weight by more than 1%: {part}.",
            "Table 8",
            "loss with a part of the weights less that with all",
            gap,
            high=-MARGIN,
            family="parts",
            is_beyond=True,
        )
        if without:
            yield Finding(
                f"The gap to training every weight is smaller at epsilon {target(epsilon)} than without noise, where "
                f"this alone trains: {part}.",
                "Table 8",
                "loss with a part less that with all at this epsilon, less the same without noise: a quotient of two "
                "quotients of perplexities",
                tuple(a - b for a, b in zip(gap, without, strict=True)),
                high=-MARGIN,
                family="parts, against no noise",
                is_beyond=True,
            )


def _parts(rows: Sequence[Row]) -> list[str]:
    return [part for part in PARTS if any(row["arm"] == part for row in rows)]


def tables(rows: Sequence[Row]) -> list[Table]:
    cells = [
        [
            target(epsilon),
            arm,
            perplexity(users.at(rows, TEXT, arm, epsilon)),
            "" if arm == FULL else change(users.gap(rows, TEXT, arm, FULL, epsilon)),
            users.settings(rows, TEXT, arm, epsilon),
            PAPER.get(arm, ""),
        ]
        for epsilon in users.values(rows, EPSILON)
        for arm in (FULL, *map(lora, ranks(rows)), *_parts(rows))
    ]
    before = perplexity(losses(rows, {"text": TEXT, "arm": NOTHING}))
    note = (
        f"User-wise DP-SGD. Before training the perplexity is {before}. The paper does not say at which epsilon its "
        "table is; its perplexities are those of runs without noise. Intervals are of 95% over run keys."
    )
    heads = ["epsilon", "what trains", "perplexity", "against every weight", "rate", "paper: Enron / BookSum"]
    return [Table(f"Table 8, {TEXT}: test perplexity", heads, cells, note)]


STUDY = Study(
    name="adapters",
    paper="000",
    shows=("Table 8",),
    question="What do low-rank adapters cost, beside training every weight?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=80,
    deviations="The bundled model of 5.3 million weights in place of GPT-2 small, newsgroup posts in place of Enron "
    "mail and BookSum; rows of 64 tokens; user-wise DP-SGD with Poisson draws, at epsilon 8 and without noise. Each "
    "arm has three learning rates to choose from; those of adapters are larger. Three arms train a part of the model, "
    "which the paper does not: all but biases, norms and the embeddings of positions; the blocks; or the upper half of "
    "them. With the latter two, the last norm and the embeddings stay.",
    reads=("20newsgroups",),
)
