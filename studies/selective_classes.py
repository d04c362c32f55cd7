"""Selective privacy where sentences are classified (Shi et al. 2022, Table 2, left; 004)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from confide.utils.rounding import percent_at_least, percent_at_most
from studies.runner import corpora, twice
from studies.runner.findings import Finding, paired
from studies.runner.grid import NOTHING
from studies.runner.models import pretrained
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.twice import DPSGD, LEVELS, NONE, Claimed, jft, redacted
from studies.selective import STRICTEST, epsilon

TEXT = "sentences"
POINT = 0.01
"""What counts as a difference of two accuracies."""

AFTER = "accuracy after redacted"
# Shi et al. 2022, section 6.1, accuracy of RoBERTa-base on SST-2.
PAPER = {NONE: "94.8%", DPSGD: "86.12%", redacted(STRICTEST): "91.17%, elsewhere 91.86%"}
_SMALL: dict[str, Any] = {
    "levels": LEVELS,
    "batch": 512.0,
    "steps": 100,
    "rates": (5e-4, 1e-3, 3e-3),
    "pretraining": 5000,
    "pretraining_batch": 64.0,
    "seeds": 5,
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {
        "levels": (STRICTEST,),
        "batch": 4.0,
        "steps": 2,
        "rates": (1e-3,),
        "pretraining": 1,
        "pretraining_batch": 2.0,
        "seeds": 2,
    },
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL | {"batch": 1024.0, "steps": 600, "rates": (5e-5, 1e-4, 5e-4)},
}


def measure(work: Work) -> list[Row]:
    size, look = _SIZES[work.scale], Claimed()
    options = {"train.learning_rate": size["rates"]}
    none, dpsgd, _ = twice.plain_arms(options, look)  # a token more changes nothing where a class is told
    arms = [none, dpsgd]
    for level in size["levels"]:
        arms += [
            twice.redacted_arm(level, options, look),
            twice.jft_arm(level, size["steps"], options, look),
        ]
    rows: list[Row] = []
    for text in work.chosen((TEXT,)):
        grid = twice.grid(
            STUDY.name, work, text, size, arms, base, task="classification", data__label="label"
        )
        rows += grid.measured(work)
    return rows


def base(work: Work) -> Path:
    """Return a model shaped as RoBERTa that was pretrained here on public text, the paragraphs of WikiText-2.

    At `full` it is RoBERTa-base, by its name on the hub.
    """
    if work.scale is Scale.FULL:
        return Path("roberta-base")
    size, folder = _SIZES[work.scale], work.folder / "models"
    data, most = work.source("wikitext-2").parent, 40 if work.scale is Scale.TINY else None
    text = corpora.written(corpora.wikitext(data, "train"), folder / "pretraining.jsonl", most)
    raw = {
        "model": str(corpora.roberta(folder / "roberta")),
        "task": "masked-lm",
        "data": {"train": str(text), "eval": 0.05, "max_length": 64, "duplicates": False},
        "privacy": {"mechanism": "none", "published_key": "study sentences pretraining"},
        "train": {
            "steps": size["pretraining"],
            "batch": size["pretraining_batch"],
            "learning_rate": 1e-3,
            "warmup": size["pretraining"] // 20,
            "schedule": "linear",
            "checkpoint_every": 250,
            "micro_tokens": 4096,
            "eval_on_start": False,
        },
        "run": str(folder / "roberta-pretrained"),
    }
    return pretrained(raw, "the model on public text", work)


# what was found ------------------------------------------------------------------------------------------------
def accuracies(rows: Sequence[Row], arm: str, column: str = "accuracy") -> dict[int, float]:
    """Return the accuracy of an arm on the test part, by run key."""
    return twice.at(rows, TEXT, arm, column)


def gap(rows: Sequence[Row], one: str, other: str) -> tuple[float, ...]:
    """Return the paired differences of two arms' accuracies, one - other."""
    return paired(accuracies(rows, one), accuracies(rows, other))


def _levels(rows: Sequence[Row]) -> list[str]:
    return [level for level in LEVELS if accuracies(rows, jft(level))]


def findings(rows: Sequence[Row]) -> list[Finding]:
    found = []
    for level in _levels(rows):
        found.append(
            Finding(
                f"JFT at {level} classifies better than DP-SGD.",
                "Table 2",
                f"accuracy of JFT less that of DP-SGD; {POINT:.0%} counts as better",
                gap(rows, jft(level), DPSGD),
                low=POINT,
                family="DP-SGD",
                unit="share",
            )
        )
        found.append(
            Finding(
                f"At {level}, the private phase does not improve the redacted model on SST-2.",
                "section 6.1",
                f"accuracy after both phases less that after the first; {POINT:.0%} counts as better",
                paired(accuracies(rows, jft(level)), accuracies(rows, jft(level), AFTER)),
                high=POINT,
                family="phases",
                unit="share",
            )
        )
    found.append(
        Finding(
            f"Redaction alone at {STRICTEST} classifies better than DP-SGD.",
            "section 6.1",
            f"accuracy of redaction less that of DP-SGD; {POINT:.0%} counts as better",
            gap(rows, redacted(STRICTEST), DPSGD),
            low=POINT,
            unit="share",
        )
    )
    found.append(
        Finding(
            f"Redaction alone at {STRICTEST} costs at most 4 points of accuracy.",
            "section 6.1",
            "accuracy of redaction less that of training without privacy; the paper has 3.6 points, elsewhere 2.9",
            gap(rows, redacted(STRICTEST), NONE),
            low=-0.04,
            unit="share",
        )
    )
    found.append(
        Finding(
            "DP-SGD learns something: it classifies better than by chance.",
            "",
            f"accuracy less 1/2; {POINT:.0%} counts as better",
            tuple(value - 0.5 for value in accuracies(rows, DPSGD).values()),
            low=POINT,
            unit="share",
            is_check=True,
        )
    )
    return found


# tables --------------------------------------------------------------------------------------------------------
def tables(rows: Sequence[Row]) -> list[Table]:
    heads = ["training", "tokens masked", "epsilon", "epsilon as in the paper", "learning rate"]
    heads += ["accuracy over keys", "of sentences", "paper"]
    cells = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        share = twice.value(rows, TEXT, arm, "share")
        start = [arm, "" if share is None else f"{share:.1%}"]
        start += [epsilon(twice.value(rows, TEXT, arm, column)) for column in ("epsilon", "zero_out")]
        start.append("" if arm == NOTHING else twice.rate(rows, TEXT, arm))
        cells.append([*start, *_cells(rows, arm, "accuracy"), PAPER.get(arm, "")])
        if accuracies(rows, arm, AFTER):
            cells.append(
                [f"{arm}, after its first phase", start[1], "0", "0", start[4], *_cells(rows, arm, AFTER), ""]
            )
    note = (
        f"{twice.WORDS} {twice.LEVEL_WORDS} "
        "Accuracy on three quarters of SST-2's development set; the other quarter chose the learning rate, by its "
        "loss. Two intervals of 95%: over run keys, and for so many sentences as there are (Wilson), the same for "
        "all arms. Before training the layer that tells the class is random."
    )
    return [Table("Table 2, left, SST-2", heads, cells, note)]


def _cells(rows: Sequence[Row], arm: str, column: str) -> list[str]:
    """Return the mean accuracy with the interval over keys, and with that of the sentences."""
    values = tuple(accuracies(rows, arm, column).values())
    sentences = int(next(iter(accuracies(rows, arm, "rows").values())))
    mean = sum(values) / len(values)
    over_keys = f"{mean:.1%}"
    if len(values) > 1:
        low, high = Finding("", "", "", values).interval()
        over_keys += f" ({percent_at_least(max(low, 0.0))} to {percent_at_most(min(high, 1.0))})"
    ends = stats.binomtest(round(mean * sentences), sentences).proportion_ci(method="wilson")
    return [over_keys, f"{percent_at_least(ends.low)} to {percent_at_most(ends.high)}"]


STUDY = Study(
    name="selective-classes",
    paper="004",
    shows=("Table 2",),
    question="Does redaction cost anything where a sentence is only classified?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=75,
    deviations="SST-2 alone of the four tasks, 20,000 of its phrases; a model of 4 layers of 128 shaped as RoBERTa, "
    "pretrained by the study on WikiText-2, in place of RoBERTa-base; a small pipeline in place of spaCy's; Poisson "
    "draws; epsilon under replace-one, which is more than the paper counts for the same noise.",
    reads=("glue", "wikitext-2"),
    lacks={"Table 2": "MNLI, QQP and QNLI"},
)
