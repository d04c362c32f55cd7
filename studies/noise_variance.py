"""Noise variance of ELS and ULS at equal compute (Charles et al. 2024, section 3, Figures 2 and 6, Conjecture 1).

No model and no data: gradients are supposed to have norms up to L_ELS = 10, and a user's to be all alike
(L_ULS = L_ELS) or orthogonal (L_ULS = L_ELS / sqrt(k)). Whether s_ELS <= K s_ULS at p = q is looked at on two grids:
a number is no proof, but can be a counterexample.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from confide.planning.user_sampling import Split, noise_variance
from confide.utils.chart import Panel, Points, panels_svg
from confide.utils.console import Console
from confide.utils.files import write_text
from confide.utils.rounding import at_most
from studies import main
from studies.user_sampling import Target, uls_variance

N, K, STEPS, DELTA, NORM = 1024, 32, 1000, 1e-6, 10.0
EPSILONS = (0.25, 1.0, 4.0, 16.0)
COHORTS = (4, 32, 256)  # M, users expected a step
BUDGETS = tuple(float(2**i) for i in range(4, 14))
ALIKE, ORTHOGONAL = "gradients alike", "gradients orthogonal"
NORMS: Mapping[str, Callable[[int], float]] = {ALIKE: lambda k: NORM, ORTHOGONAL: lambda k: NORM / k**0.5}

TOLERANCE = 1e-3
"""How far above the least noise a calibrated one may lie, relatively."""


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
        yield Case(group_size, p, 1, epsilon, 0.9 * p)


def run(folder: Path) -> dict[str, Any]:
    """Tabulate, draw (`figure6.svg` in `folder`) and look at the conjecture."""
    console, rows = Console(), []
    for epsilon in EPSILONS:
        console.say(f"noise variance at epsilon {at_most(epsilon, 6)}")
        rows += [variances(epsilon, budget) for budget in BUDGETS]
    console.say("Conjecture 1")
    conjecture = {"usual": looked_at(usual()), "extreme": looked_at(extreme())}
    checked = claims(rows)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "figure6.svg", _figure(rows))
    return {
        "rows": rows,
        "claims": checked,
        "conjecture": conjecture,
        "markdown": "\n\n".join([_table(rows), _claims_table(checked), _conjecture_table(conjecture)]),
    }


def variances(epsilon: float, budget: float) -> dict[str, Any]:
    """Of ELS, and of ULS by what is supposed and by users a step; only where 1 <= k <= K."""
    target = Target(epsilon, DELTA, STEPS, N)
    possible = [Split(int(budget // n), n) for n in COHORTS if 1 <= budget / n <= K]
    return {
        "epsilon": epsilon,
        "budget": budget,
        "els": noise_variance(target.els_noise(budget, K, N * K), NORM, budget),
        "uls": {
            name: {split.n: uls_variance(split, norm, target) for split in possible}
            for name, norm in NORMS.items()
        },
    }


def share(rows: Sequence[dict[str, Any]], name: str, least_k: int = 1) -> float:
    """In how many of the settings, with at least so many rows a user, ULS has the smaller variance."""
    won: list[bool] = [
        uls < row["els"]
        for row in rows
        for n, uls in row["uls"][name].items()
        if row["budget"] / n >= least_k
    ]
    return sum(won) / len(won)


def claims(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What 003 says of Figure 6, as shares of the settings in which ULS has the smaller variance."""
    by_epsilon = [share([row for row in rows if row["epsilon"] == e], ORTHOGONAL) for e in EPSILONS]
    by_budget = [share([row for row in rows if row["budget"] == b], ORTHOGONAL) for b in BUDGETS]
    alike, several, orthogonal = share(rows, ALIKE), share(rows, ALIKE, 2), share(rows, ORTHOGONAL)
    return [
        _claim(
            "gradients alike: ELS has the smaller variance in nearly all settings (at least 0.9)",
            1 - alike,
            1 - alike >= 0.9,
        ),
        _claim(
            "gradients alike, more than one row a user: ELS has the smaller variance in nearly all (at least 0.9)",
            1 - several,
            1 - several >= 0.9,
        ),
        _claim(
            "gradients orthogonal: ULS has the smaller variance in most settings",
            orthogonal,
            orthogonal > 0.5,
        ),
        _claim(
            "gradients orthogonal: ULS wins more often at the smallest epsilon than at the largest",
            by_epsilon[0] - by_epsilon[-1],
            by_epsilon[0] > by_epsilon[-1],
        ),
        _claim(
            "gradients orthogonal: ULS wins more often at the largest budget than at the smallest",
            by_budget[-1] - by_budget[0],
            by_budget[-1] > by_budget[0],
        ),
    ]


def _claim(words: str, difference: float, holds: bool) -> dict[str, Any]:
    return {"claim": words, "difference": difference, "holds": holds}


def looked_at(cases: Iterator[Case]) -> dict[str, Any]:
    """The conjecture on a grid: how many points, how many that contradict it, by how many an event, and the worst."""
    ratios = {case: case.ratio() for case in cases}
    worst = max(ratios, key=ratios.__getitem__)
    above = [case for case, ratio in ratios.items() if ratio > 1 + TOLERANCE]
    return {
        "points": len(ratios),
        "above_one": len(above),
        "refuted": sum(case.is_refuted() for case in ratios),
        "largest_ratio": ratios[worst],
        "at": {
            "K": worst.group_size,
            "p": worst.p,
            "steps": worst.steps,
            "epsilon": worst.epsilon,
            "delta": worst.delta,
        },
    }


# as pictures and tables ----------------------------------------------------------------------------------------
def _figure(rows: Sequence[dict[str, Any]]) -> str:
    panels = []
    for epsilon in EPSILONS:
        own = [row for row in rows if row["epsilon"] == epsilon]
        for name in NORMS:
            lines: dict[str, Points] = {"ELS": [(row["budget"], row["els"]) for row in own]}
            for n in COHORTS:
                lines[f"ULS, n = {n}"] = [
                    (row["budget"], row["uls"][name][n]) for row in own if n in row["uls"][name]
                ]
            title = f"epsilon {at_most(epsilon, 6)}, {name}"
            panels.append(Panel(title, "rows a step", "noise variance", lines, True, name == ORTHOGONAL))
    return panels_svg("Noise variance of ELS and ULS at equal compute", panels)


def _table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        f"| epsilon | rows a step | ELS | least of ULS, {ALIKE} | n | least of ULS, {ORTHOGONAL} | n |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows[::2]:  # every second budget; all of them are drawn
        cells = [at_most(row["epsilon"], 6), f"{row['budget']:g}", f"{row['els']:.4g}"]
        for name in NORMS:
            n = min(row["uls"][name], key=row["uls"][name].__getitem__)
            cells += [f"{row['uls'][name][n]:.4g}", str(n)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _claims_table(checked: Sequence[dict[str, Any]]) -> str:
    lines = ["| claim | share, or difference of shares | holds |", "|---|---|---|"]
    lines += [
        f"| {one['claim']} | {one['difference']:.2f} | {'yes' if one['holds'] else 'no'} |" for one in checked
    ]
    return "\n".join(lines)


def _conjecture_table(conjecture: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [
        "| deltas | points | s_ELS > K s_ULS | shown by an event | largest s_ELS / (K s_ULS) | at |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in conjecture.items():
        at = ", ".join(f"{key} {value:g}" for key, value in found["at"].items())
        cells = [name, str(found["points"]), str(found["above_one"]), str(found["refuted"])]
        lines.append("| " + " | ".join([*cells, f"{found['largest_ratio']:.4f}", at]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(run)
