"""Mean estimation (Charles et al. 2024, appendix E, Figure 7): ELS against ULS on made-up users, accounted as runs.

Beside it, how well the strategies of appendix I.1 choose rows and users.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from confide.planning.user_sampling import USERS, Split
from confide.utils.chart import Panel, Points, panels_svg
from confide.utils.rounding import at_most
from studies.parts.estimated_means import DELTA, D, K, N, Result, Setting, people, result
from studies.parts.user_sampling import (
    COHORT,
    GROUP,
    MENDED,
    ORACLE,
    OWN,
    RANDOM,
    Strategy,
    Target,
    random_split,
    splits,
    strategies,
)
from studies.runner.findings import ABOVE, Finding
from studies.runner.rows import version
from studies.runner.study import Plot, Row, Scale, Study, Table, Work

START = Split(1, 16)


@dataclass(frozen=True)
class Size:
    """How much is run.

    Attributes:
        sweeps: the values of each field of a `Setting` that is varied; the others keep their defaults.
        choosing: the epsilons at which strategies are compared.
        budgets: rows a step at which they are.
    """

    default: Setting = field(default_factory=Setting)
    ks: tuple[int, ...] = (1, 2, 4, 8, 16)
    sweeps: Mapping[str, tuple[float, ...]] = field(
        default_factory=lambda: {
            "epsilon": (0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
            "budget": (16.0, 64.0, 256.0, 1024.0),
            "within": (0.5, 1.0, 2.0, 4.0),
        }
    )
    choosing: tuple[float, ...] = (1.0, 8.0)
    budgets: tuple[float, ...] = tuple(32.0 * 2**i for i in range(7))

    def swept(self) -> Iterator[Setting]:
        yield self.default
        for name, values in self.sweeps.items():
            for value in values:
                yield replace(self.default, **{name: value})  # type: ignore[arg-type]  # all are float

    def possible(self, setting: Setting) -> list[int]:
        """Rows a user that ask for no more users than there are."""
        return [k for k in self.ks if setting.budget / k <= N]

    def choices(self, budget: float) -> list[Split]:
        return splits(budget, self.ks, START.n, N)

    def asked(self) -> list[tuple[Setting, int | None]]:
        """Return each setting with its k, None for ELS: those of the sweeps, and those that strategies choose among."""
        found = {(each, k): None for each in self.swept() for k in (None, *self.possible(each))}
        for epsilon in self.choosing:
            for budget in self.budgets:
                setting = replace(self.default, epsilon=epsilon, budget=budget)
                found |= {(setting, split.k): None for split in self.choices(budget)}
        return list(found)


_SIZES = {
    Scale.TINY: Size(
        Setting(steps=8, trials=(2, 3)),
        (1, 2),
        {"epsilon": (1.0, 8.0), "budget": (32.0, 64.0), "within": (1.0, 4.0)},
        (8.0,),
        (32.0,),
    ),
    Scale.SMALL: Size(),
    Scale.FULL: Size(Setting(trials=(32, 128))),
}


def measure(work: Work) -> list[Row]:
    size = _SIZES[work.scale]
    columns = {"study": STUDY.name, "scale": str(work.scale), **version()}
    asked = size.asked()
    rows: list[Row] = []
    with work.console.track("settings", len(asked)) as track:
        for setting, k in asked:
            rows += errors(setting, k)
            track()
    for epsilon in size.choosing:
        rows += chosen(size, epsilon)
    return [columns | row for row in rows]


def errors(setting: Setting, k: int | None) -> list[Row]:
    """Return the error of each trial that is reported on; k is None for ELS."""
    found = result(setting, k)
    common: Row = {
        "what": "error",
        "epsilon": setting.epsilon,
        "budget": setting.budget,
        "within": setting.within,
        "k": k,
        "tuned": found.tuned,
        "clip": found.clip,
        "rate": found.rate,
        "noise_multiplier": setting.noise_multiplier(k),
    }
    return [common | {"key": trial, "value": float(error)} for trial, error in enumerate(found.errors, 1)]


# strategies (appendix I.1) -------------------------------------------------------------------------------------
def norms(size: Size) -> dict[int, float]:
    """Median norm of the mean gradient of k rows at theta = 0, over some users of the first trial."""
    users = np.random.default_rng(1).permutation(N)[:USERS]
    rows = people(size.default.within, sum(size.default.trials)).rows[0].reshape(N, K, D)[users]
    return {k: float(np.median(np.linalg.norm(rows[:, :k].mean(1), axis=1))) for k in size.ks}


def compared(size: Size, epsilon: float) -> dict[str, Strategy]:
    """Return what makes a budget a split; a random choice is made by trial, and not here."""

    def loss(split: Split) -> float:
        return result(replace(size.default, epsilon=epsilon, budget=split.budget), split.k).tuned

    target = Target(epsilon, DELTA, size.default.steps, N)
    return strategies(norms(size).__getitem__, target.uls_noise, loss, START, size.ks, N)


def chosen(size: Size, epsilon: float) -> list[Row]:
    """Return the k that each strategy chooses for each trial."""
    generator, found = np.random.default_rng(2), []
    trials = range(1, size.default.trials[1] + 1)
    named = compared(size, epsilon)
    for budget in size.budgets:
        common: Row = {"what": "choice", "epsilon": epsilon, "budget": budget}
        for name, strategy in named.items():
            k = strategy(budget).k
            found += [common | {"strategy": name, "k": k, "key": trial} for trial in trials]
        for trial in trials:
            k = random_split(size.choices(budget), generator).k
            found.append(common | {"strategy": RANDOM, "k": k, "key": trial})
    return found


# what was measured ---------------------------------------------------------------------------------------------
class Measured:
    """The measurements, by setting and k."""

    def __init__(self, rows: Sequence[Row]):
        self.rows = rows
        self.results: dict[Setting, dict[int | None, Result]] = {}
        values: dict[tuple[Setting, int | None], list[Row]] = {}
        for row in rows:
            if row["what"] == "error":
                setting = Setting(row["epsilon"], row["budget"], row["within"])
                values.setdefault((setting, row["k"]), []).append(row)
        for (setting, k), own in values.items():
            first, found = own[0], np.array([row["value"] for row in own])
            self.results.setdefault(setting, {})[k] = Result(
                first["tuned"], found, first["clip"], first["rate"]
            )

    def els(self, setting: Setting) -> np.ndarray:
        return self.results[setting][None].errors

    def uls(self, setting: Setting, k: int | None = None) -> np.ndarray:
        """Errors of ULS, with the k that the tuning trials choose where it is None."""
        return self.results[setting][k or self.best_k(setting)].errors

    def best_k(self, setting: Setting) -> int:
        """Rows a user with the least error in the trials that choose."""
        found = {k: each.tuned for k, each in self.results[setting].items() if k is not None}
        return min(found, key=found.__getitem__)

    def swept(self, name: str) -> dict[float, Setting]:
        """Return the settings at which a field is varied and the others have their defaults, by its value."""
        default = Setting()
        found = {
            getattr(each, name): each
            for each, results in self.results.items()
            if None in results and replace(each, **{name: getattr(default, name)}) == default
        }
        return dict(sorted(found.items()))

    def all_swept(self) -> list[Setting]:
        return [each for each, results in self.results.items() if None in results]

    def suboptimalities(self, epsilon: float) -> dict[str, np.ndarray]:
        """By strategy, (error - least error) / least error at every budget: float64[budgets, trials]."""
        picked: dict[float, dict[str, list[int]]] = {}
        for row in self.rows:
            if row["what"] == "choice" and row["epsilon"] == epsilon:
                picked.setdefault(row["budget"], {}).setdefault(row["strategy"], []).append(row["k"])
        found: dict[str, list[np.ndarray]] = {}
        for budget, by_strategy in picked.items():
            by_k = self.results[Setting(epsilon, budget)]
            able = {k for k in by_k if k is not None and budget / k >= START.n}
            least = min(by_k[k].error for k in able)
            for name, ks in by_strategy.items():
                own = np.array([by_k[k].errors[trial] for trial, k in enumerate(ks)])
                found.setdefault(name, []).append((own - least) / least)
        return {name: np.array(parts) for name, parts in found.items()}

    def by_epsilon(self) -> dict[float, dict[str, np.ndarray]]:
        epsilons = sorted({row["epsilon"] for row in self.rows if row["what"] == "choice"})
        return {epsilon: self.suboptimalities(epsilon) for epsilon in epsilons}


# what was found ------------------------------------------------------------------------------------------------
def findings(rows: Sequence[Row]) -> list[Finding]:
    measured = Measured(rows)
    found = []
    for words, name, is_least in (
        ("a small epsilon", "epsilon", True),
        ("a large budget", "budget", False),
        ("a large within-user variance", "within", False),
    ):
        swept = measured.swept(name)
        least, most = min(swept), max(swept)
        at, other = (swept[least], swept[most]) if is_least else (swept[most], swept[least])
        # Where several rows a user are compared with one, the budget is the largest that one row of each can spend.
        alone = (
            at
            if 1 in measured.results[at]
            else swept[max(v for v in swept if 1 in measured.results[swept[v]])]
        )
        found += [
            _above_zero(
                f"At {words} ({units(name, at)}), ULS improves on ELS.",
                "error of ELS less that of ULS",
                measured.els(at) - measured.uls(at),
                "squared error",
            ),
            _above_zero(
                f"At {words} ({units(name, alone)}), ULS benefits from more than one row a user.",
                "error with k = 1 less that with the chosen k",
                measured.uls(alone, 1) - measured.uls(alone),
                "squared error",
            ),
            _above_zero(
                f"At {words} ({units(name, at)}), ULS gains more than at the other end ({units(name, other)}).",
                "log of ELS / ULS, less that at the other end",
                _gained(measured, at) - _gained(measured, other),
                "log ratio",
            ),
        ]
    return [*found, *_comparable(measured), *_strategies(measured)]


def units(name: str, setting: Setting) -> str:
    """Write the value of the field that is varied."""
    return UNITS[name].format(getattr(setting, name))


def _gained(measured: Measured, setting: Setting) -> np.ndarray:
    found: np.ndarray = np.log(measured.els(setting) / measured.uls(setting))
    return found


def _above_zero(
    claim: str, statistic: str, values: np.ndarray, unit: str, place: str = "Figure 7", family: str = ""
) -> Finding:
    own = tuple(map(float, values))
    return Finding(claim, place, statistic, own, low=ABOVE, family=family or place, unit=unit, over=TRIALS)


def _comparable(measured: Measured) -> list[Finding]:
    """ULS with one row a user, over all settings and at the one where it is worst."""

    def room(setting: Setting) -> np.ndarray:
        els = measured.els(setting)
        left: np.ndarray = (1.1 * els - measured.uls(setting, 1)) / els.mean()
        return left

    rooms = [room(each) for each in measured.all_swept() if 1 in measured.results[each]]
    return [
        _above_zero(
            f"ULS with one row a user is comparable to ELS or better, {where}.",
            "1.1 less error of ULS / error of ELS: at most 10% more counts as comparable",
            values,
            "ratio",
        )
        for where, values in (
            ("on average over all settings", np.mean(rooms, axis=0)),
            ("at the setting where it is worst", min(rooms, key=np.mean)),
        )
    ]


def _strategies(measured: Measured) -> list[Finding]:
    """Whether Estimate-and-Double is as good as an oracle, and better than what needs no measurement.

    The paper compares strategies on text. Each epsilon is judged by itself, since other strategies fail at each.
    """
    found = []
    for epsilon, by_strategy in measured.by_epsilon().items():
        means = {name: by_strategy[name].mean(0) for name in (OWN, ORACLE, RANDOM, COHORT, GROUP)}
        place, at = "Figures 12 and 13", f"at epsilon {at_most(epsilon, 6)}"
        as_good = Finding(
            f"{MENDED} does as well as the oracle that sees the errors {at}.",
            place,
            "what it loses to the best split, less what the oracle loses, in shares of the least error; 2% counts as "
            "well, by our choice",
            tuple(map(float, means[OWN] - means[ORACLE])),
            high=0.02,
            family=f"{place}, {at}",
            unit="share",
            over=TRIALS,
        )
        others = [
            _above_zero(
                f"{MENDED} loses less to the best split than {name} {at}.",
                "the difference of what they lose, in shares of the least error",
                means[name] - means[OWN],
                "share",
                place,
                f"{place}, {at}",
            )
            for name in (RANDOM, COHORT, GROUP)
        ]
        found += [replace(each, is_beyond=True) for each in (as_good, *others)]
    return found


# as pictures and tables ----------------------------------------------------------------------------------------
def interval(values: np.ndarray) -> tuple[float, float]:
    """95% of the mean, by Student's t over trials."""
    return Finding("", "", "", tuple(map(float, values))).interval()


TRIALS = "trials, each with its own users"
UNITS = {"epsilon": "{:g}", "budget": "{:,g} rows a step", "within": "standard deviation {:g}"}
AXES = {"epsilon": "epsilon", "budget": "rows a step", "within": "standard deviation within a user"}


def tables(rows: Sequence[Row]) -> list[Table]:
    measured = Measured(rows)
    return [_sweeps(measured), _losses(measured)]


def _sweeps(measured: Measured) -> Table:
    ks = sorted({k for each in measured.results.values() for k in each if k is not None})
    cells = []
    for name, words in AXES.items():
        for value, setting in measured.swept(name).items():
            of_k = measured.results[setting]
            gap = measured.els(setting) - measured.uls(setting)
            low, high = interval(gap)
            cells.append(
                [
                    words,
                    f"{value:g}",
                    f"{of_k[None].error:.3f}",
                    *(f"{of_k[k].error:.3f}" if k in of_k else "" for k in ks),
                    str(measured.best_k(setting)),
                    f"{gap.mean():.3f} ({low:.3f} to {high:.3f})",
                ]
            )
    heads = ["varied", "value", "ELS", *(f"ULS, k = {k}" for k in ks), "chosen k", "ELS - ULS (95%)"]
    note = (
        "The squared distance from the population's mean. Unless varied, epsilon is 1, a step has 64 rows and the "
        "standard deviation within a user is 1. Clip norm, learning rate and k are chosen by the mean error of other "
        "trials; a trial has the same people under every method. The paper has plots, not numbers."
    )
    return Table("Figure 7: mean estimation", heads, cells, note)


def _losses(measured: Measured) -> Table:
    found = measured.by_epsilon()
    cells = []
    for name in next(iter(found.values()), {}):
        line = [name]
        for by_name in found.values():
            low, high = interval(by_name[name].mean(0))
            line.append(f"{by_name[name].mean():.1%} ({low:.1%} to {high:.1%})")
        cells.append(line)
    budgets = sorted({row["budget"] for row in measured.rows if row["what"] == "choice"})
    note = (
        f"(error - least error) / least error, the mean over {budgets[0]:g} to {budgets[-1]:,g} rows a step, "
        f"beginning with one row of {START.n:g} users. Algorithm 3 as printed doubles rows as long as users "
        "have any left, since s(2n) / s(n) is at least 1: it ends where max group size does. Estimate-and-Double here "
        "has noise over users, s(n) / n, as in the variance of equation (6), and does what the paper reports."
    )
    heads = ["strategy", *(f"epsilon {at_most(epsilon, 6)} (95%)" for epsilon in found)]
    return Table("Appendix I.1: what strategies lose to the best split, on this task", heads, cells, note)


def plots(rows: Sequence[Row]) -> list[Plot]:
    measured = Measured(rows)
    panels = []
    for letter, (name, words) in zip("abc", AXES.items(), strict=True):
        swept = measured.swept(name)
        lines: dict[str, Points] = {"ELS": [(value, measured.els(at).mean()) for value, at in swept.items()]}
        for k in (1, 4, 16):
            points = [
                (value, measured.uls(at, k).mean())
                for value, at in swept.items()
                if k in measured.results[at]
            ]
            lines |= {f"ULS, k = {k}": points} if points else {}
        panels.append(Panel(f"({letter}) by {words}", words, "squared error", lines, True, True))
    epsilon, by_strategy = next(iter(measured.by_epsilon().items()))
    budgets = sorted({row["budget"] for row in rows if row["what"] == "choice"})
    lines = {
        name: [*zip(budgets, by_strategy[name].mean(1).tolist(), strict=True)]
        for name in (OWN, RANDOM, COHORT, GROUP)
    }
    title = f"(d) above the least error, epsilon {at_most(epsilon, 6)}"
    panels.append(Panel(title, "rows a step", "share", lines, True))
    words = "error by epsilon, budget and spread within a user, and what strategies lose"
    svg = panels_svg("Mean estimation: ELS, ULS, and how ULS is configured", panels)
    return [Plot("mean-estimation", words, svg)]


STUDY = Study(
    name="mean-estimation",
    paper="003",
    shows=("Figure 7",),
    question="On made-up users, where does ULS beat ELS, and how well is it configured?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=5,
    deviations="A trial stands for a run key. 24 trials choose and 72 others are reported on, where the paper reports "
    "the best of what it tried over 128; at full scale 32 and 128. Noise multipliers are certified, and clip norms and "
    "learning rates are two times six. The paper compares strategies on text (Figures 12 and 13), not on this task.",
    plots=plots,
)
