"""Selective privacy at four levels of what is sensitive (Shi et al. 2022, Tables 2 and 6, language models; 004)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from confide.utils.rounding import at_most
from studies.runner import twice
from studies.runner.findings import MARGIN, Finding, paired
from studies.runner.grid import NOTHING, Arm
from studies.runner.study import Row, Scale, Study, Table, Work
from studies.runner.tables import change, perplexity
from studies.runner.twice import DPSGD, ENTITIES, LEVELS, NONE, TOKENS, jft, redacted
from studies.runner.users import texts_of

CRT = "CRT, the noise of JFT"
STRICTEST = LEVELS[-1]
PHASE = "loss after redacted"
"""The column of the loss between the phases of fine-tuning twice: the paper's redacted model."""

# Shi et al. 2022, sections 6.1, 6.3, A.2: perplexity of GPT-2 small, as the text of the paper has it.
PAPER_DIALOGUES = {NOTHING: "13.60", DPSGD: "8.31"}  # of ABCD
PAPER = {  # of WikiText-2
    NOTHING: "30.08",
    NONE: "20.44 with tokens, 20.48 without",
    DPSGD: "27.05",
    TOKENS: "30.32",
    redacted("low-contextual"): "37.90",
    redacted("high-contextual"): "54.29",
    jft("low-contextual"): "25.62",
    jft("high-contextual"): "27.19",
}
_SMALL: dict[str, Any] = {
    "texts": ("articles", "dialogues"),
    "levels": LEVELS,
    "batch": 192.0,
    "steps": 16,
    "rates": (2e-3, 5e-3, 1e-2),
    "seeds": 5,
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {
        "texts": ("articles",),
        "levels": (ENTITIES,),
        "batch": 4.0,
        "steps": 2,
        "rates": (5e-3,),
        "seeds": 2,
    },
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL | {"batch": 1024.0, "steps": 400, "rates": (5e-5, 1e-4, 5e-4)},
}


def size(work: Work) -> Mapping[str, Any]:
    return _SIZES[work.scale]


def arms(work: Work, steps: int) -> list[Arm]:
    """Return what is compared, but for CRT, whose noise is that of a run."""
    own = size(work)
    options = {"train.learning_rate": own["rates"]}
    found = list(twice.plain_arms(options))
    for level in own["levels"]:
        found += [
            twice.redacted_arm(level, options),
            twice.jft_arm(level, steps, options),
        ]
    return [looked(arm) for arm in found]


def looked(arm: Arm) -> Arm:
    """Return an arm whose runs are looked at for their claim."""
    return replace(arm, look=twice.Looks((twice.Claimed(),)))


def measure(work: Work) -> list[Row]:
    rows: list[Row] = []
    own = size(work)
    options = {"train.learning_rate": own["rates"]}
    for text in work.chosen(own["texts"]):
        found = twice.grid(STUDY.name, work, text, own, arms(work, own["steps"])).measured(work)
        noise = twice.value(found, text, jft(ENTITIES), "noise_multiplier")
        assert noise is not None
        crt = looked(twice.crt_arm(CRT, own["steps"], noise, options))
        more = twice.grid(STUDY.name, work, text, own, [crt]).measured(work)
        rows += found + [row for row in more if row["arm"] != NOTHING]
    return rows


# what was found ------------------------------------------------------------------------------------------------
def findings(rows: Sequence[Row]) -> list[Finding]:
    found: list[Finding] = []
    for text in texts_of(rows):
        found += [*_against_dpsgd(rows, text), *_phases(rows, text), *_tokens(rows, text)]
        found.append(
            Finding(
                f"With as much noise CRT does worse than JFT ({text}).",
                "Table 6",
                f"loss of JFT at {ENTITIES} less that of CRT",
                twice.gap(rows, text, jft(ENTITIES), CRT),
                high=-MARGIN,
            )
        )
    return [finding for finding in found if finding.values]  # a level may be left out


def levels_of(rows: Sequence[Row], text: str) -> list[str]:
    """Return the levels at which a text was redacted, in order."""
    return [level for level in LEVELS if twice.at(rows, text, jft(level))]


def _against_dpsgd(rows: Sequence[Row], text: str) -> list[Finding]:
    found = []
    for level in levels_of(rows, text):
        is_stress = (
            level == STRICTEST and text == "articles"
        )  # of dialogues the paper says "better" (section 6)
        found.append(
            Finding(
                f"JFT at {level} beats DP-SGD with the same tokens ({text}).",
                "Table 2",
                f"loss of JFT less that of {TOKENS}",
                twice.gap(rows, text, jft(level), TOKENS),
                high=-MARGIN,
                family=f"{text}, DP-SGD with tokens",
            )
        )
        found.append(
            Finding(
                f"JFT at {level} {'is on a par with' if is_stress else 'beats'} DP-SGD ({text}).",
                "Table 2",
                f"loss of JFT less that of {DPSGD}",
                twice.gap(rows, text, jft(level), DPSGD),
                low=-MARGIN if is_stress else float("-inf"),
                high=MARGIN if is_stress else -MARGIN,
                family=f"{text}, DP-SGD",
            )
        )
    return found


def _phases(rows: Sequence[Row], text: str) -> list[Finding]:
    found = []
    levels = levels_of(rows, text)
    for level in levels:
        found.append(
            Finding(
                f"The private phase improves the redacted model at {level} ({text}).",
                "Table 2",
                "loss after both phases less that after the first",
                gains(rows, text, level),
                high=-MARGIN,
                family=f"{text}, phases",
            )
        )
        found.append(
            Finding(
                f"At {level}, fine-tuning twice beats redaction alone with as many steps ({text}).",
                "Table 2",
                "loss of JFT less that of redaction alone",
                twice.gap(rows, text, jft(level), redacted(level)),
                high=-MARGIN,
                family=f"{text}, all steps",
                is_beyond=True,
            )
        )
    if len(levels) > 1:
        first, last = (gains(rows, text, level) for level in (levels[0], levels[-1]))
        found.append(
            Finding(
                f"The stricter the level, the more the private phase gains ({text}).",
                "section 6.1",
                f"change of the loss in the private phase, at {levels[-1]} less at {levels[0]}: as a percentage, a "
                "ratio of two ratios of perplexities",
                tuple(b - a for a, b in zip(first, last, strict=True)),
                high=-MARGIN,
            )
        )
    return found


def gains(rows: Sequence[Row], text: str, level: str) -> tuple[float, ...]:
    """Return by how much the loss changes from the first phase to the end: below zero where it falls."""
    return paired(twice.at(rows, text, jft(level)), twice.at(rows, text, jft(level), PHASE))


def _tokens(rows: Sequence[Row], text: str) -> list[Finding]:
    untrained = untrained_loss(rows, text)
    return [
        Finding(
            f"Further tokens make DP-SGD worse ({text}).",
            "section A.2",
            f"loss of {TOKENS} less that of {DPSGD}",
            twice.gap(rows, text, TOKENS, DPSGD),
            low=MARGIN,
        ),
        Finding(
            f"DP-SGD improves the model that it starts from ({text}).",
            "section 6.1",
            "loss of DP-SGD less that of no training",
            tuple(loss - untrained for loss in twice.at(rows, text, DPSGD).values()),
            high=-MARGIN,
            is_check=True,  # a model of children's stories gains by any training
        ),
    ]


def untrained_loss(rows: Sequence[Row], text: str) -> float:
    """Return the test loss of the model as it was."""
    return next(iter(twice.at(rows, text, NOTHING).values()))


# tables --------------------------------------------------------------------------------------------------------
def tables(rows: Sequence[Row]) -> list[Table]:
    heads = ["training", "tokens masked", "epsilon", "epsilon as in the paper", "learning rate"]
    heads += ["perplexity", "against DP-SGD"]
    found = []
    for text in texts_of(rows):
        paper = f"paper, validation: {'WikiText-2' if text == 'articles' else 'ABCD'}"
        cells = []
        for arm in dict.fromkeys(row["arm"] for row in rows if row["text"] == text):
            cells.append(line(rows, text, arm))
            if twice.at(rows, text, arm, PHASE):
                before = [f"{arm}, after its first phase", cells[-1][1], "0", "0", cells[-1][4]]
                own = in_paper(text, arm.replace("JFT", "redacted"))
                cells.append([*before, perplexity(twice.at(rows, text, arm, PHASE)), "", own])
        note = (
            "Perplexity a token on the test part, which is never redacted; intervals are of 95% over run keys. "
            f"{twice.WORDS} {twice.LEVEL_WORDS} "
            '"Redacted" has all steps; the paper\'s redacted model is that after the first phase. Epsilon of JFT and '
            "of redaction supposes that the pipeline finds everything; that of CRT is of another notion. Of the "
            "paper's numbers those are here that stand in its text. It masks 45% of WikiText-2 at high-contextual "
            "(section 6.1), where more is masked here."
        )
        found.append(Table(f"Tables 2 and 6, {text}: test perplexity", [*heads, paper], cells, note))
    return found


def line(rows: Sequence[Row], text: str, arm: str) -> list[str]:
    """Return the cells of an arm: share masked, both epsilons, learning rate, perplexity, gap, the paper's."""
    share = twice.value(rows, text, arm, "share")
    return [
        arm,
        "" if share is None else f"{share:.1%}",
        *(epsilon(twice.value(rows, text, arm, column)) for column in ("epsilon", "zero_out")),
        twice.rate(rows, text, arm),
        perplexity(twice.at(rows, text, arm)),
        "" if arm == DPSGD else change(twice.gap(rows, text, arm, DPSGD)),
        "" if arm.startswith("redacted") else in_paper(text, arm),
    ]


def in_paper(text: str, arm: str) -> str:
    """Return the perplexity that the paper has for an arm, on its own data of the kind."""
    return (PAPER if text == "articles" else PAPER_DIALOGUES).get(arm, "")


def epsilon(value: float | None) -> str:
    """Write an epsilon of a cell; empty where nothing is claimed."""
    return "" if value is None or value == float("inf") else at_most(value, 3)


STUDY = Study(
    name="selective",
    paper="004",
    shows=("Table 2", "Table 6"),
    question="Does it pay to train on redacted text first, and privately afterwards?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=55,
    deviations=twice.DEVIATIONS
    + " Not judged: that a redacted model is worse than the one that it starts from, and that its private phase gains "
    "more than DP-SGD does (section 6.1). GPT-2 starts at a perplexity of 30; stories260K at 140, where training on "
    "any part of the text helps.",
    reads=twice.READS,
    texts=_SMALL["texts"],
    lacks={"Table 6": "classification"},
)
