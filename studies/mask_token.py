"""One mask that is not learnt, or a mask for each kind that is (Shi et al. 2022, appendix A.2; 004)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from studies.runner.findings import MARGIN, Finding, paired
from studies.runner.grid import NOTHING, Arm, Grid
from studies.runner.models import stories
from studies.runner.rows import version
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.tables import change, losses, perplexity
from studies.runner.texts import TEXTS
from studies.runner.users import chosen

ONE, KINDS, NONE = "one mask, not learnt", "a mask of each kind, learnt", "nothing masked"
# About what the paper's low contextual level marks, without a language pipeline. No match touches one of another kind.
EXPRESSIONS = {
    "NAME": r"\b[A-Z][a-z]+(?: [A-Z][a-z]+)*\b",
    "YEAR": r"\b(?:1[0-9]|20)[0-9]{2}\b",
    "NUMBER": r"\b(?:[0-9]{1,3}|[0-9]{5,})\b",
    "PRONOUN": r"\b(?:he|him|his|she|her|hers|it|its|they|them|their|theirs|we|us|our|who|whom|whose)\b",
}
PAPER = {KINDS: "64.82", ONE: "37.90"}  # perplexity of the redacted GPT-2, low contextual level
_SMALL: dict[str, Any] = {"batch": 128.0, "steps": 40, "rates": (2e-3, 6e-3), "seeds": 3}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: {"batch": 8.0, "steps": 1, "rates": (5e-3,), "seeds": 2},
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL | {"batch": 512.0, "steps": 1000, "rates": (1e-4, 5e-4)},
}


def grid(work: Work) -> Grid:
    """Return the study's runs. What is held out is not masked, as in the paper."""
    size = _SIZES[work.scale]
    redacted: dict[str, Any] = {"privacy.mechanism": "redacted", "detector.recall": 1.0}
    redacted |= {f"detector.expressions.{kind}": found for kind, found in EXPRESSIONS.items()}
    masks = {f"detector.masks.{kind}": f"<{kind}>" for kind in EXPRESSIONS}
    options = {"train.learning_rate": size["rates"]}
    return Grid(
        name="mask-token",
        texts=("articles",),
        model=stories,
        keys={
            "adapter.kind": "full",
            "data.max_length": 64,
            "train.batch": size["batch"],
            "train.steps": size["steps"],
            "train.schedule": "linear",
        },
        arms=(
            Arm(KINDS, redacted | masks, options),
            Arm(ONE, redacted, options),
            Arm(NONE, {"privacy.mechanism": "none"}, options),
        ),
        at={},
        tuned_at={},
        seeds=size["seeds"],
    )


def measure(work: Work) -> list[Row]:
    lines = TEXTS["articles"].parts(work)["train"].read_text("utf-8").splitlines()
    masked: Row = {
        "study": "mask-token",
        "scale": str(work.scale),
        "text": "articles",
        "part": "train",
        "share": masked_share(json.loads(line)["text"] for line in lines),
        **version(),
    }
    return [masked, *grid(work).measured(work)]


def masked_share(texts: Iterable[str]) -> float:
    """Return the share of the characters that an expression matches."""
    any_kind = re.compile("|".join(EXPRESSIONS.values()))
    matched = whole = 0
    for text in texts:
        whole += len(text)
        matched += sum(len(found.group()) for found in any_kind.finditer(text))
    return matched / whole


def _at(rows: Sequence[Row], arm: str) -> dict[int, float]:
    return losses(rows, {"arm": arm})


def findings(rows: Sequence[Row]) -> list[Finding]:
    return [
        Finding(
            "The redacted model is better with one mask that is not predicted than with a mask of each kind that is.",
            "Appendix A.2",
            "loss with one mask less that with masks of kinds",
            paired(_at(rows, ONE), _at(rows, KINDS)),
            high=-MARGIN,
        ),
        Finding(
            "Even so, a model that read everything is better than the redacted one.",
            "Table 2",
            "loss with one mask less that with nothing masked",
            paired(_at(rows, ONE), _at(rows, NONE)),
            low=MARGIN,
        ),
    ]


def tables(rows: Sequence[Row]) -> list[Table]:
    cells = [
        [
            arm,
            perplexity(_at(rows, arm)),
            change(paired(_at(rows, arm), _at(rows, NONE))) if arm != NONE else "",
            chosen([row for row in rows if row.get("arm") == arm and row["part"] == "test"]),
            PAPER.get(arm, ""),
        ]
        for arm in (KINDS, ONE, NONE)
    ]
    share = next(row["share"] for row in rows if row["part"] == "train")
    before = perplexity(losses(rows, {"arm": NOTHING}))
    note = (
        f"Learnt means predicted: the model reads every mask. Masked: {share:.1%} of the characters of the training "
        f"text, none of the test's. Before training the perplexity is {before}. Intervals are of 95% over run keys."
    )
    heads = ["masks", "test perplexity", "against nothing masked", "rate", "paper, validation: GPT-2 small"]
    return [Table("Appendix A.2, articles: the redacted model", heads, cells, note)]


STUDY = Study(
    name="mask-token",
    paper="004",
    shows=("Appendix A.2",),
    question="Should masks tell the kind of what they stand for, and be learnt?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=10,
    deviations="stories260K, trained whole, in place of GPT-2 small; the first 8 paragraphs of each article, in rows "
    "of 64 tokens; capitalised words, years, other numbers and pronouns in place of the low contextual level, which "
    "needs a language pipeline; two learning rates for each arm.",
    reads=("wikitext-2", "20newsgroups"),
)
