"""A claim of every mechanism under every adjacency that it has, as a config and the shape of some data make it."""

from functools import cache
from typing import Any

import numpy as np

from confide.config.loading import check
from confide.config.schema import Config
from confide.data.shape import Shape
from confide.privacy import mechanisms
from confide.privacy.accounting import Trials
from confide.privacy.guarantee import Guarantee
from confide.privacy.mechanisms.statement import calibrate, state_guarantee
from confide.privacy.mechanisms.tuned import UNTUNED, CountedSweep, SweepAccounting, UncountedSweep

USERS, STEPS = 200, 12
DETECTOR = {"patterns": ["email"], "recall": 1.0}
LITERAL = {"adjacency": "add-or-remove", "delta": 1e-4, "noise_multiplier": 1.3}


def data(users: int = USERS, several_owners: bool = False) -> Shape:
    """Of `users` units with one to five rows each; with several owners, row i is of unit i's neighbour too."""
    counts = np.arange(users) % 5 + 1
    own = np.split(np.arange(counts.sum()), np.cumsum(counts)[:-1])
    if several_owners:
        own = [np.concatenate([rows, own[(unit + 1) % users][:1]]) for unit, rows in enumerate(own)]
    sizes = np.array([len(rows) for rows in own])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    names = [f"who:{unit}" for unit in range(users)]
    return Shape(
        sizes,
        int(counts.sum()),
        400,
        not several_owners,
        offsets,
        np.concatenate(own),
        lambda: names,
    )


def config(mechanism: str, **changes: Any) -> Config:
    """Args: changes: keys of `privacy`, but for those of `train`, and whole sections by their name."""
    settings: dict[str, Any] = {
        "data": {"train": "x", "unit": "user", "eval": None, "max_length": 64},
        "privacy": {"mechanism": mechanism, "noise_multiplier": 1.3, "delta": 1e-4},
        "train": {"steps": STEPS, "batch": 20.0},
    }
    if mechanism in ("none", "redacted"):
        settings["privacy"] = {"mechanism": mechanism}
    if mechanism == "secret":
        settings["privacy"] = {"mechanism": mechanism, "delta": 1e-4}
        settings["secrets"] = {"patterns": {"who": "x"}, "prior": 1e-4, "posterior": 0.0237, "recall": 1.0}
    if mechanism == "concentration":
        settings["privacy"] = {"mechanism": mechanism, "epsilon": 2.7, "delta": 1e-4, "tau": 0.5}
        settings["train"] = {"steps": STEPS}
    if mechanism == "owners":
        settings["data"]["unit"] = ["from", "to"]
    if mechanism in ("selective", "redacted", "crt"):
        settings["detector"] = DETECTOR
    for key, value in changes.items():
        place = settings["train"] if key in ("max_batch", "sampling_rate", "divisor", "batch") else None
        if isinstance(value, dict):
            settings[key] = settings.get(key, {}) | value
        else:
            (settings["privacy"] if place is None else place)[key] = value
    return check(settings)


@cache
def stated(name: str) -> Guarantee:
    """One of `CASES`."""
    return made(*CASES[name])


def made(mechanism: str, changes: dict[str, Any], tuning: SweepAccounting = UNTUNED) -> Guarantee:
    """Args: changes: as of `config`."""
    settings = config(mechanism, **changes)
    privacy = settings.privacy
    shape = data(several_owners=mechanism == "owners")
    setting = calibrate(
        mechanisms.build(settings), shape, privacy.epsilon, privacy.noise_multiplier, privacy.delta, tuning
    )
    return state_guarantee(setting, setting.mechanism.all_steps, False, settings, {"code": "confide test"})


_LIGHT = {
    "redacted": {"mode": "light-noise", "epsilon": 1.0, "missing_rate": [0.0123456, 0.0345678], "steps": 5},
    "detector": {"patterns": ["email"], "recall": None},
    "noise_multiplier": None,
    "epsilon": 3.0,
}
_AFTER = {"redacted": {"steps": 5}}
CASES: dict[str, tuple[str, dict[str, Any], SweepAccounting]] = {
    "none": ("none", {}, UNTUNED),
    "dp-sgd": ("dp-sgd", {}, UNTUNED),
    "dp-sgd, replace-one": ("dp-sgd", {"adjacency": "replace-one"}, UNTUNED),
    "dp-sgd, add-or-remove": ("dp-sgd", LITERAL | {"sampling_rate": 0.03, "divisor": 20.0}, UNTUNED),
    "dp-sgd, target": ("dp-sgd", {"noise_multiplier": None, "epsilon": 7.7}, UNTUNED),
    "dp-sgd, shuffled": ("dp-sgd", {"sampling": "shuffle"}, UNTUNED),
    "dp-sgd, in bins": ("dp-sgd", {"sampling": "bins"}, UNTUNED),
    "dp-sgd, in bins, correlated": ("dp-sgd", {"sampling": "bins", "bands": 4}, UNTUNED),
    "dp-sgd, truncated": (
        "dp-sgd",
        {"sampling": "truncated", "max_batch": 40, "adjacency": "replace-one"},
        UNTUNED,
    ),
    "dp-sgd, correlated": ("dp-sgd", {"bands": 4}, UNTUNED),
    "dp-sgd, large delta": ("dp-sgd", {"delta": 2.345e-3}, UNTUNED),
    "dp-sgd, weak": ("dp-sgd", {"noise_multiplier": 0.3}, UNTUNED),
    "uls": ("uls", {}, UNTUNED),
    "uls, replace-one": ("uls", {"adjacency": "replace-one"}, UNTUNED),
    "uls, add-or-remove": ("uls", LITERAL | {"sampling_rate": 0.1, "divisor": 20.0}, UNTUNED),
    "uls, in bins, with buffers": ("uls", {"sampling": "bins", "buffers": 2}, UNTUNED),
    "uls, in bins, add-or-remove": (
        "uls",
        LITERAL | {"sampling": "bins", "sampling_rate": 0.1, "divisor": 20.0},
        UNTUNED,
    ),
    "uls, small delta": ("uls", {"delta": 1e-7}, UNTUNED),
    "uls, counted": (
        "uls",
        {"privacy": {"histograms": {"of": ["lengths"], "noise_multiplier": 7.123456789}}},
        UNTUNED,
    ),
    "uls, counted, sweep": (
        "uls",
        {"privacy": {"histograms": {"of": ["lengths"], "noise_multiplier": 7.123456789}}},
        CountedSweep(Trials(8.0)),
    ),
    "uls, sweep": ("uls", {}, CountedSweep(Trials(8.0))),
    "uls, searched": ("uls", {}, UncountedSweep(12, (7.123456789, 1.23456e-3))),
    "els": ("els", {}, UNTUNED),
    "els, replace-one": ("els", {"adjacency": "replace-one"}, UNTUNED),
    "els, add-or-remove": ("els", LITERAL | {"sampling_rate": 0.04, "divisor": 20.0}, UNTUNED),
    "els, replace-one, sweep": ("els", {"adjacency": "replace-one"}, CountedSweep(Trials(8.0))),
    "group": ("group", {}, UNTUNED),
    "owners": ("owners", {}, UNTUNED),
    "owners, replace-one": ("owners", {"adjacency": "replace-one"}, UNTUNED),
    "secret": ("secret", {}, UNTUNED),
    "secret, kl, no recall": ("secret", {"accountant": "kl", "secrets": {"recall": 0.9}}, UNTUNED),
    "concentration": ("concentration", {}, UNTUNED),
    "adaptive": ("adaptive", {}, UNTUNED),
    "adaptive, replace-one": ("adaptive", {"adjacency": "replace-one"}, UNTUNED),
    "adaptive, nominal": ("adaptive", {"adaptive": {"mode": "nominal", "expected": 0.73}}, UNTUNED),
    "selective": ("selective", _AFTER, UNTUNED),
    "selective, zero-out": ("selective", _AFTER | {"adjacency": "zero-out"}, UNTUNED),
    "selective, no recall": (
        "selective",
        _AFTER | {"detector": {"patterns": ["email"], "recall": None}},
        UNTUNED,
    ),
    "selective, screened": (
        "selective",
        {"redacted": {"mode": "screened", "marks": "marks.jsonl", "steps": 5}},
        UNTUNED,
    ),
    "selective, light noise": ("selective", _LIGHT, UNTUNED),
    "redacted": ("redacted", {}, UNTUNED),
    "crt": ("crt", _AFTER, UNTUNED),
    "crt, zero-out": ("crt", _AFTER | {"adjacency": "zero-out"}, UNTUNED),
}
