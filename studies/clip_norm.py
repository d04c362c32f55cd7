"""How far the clip norm and the batch matter, by mechanism and optimiser (Chua et al. 2024, Figure 4; 000)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from confide.utils.chart import Panel, panels_svg
from studies.runner import users
from studies.runner.findings import MARGIN, Finding, paired, slopes
from studies.runner.grid import NOTHING, Arm, Grid
from studies.runner.models import stories
from studies.runner.study import Plot, Row, Scale, Study, Table, Work
from studies.runner.tables import losses, perplexity
from studies.runner.users import GROUP, ULS

CLIP, ROWS, K = "privacy.clip_norm", "train.batch", "privacy.rows_per_unit"
EPSILON = 1.0  # of the paper's figure
TUNED_CLIP = 10.0  # where rates are chosen; they then stay while the clip norm moves
GUESSING = math.log(512)
"""The loss of guessing among the tokens of stories260K: how far beyond it a run went astray is chance."""
OPTIMISERS = {"SGD": "sgd", "AdamW": "adamw"}
MECHANISMS = (GROUP, ULS)
_SMALL: dict[str, Any] = {
    "clips": (
        1.0,
        10.0,
        30.0,
        100.0,
    ),  # the norms of rows' gradients lie from 13 to 53 at the base model, mostly
    "rows": (64, 256, 1024),
    "tuned_rows": (256,),
    "steps": 10,
    "k": 5,
    "rates": {"SGD": (3e-3, 1e-2), "AdamW": (5e-3, 1.5e-2)},
    "seeds": 3,
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {
        "clips": (1.0, 10.0),
        "rows": (8,),
        "tuned_rows": (8,),
        "steps": 1,
        "rates": {"SGD": (0.05,)},
        "seeds": 2,
    },
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL
    | {
        "rows": (256, 512, 1024, 2048),
        "tuned_rows": (256, 2048),
        "steps": 1000,
        "k": 10,
        "clips": (0.01, 0.1, 1.0, 10.0),
        "rates": {"SGD": (0.01, 0.05, 0.2), "AdamW": (5e-4, 1e-3, 2e-3)},
    },
}


def grid(work: Work) -> Grid:
    """Return the study's runs. The noised sum is not divided by the clip norm, as in the paper's algorithms."""
    size = _SIZES[work.scale]
    return Grid(
        name="clip-norm",
        texts=("newsgroups",),
        model=stories,
        keys=users.keys(size["steps"]) | {"privacy.normalised": False, K: size["k"]},
        arms=tuple(
            _with(users.arm(mechanism, None, {"train.learning_rate": size["rates"][name]}), name)
            for mechanism in MECHANISMS
            for name in size["rates"]
        ),
        at={"privacy.epsilon": (EPSILON,), CLIP: size["clips"], ROWS: size["rows"]},
        tuned_at={"privacy.epsilon": (EPSILON,), CLIP: (TUNED_CLIP,), ROWS: size["tuned_rows"]},
        seeds=size["seeds"],
    )


def _with(arm: Arm, optimiser: str) -> Arm:
    keys = {**arm.keys, "train.optimizer": OPTIMISERS[optimiser]}
    return replace(arm, name=_name(arm.name, optimiser), keys=keys)


def _name(mechanism: str, optimiser: str) -> str:
    return f"{mechanism}, {optimiser}"


def measure(work: Work) -> list[Row]:
    return grid(work).measured(work)


def _at(rows: Sequence[Row], arm: str, clip: float, batch: float) -> dict[int, float]:
    return users.at(rows, "newsgroups", arm, EPSILON, privacy__clip_norm=clip, train__batch=batch)


def best(rows: Sequence[Row], arm: str, batch: float) -> dict[int, float]:
    """Return the least loss over the clip norms by run key."""
    return {key: min(found) for key, found in _over_clips(rows, arm, batch).items()}


def spread(rows: Sequence[Row], arm: str, batch: float) -> dict[int, float]:
    """Return the worst loss over the clip norms less the best, by run key."""
    return {key: max(found) - min(found) for key, found in _over_clips(rows, arm, batch).items()}


def _over_clips(rows: Sequence[Row], arm: str, batch: float) -> dict[int, list[float]]:
    """Return the losses at each clip norm by run key, none larger than that of guessing."""
    found = [_at(rows, arm, clip, batch) for clip in users.values(rows, CLIP)]
    keys = sorted(set.intersection(*map(set, found)))
    return {key: [min(each[key], GUESSING) for each in found] for key in keys}


def _optimisers(rows: Sequence[Row]) -> list[str]:
    arms = {row["arm"] for row in rows}
    return [name for name in OPTIMISERS if _name(GROUP, name) in arms]


def findings(rows: Sequence[Row]) -> list[Finding]:
    found = []
    batches = users.values(rows, ROWS)
    for optimiser in _optimisers(rows):
        for batch in batches:
            one, other = (spread(rows, _name(mechanism, optimiser), batch) for mechanism in MECHANISMS)
            found.append(
                Finding(
                    f"With {optimiser} and {batch:,} rows a step, group privacy is more sensitive to the clip norm "
                    "than user-wise DP-SGD.",
                    "Figure 4",
                    "how far the loss moves over the clip norms (the worst less the best; a loss above that of "
                    "guessing counts as that of guessing), of group privacy less of user-wise DP-SGD; 0.00995 nats "
                    "are 1% of the perplexity",
                    paired(one, other),
                    low=MARGIN,
                    family=f"{optimiser}, sensitivity",
                    unit="nats of loss",  # too large for a change of the perplexity where a run went astray
                )
            )
        for mechanism in MECHANISMS if len(batches) > 1 else ():
            found.append(
                Finding(
                    f"With {optimiser}, larger batches are better for {mechanism}.",
                    "Figure 4",
                    "slope of the loss in the logarithm of the batch, each at the clip norm that is best on the test",
                    _slopes(rows, _name(mechanism, optimiser)),
                    high=0.0,
                    family="larger batches",
                    unit="nats a factor e",
                )
            )
    return found


def _slopes(rows: Sequence[Row], arm: str) -> tuple[float, ...]:
    batches = users.values(rows, ROWS)
    return slopes([math.log(batch) for batch in batches], [best(rows, arm, batch) for batch in batches])


def tables(rows: Sequence[Row]) -> list[Table]:
    batches = users.values(rows, ROWS)
    heads = [
        "mechanism, optimiser",
        "learning rate",
        "clip norm",
        *(f"{batch:,} rows a step" for batch in batches),
    ]
    cells = []
    for mechanism in MECHANISMS:
        for optimiser in _optimisers(rows):
            arm = _name(mechanism, optimiser)
            rates = users.settings(rows, "newsgroups", arm, EPSILON)
            for clip in users.values(rows, CLIP):
                cells.append([arm, rates, f"{clip:g}", *(_cell(_at(rows, arm, clip, b)) for b in batches)])
            ratios = (f"{math.exp(_mean(spread(rows, arm, batch))):.2f}" for batch in batches)
            cells.append([arm, rates, "worst / best", *ratios])
    before = perplexity(losses(rows, {"arm": NOTHING}))
    note = (
        f"Epsilon 1, k = {_k(rows)} rows of a user. Before training the perplexity is {before}. Rates are chosen at "
        f"clip norm {TUNED_CLIP:g} and left alone. Worse than guessing is a perplexity above {math.exp(GUESSING):g}, "
        "the number of tokens; in worst / best it counts as that. The paper has plots, not numbers. Intervals are of "
        "95% over run keys."
    )
    return [Table("Figure 4, newsgroups: test perplexity", heads, cells, note)]


def _k(rows: Sequence[Row]) -> str:
    """Write how many rows of each user were used: runs of group privacy tell of it, and all runs have as many."""
    return ", ".join(sorted({str(row["rows_per_unit"]) for row in rows if row.get("rows_per_unit")}))


def _mean(found: Mapping[int, float]) -> float:
    return sum(found.values()) / len(found)


def _cell(found: Mapping[int, float]) -> str:
    """Write a perplexity, unless the run went astray: then its digits tell nothing, and may be too many."""
    return perplexity(found) if _mean(found) < GUESSING else "worse than guessing"


def plots(rows: Sequence[Row]) -> list[Plot]:
    arms = [_name(mechanism, optimiser) for mechanism in MECHANISMS for optimiser in _optimisers(rows)]
    drawn = {arm: lines for arm in arms if any((lines := _lines(rows, arm)).values())}
    reach = [y for lines in drawn.values() for line in lines.values() for _, y in line]
    panels = [
        Panel(arm, "clip norm", "test perplexity", lines, log_x=True, log_y=True, decades=True, reach=reach)
        for arm, lines in drawn.items()
    ]
    words = "test perplexity by clip norm, for each batch, mechanism and optimiser, but for what is worse than guessing"
    return [Plot("clip-norm", words, panels_svg("Clip norm and batch at epsilon 1", panels))]


def _lines(rows: Sequence[Row], arm: str) -> dict[str, list[tuple[float, float]]]:
    """Return the perplexity by clip norm for each batch, without those that are worse than guessing."""
    found = {}
    for batch in users.values(rows, ROWS):
        of_clips = {clip: _at(rows, arm, clip, batch) for clip in users.values(rows, CLIP)}
        line = [
            (clip, math.exp(_mean(own))) for clip, own in of_clips.items() if own and _mean(own) < GUESSING
        ]
        found[f"{batch:,} rows"] = line  # with its colour, though it may be empty
    return found


STUDY = Study(
    name="clip-norm",
    paper="000",
    shows=("Figure 4",),
    question="How sensitive are group privacy and user-wise DP-SGD to the clip norm and the batch?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=60,
    deviations=users.DEVIATIONS
    + " The paper shows BookSum; here are newsgroup posts, and SGD beside AdamW, since "
    "AdamW undoes most of what the clip norm does to the length of a step. Every batch takes as many steps.",
    reads=("20newsgroups",),
    plots=plots,
)
