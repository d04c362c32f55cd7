"""Fine-tuning twice where the detector misses something (Shi et al. 2022, Tables 3, 4 and 8; 004)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from confide.sensitive.redaction.screening import Marks
from confide.utils.rounding import at_least
from studies.runner import twice
from studies.runner.findings import ABOVE, MARGIN, Finding
from studies.runner.grid import NOTHING, TRIAL, Arm, Keys
from studies.runner.missed import FOUND, TRUTH, first, recall, screened, with_misses
from studies.runner.models import stories
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.tables import change, perplexity
from studies.runner.texts import TEXTS
from studies.runner.twice import DPSGD, EPSILON, NONE, TOKENS, Claimed
from studies.runner.users import texts_of
from studies.selective import epsilon

PERFECT, DIRECT = "JFT, a detector that finds all", "JFT, misses ignored"
SCREENED, LIGHT = "JFT, a sample screened", "JFT, light noise"
CONSERVATIVE = "JFT, conservative light noise"
FEW_NONE, FEW_DPSGD, FEW_REDACTED, FEW_JFT = (
    f"{name}, few documents" for name in ("no DP", "DP-SGD", "redacted", "JFT")
)
LOW, HIGH, MISSED = "epsilon_low", "epsilon_high", "epsilon_missed"
# Shi et al. 2022, section 6.3: perplexity on WikiText-2 and on ABCD, and the two ends of epsilon.
PAPER = {
    DPSGD: "27.05; 8.31",
    LIGHT: "25.21 (2.73 to 2.92); 5.78 (1.08 to 1.60)",
    CONSERVATIVE: "26.59; 6.64",
}
_SMALL: dict[str, Any] = {
    "texts": ("articles", "dialogues"),
    "left_out": (),
    "batch": 192.0,
    "steps": 16,
    "rates": (2e-3, 5e-3),
    "share": 0.01,  # of the documents in a draw that is screened; 0.001 in the paper, of larger texts
    "draws": 10,
    "few": 20,
    "few_batch": 32.0,
    "seeds": 3,
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {
        "texts": ("articles",),
        "left_out": (NONE, PERFECT, CONSERVATIVE, FEW_NONE, FEW_JFT),
        "batch": 4.0,
        "steps": 2,
        "rates": (5e-3,),
        "share": 0.2,
        "draws": 2,
        "few": 8,
        "few_batch": 4.0,
        "seeds": 2,
    },
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL | {"batch": 1024.0, "steps": 400, "rates": (5e-5, 1e-4), "share": 0.001},
}


def measure(work: Work) -> list[Row]:
    size = _SIZES[work.scale]
    rows: list[Row] = []
    for text in work.chosen(size["texts"]):
        lines = with_misses(work, text).read_text("utf-8").splitlines()
        found = recall(map(json.loads, lines))
        screenings = Screenings(work, text, size)
        for row in twice.grid(STUDY.name, work, text, size, arms(work, text, size, screenings)).measured(
            work
        ):
            own = {"recall": found} if row["arm"] in (DIRECT, SCREENED, LIGHT, CONSERVATIVE) else {}
            if row["arm"] in (LIGHT, CONSERVATIVE):
                own["missing_low"], own["missing_high"] = screenings.rate(row["arm"], row["key"])
            rows.append(row | own)
    return rows


class Screenings:
    """What a person has screened of a text: for each run key a sample to train on, and one to estimate a rate by."""

    def __init__(self, work: Work, text: str, size: Mapping[str, Any]) -> None:
        base = self._keys(work, text)
        self._names = {f"study {text} {key}": key for key in range(TRIAL, size["seeds"] + 1)}

        def marks(draws: int) -> dict[int, Marks]:
            found = {}
            for name, key in self._names.items():
                path = work.folder / "screened" / f"{text}-{key}-{draws}.jsonl"
                found[key] = screened({**base, "privacy.published_key": name}, size["share"], draws, path)
            return found

        self._few, self._many = marks(1), marks(size["draws"])

    def _keys(self, work: Work, text: str) -> Keys:
        return {
            "model": str(stories(work)),
            "data.train": str(with_misses(work, text)),
            "data.text": TEXTS[text].template,
            "detector.spans": FOUND,
            "privacy.mechanism": "redacted",
        }

    def sampled(self, keys: Keys) -> Keys:
        """Add the sample to train on in the first phase."""
        return {**keys, "redacted.marks": str(self._few[self._names[keys["privacy.published_key"]]].path)}

    def estimated(self, keys: Keys) -> Keys:
        """Add the missing rate as the screened sample tells it."""
        key = self._names[keys["privacy.published_key"]]
        return {**keys, "redacted.missing_rate": list(self.rate(LIGHT, key))}

    def supposed(self, keys: Keys) -> Keys:
        """Add the missing rate of a detector that would have missed all that it found."""
        key = self._names[keys["privacy.published_key"]]
        return {**keys, "redacted.missing_rate": list(self.rate(CONSERVATIVE, key))}

    def rate(self, arm: str, key: int) -> tuple[float, float]:
        """Return the missing rate that an arm's noise is made for: the lower and the upper end."""
        many = self._many[key]
        if arm == LIGHT:
            return many.missing_rate()
        masked = float(many.facts()["masked"])
        return masked, masked


def arms(work: Work, text: str, size: Mapping[str, Any], screenings: Screenings) -> list[Arm]:
    """Return what is compared."""
    options, steps, look = {"train.learning_rate": size["rates"]}, size["steps"], Claimed()
    path = str(with_misses(work, text))
    few: Keys = {"data.train": str(first(Path(path), size["few"])), "train.batch": size["few_batch"]}
    light: Keys = {"redacted.mode": "light-noise", "redacted.epsilon": EPSILON / 3, "detector.recall": None}
    none, dpsgd, tokens = twice.plain_arms(options, look)

    def jft(name: str, level: str, **more: Any) -> Arm:
        return twice.jft_arm(level, steps, options, look, name, **{"data__train": path, **more})

    def with_keys(arm: Arm, more: Keys, derived: Any = None) -> Arm:
        return Arm(arm.name, {**arm.keys, **more}, options, derived or arm.derived, look)

    redacted = twice.redacted_arm(TRUTH, options, look)
    found = [
        none,
        dpsgd,
        tokens,
        jft(PERFECT, TRUTH),
        with_keys(jft(DIRECT, FOUND), {"detector.recall": None}),
        with_keys(jft(SCREENED, FOUND), {"redacted.mode": "screened"}, screenings.sampled),
        with_keys(jft(LIGHT, FOUND), light, screenings.estimated),
        with_keys(jft(CONSERVATIVE, FOUND), light, screenings.supposed),
        Arm(FEW_NONE, {**none.keys, **few}, options, look=look),
        Arm(FEW_DPSGD, {**dpsgd.keys, **few}, options, look=look),
        Arm(FEW_REDACTED, {**redacted.keys, **few}, options, look=look),
        with_keys(jft(FEW_JFT, TRUTH), few),
    ]
    return [arm for arm in found if arm.name not in size["left_out"]]


# what was found ------------------------------------------------------------------------------------------------
def findings(rows: Sequence[Row]) -> list[Finding]:
    found = []
    for text in texts_of(rows):
        for arm, place in ((SCREENED, "Table 4"), (LIGHT, "Table 3"), (CONSERVATIVE, "Table 3")):
            for other in (DPSGD, TOKENS):
                found.append(
                    Finding(
                        f"{arm}, beats {other} ({text}).",
                        place,
                        f"its loss less that of {other}",
                        twice.gap(rows, text, arm, other),
                        high=-MARGIN,
                        family=f"{text}, {other}",
                    )
                )
        found.append(
            Finding(
                f"Light noise does not cost more than {MARGIN:.0%} of the perplexity ({text}).",
                "Table 3",
                f"loss of {LIGHT} less that of {DIRECT}",
                twice.gap(rows, text, LIGHT, DIRECT),
                high=MARGIN,
                is_beyond=True,
            )
        )
        found.append(
            Finding(
                f"With light noise, the epsilon of a row in which something was missed is above that "
                f"which is asked for ({text}).",
                "Table 3",
                "the epsilon that holds for such a row, less the one asked for",
                tuple(each - EPSILON for each in twice.at(rows, text, LIGHT, MISSED).values()),
                low=0.0,
                is_exact=True,
                unit="epsilon",
                is_beyond=True,
            )
        )
        found.append(
            Finding(
                f"More light noise than needed costs perplexity ({text}).",
                "Table 3",
                f"loss of {CONSERVATIVE} less that of {LIGHT}",
                twice.gap(rows, text, CONSERVATIVE, LIGHT),
                low=ABOVE,
                family="conservative",
                is_check=True,
                is_late=True,
            )
        )
        for one, other, claim in (
            (FEW_REDACTED, FEW_DPSGD, "With few documents, redaction beats DP-SGD"),
            (FEW_JFT, FEW_REDACTED, "With few documents, fine-tuning twice beats redaction"),
            (FEW_JFT, FEW_DPSGD, "With few documents, fine-tuning twice beats DP-SGD"),
        ):
            found.append(
                Finding(
                    f"{claim} ({text}).",
                    "Table 8",
                    f"loss of {one} less that of {other}",
                    twice.gap(rows, text, one, other),
                    high=-MARGIN,
                    family=f"{text}, few",
                    is_beyond=FEW_JFT in (one, other),  # the paper says that of QNLI alone
                )
            )
    return [finding for finding in found if finding.values]  # an arm may be left out


# tables --------------------------------------------------------------------------------------------------------
def tables(rows: Sequence[Row]) -> list[Table]:
    heads = [
        "training",
        "recall",
        "epsilon",
        "epsilon as in the paper",
        "for a row with a miss",
        "learning rate",
    ]
    heads += ["perplexity", "against DP-SGD", "paper, validation: WikiText-2; ABCD"]
    found = []
    for text in texts_of(rows):
        arms = dict.fromkeys(row["arm"] for row in rows if row["text"] == text)
        cells = [_line(rows, text, arm) for arm in arms]
        note = (
            f"{twice.WORDS} {twice.LEVEL_WORDS} "
            "Recall is the share of sensitive characters that the detector finds; empty where it finds all, or where "
            "there is none. Where it misses something, epsilon is an estimate that leaves out what is missed, but with "
            "light noise: there it is an average over words at both ends of the missing rate, and the epsilon of a row "
            "in which something was missed stands beside. In the paper's count a row is left out in place of "
            "replaced. Few documents: the first 20 of the text, 32 rows a step. The paper's numbers are those in its "
            "text."
        )
        found.append(Table(f"Tables 3, 4 and 8, {text}: test perplexity", heads, cells, note))
    return found


def _line(rows: Sequence[Row], text: str, arm: str) -> list[str]:
    share = twice.value(rows, text, arm, "recall")
    ends = [twice.value(rows, text, arm, column) for column in (LOW, HIGH)]
    claimed = twice.value(rows, text, arm, "epsilon")
    return [
        arm,
        "" if share is None else at_least(share, 2),
        epsilon(claimed) if None in ends else f"{epsilon(ends[0])} to {epsilon(ends[1])}",
        epsilon(twice.value(rows, text, arm, "zero_out")),
        epsilon(twice.value(rows, text, arm, MISSED)),
        "" if arm == NOTHING else twice.rate(rows, text, arm),
        perplexity(twice.at(rows, text, arm)),
        "" if arm == DPSGD else change(twice.gap(rows, text, arm, DPSGD)),
        PAPER.get(arm, ""),
    ]


STUDY = Study(
    name="selective-imperfect",
    paper="004",
    shows=("Table 3", "Table 4", "Table 8"),
    question="What can be done where the detector misses something?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=45,
    deviations=twice.DEVIATIONS
    + " What is missed: a fifth of the words that the pipeline finds on the articles; on the dialogues what their "
    "annotation marks besides. A program that knows it plays the person who screens 1% of the documents, in place of "
    "0.1%; as much is screened ten times for the rate of misses, in place of 0.01%. Few documents are the first 20, "
    "paragraphs or dialogues, in place of 10 articles or dialogues.",
    reads=twice.READS,
    lacks=dict.fromkeys(("Table 3", "Table 4", "Table 8"), "classification"),
    texts=_SMALL["texts"],
)
