"""Adaptive noise against DP-SGD at the same noise multiplier and at the same epsilon (Wu et al. 2022, Table 1; 001)."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from confide.privacy.accounting import MixtureOfGaussians, compose
from confide.privacy.guarantee import PUBLISHED_KEY
from confide.runs.folder import Run
from confide.runs.loop import Outcome
from confide.utils.rounding import at_least, at_most
from studies.runner.findings import ABOVE, MARGIN, Finding, paired, slopes
from studies.runner.grid import NOTHING, Arm, Grid, Keys
from studies.runner.models import stories
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.tables import change, losses, perplexity, target

NOISE, EPSILON = "privacy.noise_multiplier", "privacy.epsilon"
BARE, PLAIN, PRIVATE = "no DP", "DP-SGD", "adaptive, private"
NORMALISATIONS = ("rank", "log-perplexity", "perplexity")
JUDGED = "perplexity"
"""By which the paper's claims are judged: rho is proportional to the perplexity there, by an operator without name."""
FLOOR = 0.1
"""Of the nominal variants at equal noise. The paper has none; confide needs one, to count an epsilon at all."""

PAPERS_NOISES = (1.0, 5.0)

# Wu et al. 2022, Table 1, by noise multiplier: loss, perplexity, epsilon.
PAPER = {
    (PLAIN, 1.0): "13.08, 7,583, 4.22",
    ("perplexity", 1.0): "12.65, 4,426, 6.35",
    (PLAIN, 5.0): "17.65, 20,815, 0.1",
    ("perplexity", 5.0): "14.85, 8,636, 2.47",
}
PAPERS_COST = {1.0: 6.35 / 4.22, 5.0: 2.47 / 0.1}
"""Epsilon of the paper's variant as a multiple of DP-SGD's, by noise multiplier."""
_SMALL: dict[str, Any] = {
    "documents": 1500,
    "batch": 192.0,
    "steps": 16,
    "noises": (0.5, 1.0, 2.0, 5.0),
    "tuned": (1.0, 5.0),
    "normalisations": NORMALISATIONS,
    "epsilons": (3.0,),
    "rates": (2e-3, 5e-3),
    "seeds": 5,
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {
        "documents": 6,
        "batch": 3.0,
        "steps": 1,
        "noises": (1.0,),
        "tuned": (1.0,),
        "normalisations": ("rank",),
        "rates": (5e-3,),
        "seeds": 2,
    },
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL
    | {"documents": None, "batch": 4096.0, "steps": 8000, "rates": (5e-5, 2e-4), "epsilons": (0.1, 4.0)},
}


@dataclass(frozen=True)
class Gammas:
    """What the noise of the steps was multiplied by, and epsilon as if that were public."""

    def __call__(self, run: Run, outcome: Outcome) -> Row:
        guarantee = outcome.guarantee
        entries = map(json.loads, run.ledger_path.read_text("utf-8").splitlines()[1:])
        noises = [entry["noise_multiplier"] for entry in entries if "noise_multiplier" in entry]
        sigma, is_nominal = guarantee.noise_multiplier, _is_nominal(run)
        return {
            "steps": outcome.steps,
            "gamma": float(np.mean(noises)) / sigma if noises else 1.0,
            "is_proved": int(not any(reason != PUBLISHED_KEY for reason in guarantee.estimates)),
            "public": public(noises, sigma, guarantee.sampling_probability[1], guarantee.delta)
            if is_nominal
            else guarantee.epsilon,
        }


def _is_nominal(run: Run) -> bool:
    return run.config.privacy.mechanism == "adaptive" and run.config.adaptive.mode == "nominal"


def public(noises: Sequence[float], sigma: float, q: float, delta: float) -> float:
    """Return epsilon of steps with these noises, had they been fixed beforehand: it leaves out what they tell of rows.

    Rounded up: gammas count as the next hundredth below them.
    """
    gammas = Counter(max(1, math.floor(100 * noise / sigma + 1e-9)) / 100 for noise in noises)
    curves = [
        MixtureOfGaussians.bernoulli(q, steps).curve(gamma * sigma, 1e-3) for gamma, steps in gammas.items()
    ]
    return compose(curves).epsilon(delta)


def nominal(normalisation: str) -> str:
    """Return the name of the paper's variant with one of the normalisations."""
    return f"adaptive, by {normalisation}"


# what is trained -----------------------------------------------------------------------------------------------
def _grid(work: Work, arms: tuple[Arm, ...], at: Keys, tuned_at: Keys) -> Grid:
    size = _SIZES[work.scale]
    return Grid(
        name="adaptive",
        texts=("articles",),
        model=stories,
        keys={
            "adapter.kind": "full",
            "data.max_length": 64,
            "data.max_documents": size["documents"],
            "data.unit": None,  # rows are protected, and without privacy drawn, too
            "privacy.delta": 1e-5,
            "train.batch": size["batch"],
            "train.steps": size["steps"],
            "train.schedule": "linear",
        },
        arms=arms,
        at=at,
        tuned_at=tuned_at,
        seeds=size["seeds"],
    )


def at_equal_noise(work: Work) -> Grid:
    """Return the runs at the paper's noise multipliers, and two more."""
    size = _SIZES[work.scale]
    return _grid(
        work,
        _arms(size, dict.fromkeys((*map(nominal, size["normalisations"]), PRIVATE))),
        {NOISE: size["noises"]},
        {NOISE: size["tuned"]},
    )


def at_equal_epsilon(work: Work, gammas: Mapping[str, float]) -> Grid:
    """Return the runs at one epsilon. The floor of each adaptive arm is the mean gamma that it had at equal noise.

    Then a step has at least the noise that DP-SGD's has at that epsilon, and not much more; the nominal variants have
    the epsilon as if gammas were public.
    """
    size = _SIZES[work.scale]
    rates = {"train.learning_rate": size["rates"]}
    bare = Arm(BARE, {"privacy.mechanism": "none"}, rates, _without_epsilon)
    places = {EPSILON: size["epsilons"]}
    return _grid(work, (bare, *_arms(size, gammas)), places, places)


def _without_epsilon(keys: Keys) -> Keys:
    return {name: value for name, value in keys.items() if name != EPSILON}


def _arms(size: Mapping[str, Any], floors: Mapping[str, float | None]) -> tuple[Arm, ...]:
    """Return DP-SGD and the adaptive arms.

    Args:
        floors: by adaptive arm, the least gamma; None for `FLOOR`, or the default of the private one.
    """
    rates = {"train.learning_rate": size["rates"]}
    arms = [Arm(PLAIN, {"privacy.mechanism": "dp-sgd"}, rates, look=Gammas())]
    for name, floor in floors.items():
        keys: dict[str, Any] = {"privacy.mechanism": "adaptive"}
        if name != PRIVATE:
            keys |= {
                "adaptive.mode": "nominal",
                "adaptive.normalise": name.rpartition("by ")[2],
                "adaptive.floor": FLOOR,
            }
        if floor is not None:
            keys["adaptive.floor"] = floor
        arms.append(Arm(name, keys, rates, look=Gammas()))
    return tuple(arms)


def mean_gammas(rows: Sequence[Row]) -> dict[str, float]:
    """Return the mean gamma of each adaptive arm, rounded down to hundredths and at least one of them."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.get("gamma") is not None and row["arm"] != PLAIN:
            found.setdefault(row["arm"], []).append(row["gamma"])
    return {arm: max(1, math.floor(100 * sum(values) / len(values))) / 100 for arm, values in found.items()}


def measure(work: Work) -> list[Row]:
    rows = at_equal_noise(work).measured(work)
    again = at_equal_epsilon(work, mean_gammas(rows)).measured(work)
    return rows + [row for row in again if row["arm"] != NOTHING]


# what was found ------------------------------------------------------------------------------------------------
def _values(rows: Sequence[Row], key: str) -> list[float]:
    return sorted({row[key] for row in rows if row["part"] == "test" and row.get(key) is not None})


def _adaptive(rows: Sequence[Row]) -> list[str]:
    arms = dict.fromkeys(row["arm"] for row in rows)
    return [arm for arm in arms if arm not in (BARE, PLAIN, NOTHING)]


def _judged(rows: Sequence[Row]) -> list[str]:
    """Return the arm by which the paper's claims are judged; none where it is left out."""
    return [arm for arm in _adaptive(rows) if arm == nominal(JUDGED)]


def _by_key(rows: Sequence[Row], arm: str, place: Keys, column: str = "loss") -> dict[int, float]:
    if column == "loss":
        return losses(rows, {"arm": arm, **place})
    return {
        row["key"]: row[column]
        for row in rows
        if row["part"] == "test" and row["arm"] == arm and all(row.get(k) == v for k, v in place.items())
    }


def gap(rows: Sequence[Row], arm: str, place: Keys) -> dict[int, float]:
    """Return by run key the loss of an adaptive arm less DP-SGD's."""
    plain, own = _by_key(rows, PLAIN, place), _by_key(rows, arm, place)
    return {key: own[key] - plain[key] for key in sorted(plain.keys() & own.keys())}


def is_at_floor(rows: Sequence[Row], arm: str) -> bool:
    """Tell whether every gamma of a nominal arm is the floor: it is then DP-SGD with that share of the noise."""
    gammas = [
        gamma
        for noise in _values(rows, NOISE)
        for gamma in _by_key(rows, arm, {NOISE: noise}, "gamma").values()
    ]
    return arm != PRIVATE and all(gamma < FLOOR + 1e-6 for gamma in gammas)


def _noise(arm: str) -> str:
    """Write what an adaptive arm has in a sentence."""
    return f"adaptive noise ({arm.removeprefix('adaptive, ')})"


_LESS = "loss of adaptive noise less that of DP-SGD"


def findings(rows: Sequence[Row]) -> list[Finding]:
    """Judge the paper's claims by the normalisation that is nearest to its own, at its own noise multipliers.

    A factor of 1 at most makes the noise less, so that it is no finding that every variant gains, and that it costs
    epsilon.
    """
    noises = _values(rows, NOISE)
    found = [
        Finding(
            f"At noise multiplier {at_least(noise, 3)}, {_noise(arm)} is better than DP-SGD.",
            "Table 1",
            _LESS,
            tuple(gap(rows, arm, {NOISE: noise}).values()),
            high=-MARGIN,
            family="equal noise",
        )
        for arm in _judged(rows)
        for noise in noises
        if noise in PAPERS_NOISES
    ]
    found += _costs(rows, noises)
    if set(PAPERS_NOISES) <= set(noises):
        few, many = (_by_key(rows, PLAIN, {NOISE: noise}) for noise in PAPERS_NOISES)
        found.append(
            Finding(
                f"DP-SGD is worse at noise multiplier {at_least(PAPERS_NOISES[1], 3)} than at "
                f"{at_least(PAPERS_NOISES[0], 3)}.",
                "section 5.3",
                "loss at the larger noise less that at the smaller",
                paired(many, few),
                low=MARGIN,
                is_check=True,
                is_late=True,
            )
        )
    for arm in _adaptive(rows):
        if len(noises) > 1:
            found.append(
                Finding(
                    f"What {_noise(arm)} gains grows with the noise multiplier.",
                    "section 5.3",
                    f"slope, in the logarithm of the noise multiplier, of the {_LESS}",
                    slopes(
                        [math.log(noise) for noise in noises], [gap(rows, arm, {NOISE: n}) for n in noises]
                    ),
                    high=0.0,
                    family="slopes",
                    is_beyond=arm not in _judged(rows),
                    unit="nats a factor e",
                )
            )
        found += [
            Finding(
                f"At epsilon {target(epsilon)}, {_noise(arm)} is not better than DP-SGD.",
                "Table 1",
                _LESS,
                tuple(gap(rows, arm, {EPSILON: epsilon}).values()),
                low=-MARGIN,
                family="equal epsilon",
                is_beyond=True,
                is_check=is_at_floor(rows, arm),
            )
            for epsilon in _values(rows, EPSILON)
        ]
        found += _checks(rows, arm, noises)
    return found


def _costs(rows: Sequence[Row], noises: Sequence[float]) -> list[Finding]:
    """Judge what the paper calls acceptable: by how much epsilon is larger than DP-SGD's at the same noise."""
    return [
        Finding(
            f"At noise multiplier {at_least(noise, 3)}, epsilon of {_noise(arm)} is at most {at_most(most, 3)} times "
            "that of DP-SGD, as in the paper.",
            "Table 1",
            "epsilon, as if gammas were public, as a multiple of that of DP-SGD",
            tuple(own[key] / plain[key] for key in sorted(own)),
            high=most,
            is_exact=True,  # an accountant's, of the gammas that the steps had
            unit="times",
            is_beyond=True,  # the paper calls its own acceptable, for other numbers of steps and rates
            is_late=True,
        )
        for arm in _judged(rows)
        for noise, most in PAPERS_COST.items()
        if noise in noises
        for own, plain in [[_by_key(rows, name, {NOISE: noise}, "public") for name in (arm, PLAIN)]]
    ]


def _checks(rows: Sequence[Row], arm: str, noises: Sequence[float]) -> list[Finding]:
    gaps = {noise: gap(rows, arm, {NOISE: noise}) for noise in noises}
    least = max(noises, key=lambda noise: sum(gaps[noise].values()) / len(gaps[noise]))
    costs = [
        cost
        for noise in noises
        for cost in paired(*(_by_key(rows, name, {NOISE: noise}, "public") for name in (arm, PLAIN)))
    ]
    return [
        Finding(
            f"At every noise multiplier that was tried, {_noise(arm)} is better than DP-SGD.",
            "",
            f"{_LESS}, at the noise multiplier with the least gain: {at_least(least, 3)}",
            tuple(gaps[least].values()),
            high=-MARGIN,
            family="less noise",
            is_check=True,
        ),
        Finding(
            f"At every noise multiplier that was tried, what {_noise(arm)} gains costs epsilon.",
            "",
            "epsilon less that of DP-SGD; of the paper's variants as if gammas were public",
            tuple(costs),
            low=ABOVE,
            is_exact=True,  # an accountant's, of the gammas that the steps had
            unit="epsilon",
            is_check=True,
        ),
    ]


# as tables -----------------------------------------------------------------------------------------------------
def tables(rows: Sequence[Row]) -> list[Table]:
    return [_equal_noise(rows), _equal_epsilon(rows)]


def _equal_noise(rows: Sequence[Row]) -> Table:
    heads = ["training", "noise multiplier", "steps", "mean gamma", "epsilon", "which is"]
    heads += [
        "as if gammas were public",
        "test perplexity",
        "against DP-SGD",
        "paper: loss, perplexity, epsilon",
    ]
    cells = []
    for noise in _values(rows, NOISE):
        for arm in (PLAIN, *_adaptive(rows)):
            cells.append(
                [
                    arm,
                    at_least(noise, 3),
                    *_claimed(rows, arm, {NOISE: noise}),
                    PAPER.get((arm.rpartition("by ")[2], noise), ""),
                ]
            )
    note = (
        f"The paper's variants have a floor of {FLOOR} for gamma here, at which their epsilon is counted. The paper "
        "has a perplexity of 256.66 without privacy. It writes that rho is proportional to the perplexity, and does "
        "not name the operator: its numbers stand beside the nearest of three, by which its claims are judged. Its "
        f"perplexities are not those of its losses. {_at_floor(rows)}Intervals are of 95% over run keys."
    )
    return Table("Table 1: at the same noise multiplier", heads, cells, note)


def _at_floor(rows: Sequence[Row]) -> str:
    """Name the variants that do not adapt, because each of their gammas is the floor."""
    named = [arm.removeprefix("adaptive, ") for arm in _adaptive(rows) if is_at_floor(rows, arm)]
    if not named:
        return ""
    share = f"every gamma is the floor, so that this is DP-SGD with {FLOOR:.0%} of the noise"
    return f"With normalisation {' and '.join(named)} {share}. "


def _equal_epsilon(rows: Sequence[Row]) -> Table:
    heads = ["training", "noise multiplier", "steps", "mean gamma", "epsilon", "which is"]
    heads += ["as if gammas were public", "test perplexity", "against DP-SGD"]
    cells = []
    for epsilon in _values(rows, EPSILON):
        for arm in (BARE, PLAIN, *_adaptive(rows)):
            place = {EPSILON: epsilon}
            if arm == BARE:
                cells.append([arm, "", "", "", "", "", "", perplexity(_by_key(rows, arm, place)), ""])
            else:
                sigma = min(_by_key(rows, arm, place, "noise_multiplier").values())
                cells.append([arm, at_least(sigma, 4), *_claimed(rows, arm, place)])
    note = (
        "The floor of each adaptive arm is the mean gamma that it had at the same noise multiplier. That is taken from "
        "the training rows, which no guarantee covers. A step whose gamma is above the floor has more noise than "
        "epsilon asks for: by how much, epsilon as if gammas were public says."
    )
    return Table("Beyond the paper: at the same epsilon", heads, cells, note)


def _claimed(rows: Sequence[Row], arm: str, place: Keys) -> list[str]:
    """Return the cells from the steps to the gain."""
    steps = _by_key(rows, arm, place, "steps").values()
    gammas = list(_by_key(rows, arm, place, "gamma").values())
    return [
        str(min(steps)) if min(steps) == max(steps) else f"{min(steps)} to {max(steps)}",
        f"{sum(gammas) / len(gammas):.3f}",
        at_most(max(_by_key(rows, arm, place, "epsilon").values()), 3),
        "proved" if all(_by_key(rows, arm, place, "is_proved").values()) else "an estimate, at the floor",
        at_most(max(_by_key(rows, arm, place, "public").values()), 3),
        perplexity(_by_key(rows, arm, place)),
        "" if arm == PLAIN else change(tuple(gap(rows, arm, place).values())),
    ]


STUDY = Study(
    name="adaptive",
    paper="001",
    shows=("Table 1",),
    question="Does noise that follows the rows beat DP-SGD, at the same noise multiplier and at the same epsilon?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=40,
    deviations="stories260K, which has read children's stories, in place of a model of 12 layers from scratch; "
    "paragraphs of WikiText-2 in place of WikiText-103; rows of 64 tokens, 16 steps of 192 rows in place of 20 epochs "
    "of batches of 4,096; clip norm 1 in place of 0.001.",
    reads=("20newsgroups", "wikitext-2"),
)
