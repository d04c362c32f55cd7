"""How ULS should split a budget between users and rows of each (Charles et al. 2024, Figures 11 to 13; 003).

Figure 11 is a grid of k rows of n users. Figures 12 and 13 ask what strategies lose that choose a place in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from confide.planning.user_sampling import USERS, Split, measured_norms
from confide.utils.chart import Panel, Points, panels_svg
from studies.parts.user_sampling import COHORT, GROUP, MENDED, ORACLE, OWN, PRINTED, RANDOM, strategies
from studies.runner import users
from studies.runner.findings import ABOVE, MARGIN, Finding, interval
from studies.runner.grid import NOTHING, Arm, Grid, config
from studies.runner.models import stories
from studies.runner.rows import version
from studies.runner.study import Plot, Row, Scale, Study, Table, Work
from studies.runner.tables import change, perplexity, target
from studies.runner.training import job_of
from studies.runner.users import ULS

EPSILON, K, N = "privacy.epsilon", "privacy.rows_per_unit", "train.batch"
NORM = "norm"
PAPERS = (1.0, 64.0)  # the least and the largest epsilon of Figures 11 to 13
STRATEGIES = (OWN, PRINTED, ORACLE, RANDOM, COHORT, GROUP)
_TEXT = "newsgroups"
_KEYS = users.arm(ULS, None, {}, selection="random").keys  # rows, drawn anew at each step (Algorithm 2)
_SMALL: dict[str, Any] = {
    "ks": (1, 2, 4, 8, 16),
    "ns": (16.0, 32.0, 64.0, 128.0, 256.0, 512.0),
    "budget": 512,  # the most rows a step
    "steps": 16,
    "rates": (5e-3, 1e-2),
    "epsilons": (0.25, 4.0),
    "seeds": 3,
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {"ks": (1, 2), "ns": (4.0, 8.0), "budget": 8, "steps": 1, "epsilons": (16.0,), "seeds": 2},
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL
    | {
        "ks": tuple(2**power for power in range(9)),
        "ns": tuple(2.0**power for power in range(5, 13)),
        "budget": 2**20,
        "steps": 2000,
        "rates": (5e-4, 1e-3, 2e-3),
        "epsilons": (1.0, 4.0, 16.0, 64.0),
    },
}


def grids(work: Work) -> list[Grid]:
    """Return a grid for each k: the more rows a user, the fewer users a budget has."""
    size = _SIZES[work.scale]
    arm = Arm(ULS, _KEYS, {"train.learning_rate": size["rates"]})  # a batch of users
    found = []
    for k in size["ks"]:
        places = {
            EPSILON: size["epsilons"],
            K: (k,),
            N: tuple(n for n in size["ns"] if k * n <= size["budget"]),
        }
        keys = users.keys(size["steps"])
        found.append(Grid("cohorts", (_TEXT,), stories, keys, (arm,), places, places, size["seeds"]))
    return found


def measure(work: Work) -> list[Row]:
    rows = [row for grid in grids(work) for row in grid.measured(work)]
    untrained = next(row for row in rows if row["arm"] == NOTHING)
    trained = [row for row in rows if row["arm"] != NOTHING]
    return [untrained, *trained, *norms(work, stories(work))]


def norms(work: Work, model: Path) -> list[Row]:
    """Return L(k) as the strategies see it: the median norm of users' gradients over k rows, at the base model."""
    size = _SIZES[work.scale]
    keys = {**users.keys(size["steps"]), **_KEYS, K: 1, N: size["ns"][0], EPSILON: size["epsilons"][0]}
    job = job_of(config(work, model, _TEXT, keys), work.folder / "cohorts", work)
    found = measured_norms(job, size["ks"])
    common: Row = {"study": "cohorts", "scale": str(work.scale), "text": _TEXT, "arm": ULS, "part": NORM}
    common |= {"key": 0, EPSILON: None, N: None, **version()}
    return [common | {K: k, NORM: float(norm)} for k, norm in zip(size["ks"], found, strict=True)]


# what was measured ---------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Measured:
    """What the runs came to at one epsilon.

    Attributes:
        norm: k -> L(k).
        noise: n -> the noise multiplier.
        validation: the least loss over learning rates at each split, of trials.
        test: the loss by run key at each split.
    """

    norm: Mapping[int, float]
    noise: Mapping[float, float]
    validation: Mapping[Split, float]
    test: Mapping[Split, Mapping[int, float]]

    @classmethod
    def of(cls, rows: Sequence[Row], epsilon: float) -> Measured:
        own = [row for row in rows if row[EPSILON] == epsilon]
        validation: dict[Split, float] = {}
        test: dict[Split, dict[int, float]] = {}
        for row in own:
            split = Split(row[K], row[N])
            if row["part"] == "validation":
                validation[split] = min(row["loss"], validation.get(split, math.inf))
            else:
                test.setdefault(split, {})[row["key"]] = row["loss"]
        norm = {row[K]: row[NORM] for row in rows if row["part"] == NORM}
        noise = {row[N]: row["noise_multiplier"] for row in own}
        return cls(norm, noise, validation, test)

    @property
    def budgets(self) -> list[float]:
        """The budgets that can be spent in more than one way."""
        found = sorted({split.budget for split in self.test})
        return [budget for budget in found if len(self.choices(budget)) > 1]

    def choices(self, budget: float) -> list[Split]:
        return [split for split in self.test if split.budget == budget]

    def best(self, budget: float) -> Split:
        """Return the split of the least validation loss."""
        return min(self.choices(budget), key=self.validation.__getitem__)

    @cached_property
    def picked(self) -> dict[str, dict[float, list[Split]]]:
        """What each strategy takes by budget, each of it as probably: one split, or all of them if it is random."""
        ks, ns = sorted(self.norm), sorted(self.noise)
        named = strategies(
            self.norm.__getitem__,
            self.noise.__getitem__,
            self.validation.__getitem__,
            Split(ks[0], ns[0]),
            ks,
            int(ns[-1]),
        )
        found = {
            name: {budget: [named[name](budget)] for budget in self.budgets}
            for name in (OWN, PRINTED, ORACLE, COHORT, GROUP)
        }
        return found | {RANDOM: {budget: self.choices(budget) for budget in self.budgets}}

    def lost(self, name: str, budget: float) -> np.ndarray:
        """Return what a strategy loses to the best split, in nats: float64[run keys]."""
        least = self._losses(self.best(budget))
        gaps = np.array([self._losses(split) - least for split in self.picked[name][budget]])
        found: np.ndarray = gaps.mean(0)
        return found

    def _losses(self, split: Split) -> np.ndarray:
        return np.array([loss for _, loss in sorted(self.test[split].items())])


def measured(rows: Sequence[Row]) -> dict[float, Measured]:
    """Return what was measured, by epsilon."""
    return {epsilon: Measured.of(rows, epsilon) for epsilon in users.values(rows, EPSILON)}


def lost(found: Measured, name: str) -> np.ndarray:
    """Return what a strategy loses to the best split: float64[budgets, run keys]."""
    return np.array([found.lost(name, budget) for budget in found.budgets])


def differ(found: Measured, name: str) -> np.ndarray:
    """Tell where a strategy chooses otherwise than Estimate-and-Double: bool[budgets]."""
    return np.array([found.picked[name][budget] != found.picked[OWN][budget] for budget in found.budgets])


# what was found ------------------------------------------------------------------------------------------------
def findings(rows: Sequence[Row]) -> list[Finding]:
    """Judge each epsilon by itself: at a large one all of the budget goes to users, and a mean over both hides that."""
    found = measured(rows)
    same = [
        each.picked[PRINTED][budget] == each.picked[GROUP][budget]
        for each in found.values()
        for budget in each.budgets
    ]
    printed = Finding(
        "Algorithm 3 as printed always doubles rows, and ends where max group size does.",
        "Algorithm 3",
        "share of the budgets and epsilons at which both choose one split",
        (sum(same) / len(same),),
        low=1.0,
        is_exact=True,
        unit="share",
        is_beyond=True,
    )
    return [*(each for epsilon, own in found.items() for each in _at(epsilon, own)), printed]


def _at(epsilon: float, found: Measured) -> Iterator[Finding]:
    """Yield what is claimed at an epsilon: of the paper if it has such an epsilon, beyond it otherwise."""
    place, at = "Figures 12 and 13", f"at epsilon {target(epsilon)}"
    is_beyond = not PAPERS[0] <= epsilon <= PAPERS[1]
    own, oracle = lost(found, OWN), lost(found, ORACLE)
    yield Finding(
        f"{MENDED} is within 1% of the best split {at}.",
        place,
        "loss less that of the split that validation text chose, in the mean over budgets; the 1% is our choice",
        _means(own),
        high=MARGIN,
        is_beyond=is_beyond,
    )
    yield Finding(
        f"{MENDED} does as well as the oracle for most budgets {at}.",
        place,
        f"at how many of {len(own)} budgets the 95% interval of its loss less the oracle's lies below 1%, which is our "
        "choice of what counts as well",
        (float(sum(interval(tuple(gap))[1] <= MARGIN for gap in own - oracle)),),
        low=len(own) // 2 + 1,
        is_exact=True,
        unit="budgets",
        is_beyond=is_beyond,
    )
    for name in (RANDOM, COHORT, GROUP, PRINTED):
        otherwise = differ(found, name)
        source = "Algorithm 3" if name == PRINTED else place
        if otherwise.any():
            yield Finding(
                f"{MENDED} loses less to the best split than {name} {at}.",
                source,
                f"the difference of what they lose, in the mean over {otherwise.sum()} of {len(otherwise)} budgets, at "
                "which they choose otherwise",
                _means((lost(found, name) - own)[otherwise]),
                low=ABOVE,
                family=f"{source}, {at}",
                is_beyond=is_beyond or name == PRINTED,
            )


def _means(values: np.ndarray) -> tuple[float, ...]:
    """Return the mean over budgets for each run key."""
    return tuple(map(float, values.mean(0)))


# as pictures and tables ----------------------------------------------------------------------------------------
def tables(rows: Sequence[Row]) -> list[Table]:
    found = measured(rows)
    return [
        *(_heat(epsilon, each) for epsilon, each in found.items()),
        _suboptimality(found),
        _choices(found),
    ]


def _heat(epsilon: float, found: Measured) -> Table:
    ns = sorted(found.noise)
    best = {found.best(budget) for budget in found.budgets}
    cells = []
    for k in sorted(found.norm):
        splits = [Split(k, n) for n in ns]
        shown = [perplexity(found.test[split]) if split in found.test else "" for split in splits]
        marked = [f"**{text}**" if split in best else text for split, text in zip(splits, shown, strict=True)]
        cells.append([str(k), f"{found.norm[k]:.3g}", *marked])
    cells.append(["noise multiplier", "", *(f"{found.noise[n]:.3f}" for n in ns)])
    heads = ["rows of each user, k", "median norm of a user's gradient", *(f"n = {n:g} users" for n in ns)]
    note = (
        "Diagonals have one budget, k n rows a step. In bold: what validation text chose of a budget. The norms are "
        f"those of {USERS} users at the base model; they are private, and what is chosen by them is covered by no "
        "guarantee. The paper has plots, not numbers. Intervals are of 95% over run keys."
    )
    return Table(f"Figure 11: test perplexity of ULS at epsilon {target(epsilon)}", heads, cells, note)


def _suboptimality(found: Mapping[float, Measured]) -> Table:
    budgets = next(iter(found.values())).budgets
    by_epsilon = {
        target(epsilon): {name: lost(each, name) for name in STRATEGIES} for epsilon, each in found.items()
    }
    if len(by_epsilon) > 1:
        by_epsilon["all, in the mean"] = {
            name: np.mean([each[name] for each in by_epsilon.values()], 0) for name in STRATEGIES
        }
    cells = [
        [epsilon, name, *(change(tuple(each)) for each in of_budget), change(tuple(of_budget.mean(0)))]
        for epsilon, by_name in by_epsilon.items()
        for name, of_budget in by_name.items()
    ]
    heads = ["epsilon", "strategy", *(f"{budget:g} rows a step" for budget in budgets), "all"]
    note = (
        "The change of the test perplexity from the best split. Validation text chooses that split, so a strategy may "
        "end below it. A random split counts as the mean over all splits of the budget. Estimate-and-Double has noise "
        "over users, s(n) / n, as the variance of equation (6) has it; Algorithm 3 as printed has s(n) alone."
    )
    if alike := [target(epsilon) for epsilon, each in found.items() if not differ(each, COHORT).any()]:
        note += f" At epsilon {' and '.join(alike)} Estimate-and-Double always chooses the most users, "
        note += "as max cohort does."
    note += f" The paper has epsilon {PAPERS[0]:g} to {PAPERS[1]:g}. Intervals are of 95% over run keys."
    return Table("Figures 12 and 13: what strategies lose to the best split", heads, cells, note)


def _choices(found: Mapping[float, Measured]) -> Table:
    budgets = next(iter(found.values())).budgets
    cells = []
    for epsilon, each in found.items():
        by_name = {name: each.picked[name] for name in (OWN, PRINTED, ORACLE)}
        by_name["best on validation text"] = {budget: [each.best(budget)] for budget in budgets}
        for name, picked in by_name.items():
            cells.append([target(epsilon), name, *(_written(picked[budget][0]) for budget in budgets)])
    heads = ["epsilon", "strategy", *(f"{budget:g} rows a step" for budget in budgets)]
    return Table("What is chosen: rows x users", heads, cells)


def _written(split: Split) -> str:
    return f"{split.k} x {split.n:g}"


def plots(rows: Sequence[Row]) -> list[Plot]:
    found = measured(rows)
    lines: dict[float, dict[str, Points]] = {
        epsilon: {
            name: [(budget, 100 * math.expm1(each.lost(name, budget).mean())) for budget in each.budgets]
            for name in (OWN, RANDOM, COHORT, GROUP)
        }
        for epsilon, each in found.items()
    }
    alike = {epsilon: not differ(each, COHORT).any() for epsilon, each in found.items()}
    reach = [y for by_name in lines.values() for points in by_name.values() for _, y in points]
    panels = [
        Panel(
            f"epsilon {target(epsilon)}" + f"; the first lies under {COHORT}" * alike[epsilon],
            "rows a step",
            "% above the best split",
            by_name,
            log_x=True,
            reach=reach,
        )
        for epsilon, by_name in lines.items()
    ]
    svg = panels_svg("Test perplexity above that of the best split", panels)
    return [Plot("cohorts", "test perplexity above the best split's by budget, of each strategy", svg)]


STUDY = Study(
    name="cohorts",
    paper="003",
    shows=("Figure 11", "Figure 12", "Figure 13"),
    question="How should user-level sampling split its compute between users and rows of each?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=60,
    deviations="stories260K in place of a model of 350 million weights; newsgroup posts in place of Stack Overflow "
    "and CC-News; 16 to 512 users with 1 to 16 rows of each, in place of 32 to 4,096 and 256, at two epsilons, one "
    "of them below the paper's: with so few users, Estimate-and-Double takes the most users at larger ones; a learning "
    "rate chosen at each split. The best split and the oracle are led by validation text and judged by test "
    "text; in the paper one loss does both.",
    reads=("20newsgroups",),
    plots=plots,
)
