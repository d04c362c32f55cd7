"""Membership inference on the models of the study `selective` (Shi et al. 2022, section 6.4; 004).

It trains the same runs as `selective`, so what lies in the work folder from there is not trained again.
"""

from __future__ import annotations

from collections.abc import Sequence

from studies import selective
from studies.runner import twice
from studies.runner.findings import Finding
from studies.runner.grid import NOTHING, TRIAL
from studies.runner.members import BEFORE, FPR
from studies.runner.study import Row, Study, Table, Work
from studies.runner.twice import DPSGD, ENTITIES, NONE, jft
from studies.runner.users import texts_of

ATTACKS = ("loss", "zlib", "reference", "min-k", "min-k++", "lira", "rmia")
PUBLIC = 0.6
"""The paper: the accuracy of its attack on public models is around this."""

CHANCE = 0.55
"""An accuracy up to here counts as chance, and a distance from 1/2 up to this one's as none."""


def measure(work: Work) -> list[Row]:
    """Return a row for each attack on each run that counts."""
    size = selective.size(work)
    rows: list[Row] = []
    for text in work.chosen(size["texts"]):
        arms = [arm for arm in selective.arms(work, text) if arm.name in selective.ATTACKED]
        for row in twice.grid(STUDY.name, work, text, size, arms).measured(work):
            if row["key"] != TRIAL and row["arm"] != NOTHING:
                rows += by_attack(row)
    return rows


def by_attack(row: Row) -> list[Row]:
    """Return a row for each attack on a run."""
    kept = {name: row[name] for name in ("study", "scale", "text", "arm", "key", "part", "loss", "version")}
    kept |= {"epsilon": row["epsilon"], "before": row[BEFORE]}
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
                        of(rows, text, twice.redacted(ENTITIES), "reference", "auroc"),
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
                "a check of the study",
                f"AUROC of the loss of the model before training; within {CHANCE - 0.5:.2f} of 1/2 counts as alike",
                of(rows, text, NONE, "loss", "before")[:1],
                low=1 - CHANCE,
                high=CHANCE,
                is_exact=True,  # all runs start from one model and ask about the same rows
                unit="AUROC",
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
        note = (
            "AUROC of each attack, the mean over run keys; 0.5 is chance. Members are rows of the training part before "
            "redaction, others rows of the test part. The paper has no table: its attack reached an accuracy of about "
            "60% even on models without privacy. Epsilon of redaction and of JFT is for what is sensitive in a row; "
            "the rest of the row is not protected."
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
    deviations=twice.DEVIATIONS + " Seven attacks in place of one, which the paper does not name.",
    reads=twice.READS,
)
