"""Does `plan --suggest` choose as well as a search? Its first setting against the best of many, at three places.

The planner's constants were fitted to posts and the bundled model, so that posts are no test of them. `ELSEWHERE` are
dialogues, and a model of a million weights that is made for this study. The planner did badly there when it knew no
rate of other models. It then learnt that they bear the rates of the bundled one, so that dialogues are no test of that.
`ADAPTED` are abstracts: the same model, and LoRA factors alone train. Nothing was fitted to them, but after a first
look a review lowered LoRA's rate by a tenth there.

The search chooses on validation users; the suggestion sees the shape of the data alone. Both are measured on other
users. A suggestion may have noise that is correlated over steps, and gradients that are multiplied before they are
clipped, so the search tries them as well.

What the planner's rule predicts is held against the trials of one chunk with independent noise: at both rates, and with
half and twice the budget. Its two constants are of older runs. Where there are several epsilons, they are fitted anew
to all but one of them at the higher rate, and held against that one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from scipy import optimize

from confide.planning.progress import DIMENSIONS, SQUARES, WALK, log_progress
from confide.utils.rounding import at_least
from studies.runner import users
from studies.runner.findings import Finding
from studies.runner.grid import OWN_OPTIMISER, TRIAL, Arm, Grid, Keys, config
from studies.runner.models import bundled, one_million
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.suggested import (
    CORRELATED,
    CORRELATED_SCALED,
    EPSILON,
    INDEPENDENT,
    NOISE,
    RATE,
    SEARCHED,
    STEPS,
    SUGGESTED,
    K,
    Suggestions,
    as_suggested,
    correlated,
    suggested,
    written,
)
from studies.runner.tables import change, percent, perplexity, target
from studies.runner.twins import without_repeats

TEXT, ELSEWHERE, ADAPTED = "newsgroups", "dialogues", "abstracts"
MODELS = {TEXT: bundled, ELSEWHERE: one_million, ADAPTED: one_million}
ADAPTERS = {TEXT: "full", ELSEWHERE: "full", ADAPTED: "lora"}
WEIGHTS, HIGHER = "trainable weights", "rates over those of whole weights"
BEHIND = math.log(1.02)
"""What a suggestion may lose against a search: 2% of the perplexity."""

_SMALL: dict[str, Any] = {
    "rows": 3840,  # computed in all, by every setting
    "ks": (1, 2),
    "steps": (16, 32, 64),
    "rates": (2e-3, 4e-3),
    "noises": (INDEPENDENT, CORRELATED, CORRELATED_SCALED),
    "epsilons": (8.0,),  # each takes an hour of two cores
    "budgets": {1920: (8, 16, 32, 64), 7680: (16, 32, 64, 128)},
    "seeds": 3,
    "others": {
        ELSEWHERE: {"ks": (1,), "rates": (2e-3, 4e-3, 8e-3, 16e-3), "budgets": {}},
        ADAPTED: {
            "ks": (1,),
            "rates": (4e-3, 8e-3, 16e-3),
            "noises": (INDEPENDENT, CORRELATED),  # of what trains, nothing has a scale
            "budgets": {},
        },
    },
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {
        "rows": 8,
        "ks": (1,),
        "steps": (1, 2),
        "rates": (5e-3,),
        "epsilons": (8.0,),
        "budgets": {4: (1, 2)},
        "seeds": 2,
        "others": {ELSEWHERE: {"budgets": {}}, ADAPTED: {"budgets": {}, "noises": (INDEPENDENT, CORRELATED)}},
    },
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL
    | {"rows": 256_000, "steps": (250, 500, 1000), "rates": (1e-3, 2e-3)}
    | {"budgets": {128_000: (125, 250, 500), 512_000: (500, 1000, 2000)}}
    | {"epsilons": (1.0, 3.0, 8.0), "others": {}},
}


def _texts(scale: Scale) -> tuple[str, ...]:
    return (TEXT, *_SIZES[scale]["others"])


def _size(scale: Scale, text: str) -> dict[str, Any]:
    size = _SIZES[scale]
    return {**size, **size["others"].get(text, {})}


def _adapter(text: str) -> Keys:
    return {"adapter.kind": ADAPTERS[text]}


# what is trained -----------------------------------------------------------------------------------------------
def grids(work: Work, text: str, count: int, chosen: Mapping[float, Keys]) -> list[Grid]:
    """Return the search, the suggestion, and the trials at other budgets.

    Args:
        count: users there are to train on.
        chosen: by epsilon, what the suggestion sets.
    """
    size = _size(work.scale, text)
    steps, rates, epsilons = size["steps"], size["rates"], size["epsilons"]
    uls: dict[str, Any] = {"privacy.mechanism": "uls", "privacy.selection": "random-chunk"}

    def grid(arm: Arm, epsilons: tuple[float, ...], seeds: int = size["seeds"]) -> Grid:
        at, keys = {EPSILON: epsilons}, users.keys(steps[0], **OWN_OPTIMISER, **_adapter(text))
        return Grid("suggestion", (text,), MODELS[text], keys, (arm,), at, at, seeds)

    search = {K: size["ks"], STEPS: steps, RATE: rates, NOISE: size["noises"]}
    given = Arm(SUGGESTED, {**uls, RATE: rates[-1]}, derived=partial(as_suggested, chosen))
    return [
        grid(Arm(SEARCHED, uls, search, partial(spent, size["rows"], count)), epsilons),
        grid(given, epsilons),
        *(
            grid(_at_budget(budget, tried, count, {**uls, K: 1, RATE: rates[-1]}), epsilons[-1:], seeds=0)
            for budget, tried in size["budgets"].items()
        ),
    ]


def _at_budget(budget: int, tried: Sequence[int], count: int, keys: Keys) -> Arm:
    return Arm(f"{budget:,} chunks", keys, {STEPS: tried}, partial(spent, budget, count))


def spent(rows: int, count: int, keys: Keys) -> Keys:
    """Add the users of a step with which a run computes so many rows in all, and the bands of correlated noise."""
    found = dict(keys)
    noise = found.pop(NOISE, INDEPENDENT)
    found["train.batch"] = rows / (keys[K] * keys[STEPS])
    return found if noise == INDEPENDENT else correlated(count, found, noise)


def suggestions(work: Work, text: str) -> Suggestions:
    """Ask the planner what it suggests for a text."""
    size, uls = _size(work.scale, text), {"privacy.mechanism": "uls", "privacy.selection": "random-chunk"}
    keys = {
        **users.keys(size["steps"][0], **_adapter(text)),
        **uls,
        K: size["ks"][-1],
        "train.batch": 4.0,
        RATE: size["rates"][-1],
    }
    folder = "suggestion" if text == TEXT else f"suggestion for {text}"
    raw = config(work, MODELS[text](work), text, keys) | {"run": str(work.folder / folder)}
    return suggested(work, raw, size["epsilons"], size["rows"])


def measure(work: Work) -> list[Row]:
    rows: list[Row] = []
    for text in work.chosen(_texts(work.scale)):
        count, chosen, weights, higher = suggestions(work, text)
        own = [row for grid in grids(work, text, count, chosen) for row in grid.measured(work)]
        for row in own:
            row[WEIGHTS] = weights
            if higher != 1:
                row[HIGHER] = higher
            if row["arm"] == SUGGESTED:
                row["settings"] = json.dumps(chosen[row[EPSILON]])
        rows += without_repeats(own)
    return rows


# the planner's rule --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Trial:
    """A setting of one chunk, and its loss on validation users.

    Attributes:
        batch: users a step.
    """

    steps: int
    batch: float
    rate: float
    noise: float
    loss: float

    def progress(self, dimensions: float, walk: float) -> float:
        ratio = dimensions * (self.noise / self.batch) ** 2
        return log_progress(self.steps, ratio, SQUARES["linear"] * self.rate**2, walk)


@dataclass(frozen=True)
class Prediction:
    """How well the rule chose a number of steps where it was not fitted.

    Attributes:
        by_rule, best: the number of steps by the rule, and that of the least loss.
        behind: by how much the loss of the former is above the latter's, nats.
    """

    of: str
    by_rule: int
    best: int
    behind: float
    tried: tuple[tuple[int, float], ...]


def trials(rows: Sequence[Row], arm: str, budget: float) -> dict[tuple[float, float], list[Trial]]:
    """Return the trials of one chunk with independent noise, by epsilon and learning rate."""
    found: dict[tuple[float, float], list[Trial]] = {}
    for row in rows:
        if (row["arm"], row["key"], row["part"]) != (arm, TRIAL, "validation"):
            continue
        settings = json.loads(row["settings"])
        if settings.get(K, 1) != 1 or settings.get(NOISE, INDEPENDENT) != INDEPENDENT:
            continue
        rate = settings.get(RATE, _rate(rows))
        steps = settings[STEPS]
        trial = Trial(steps, budget / steps, rate, row["noise_multiplier"], row["loss"])
        found.setdefault((row[EPSILON], rate), []).append(trial)
    return found


def _at_highest_rate(
    found: Mapping[tuple[float, float], list[Trial]], rate: float
) -> dict[float, list[Trial]]:
    """Return the trials to which the constants are fitted, by epsilon."""
    return {epsilon: own for (epsilon, other), own in found.items() if other == rate}


def _rate(rows: Sequence[Row]) -> float:
    """Return the highest rate of the search, at which the constants are fitted."""
    rates = [
        json.loads(row["settings"])[RATE] for row in rows if row["arm"] == SEARCHED and row["key"] == TRIAL
    ]
    return float(max(rates))


def fitted(all_trials: Sequence[Trial]) -> tuple[float, float]:
    """Return (dimensions, walk) with which losses lie nearest to a line over progress."""
    losses = np.array([trial.loss for trial in all_trials])

    def error(logs: np.ndarray) -> float:
        progress = np.array([trial.progress(*np.exp(logs)) for trial in all_trials])
        line = np.stack([np.ones_like(progress), progress], 1)
        return float(np.sum((losses - line @ np.linalg.lstsq(line, losses, rcond=None)[0]) ** 2))

    starts = product((11.0, 14.0), (5.0, 7.0))
    best = min(
        (optimize.minimize(error, start, method="Nelder-Mead") for start in starts),
        key=lambda found: found.fun,
    )
    dimensions, walk = np.exp(best.x).tolist()
    return dimensions, walk


def predictions(rows: Sequence[Row], budget: float, budgets: Sequence[int]) -> list[Prediction]:
    """Return what the rule names at each rate and budget, and on posts at epsilons that are left out of a fit.

    Args:
        rows: of one text.
    """
    found = trials(rows, SEARCHED, budget)
    at_rate = _at_highest_rate(found, _rate(rows))
    higher = rows[0].get(HIGHER) or 1.0  # runs of whole weights do not say so
    planners = DIMENSIONS * rows[0][WEIGHTS], WALK / higher**2
    made = [
        _prediction(f"epsilon {target(epsilon)} at the rate {rate:g}", own, planners)
        for (epsilon, rate), own in found.items()
    ]
    for rows_in_all in budgets:
        for (epsilon, _), own in trials(rows, f"{rows_in_all:,} chunks", rows_in_all).items():
            what = f"epsilon {target(epsilon)} and {rows_in_all:,} chunks"
            made.append(_prediction(what, own, planners))
    is_refitted = rows[0]["text"] == TEXT and len(at_rate) > 1
    for epsilon, own in at_rate.items() if is_refitted else ():
        others = [trial for other, each in at_rate.items() if other != epsilon for trial in each]
        what = f"epsilon {target(epsilon)}, with constants fitted to the others"
        made.append(_prediction(what, own, fitted(others)))
    return made


def _prediction(what: str, tried: Sequence[Trial], constants: tuple[float, float]) -> Prediction:
    by_rule = max(tried, key=lambda trial: trial.progress(*constants))
    best = min(tried, key=lambda trial: trial.loss)
    all_of_them = tuple(sorted((trial.steps, trial.loss) for trial in tried))
    return Prediction(what, by_rule.steps, best.steps, by_rule.loss - best.loss, all_of_them)


def _size_of(rows: Sequence[Row], text: str) -> dict[str, Any]:
    return _size(Scale(rows[0]["scale"]), text)


def _of(rows: Sequence[Row], text: str) -> list[Row]:
    return [row for row in rows if row["text"] == text]


def _predictions(rows: Sequence[Row], text: str) -> list[Prediction]:
    size = _size_of(rows, text)
    return predictions(_of(rows, text), size["rows"], tuple(size["budgets"]))


# what was found ------------------------------------------------------------------------------------------------
_WHERE = {
    TEXT: "",
    ELSEWHERE: " on dialogues, with a smaller model,",
    ADAPTED: " on abstracts, with LoRA and a smaller model,",
}


def findings(rows: Sequence[Row]) -> list[Finding]:
    place, found = "beyond the papers", []
    for text in users.texts_of(rows):
        found += [
            Finding(
                f"At epsilon {target(epsilon)}{_WHERE[text]} the suggestion comes within 2% of the best of a search.",
                place,
                "loss of the suggestion less that of the setting that the search chose",
                users.gap(rows, text, SUGGESTED, SEARCHED, epsilon),
                high=BEHIND,
                family=f"suggestion {text}",
            )
            for epsilon in users.values(_of(rows, text), EPSILON)
        ]
    for text in users.texts_of(rows):
        where = _WHERE[text].strip()
        rule = f"{where[0].upper()}{where[1:]} the rule" if where else "The planner's rule"
        found.append(
            Finding(
                f"{rule} names a number of steps within 2% of the best of those that were tried.",
                place,
                "loss on validation users with the steps that the rule names, less the least of the tried",
                tuple(each.behind for each in _predictions(rows, text)),
                high=BEHIND,
                over="epsilons, rates and budgets" if text == TEXT else "epsilons and rates",
            )
        )
    return found


def tables(rows: Sequence[Row]) -> list[Table]:
    texts = users.texts_of(rows)
    return [
        _compared(rows),
        *(_search(_of(rows, text), text) for text in texts),
        *(_rule(rows, text) for text in texts),
    ]


def _compared(rows: Sequence[Row]) -> Table:
    heads = [
        "text",
        "epsilon",
        "setting",
        "noise multiplier",
        "which is",
        "test perplexity",
        "suggested against searched",
    ]
    cells = []
    places = [
        (each, epsilon) for each in users.texts_of(rows) for epsilon in users.values(_of(rows, each), EPSILON)
    ]
    for (text, epsilon), arm in product(places, (SEARCHED, SUGGESTED)):
        place = (text, arm, epsilon, "test")
        own = [row for row in rows if (row["text"], row["arm"], row[EPSILON], row["part"]) == place]
        cells.append(
            [
                text,
                target(epsilon),
                arm,
                at_least(min(row["noise_multiplier"] for row in own), 4),
                written(own[0]["settings"]),
                perplexity(users.at(rows, text, arm, epsilon)),
                change(users.gap(rows, text, SUGGESTED, SEARCHED, epsilon)) if arm == SUGGESTED else "",
            ]
        )
    note = (
        f"Every setting computes {_size_of(rows, TEXT)['rows']:,} chunks. The search chose on validation users, with "
        "another run key; the suggestion had no trial. Where the search chose the highest of its rates, one beyond it "
        "might be better. Intervals are of 95% over run keys."
    )
    return Table("The suggestion against a search", heads, cells, note)


def _search(rows: Sequence[Row], text: str) -> Table:
    epsilons = users.values(rows, EPSILON)
    own = [row for row in rows if (row["arm"], row["part"]) == (SEARCHED, "validation")]
    by_setting: dict[str, dict[float, float]] = {}
    for row in own:
        by_setting.setdefault(row["settings"], {})[row[EPSILON]] = row["loss"]
    cells = [
        [written(settings), *(f"{math.exp(loss):.1f}" for loss in map(found.__getitem__, epsilons))]
        for settings, found in sorted(by_setting.items(), key=lambda pair: pair[1][epsilons[0]])
    ]
    heads = ["setting", *(f"epsilon {target(epsilon)}" for epsilon in epsilons)]
    return Table(f"The search on {text}: validation perplexity of one run each", heads, cells)


def _rule(rows: Sequence[Row], text: str) -> Table:
    cells = [
        [
            each.of,
            str(each.by_rule),
            str(each.best),
            percent(each.behind),
            ", ".join(f"{steps}: {math.exp(loss):.1f}" for steps, loss in each.tried),
        ]
        for each in _predictions(rows, text)
    ]
    heads = ["predicted", "steps by the rule", "steps of the best run", "behind it", "perplexity by steps"]
    note = "Nothing was fitted to these runs, unless a line says so. Validation perplexity, one run each."
    if _size_of(rows, text)["budgets"]:
        note += " With half and twice the chunks the rate is the higher one."
    return Table(f"Which number of steps the planner's rule names on {text}", heads, cells, note)


STUDY = Study(
    name="suggestion",
    paper="",
    shows=(),
    question="Does `plan --suggest` choose as well as a search?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=70,
    deviations="The bundled base model, trained whole, on the first 4,000 posts of 20 Newsgroups; 3,840 rows of 64 "
    "tokens in all. At `small` epsilon is 8 alone, at `full` 1, 3 and 8. On 2,000 dialogues, each of which is a user, "
    "a model of a million weights is trained that was pretrained on WikiText-2, and LoRA factors of the same model on "
    "abstracts of arXiv; not at `full`. Mechanisms other than `uls`, and more than two chunks of each, are not "
    "trained.",
    reads=("20newsgroups", "sgd-dialogues", "arxiv-abstracts-small", "wikitext-2"),
    texts=(TEXT, ELSEWHERE, ADAPTED),
)
