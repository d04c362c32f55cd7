"""Mean estimation (Charles et al. 2024, appendix E, Figure 7): ELS against ULS on made-up users, accounted as runs.

The loss of a row x is |theta - x|^2 / 2, so its gradient is theta - x; the error is the squared distance of the last
theta from the population's mean. Beside it, how well the strategies of appendix I.1 choose rows and users.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from confide.planning.user_sampling import (
    USERS,
    Split,
    estimate_and_double,
)
from confide.utils.chart import Panel, Points, panels_svg
from confide.utils.console import Console
from confide.utils.files import write_text
from confide.utils.rounding import at_most
from studies import main
from studies.user_sampling import (
    Target,
    greedy_local_oracle,
    max_cohort,
    max_group_size,
    random_split,
    splits,
    uls_variances,
)

N, K, D = 256, 16, 32  # users, rows of each, coordinates
STEPS, DELTA = 256, 1e-6
KS = (1, 2, 4, 8, 16)
SWEEPS: Mapping[str, tuple[float, ...]] = {
    "epsilon": (0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
    "budget": (16.0, 64.0, 256.0, 1024.0),
    "within": (0.5, 1.0, 2.0, 4.0),
}
TUNING, REPORTED = 24, 72  # trials that choose clip norm, learning rate and k; trials that are reported on
CLIPS = (1 / 8, 1 / 2)  # of the typical norm
RATES = tuple(2.0 ** (-8 + i / 2) for i in range(6))  # the share of its way to the mean that a step goes
START = Split(1, 16)
CHOOSING = (1.0, 8.0)  # the epsilons at which strategies are compared


@dataclass(frozen=True)
class Setting:
    """What the sweeps vary: epsilon, rows expected a step, and the standard deviation within a user (sigma_2)."""

    epsilon: float = 1.0
    budget: float = 64.0
    within: float = 1.0

    def noise_multiplier(self, k: int | None) -> float:
        """Of ULS with k rows a user; of ELS with all K rows of every user where k is None."""
        target = Target(self.epsilon, DELTA, STEPS, N)
        return target.els_noise(self.budget, K, N * K) if k is None else target.uls_noise(self.budget / k)

    def norm(self, k: int | None) -> float:
        """About the norm of the mean gradient of k rows (None: of a row) of a user, at the mean."""
        return float(np.sqrt(D * (1 + self.within**2 / (k or 1))))


@dataclass(frozen=True, eq=False)
class People:
    """Trials, each with a population of its own.

    Attributes:
        mean: float32[trials, D], what is to be estimated.
        rows: float32[trials, N K, D]; the rows of user u are u K to u K + K - 1.
        user_means: float32[trials, N, D].
    """

    mean: np.ndarray
    rows: np.ndarray
    user_means: np.ndarray

    @classmethod
    def drawn(cls, within: float, trials: int) -> "People":
        generator = np.random.default_rng(0)
        mean = generator.standard_normal((trials, D), dtype=np.float32)
        users = mean[:, None] + generator.standard_normal((trials, N, D), dtype=np.float32)
        own = generator.standard_normal((trials, N, K, D), dtype=np.float32)
        rows = users[:, :, None] + np.float32(within) * own
        return cls(mean, rows.reshape(trials, N * K, D), rows.mean(2))


@dataclass(frozen=True)
class Result:
    """How far from the mean one method ends at one setting.

    Attributes:
        tuned: mean error of the trials that chose clip norm and learning rate.
        errors: float64[REPORTED].
        clip, rate: what was chosen.
    """

    tuned: float
    errors: np.ndarray
    clip: float
    rate: float

    @property
    def error(self) -> float:
        return float(self.errors.mean())


# training ------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=2)
def people(within: float) -> People:
    return People.drawn(within, TUNING + REPORTED)


@cache
def result(setting: Setting, k: int | None) -> Result:
    """ULS with k rows a user, or ELS where k is None, with the clip norm and learning rate that some trials chose."""
    pairs = [(clip, rate) for clip in CLIPS for rate in RATES]
    clip = np.array([clip * setting.norm(k) for clip, _ in pairs], np.float32)
    # A clipped gradient is shorter by about its clip norm over the typical norm: the rate makes up for it.
    rate = np.array([rate / clip for clip, rate in pairs], np.float32)
    found = trained(setting, k, people(setting.within), clip, rate)
    tuned = found[:TUNING].mean(0)
    best = int(tuned.argmin())
    return Result(float(tuned[best]), found[TUNING:, best], *pairs[best])


def trained(
    setting: Setting, k: int | None, who: People, clip: np.ndarray, rate: np.ndarray, steps: int = STEPS
) -> np.ndarray:
    """Squared distance from the mean after all steps of Algorithm 1 (k is None) or 2: float64[trials, pairs].

    Args:
        clip, rate: float32[pairs], tried side by side on the same draws and noise.
    """
    count = setting.budget if k is None else setting.budget / k
    noise = setting.noise_multiplier(k) * clip
    generator = np.random.default_rng(
        [round(1000 * setting.epsilon), round(1000 * setting.within), int(setting.budget), k or 0]
    )
    trials = len(who.mean)
    theta = np.zeros((trials, len(clip), D), np.float32)
    for _ in range(steps):
        total = clipped_sum(theta, *drawn(who, k, count, generator), clip)
        total += noise[:, None] * generator.standard_normal((trials, 1, D), dtype=np.float32)
        theta -= (rate / np.float32(count))[:, None] * total
    errors: np.ndarray = ((theta - who.mean[:, None]) ** 2).sum(2, dtype=np.float64)
    return errors


def drawn(
    who: People, k: int | None, count: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """A Poisson draw of `count` rows (k is None) or users: the rows, or the mean of k random rows of each user.

    Returns:
        float32[trials, most, D], and which of them are real: bool[trials, most].
    """
    trials, things = len(who.mean), N * K if k is None else N
    chosen = generator.random((trials, things), dtype=np.float32) < count / things
    sizes = chosen.sum(1)
    trial, thing = np.nonzero(chosen)
    place = np.arange(len(trial)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    vectors = np.zeros((trials, max(1, sizes.max()), D), np.float32)
    if k is None:
        vectors[trial, place] = who.rows[trial, thing]
    elif k == K:
        vectors[trial, place] = who.user_means[trial, thing]
    else:
        subsets, rows = all_subsets(k), who.rows.reshape(-1, D)
        own = (
            subsets[generator.integers(len(subsets), size=len(trial))] + (trial * N * K + thing * K)[:, None]
        )
        vectors[trial, place] = sum(rows[column] for column in own.T) / np.float32(k)
    return vectors, np.arange(vectors.shape[1]) < sizes[:, None]


@cache
def all_subsets(k: int) -> np.ndarray:
    """Every choice of k of a user's K rows: int64[choices, k]."""
    return np.array(list(combinations(range(K), k)))


def clipped_sum(theta: np.ndarray, vectors: np.ndarray, real: np.ndarray, clip: np.ndarray) -> np.ndarray:
    """Sum over the real vectors v of theta - v, clipped: float32[trials, pairs, D] for `theta` of that shape."""
    squares = (theta**2).sum(2)[:, :, None] - 2 * theta @ vectors.transpose(0, 2, 1)
    squares += (vectors**2).sum(2)[:, None]
    norms = np.sqrt(np.maximum(squares, 1e-12))
    weight = np.minimum(1, clip[:, None] / norms) * real[:, None]
    total: np.ndarray = theta * weight.sum(2)[:, :, None] - weight @ vectors
    return total


# the sweeps ----------------------------------------------------------------------------------------------------
def swept() -> Iterator[tuple[str, Setting]]:
    """What is varied, and the setting; the others keep their defaults."""
    for name, values in SWEEPS.items():
        for value in values:
            yield name, replace(Setting(), **{name: value})


def possible(setting: Setting) -> list[int]:
    """Rows a user that ask for no more users than there are."""
    return [k for k in KS if setting.budget / k <= N]


def best_k(setting: Setting) -> int:
    """Rows a user with the least error in the trials that choose."""
    return min(possible(setting), key=lambda k: result(setting, k).tuned)


def interval(differences: np.ndarray) -> tuple[float, float]:
    """95% of the mean, by Student's t over trials."""
    half = float(stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences))
    return float(differences.mean()) - half, float(differences.mean()) + half


def compared(name: str, setting: Setting) -> dict[str, Any]:
    """ELS and ULS, with every k and with the one that was chosen, on the same populations."""
    k = best_k(setting)
    els, uls = result(setting, None), result(setting, k)
    return {
        "varied": name,
        "value": getattr(setting, name),
        "noise_multipliers": {"els": setting.noise_multiplier(None), "uls": setting.noise_multiplier(k)},
        "els": els.error,
        "uls": {str(other): result(setting, other).error for other in possible(setting)},
        "best_k": k,
        "difference": float((els.errors - uls.errors).mean()),
        "interval": interval(els.errors - uls.errors),
    }


# the claims ----------------------------------------------------------------------------------------------------
def claim(words: str, differences: np.ndarray) -> dict[str, Any]:
    """A claim that holds if the whole interval of the mean difference lies above 0."""
    low, high = interval(differences)
    return {
        "claim": words,
        "difference": float(differences.mean()),
        "interval": (low, high),
        "holds": low > 0,
    }


def claims() -> list[dict[str, Any]]:
    """What 003 says of Figure 7, on these trials."""
    # Where more rows a user are compared with one, the budget is the largest that one row of each user can spend.
    ends = (
        (
            "the smallest epsilon",
            "epsilon",
            SWEEPS["epsilon"][0],
            SWEEPS["epsilon"][-1],
            SWEEPS["epsilon"][0],
        ),
        ("the largest budget", "budget", SWEEPS["budget"][-1], SWEEPS["budget"][0], float(N)),
        (
            "the largest within-user variance",
            "within",
            SWEEPS["within"][-1],
            SWEEPS["within"][0],
            SWEEPS["within"][-1],
        ),
    )
    found = []
    for words, name, end, other, single in ends:
        at, opposite, alone = (replace(Setting(), **{name: value}) for value in (end, other, single))
        beaten = result(at, None).errors - result(at, best_k(at)).errors
        helped = result(alone, 1).errors - result(alone, best_k(alone)).errors
        found.append(claim(f"ULS beats ELS at {words} (error of ELS - ULS)", beaten))
        found.append(
            claim(f"more than one row a user helps ULS at {words} (error of k = 1 - chosen k)", helped)
        )
        gain = gained(at) - gained(opposite)
        found.append(claim(f"ULS gains more at {words} than at the other end (log of ELS / ULS)", gain))
    return [*found, *_comparable()]


def gained(setting: Setting) -> np.ndarray:
    """log(error of ELS / error of ULS): float64[REPORTED]."""
    found: np.ndarray = np.log(result(setting, None).errors / result(setting, best_k(setting)).errors)
    return found


def _comparable() -> list[dict[str, Any]]:
    """ULS with one row a user, over all settings and at the one where it is worst."""

    def room(setting: Setting) -> np.ndarray:
        els = result(setting, None)
        left: np.ndarray = (1.1 * els.errors - result(setting, 1).errors) / els.error
        return left

    rooms = [room(setting) for _, setting in swept() if 1 in possible(setting)]
    words = "ULS with one row a user is at most 10% worse than ELS"
    return [
        claim(f"{words}, on average over the settings (1.1 - ULS / ELS)", np.mean(rooms, axis=0)),
        claim(f"{words}, at the setting where it is worst (1.1 - ULS / ELS)", min(rooms, key=np.mean)),
    ]


# strategies ----------------------------------------------------------------------------------------------------
def norms() -> dict[int, float]:
    """Median norm of the mean gradient of k rows at theta = 0, over some users of the first trial."""
    users = np.random.default_rng(1).permutation(N)[:USERS]
    rows = people(Setting().within).rows[0].reshape(N, K, D)[users]
    return {k: float(np.median(np.linalg.norm(rows[:, :k].mean(1), axis=1))) for k in KS}


def budgets() -> list[float]:
    """The budgets from `START` on at which there is something to choose."""
    return [START.budget * 2**i for i in range(1, int(np.log2(KS[-1] * N / START.budget)))]


def choices(budget: float) -> list[Split]:
    return splits(budget, KS, START.n, N)


def strategies(epsilon: float) -> dict[str, Callable[[float], Split]]:
    """What makes a budget a split; a random choice is made by trial, and not here."""
    target, norm = Target(epsilon, DELTA, STEPS, N), norms().__getitem__

    def doubled(noise_multiplier: Callable[[float], float], budget: float) -> Split:
        return estimate_and_double(norm, noise_multiplier, START, budget, KS[-1], N)[-1].split

    def loss(split: Split) -> float:
        return result(Setting(epsilon, split.budget), split.k).tuned

    return {
        "Estimate-and-Double": lambda budget: doubled(target.uls_noise, budget),
        "as printed, without n in tau": lambda budget: doubled(lambda n: n * target.uls_noise(n), budget),
        "least noise variance": lambda budget: uls_variances(choices(budget), norm, target)[0][0],
        "greedy local oracle": lambda budget: greedy_local_oracle(loss, START, budget, KS[-1], N)[-1].split,
        "max cohort": lambda budget: max_cohort(choices(budget)),
        "max group size": lambda budget: max_group_size(choices(budget)),
    }


def suboptimalities(epsilon: float) -> dict[str, np.ndarray]:
    """By strategy, (error - least error) / least error at every budget: float64[budgets, REPORTED]."""
    found: dict[str, list[np.ndarray]] = {}
    named, generator = strategies(epsilon), np.random.default_rng(2)
    for budget in budgets():
        by_k = {split.k: result(Setting(epsilon, budget), split.k) for split in choices(budget)}
        least = min(by_k.values(), key=lambda one: one.error)
        picked = {name: by_k[strategy(budget).k].errors for name, strategy in named.items()}
        lots = [random_split(choices(budget), generator).k for _ in range(REPORTED)]
        picked["random"] = np.array([by_k[k].errors[trial] for trial, k in enumerate(lots)])
        for name, errors in picked.items():
            found.setdefault(name, []).append((errors - least.errors) / least.error)
    return {name: np.array(parts) for name, parts in found.items()}


def chosen_well(found: Mapping[float, Mapping[str, np.ndarray]]) -> list[dict[str, Any]]:
    """Whether Estimate-and-Double is better than what needs no measurement, over all budgets and epsilons."""
    means = {
        name: np.mean([by_name[name].mean(0) for by_name in found.values()], axis=0)
        for name in found[CHOOSING[0]]
    }
    own = means["Estimate-and-Double"]
    return [
        claim(
            f"Estimate-and-Double loses less to the best split than {name} (share of the least error)",
            means[name] - own,
        )
        for name in ("random", "max cohort", "max group size")
    ]


# the study -----------------------------------------------------------------------------------------------------
def run(folder: Path) -> dict[str, Any]:
    """Sweep, check the claims, compare the strategies; `figure7.svg` is written into `folder`."""
    console = Console()
    rows = []
    for name, setting in swept():
        console.say(f"{name} {getattr(setting, name):g}")
        rows.append(compared(name, setting))
    found = {}
    for epsilon in CHOOSING:
        console.say(f"strategies at epsilon {at_most(epsilon, 6)}")
        found[epsilon] = suboptimalities(epsilon)
    checked = [*claims(), *chosen_well(found)]
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "figure7.svg", _figure(rows, found[CHOOSING[0]]))
    return {
        "rows": rows,
        "claims": checked,
        "strategies": {
            str(epsilon): {
                name: {"suboptimality": float(parts.mean()), "interval": interval(parts.mean(0))}
                for name, parts in by_name.items()
            }
            for epsilon, by_name in found.items()
        },
        "markdown": "\n\n".join([_sweep_table(rows), _strategy_table(found), _claims_table(checked)]),
    }


def _figure(rows: Sequence[dict[str, Any]], by_strategy: Mapping[str, np.ndarray]) -> str:
    axes = {"epsilon": "epsilon", "budget": "rows a step", "within": "standard deviation within a user"}
    panels = []
    for place, (name, words) in enumerate(axes.items()):
        own = [row for row in rows if row["varied"] == name]
        lines: dict[str, Points] = {"ELS": [(row["value"], row["els"]) for row in own]}
        for k in (1, 4, 16):
            lines[f"ULS, k = {k}"] = [
                (row["value"], row["uls"][str(k)]) for row in own if str(k) in row["uls"]
            ]
        panels.append(Panel(f"({'abc'[place]}) by {words}", words, "squared error", lines, True, True))
    shown = {
        "by estimate": "Estimate-and-Double",
        "random": "random",
        "max cohort": "max cohort",
        "max group": "max group size",
    }
    lines = {
        label: [*zip(budgets(), by_strategy[name].mean(1).tolist(), strict=True)]
        for label, name in shown.items()
    }
    panels.append(Panel("(d) above the least error, epsilon 1", "rows a step", "share", lines, True))
    return panels_svg("Mean estimation: ELS, ULS, and how ULS is configured", panels)


def _sweep_table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| varied | value | ELS | "
        + " | ".join(f"ULS, k = {k}" for k in KS)
        + " | chosen k | ELS - ULS | 95% |",
        "|---|---|---|" + "---|" * len(KS) + "---|---|---|",
    ]
    for row in rows:
        low, high = row["interval"]
        by_k = [f"{row['uls'][str(k)]:.3f}" if str(k) in row["uls"] else "" for k in KS]
        cells = [row["varied"], f"{row['value']:g}", f"{row['els']:.3f}", *by_k, str(row["best_k"])]
        cells += [f"{row['difference']:.3f}", f"{low:.3f} to {high:.3f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _strategy_table(found: Mapping[float, Mapping[str, np.ndarray]]) -> str:
    lines = [
        "| strategy | " + " | ".join(f"epsilon {at_most(epsilon, 6)} | 95%" for epsilon in found) + " |",
        "|---|" + "---|---|" * len(found),
    ]
    for name in found[CHOOSING[0]]:
        cells = []
        for by_name in found.values():
            low, high = interval(by_name[name].mean(0))
            cells += [f"{by_name[name].mean():.1%}", f"{low:.1%} to {high:.1%}"]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _claims_table(checked: Sequence[dict[str, Any]]) -> str:
    lines = ["| claim | difference | 95% | holds |", "|---|---|---|---|"]
    for one in checked:
        low, high = one["interval"]
        held = "yes" if one["holds"] else "no"
        lines.append(f"| {one['claim']} | {one['difference']:.3f} | {low:.3f} to {high:.3f} | {held} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(run)
