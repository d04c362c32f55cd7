"""Whether it can be told who a model was trained on (Kandpal et al. 2023): rows protected, and whole users.

stories260K reads what some senders of 20 Newsgroups wrote; as many others are held out. User inference has a few rows
of each and asks which of the two they are. Without privacy, with DP-SGD for one row, and at the same epsilon for a
whole user, by sampling rows (ELS) and by sampling users (ULS).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confide.auditing.attack import audit
from confide.auditing.options import Options
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.loop import Outcome
from confide.utils.console import Console
from confide.utils.rounding import at_least, at_most, percent_at_least, percent_at_most
from studies.runner import corpora
from studies.runner.findings import MARGIN, Finding, paired
from studies.runner.models import stories
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.training import Trained, trained

CHUNKS = 4  # of a user where users are drawn
FPR = 0.01
CHANCE = 0.55
"""An AUROC up to here counts as chance, and one from here on as telling users."""

NONE, ROWS, ELS, ULS = "no DP", "DP-SGD", "ELS", "ULS"
METHODS: Mapping[str, dict[str, Any]] = {
    NONE: {"mechanism": "none", "rows_per_unit": CHUNKS, "selection": "random-chunk"},
    ROWS: {"mechanism": "dp-sgd"},
    ELS: {"mechanism": "els", "rows_per_unit": CHUNKS},
    ULS: {"mechanism": "uls", "rows_per_unit": CHUNKS, "selection": "random-chunk"},
}
BY_USER = (NONE, ULS)  # a step draws users; it computes as many rows as that of the others
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: {
        "steps": 1,
        "documents": 40,
        "batch": 4.0,
        "users": 4,
        "rows": 1,
        "seeds": 1,
        "epsilon": 0.5,
    },
    Scale.SMALL: {
        "steps": 400,
        "documents": 2000,
        "batch": 128.0,
        "users": 500,
        "rows": 4,
        "seeds": 5,
        "epsilon": 8.0,
    },
    Scale.FULL: {
        "steps": 1000,
        "documents": None,
        "batch": 512.0,
        "users": 5000,
        "rows": 4,
        "seeds": 5,
        "epsilon": 8.0,
    },
}


@dataclass(frozen=True)
class Told:
    """How well user inference tells the users that a model was trained on from others.

    Attributes:
        users, rows: the most users on each side, and the most rows of each.
    """

    users: int
    rows: int

    def __call__(self, run: Run, outcome: Outcome) -> Row:
        options = Options(attacks=("users",), users=self.users, rows=self.rows)
        found = audit(Job.of(run, Console(quiet=True)), options).to_json()
        rates = found["users"]["rates"]
        low = next(rate for rate in rates["true_positive_rate"] if rate["fpr"] == FPR)
        bounds = dict(map(tuple, found["ceiling"]["true_positive_rate"])) if "ceiling" in found else {}
        guarantee = outcome.guarantee
        protects = guarantee.notion != "none"
        return {
            "unit": guarantee.unit.partition(":")[0] if protects else "",
            "epsilon": guarantee.epsilon if protects else None,
            "users": rates["members"],
            "auroc": rates["auroc"]["value"],
            "tpr": low["value"],
            "ceiling": bounds.get(FPR),
        }


def measure(work: Work) -> list[Row]:
    """Train and attack every method with every run key, or read what was found."""
    return trained(asked(work), work, f"{STUDY.name}: runs")


def asked(work: Work) -> list[Trained]:
    size, model = _SIZES[work.scale], stories(work)
    data = corpora.posts(work.source("20newsgroups").parent, "20newsgroups", 0.5)
    if size["documents"] is not None:
        data |= {"max_documents": size["documents"]}
    train = {
        "steps": size["steps"],
        "learning_rate": 5e-3,
        "schedule": "linear",
        "micro_tokens": 2048,
        "eval_on_start": False,
    }
    look = Told(size["users"], size["rows"])
    found = []
    for method, own in METHODS.items():
        batch = size["batch"] / (CHUNKS if method in BY_USER else 1)
        if method != NONE:
            own = own | {"epsilon": size["epsilon"]}
        for seed in range(1, size["seeds"] + 1):
            columns = {"study": STUDY.name, "scale": str(work.scale), "method": method, "key": seed}
            raw = {
                "data": data,
                "model": str(model),
                "privacy": own | {"published_key": f"study user-inference {seed}"},
                "train": train | {"batch": batch},
            }
            found.append(Trained.of(columns, raw, False, True, work.folder / "runs", look))
    return found


# what was found ------------------------------------------------------------------------------------------------
def _by_key(rows: Sequence[Row], method: str, column: str) -> dict[int, float]:
    return {row["key"]: row[column] for row in rows if row["method"] == method}


def findings(rows: Sequence[Row]) -> list[Finding]:
    place, epsilon = "Kandpal et al. 2023", max(row["epsilon"] for row in rows if row["epsilon"])
    found = [
        Finding(
            "Without privacy it can be told who a model was trained on.",
            place,
            f"AUROC of user inference; from {CHANCE} on counts as telling",
            tuple(_by_key(rows, NONE, "auroc").values()),
            low=CHANCE,
            unit="AUROC",
        )
    ]
    for method in (ROWS, ELS, ULS):
        found.append(
            Finding(
                f"With {method} at epsilon {at_most(epsilon, 3)} it cannot be told.",
                place,
                f"AUROC of user inference; up to {CHANCE} counts as chance",
                tuple(_by_key(rows, method, "auroc").values()),
                high=CHANCE,
                family="chance",
                unit="AUROC",
            )
        )
    for method in (ELS, ULS):
        tprs, ceilings = _by_key(rows, method, "tpr"), _by_key(rows, method, "ceiling")
        found.append(
            Finding(
                f"The attack finds no more users than the claim of {method} leaves to any attack.",
                "confide's own claim",
                f"users found at {FPR:.0%} false positives, less what the claim allows",
                paired(tprs, ceilings),
                high=0.0,
                family="claim",
                unit="share",
            )
        )
    for one, other, high, words in (
        (ULS, ELS, 0.0, "At equal work ULS does not do worse than ELS."),
        (ROWS, ULS, -MARGIN, "At equal work and epsilon, to protect rows costs less than to protect users."),
    ):
        gaps = paired(_by_key(rows, one, "loss"), _by_key(rows, other, "loss"))
        found.append(
            Finding(words, "beyond the papers", f"loss with {one} less that with {other}", gaps, high=high)
        )
    return found


def tables(rows: Sequence[Row]) -> list[Table]:
    heads = ["training", "protects", "epsilon", "perplexity, held out", "users asked about", "AUROC (95%)"]
    heads += [f"found at {FPR:.0%} false positives (95%)", "at most, by the claim"]
    cells = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        first = own[0]
        cells.append(
            [
                method,
                first["unit"],
                "inf" if first["epsilon"] is None else at_most(first["epsilon"], 3),
                f"{sum(row['perplexity'] for row in own) / len(own):.2f}",
                str(first["users"]),
                _measured([row["auroc"] for row in own], lambda value: f"{value:.3f}", at_least, at_most),
                _measured(
                    [row["tpr"] for row in own],
                    lambda value: f"{value:.1%}",
                    lambda value: percent_at_least(max(value, 0.0)),
                    percent_at_most,
                ),
                "" if first["ceiling"] is None else percent_at_most(first["ceiling"]),
            ]
        )
    note = (
        "Up to four rows of each user are scored by their loss, less that of the base model; rows are drawn at random "
        "on both sides. Means over run keys with intervals of 95%. What a guarantee leaves to any attack at all stands "
        "in the last column: under DP-SGD nothing bounds an attack on a user."
    )
    return [Table("User inference", heads, cells, note)]


def _measured(
    values: Sequence[float],
    shown: Callable[[float], str],
    below: Callable[..., str],
    above: Callable[..., str],
) -> str:
    middle = shown(sum(values) / len(values))
    if len(values) < 2:
        return middle
    low, high = Finding("", "", "", tuple(values)).interval()
    return f"{middle} ({below(low)} to {above(high)})"


STUDY = Study(
    name="user-inference",
    paper="",
    shows=(),
    question="Can it be told who a model was trained on?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=60,
    deviations="stories260K, all weights, in place of GPT-Neo; the first 2,000 posts of 20 Newsgroups, half of whose "
    "senders are held out. Kandpal et al. train without privacy and with privacy for rows.",
    reads=("20newsgroups",),
)
