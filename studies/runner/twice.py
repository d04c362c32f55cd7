"""What studies of selective privacy share: redaction, fine-tuning twice, and what they are compared with."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confide.privacy.mechanisms import build
from confide.privacy.mechanisms.statement import calibrate
from confide.runs.folder import Run
from confide.runs.loop import Outcome
from confide.runs.preparation import load
from studies.runner.findings import paired
from studies.runner.grid import Arm, Grid, Keys
from studies.runner.marked import marked
from studies.runner.models import stories
from studies.runner.study import Row, Work
from studies.runner.tables import losses
from studies.runner.training import Look

NONE, DPSGD, TOKENS = "no DP", "DP-SGD", "DP-SGD (+ tokens)"
LEVELS = ("low-entity", "high-entity", "low-contextual", "high-contextual")
ENTITIES = "high-entity"
"""The level at which detectors are made to miss, and models are attacked."""

EPSILON = 3.0
READS = ("wikitext-2", "sgd-dialogues", "20newsgroups")
WORDS = (
    "JFT is Just Fine-tune Twice: the first half of the steps on redacted text, without noise or with light noise, and "
    "the second half on the whole text, with DP-SGD. CRT is confidentially redacted training (Zhao et al. 2022): text "
    "is freed of duplicates and redacted, and steps on rows without a finding come in turn with noised steps on the "
    "others."
)
LEVEL_WORDS = (
    "Masked are persons, organisations, dates and places at low-entity, every kind of named entity at high-entity, "
    "also proper nouns, pronouns, subjects and objects at low-contextual, and verbs as well at high-contextual."
)
DEVIATIONS = (
    "stories260K, trained whole, in place of GPT-2 small; paragraphs of WikiText-2, and the Schema-Guided Dialogues in "
    "place of ABCD; rows of 64 tokens; a small pipeline in place of spaCy's; Poisson draws; epsilon is claimed under "
    "replace-one, which is more than the paper counts for the same noise."
)
_PRIVATE: Keys = {"privacy.epsilon": EPSILON, "privacy.delta": 1e-5}


@dataclass(frozen=True)
class Claimed:
    """Looks at what a run claims: epsilon with a row left out, as the paper counts it, and the share of tokens masked.

    Where phase 1 is lightly noised, also epsilon at both ends of the missing rate, and of a row with a miss.
    """

    def __call__(self, run: Run, outcome: Outcome) -> Row:
        prepared, guarantee = load(run.config, run.data, run.data_key()), outcome.guarantee
        assert prepared is not None
        found: Row = {}
        if "redaction" in prepared.facts:
            found["share"] = float(prepared.facts["redaction"]["share"])
        if guarantee.notion != "none":
            found["zero_out"] = 0.0
        if guarantee.notion != "none" and guarantee.epsilon > 0:
            noise, delta = guarantee.noise_multiplier, guarantee.delta
            setting = calibrate(build(run.config), prepared.train.shape(), None, noise, delta)
            found["zero_out"] = setting.parameters.zeroed.curve(noise).epsilon(delta)
        names = ("epsilon_low", "epsilon_high", "epsilon_missed")
        return found | dict(zip(names, (value for _, value in guarantee.epsilons), strict=False))


@dataclass(frozen=True)
class Looks:
    """Looks at a run in several ways."""

    looks: tuple[Look, ...]

    def __call__(self, run: Run, outcome: Outcome) -> Row:
        return {name: value for look in self.looks for name, value in look(run, outcome).items()}


def redacted(level: str) -> str:
    """Return the name of the arm that trains on redacted rows alone."""
    return f"redacted, {level}"


def jft(level: str) -> str:
    """Return the name of the arm that fine-tunes twice."""
    return f"JFT, {level}"


def keys(work: Work, text: str, steps: int, batch: float) -> dict[str, Any]:
    """Return the keys of every run on a text: rows are units, all weights are trained, the rate falls to zero."""
    return {
        "adapter.kind": "full",
        "data.train": str(marked(work, text)),
        "data.unit": None,
        "data.max_length": 64,
        "train.batch": batch,
        "train.steps": steps,
        "train.schedule": "linear",
    }


def plain_arms(options: Keys, look: Look | None = None) -> tuple[Arm, ...]:
    """Return training without privacy, and DP-SGD without and with the token that masks."""
    private: Keys = {"privacy.mechanism": "dp-sgd", **_PRIVATE}
    return (
        Arm(NONE, {"privacy.mechanism": "none"}, options, look=look),
        Arm(DPSGD, private, options, look=look),
        Arm(TOKENS, {**private, "special_tokens": ["<mask>"]}, options, look=look),
    )


def redacted_arm(level: str, options: Keys, look: Look | None = None, **more: Any) -> Arm:
    """Return redaction alone, with all steps."""
    return Arm(
        redacted(level), {"privacy.mechanism": "redacted", **_detector(level), **more}, options, look=look
    )


def jft_arm(
    level: str, steps: int, options: Keys, look: Look | None = None, name: str | None = None, **more: Any
) -> Arm:
    """Return fine-tuning twice, with half of the steps in each phase and one learning rate for both.

    Args:
        name: in tables; that of the level by default.
        more: further keys, with `__` for the point.
    """
    halves = {"redacted.steps": steps // 2, "train.steps": steps - steps // 2}
    made = {"privacy.mechanism": "selective", **_PRIVATE, **_detector(level), **halves}
    made |= {key.replace("__", "."): value for key, value in more.items()}
    return Arm(name or jft(level), made, options, look=look)


def crt_arm(name: str, steps: int, noise: float, options: Keys, look: Look | None = None) -> Arm:
    """Return confidentially redacted training with a stated noise, at the level of entities."""
    made = {
        "privacy.mechanism": "crt",
        "privacy.noise_multiplier": noise,
        "privacy.delta": 1e-5,
        "redacted.steps": steps // 2,
        "train.steps": steps - steps // 2,
    }
    return Arm(name, {**made, **_detector(ENTITIES)}, options, look=look)


def _detector(level: str) -> Keys:
    return {"detector.spans": level, "detector.recall": 1.0}


def grid(
    name: str,
    work: Work,
    text: str,
    size: Keys,
    arms: Sequence[Arm],
    model: Callable[[Work], Path] = stories,
    **more: Any,
) -> Grid:
    """Return the runs of arms on one text.

    Args:
        more: further keys of every run, with `__` for the point.
    """
    common = keys(work, text, size["steps"], size["batch"])
    common |= {key.replace("__", "."): value for key, value in more.items()}
    return Grid(name, (text,), model, common, tuple(arms), {}, {}, size["seeds"])


def at(rows: Sequence[Row], text: str, arm: str, column: str = "loss") -> dict[int, float]:
    """Return the test loss of an arm by run key, or another column."""
    if column == "loss":
        return losses(rows, {"text": text, "arm": arm})
    return {row["key"]: row[column] for row in _of(rows, text, arm) if row.get(column) is not None}


def gap(rows: Sequence[Row], text: str, one: str, other: str) -> tuple[float, ...]:
    """Return the paired differences of two arms' losses, one - other."""
    return paired(at(rows, text, one), at(rows, text, other))


def value(rows: Sequence[Row], text: str, arm: str, column: str) -> float | None:
    """Return the greatest value of a column over the run keys of an arm; None if it has none."""
    return max(at(rows, text, arm, column).values(), default=None)


def rate(rows: Sequence[Row], text: str, arm: str) -> str:
    """Write the learning rate that was chosen for an arm."""
    found = {row["settings"] for row in _of(rows, text, arm)}
    return "; ".join(f"{number:g}" for each in sorted(found) for number in json.loads(each).values())


def _of(rows: Sequence[Row], text: str, arm: str) -> list[Row]:
    return [row for row in rows if (row["text"], row["arm"], row["part"]) == (text, arm, "test")]
