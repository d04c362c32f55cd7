"""Membership inference on models that are trained as in the study `selective` (Shi et al. 2022, section 6.4; 004).

They learn from few documents, so that each row is read several times: of rows that a run does not draw there is nothing
to tell. The documents lie at equal distances in the text: a text may begin with many of one kind, and then their kind
tells members from others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from confide.utils.files import write_text
from studies import selective
from studies.runner import twice
from studies.runner.findings import Finding, interval
from studies.runner.grid import NOTHING, TRIAL, Arm
from studies.runner.marked import marked
from studies.runner.members import BEFORE, FPR, READS, Attacked
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.texts import TEXTS, spread
from studies.runner.twice import DPSGD, ENTITIES, NONE, jft, redacted
from studies.runner.users import texts_of

ATTACKS = ("loss", "zlib", "reference", "min-k", "min-k++", "lira", "rmia")
PUBLIC, AROUND = 0.6, 0.05
"""The paper: the accuracy of its attack on public models is around this."""

CHANCE = 0.55
"""An AUROC that is no farther than this one from 1/2 counts as chance."""
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


def gained(rows: Sequence[Row], text: str, arm: str) -> tuple[float, ...]:
    """Return by run key the AUROC of the loss attack less that before training: the sides differ a little by chance."""
    after, before = (of(rows, text, arm, "loss", column) for column in ("auroc", "before"))
    return tuple(one - other for one, other in zip(after, before, strict=True))


def findings(rows: Sequence[Row]) -> list[Finding]:
    return [
        finding for text in texts_of(rows) for finding in (*_accuracies(rows, text), *_aurocs(rows, text))
    ]


def _accuracies(rows: Sequence[Row], text: str) -> Iterator[Finding]:
    """Judge the paper's claim by the plainest attack, since it names none, and beside it by the best of seven."""
    for attack, values in (
        ("the attack by the loss alone", of(rows, text, NONE, "loss", "accuracy")),
        ("the best of seven attacks at each run key", most(rows, text, NONE, "accuracy")),
    ):
        is_best = "seven" in attack
        words = "the best of seven attacks tells members" if is_best else "members are told"
        yield Finding(
            f"Without privacy, {words} with an accuracy of around {PUBLIC:.0%} ({text}).",
            "section 6.4",
            f"balanced accuracy of {attack}, at a threshold that was chosen on other rows; around is within "
            f"{AROUND:.0%}, by us",
            values,
            PUBLIC - AROUND,
            PUBLIC + AROUND,
            unit="share",
            is_beyond=is_best,
        )


def _aurocs(rows: Sequence[Row], text: str) -> Iterator[Finding]:
    for arm in (DPSGD, jft(ENTITIES)):
        yield Finding(
            f"With {arm.partition(',')[0]} members are not told ({text}).",
            "section 6.4",
            f"AUROC of the attack by the loss, less that before training; up to {CHANCE - 0.5:.2f} more, a bound of "
            "ours, counts as not told",
            gained(rows, text, arm),
            high=CHANCE - 0.5,
            family=f"{text}, chance",
            unit="AUROC",
            is_beyond=True,
        )
    yield Finding(
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
    yield Finding(
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


def tables(rows: Sequence[Row]) -> list[Table]:
    found = []
    heads = ["training", "epsilon", *ATTACKS, f"best attack's share found at {FPR:.0%} false positives"]
    for text in texts_of(rows):
        before = next(row["before"] for row in rows if row["text"] == text)
        cells = [["no training", "", f"{before:.3f}", *[""] * len(ATTACKS)]]
        for arm in dict.fromkeys(row["arm"] for row in rows if row["text"] == text):
            claimed = next(row["epsilon"] for row in rows if (row["text"], row["arm"]) == (text, arm))
            cells.append(
                [
                    arm,
                    selective.epsilon(claimed),
                    *(_mean(of(rows, text, arm, attack, "auroc"), "{:.3f}") for attack in ATTACKS),
                    _mean(most(rows, text, arm, "tpr"), "{:.1%}"),
                ]
            )
        reads = min(row[READS] for row in rows if row["text"] == text)
        note = (
            "AUROC of each attack, the mean over run keys with its 95% interval; 0.5 is chance. Members are rows of "
            "the training part before redaction, others rows of the test part. They are the same rows at every run "
            "key, so that the intervals tell of training alone, and not of other members. Each member is read "
            f"{reads:.1f} times or more, in the mean. Attacks: the loss; the loss by the length of the row when "
            "compressed (zlib); the loss less the base model's (reference); the mean log-probability of the least "
            "likely tokens (min-k), and of their z-scores (min-k++); the likelihood ratio attack (lira) and the robust "
            "one (rmia, which compares with further rows), both with the base model as the one reference. That model "
            "was trained on neither side, so that in reference and lira what members and others differ in before "
            "training is taken off. The last column takes the best attack at each run key, which leans upward. The "
            "paper has no table: its attack reached an accuracy of about 60% even on models "
            "without privacy. Epsilon of redaction and of JFT is for what is sensitive in a row; the rest of the row "
            "is not protected."
        )
        found.append(Table(f"Section 6.4, {text}: membership inference", heads, cells, note))
    return found


def _mean(values: Sequence[float], form: str) -> str:
    """Write a mean with its interval."""
    middle = form.format(sum(values) / len(values))
    if len(values) < 2:
        return middle
    low, high = interval(values)
    return f"{middle} ({form.format(max(0.0, low))} to {form.format(min(1.0, high))})"


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
    + "Seven attacks in place of one, which the paper does not name. "
    + f"{twice.WORDS} {twice.LEVEL_WORDS}",
    reads=twice.READS,
    texts=selective.STUDY.texts,
)
