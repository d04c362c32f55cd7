"""Noise variance of ELS and ULS at equal compute (Charles et al. 2024, section 3, Figures 2 and 6, Conjecture 1).

No model and no data: gradients are supposed to have norms up to L_ELS = 10, and a user's to be all alike
(L_ULS = L_ELS) or orthogonal (L_ULS = L_ELS / sqrt(k)). Whether s_ELS <= K s_ULS at p = q is looked at on two grids:
a number is no proof, but can be a counterexample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from scipy import stats

from confide.planning.user_sampling import noise_variance
from confide.utils.chart import Panel, Points, panels_svg
from confide.utils.rounding import at_most
from studies.parts.user_sampling import Target
from studies.runner.findings import ABOVE, Finding, exact
from studies.runner.rows import version
from studies.runner.study import Plot, Row, Scale, Study, Table, Work

N, K, STEPS, DELTA, NORM = 1024, 32, 1000, 1e-6, 10.0
COHORTS = (4, 32, 256)  # M, users expected a step
IN_USE = (1, 2, 8, K)  # G, rows of a user from which ELS may draw
ALIKE, ORTHOGONAL = "gradients alike", "gradients orthogonal"
NORMS: Mapping[str, Callable[[int], float]] = {ALIKE: lambda k: NORM, ORTHOGONAL: lambda k: NORM / k**0.5}

USUAL, EXTREME = "usual", "extreme"

TOLERANCE = 1e-3
"""How far above the least noise a calibrated one may lie, relatively."""

NEARLY_ALL = 0.9
"""The share of the settings that counts as nearly all of them; the paper names none."""

_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: {"epsilons": (0.25, 16.0), "budgets": (64.0, 8192.0), "points": 1},
    Scale.SMALL: {
        "epsilons": (0.25, 1.0, 4.0, 16.0),
        "budgets": tuple(float(2**i) for i in range(4, 14)),
        "points": None,
    },
}
_SIZES = {**_SIZES, Scale.FULL: _SIZES[Scale.SMALL]}


@dataclass(frozen=True)
class Case:
    """One point at which the conjecture is looked at: every unit is drawn with probability p, and so is every row."""

    group_size: int
    p: float
    steps: int
    epsilon: float
    delta: float

    def ratio(self) -> float:
        """s_ELS / (K s_ULS); the conjecture says at most 1."""
        users = 1  # rates alone count
        target = Target(self.epsilon, self.delta, self.steps, users)
        els = target.els_noise(self.p, self.group_size, users)
        return els / (self.group_size * target.uls_noise(self.p))

    def is_refuted(self) -> bool:
        """Whether, under ELS with noise K s_ULS, an event {x > t} of one step passes delta; no accountant is asked."""
        noise = self.group_size * Target(self.epsilon, self.delta, self.steps, 1).uls_noise(self.p)
        counts, event = (
            np.arange(self.group_size + 1),
            np.linspace(-self.group_size, 2 * self.group_size, 3001),
        )
        weights = stats.binom.pmf(counts, self.group_size, self.p)
        with_unit = (weights * stats.norm.sf((event[:, None] - counts) / noise)).sum(1)
        without = stats.norm.sf(event / noise)
        return bool((with_unit - np.exp(self.epsilon) * without).max() > self.delta)


def usual() -> Iterator[Case]:
    """Deltas that a guarantee may have: far below the probability of being drawn at all."""
    for case in product((2, 8, 32), (2**-10, 2**-5, 0.5), (1, 1000), (0.5, 2.0, 8.0), (1e-6,)):
        yield Case(*case)


def extreme() -> Iterator[Case]:
    """Deltas just below the probability of being drawn in the one step there is, where little noise is asked for."""
    for group_size, p, epsilon in product((2, 8, 32), (0.01, 0.1, 0.5), (0.01, 0.1, 0.5)):
        yield Case(group_size, p, 1, epsilon, round(0.9 * p, 3))


def measure(work: Work) -> list[Row]:
    size = _SIZES[work.scale]
    columns = {"study": STUDY.name, "scale": str(work.scale), **version()}
    rows: list[Row] = []
    for epsilon in size["epsilons"]:
        work.console.say(f"noise variance at epsilon {at_most(epsilon, 6)}")
        rows += [columns | row for budget in size["budgets"] for row in variances(epsilon, budget)]
        rows += [columns | row for budget in size["budgets"] for row in by_rows_in_use(epsilon, budget)]
    for grid, cases in ((USUAL, usual()), (EXTREME, extreme())):
        work.console.say(f"Conjecture 1, {grid} deltas")
        rows += [columns | row for row in looked_at(grid, list(cases)[: size["points"]])]
    return rows


def variances(epsilon: float, budget: float) -> list[Row]:
    """Of ELS, and of ULS by what is supposed and by users a step; only where 1 <= k <= K."""
    target = Target(epsilon, DELTA, STEPS, N)
    common: Row = {"what": "variance", "epsilon": epsilon, "budget": budget}
    els = noise_variance(target.els_noise(budget, K, N * K), NORM, budget)
    found = [common | {"method": "ELS", "value": els}]
    for n in COHORTS:
        if 1 <= budget / n <= K:
            noise = target.uls_noise(n)
            for name, norm in NORMS.items():
                uls = noise_variance(noise, norm(int(budget // n)), n)
                found.append(common | {"method": "ULS", "gradients": name, "n": n, "value": uls})
    return found


def by_rows_in_use(epsilon: float, budget: float) -> list[Row]:
    """Of ELS alone, by how many rows of each user it may draw from."""
    target = Target(epsilon, DELTA, STEPS, N)
    return [
        {"what": "rows in use", "epsilon": epsilon, "budget": budget, "group_size": group_size}
        | {"value": noise_variance(target.els_noise(budget, group_size, N * group_size), NORM, budget)}
        for group_size in IN_USE
        if budget <= N * group_size
    ]


def looked_at(grid: str, cases: Sequence[Case]) -> list[Row]:
    """Look at the conjecture on a grid."""
    return [
        {
            "what": "conjecture",
            "grid": grid,
            "group_size": case.group_size,
            "p": case.p,
            "steps": case.steps,
            "epsilon": case.epsilon,
            "delta": case.delta,
            "value": case.ratio(),
            "is_refuted": int(case.is_refuted()),
        }
        for case in cases
    ]


# what was found ------------------------------------------------------------------------------------------------
def share(rows: Sequence[Row], name: str, least_k: int = 1, **at: float) -> float:
    """In how many of the settings, with at least so many rows a user, ULS has the smaller variance."""
    els = _els(rows)
    won: list[bool] = [
        row["value"] < els[row["epsilon"], row["budget"]]
        for row in rows
        if row["what"] == "variance"
        and row.get("gradients") == name
        and row["budget"] / row["n"] >= least_k
        and all(row[column] == value for column, value in at.items())
    ]
    return sum(won) / len(won)


def _els(rows: Sequence[Row]) -> dict[tuple[float, float], float]:
    """Return the variance of ELS by (epsilon, budget)."""
    return {
        (row["epsilon"], row["budget"]): row["value"]
        for row in rows
        if row["what"] == "variance" and row["method"] == "ELS"
    }


_exact = partial(exact, unit="share")


def findings(rows: Sequence[Row]) -> list[Finding]:
    epsilons, budgets = (sorted({place[i] for place in _els(rows)}) for i in (0, 1))
    least, most = (share(rows, ORTHOGONAL, epsilon=each) for each in (epsilons[0], epsilons[-1]))
    small, large = (share(rows, ORTHOGONAL, budget=each) for each in (budgets[0], budgets[-1]))
    els, uls = (
        f"share of the settings in which {method} has the smaller variance" for method in ("ELS", "ULS")
    )
    ours = f"; {NEARLY_ALL:g} counts as nearly all, and that is our choice, as the settings are"
    found = [
        _exact(
            "With gradients alike, ELS has the smaller variance in nearly all settings.",
            "Figure 6",
            els + ours,
            1 - share(rows, ALIKE),
            low=NEARLY_ALL,
        ),
        _exact(
            "With gradients alike and several rows of a user, ELS has the smaller variance in nearly all settings.",
            "Figure 6",
            els + ours,
            1 - share(rows, ALIKE, 2),
            low=NEARLY_ALL,
            is_beyond=True,  # the paper does not leave out those with one row of a user
        ),
        _exact(
            "With gradients orthogonal, ULS often has the smaller variance.",
            "Figure 6",
            f"{uls}; more than half counts as often, by our choice",
            share(rows, ORTHOGONAL),
            low=0.5 + ABOVE,
        ),
        _exact(
            "With gradients orthogonal, ULS tends to have the smaller variance where epsilon is small.",
            "Figure 6",
            f"{uls}, at the smallest epsilon less at the largest",
            least - most,
            low=ABOVE,
        ),
        _exact(
            "With gradients orthogonal, ULS tends to have the smaller variance where the compute budget is large.",
            "Figure 6",
            f"{uls}, at the largest budget less at the smallest",
            large - small,
            low=ABOVE,
        ),
        _exact(
            "With gradients orthogonal and a small epsilon, ULS has the smaller variance.",
            "Figure 2",
            f"{uls}, at the smallest epsilon",
            least,
            low=1.0,
        ),
        _exact(
            "With gradients orthogonal and a large compute budget, ULS has the smaller variance.",
            "Figure 2",
            f"{uls}, at the largest budget",
            large,
            low=1.0,
        ),
    ]
    whole = [
        _els(rows)[row["epsilon"], row["budget"]] / row["value"]
        for row in rows
        if row["what"] == "variance" and row.get("gradients") == ALIKE and row["budget"] == K * row["n"]
    ]
    found.append(
        _exact(
            "With all rows of a user and gradients alike, ELS has no more variance than ULS.",
            "Figure 2, of Conjecture 1",
            "variance of ELS as a multiple of that of ULS, the largest over all epsilons and users a step",
            max(whole),
            high=1 + TOLERANCE,
            unit="times",
        )
    )
    return found + _of_rows_in_use(rows) + _of_conjecture(rows)


def _of_rows_in_use(rows: Sequence[Row]) -> list[Finding]:
    """Judge that it hardly matters how many rows of a user ELS may draw from, if all steps have as many."""
    of: dict[tuple[float, float], dict[int, float]] = {}
    for row in rows:
        if row["what"] == "rows in use":
            of.setdefault((row["epsilon"], row["budget"]), {})[row["group_size"]] = row["value"]
    ratios = [own[size] / own[K] for own in of.values() for size in own if size < K]
    if not ratios:
        return []
    return [
        Finding(
            "How many rows of each user ELS may draw from has almost no impact on its noise variance.",
            "Appendix C",
            f"variance with fewer rows in use as a multiple of that with all {K}, from the least to the largest over "
            "all epsilons and budgets; up to a tenth counts as almost none, by our choice",
            (min(ratios), max(ratios)),
            low=0.9,
            high=1.1,
            is_exact=True,
            unit="times",
            is_late=True,
        )
    ]


def _of_conjecture(rows: Sequence[Row]) -> list[Finding]:
    usual_ones, extreme_ones = (_grid(rows, name) for name in (USUAL, EXTREME))
    return [
        _exact(
            f"s_ELS <= K s_ULS, at {len(usual_ones)} points with a delta that a guarantee may have.",
            "Conjecture 1",
            "s_ELS as a multiple of K s_ULS, the largest of these points",
            max(row["value"] for row in usual_ones),
            high=1 + TOLERANCE,
            unit="times",
        ),
        _exact(
            f"s_ELS <= K s_ULS for all deltas: at {len(extreme_ones)} points with a delta of 0.9 p.",
            "Conjecture 1",
            "number of these points at which an event of the one step refutes it",
            sum(row["is_refuted"] for row in extreme_ones),
            high=0.0,
            unit="points",
        ),
    ]


def _grid(rows: Sequence[Row], name: str) -> list[Row]:
    return [row for row in rows if row.get("grid") == name]


# as pictures and tables ----------------------------------------------------------------------------------------
def plots(rows: Sequence[Row]) -> list[Plot]:
    panels = []
    els, epsilons = _els(rows), sorted({epsilon for epsilon, _ in _els(rows)})
    for epsilon in epsilons:
        for name in NORMS:
            lines: dict[str, Points] = {
                "ELS": [(budget, value) for (own, budget), value in els.items() if own == epsilon]
            }
            for n in COHORTS:
                lines[f"ULS, n = {n}"] = sorted(
                    (row["budget"], row["value"])
                    for row in _uls(rows, name)
                    if (row["epsilon"], row["n"]) == (epsilon, n)
                )
            title = f"epsilon {at_most(epsilon, 6)}, {name}"
            panels.append(Panel(title, "rows a step", "noise variance", lines, True, name == ORTHOGONAL))
    words = "noise variance by rows a step, for each epsilon and both suppositions"
    return [
        Plot("noise-variance", words, panels_svg("Noise variance of ELS and ULS at equal compute", panels))
    ]


def _uls(rows: Sequence[Row], name: str) -> list[Row]:
    return [row for row in rows if row["what"] == "variance" and row.get("gradients") == name]


def tables(rows: Sequence[Row]) -> list[Table]:
    heads = ["epsilon", "rows a step", "ELS"]
    heads += [head for name in NORMS for head in (f"least of ULS, {name}", "n")]
    cells = []
    budgets = sorted({budget for _, budget in _els(rows)})[::2]  # every second; all of them are drawn
    for (epsilon, budget), value in _els(rows).items():
        if budget in budgets:
            line = [at_most(epsilon, 6), f"{budget:g}", f"{value:.4g}"]
            for name in NORMS:
                own = [
                    row for row in _uls(rows, name) if (row["epsilon"], row["budget"]) == (epsilon, budget)
                ]
                best = min(own, key=lambda row: row["value"])
                line += [f"{best['value']:.4g}", str(best["n"])]
            cells.append(line)
    note = (
        f"{N:,} users with {K} rows each, {STEPS:,} steps, delta {at_most(DELTA)}; clip norms are the norms of "
        f"gradients, {NORM:g} for a row. ELS has all {K} rows of a user in use. ULS expects n of "
        f"{', '.join(map(str, COHORTS))} users a step, with as many rows of each as the budget gives (1 to {K}). The "
        "paper has plots, not numbers. Shares of the settings depend on which of them are drawn, and that is our "
        "choice. With gradients alike, ELS is ahead wherever ULS takes more than one row of a user. The exceptions "
        "have k = 1: both take one row at a time there, and ELS pays for users who have two rows in a step."
    )
    return [
        Table("Figures 2 and 6: noise variance at equal compute", heads, cells, note),
        _conjecture_table(rows),
    ]


def _conjecture_table(rows: Sequence[Row]) -> Table:
    cells = []
    for name in (USUAL, EXTREME):
        own = _grid(rows, name)
        worst = max(own, key=lambda row: row["value"])
        at = f"K {worst['group_size']}, p {worst['p']:.3g}, steps {worst['steps']:,}, "
        at += f"epsilon {at_most(worst['epsilon'])}, delta {at_most(worst['delta'])}"
        above = sum(row["value"] > 1 + TOLERANCE for row in own)
        refuted = sum(row["is_refuted"] for row in own)
        cells.append([name, str(len(own)), str(above), str(refuted), f"{worst['value']:.4f}", at])
    return Table(
        "Conjecture 1: s_ELS <= K s_ULS where k = G = K and p = q",
        ["deltas", "points", "s_ELS > K s_ULS", "shown by an event", "largest s_ELS / (K s_ULS)", "at"],
        cells,
        "An event is {x > t} of the one step: at noise K s_ULS its P - e^epsilon Q passes delta, which takes normal "
        "tails to see and no accountant. No guarantee would name a delta of 0.9 p. No point is a proof.",
    )


STUDY = Study(
    name="noise-variance",
    paper="003",
    shows=("Figure 2", "Figure 6", "Conjecture 1"),
    question="At equal compute, which of ELS and ULS adds noise of smaller variance?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=1,
    deviations="Our copy of the paper has no figures, which show the budgets, cohorts and epsilons that it drew; "
    "these, and what counts as nearly all, are chosen here. No noise multiplier is estimated, all are certified.",
    plots=plots,
)
