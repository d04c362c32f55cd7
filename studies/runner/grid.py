"""A grid of training runs: arms crossed with places and run keys, each arm's settings chosen on validation text.

Every arm has the same number of trials. Trials have one run key and are measured on the validation units; the runs
that count have other keys and are measured on the test units, which nothing was chosen on. Runs of one key share it
over all arms, so that differences of arms are paired.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from confide.runs.given import Given
from confide.utils.errors import InputError
from studies.runner.study import Row, Work
from studies.runner.texts import TEXTS
from studies.runner.training import Look, Trained, trained

Keys = Mapping[str, Any]
"""Values by the name of a config's key. An epsilon of infinity trains without clipping and noise, on the same draws."""

_OTHER_TARGETS = ("secret",)  # mechanisms whose noise follows from something else than an epsilon

TRIAL = 0  # the run key of trials; those that count have 1, 2 ...
NOTHING = "no training"
_PAPERS_OPTIMISER = {"train.optimizer": "adamw"}
OWN_OPTIMISER = {"train.optimizer": "tensor-adamw"}
"""Confide's own, for studies of confide. All others have that of the papers unless they say so."""


def _unchanged(keys: Keys) -> Keys:
    return keys


def _nothing(keys: Keys) -> Given:
    return Given()


@dataclass(frozen=True)
class Arm:
    """One of the ways that are compared.

    Attributes:
        name: as in tables.
        keys: what makes it.
        options: what is chosen for it on validation text: all combinations are tried.
        derived: adds keys that follow from the others; the run's key is among them.
        look: what is measured beside the loss of runs that count.
        given: makes the objects that a calling program would pass to a run, such as an optimiser of its own, of the
            run's keys.
    """

    name: str
    keys: Keys
    options: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    derived: Callable[[Keys], Keys] = _unchanged
    look: Look | None = None
    given: Callable[[Keys], Given] = _nothing

    def trials(self) -> list[Keys]:
        return [dict(zip(self.options, each, strict=True)) for each in product(*self.options.values())]


@dataclass(frozen=True)
class Grid:
    """The runs of a study.

    Attributes:
        name: of the study.
        texts: names in `TEXTS`.
        model: makes the model, or finds it.
        keys: of every run.
        arms: what is compared.
        at: where all arms are compared: values by key, crossed.
        tuned_at: the places where settings are chosen; elsewhere those of the nearest such place are used.
        seeds: run keys that count.
    """

    name: str
    texts: tuple[str, ...]
    model: Callable[[Work], Path]
    keys: Keys
    arms: tuple[Arm, ...]
    at: Mapping[str, Sequence[Any]]
    tuned_at: Mapping[str, Sequence[Any]]
    seeds: int

    def __post_init__(self) -> None:
        budgets = {arm.name: len(arm.trials()) for arm in self.arms}
        if len(set(budgets.values())) > 1:
            raise InputError(f"{self.name}: the arms have unequal tuning budgets: {budgets}")

    def measured(self, work: Work) -> list[Row]:
        """Train whatever is not trained yet. Return a row for each trial and each run."""
        model = self.model(work)
        rows: list[Row] = []
        for text in work.chosen(self.texts):
            trials, runs = self.tuned(work, model, text)
            rows += trials + trained(runs, work, f"{self.name}, {text}: runs")
        return rows

    def tuned(self, work: Work, model: Path, text: str) -> tuple[list[Row], list[Trained]]:
        """Make the trials on a text. Return their rows, and the runs that count, with the settings that they chose."""
        cell = _Cell(self, work, model, text)
        trials = trained(list(cell.tuning()), work, f"{self.name}, {text}: trials")
        return trials, list(cell.mains(trials))


@dataclass(frozen=True)
class _Cell:
    """The runs of one text."""

    grid: Grid
    work: Work
    model: Path
    text: str

    def tuning(self) -> Iterator[Trained]:
        untrained = Arm(NOTHING, {"privacy.mechanism": "none", "train.batch": 1.0})
        yield self._run(untrained, {}, {}, TRIAL, "test", trains=False)
        for arm in self.grid.arms:
            settings = arm.trials()
            for place in _crossed(self.grid.tuned_at):
                for each in settings if len(settings) > 1 else ():
                    yield self._run(arm, place, each, TRIAL, "validation")

    def mains(self, trials: Sequence[Row]) -> Iterator[Trained]:
        for arm in self.grid.arms:
            best = self._best(arm, trials)
            for place in _crossed(self.grid.at):
                settings = best[min(best, key=partial(_distance, place))]
                for seed in range(1, self.grid.seeds + 1):
                    yield self._run(arm, place, settings, seed, "test")

    def _best(self, arm: Arm, trials: Sequence[Row]) -> dict[tuple[tuple[str, Any], ...], Keys]:
        """Return, for each place where settings were tried, those with the least validation loss."""
        settings = arm.trials()
        found = {}
        for place in _crossed(self.grid.tuned_at):
            losses = {
                row["settings"]: row["loss"]
                for row in trials
                if (row["text"], row["arm"], row["key"], row["part"])
                == (self.text, arm.name, TRIAL, "validation")
                and all(row[name] == value for name, value in place.items())
            }
            names = [json.dumps(dict(each)) for each in settings]
            best = min(range(len(settings)), key=lambda i: losses[names[i]]) if len(settings) > 1 else 0
            found[tuple(place.items())] = settings[best]
        return found

    def _run(
        self, arm: Arm, place: Keys, settings: Keys, seed: int, part: str, trains: bool = True
    ) -> Trained:
        grid = self.grid
        columns: Row = {"study": grid.name, "scale": str(self.work.scale), "text": self.text, "arm": arm.name}
        columns |= {name: place.get(name) for name in grid.at}
        columns |= {"settings": json.dumps(dict(settings)), "key": seed, "part": part}
        key = {"privacy.published_key": f"study {self.text} {seed}"}
        keys = dict(arm.derived({**key, **grid.keys, **arm.keys, **place, **settings}))
        given = arm.given(keys)
        is_twin = math.isinf(keys.get("privacy.epsilon", 1.0))
        if is_twin:  # the run that it is the twin of is never trained
            del keys["privacy.epsilon"]
            if keys["privacy.mechanism"] not in _OTHER_TARGETS:
                keys["privacy.epsilon"] = 1.0
        raw = config(self.work, self.model, self.text, keys, seed, part)
        look = arm.look if seed != TRIAL else None
        return Trained.of(columns, raw, is_twin, trains, self.work.folder / "runs", look, given)


def config(
    work: Work, model: Path, text: str, keys: Keys, seed: int = TRIAL, part: str = "validation"
) -> dict[str, Any]:
    """Return the config of a run, without its folder.

    Args:
        text: name in `TEXTS`.
        keys: of the run; they come before what all runs have.
        seed: run key.
        part: of the text, to evaluate on.
    """
    parts = TEXTS[text].parts(work)
    return nested(
        {
            "model": str(model),
            "data.train": str(parts["train"]),
            "data.eval": str(parts[part]),
            "data.text": TEXTS[text].template,
            "data.unit": TEXTS[text].unit,
            "data.duplicates": False,
            "privacy.published_key": f"study {text} {seed}",
            **_PAPERS_OPTIMISER,
            "train.checkpoint_every": 10**6,
            "train.micro_tokens": 2048,  # to measure what fits takes as long as some steps of a small model
            "train.eval_on_start": False,
            **keys,
        }
    )


def nested(keys: Keys) -> dict[str, Any]:
    """Return a config of keys such as `privacy.epsilon`."""
    raw: dict[str, Any] = {}
    for name, value in keys.items():
        *sections, last = name.split(".")
        section = raw
        for each in sections:
            section = section.setdefault(each, {})
        section[last] = value
    return raw


def _crossed(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(values, each, strict=True)) for each in product(*values.values())]


def _distance(place: Keys, tuned: tuple[tuple[str, Any], ...]) -> float:
    """Return how far two places lie apart, in logarithms; infinity is near to what is largest."""
    return sum(abs(math.log(min(value, 1e9)) - math.log(min(place[name], 1e9))) for name, value in tuned)
