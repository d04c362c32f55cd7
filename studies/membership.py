"""Membership inference on models that are trained as in the study `selective` (Shi et al. 2022, section 6.4; 004).

They learn from few documents, so that each row is read several times: of rows that a run does not draw there is nothing
to tell. The documents lie at equal distances in the text: a text may begin with many of one kind, and then their kind
tells members from others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from confide.utils.files import write_text
from studies import selective
from studies.runner import twice
from studies.runner.findings import Finding
from studies.runner.grid import NOTHING, TRIAL, Arm
from studies.runner.marked import marked
from studies.runner.members import BEFORE, FPR, READS, Attacked
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.texts import TEXTS, spread
from studies.runner.twice import DPSGD, ENTITIES, NONE, jft, redacted
from studies.runner.users import texts_of

ATTACKS = ("loss", "zlib", "reference", "min-k", "min-k++", "lira", "rmia")
PUBLIC = 0.6
"""The paper: the accuracy of its attack on public models is around this."""

CHANCE = 0.55
"""An accuracy up to here counts as chance, and a distance from 1/2 up to this one's as none."""
ATTACKED = (NONE, DPSGD, redacted(ENTITIES), jft(ENTITIES))
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: {"documents": 8, "steps": 2},
    Scale.SMALL: {"documents": 60, "steps": 16},
    Scale.FULL: {"documents": 5000, "steps": 400},
}


def arms(work: Work, text: str) -> list[Arm]:
    """Return the arms of `selective` that are attacked, on documents of some of the units."""
    attacked = Attacked(1 if text == "dialogues" else 2, TEXTS[text].unit)
    keys = {"data.train": str(members(work, text, attacked))}
    look = twice.Looks((twice.Claimed(), attacked))
    return [
        replace(arm, keys={**arm.keys, **keys}, look=look)
        for arm in selective.arms(work, _SIZES[work.scale]["steps"])
        if arm.name in ATTACKED
    ]


def members(work: Work, text: str, attacked: Attacked) -> Path:
    """Write the text that is trained on, or find it."""
    whole, count = marked(work, text), _SIZES[work.scale]["documents"]
    path = whole.with_name(f"{whole.stem}-spread-{count}.jsonl")
    if not path.exists():
        lines = whole.read_text("utf-8").splitlines(keepends=True)
        by_unit: dict[str, list[str]] = {}
        for line in attacked.some(lines):
            by_unit.setdefault(json.loads(line)[attacked.unit], []).append(line)
        units = spread(list(by_unit.values()), count // attacked.of_unit)
        write_text(path, "".join(line for unit in units for line in unit))
    return path


def measure(work: Work) -> list[Row]:
    """Return a row for each attack on each run that counts."""
    size = {**selective.size(work), "steps": _SIZES[work.scale]["steps"]}
    rows: list[Row] = []
    for text in work.chosen(size["texts"]):
        for row in twice.grid(STUDY.name, work, text, size, arms(work, text)).measured(work):
            if row["key"] != TRIAL and row["arm"] != NOTHING:
                rows += by_attack(row)
    return rows


def by_attack(row: Row) -> list[Row]:
    """Return a row for each attack on a run."""
    kept = {name: row[name] for name in ("study", "scale", "text", "arm", "key", "part", "loss", "version")}
    kept |= {"epsilon": row["epsilon"], "before": row[BEFORE], READS: row[READS]}
    return [
        kept | {"attack": attack} | {name: row[f"{name} {attack}"] for name in ("auroc", "accuracy", "tpr")}
        for attack in ATTACKS
    ]


def of(rows: Sequence[Row], text: str, arm: str, attack: str, column: str) -> tuple[float, ...]:
    """Return a column by run key."""
    return tuple(
        row[column] for row in rows if (row["text"], row["arm"], row["attack"]) == (text, arm, attack)
    )


def most(rows: Sequence[Row], text: str, arm: str, column: str) -> tuple[float, ...]:
    """Return the greatest value of all attacks, by run key: of many attacks at chance, one is above it."""
    return tuple(max(each) for each in zip(*(of(rows, text, arm, a, column) for a in ATTACKS), strict=True))


def findings(rows: Sequence[Row]) -> list[Finding]:
    found = []
    for text in texts_of(rows):
        found.append(
            Finding(
                f"Without privacy, members are told with an accuracy of {PUBLIC:.0%} at most ({text}).",
                "section 6.4",
                "balanced accuracy of the best of seven attacks, at a threshold that was chosen on other rows",
                most(rows, text, NONE, "accuracy"),
                high=PUBLIC,
                unit="share",
            )
        )
        for arm in (DPSGD, jft(ENTITIES)):
            found.append(
                Finding(
                    f"With {arm.partition(',')[0]} members are not told ({text}).",
                    "section 6.4",
                    f"AUROC of the best of seven attacks; up to {CHANCE} counts as chance",
                    most(rows, text, arm, "auroc"),
                    high=CHANCE,
                    family=f"{text}, chance",
                    unit="AUROC",
                )
            )
        found.append(
            Finding(
                f"Redacted rows are told less well than whole ones ({text}).",
                "section 6.4",
                "AUROC of the attack by the base model's loss: with redaction less without",
                tuple(
                    one - other
                    for one, other in zip(
                        of(rows, text, redacted(ENTITIES), "reference", "auroc"),
                        of(rows, text, NONE, "reference", "auroc"),
                        strict=True,
                    )
                ),
                high=0.0,
                unit="AUROC",
                is_beyond=True,
            )
        )
        found.append(
            Finding(
                f"Before training, members and others look alike ({text}).",
                "",
                f"AUROC of the loss of the model before training; within {CHANCE - 0.5:.2f} of 1/2 counts as alike",
                of(rows, text, NONE, "loss", "before")[:1],
                low=1 - CHANCE,
                high=CHANCE,
                is_exact=True,  # all runs start from one model and ask about the same rows
                unit="AUROC",
                is_check=True,
            )
        )
    return found


def tables(rows: Sequence[Row]) -> list[Table]:
    found = []
    heads = ["training", "epsilon", *ATTACKS, f"best attack's share found at {FPR:.0%} false positives"]
    for text in texts_of(rows):
        cells = []
        for arm in dict.fromkeys(row["arm"] for row in rows if row["text"] == text):
            claimed = next(row["epsilon"] for row in rows if (row["text"], row["arm"]) == (text, arm))
            aurocs = (of(rows, text, arm, attack, "auroc") for attack in ATTACKS)
            tprs = most(rows, text, arm, "tpr")
            cells.append(
                [
                    arm,
                    selective.epsilon(claimed),
                    *(f"{sum(each) / len(each):.3f}" for each in aurocs),
                    f"{sum(tprs) / len(tprs):.1%}",
                ]
            )
        reads = min(row[READS] for row in rows if row["text"] == text)
        note = (
            "AUROC of each attack, the mean over run keys; 0.5 is chance. Members are rows of the training part before "
            f"redaction, others rows of the test part. Each member is read {reads:.1f} times or more, in the mean. The "
            "paper has no table: its attack reached an accuracy of about 60% even on models without privacy. Epsilon "
            "of redaction and of JFT is for what is sensitive in a row; the rest of the row is not protected."
        )
        found.append(Table(f"Section 6.4, {text}: membership inference", heads, cells, note))
    return found


STUDY = Study(
    name="membership",
    paper="004",
    shows=("section 6.4",),
    question="Can it be told which rows a model was trained on?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=30,
    deviations=twice.DEVIATIONS
    + " Few documents, so that each row is read several times. "
    + "Seven attacks in place of one, which the paper does not name.",
    reads=twice.READS,
)
