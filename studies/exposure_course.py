"""How exposed planted numbers become as training goes on (Shi et al. 2022, Figures 2, 3 and 4; 004).

"My ID is 341752" stands once, 10 or 100 times in the text, each time with a number of its own, and at some steps the
exact rank of each number among all of its length is looked up. The detector catches the numbers or misses them; in
Figure 4 ten numbers are all that is sensitive, and it catches a share of them.

The documents are few, so that a run reads each row several times: what it hardly reads nobody needs to hide.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from confide.utils.chart import Panel, panels_svg
from confide.utils.files import write_text
from confide.utils.rounding import at_most
from studies.parts.exposed_numbers import (
    ARMS,
    CAUGHT,
    CHANCE,
    CRT,
    DPSGD,
    JFT,
    JFT_MISSED,
    LIGHT,
    MISSED,
    NONE,
    ONLY,
    RECALLS,
    REDACTED,
    REDACTED_MISSED,
    SHOWN,
    TEN,
    TIMES,
    findings,
    recall_field,
    with_recall,
)
from studies.runner import twice
from studies.runner.course import TEMPLATE, Course, courses_of, numbers_of
from studies.runner.findings import interval
from studies.runner.grid import Keys, nested
from studies.runner.marked import marked
from studies.runner.models import stories
from studies.runner.study import Plot, Row, Scale, Study, Table, Work
from studies.runner.texts import TEXTS, spread
from studies.runner.twice import ENTITIES, EPSILON
from studies.runner.users import texts_of

_SMALL: dict[str, Any] = {
    "texts": ("articles", "dialogues"),
    "documents": 100,
    "arms": (*ARMS, *ONLY),
    "digits": 6,
    "each": 4,  # numbers that stand so often
    "ten_times": 100,
    "batch": 192.0,
    "steps": 24,
    "every": 12,
    "rate": 5e-3,
    "seeds": 8,
}
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: _SMALL
    | {
        "texts": ("articles",),
        "documents": 8,
        "arms": (NONE, LIGHT, with_recall(0.0)),
        "digits": 2,
        "each": 1,
        "ten_times": 1,
        "batch": 4.0,
        "steps": 2,
        "every": 1,
        "seeds": 1,
    },
    Scale.SMALL: _SMALL,
    Scale.FULL: _SMALL
    | {"documents": None, "batch": 1024.0, "steps": 400, "every": 40, "rate": 1e-4, "ten_times": 1},
}


def measure(work: Work) -> list[Row]:
    courses = [course for text in work.chosen(_SIZES[work.scale]["texts"]) for course in asked(work, text)]
    return courses_of(courses, work, f"{STUDY.name}: runs")


def asked(work: Work, text: str) -> Iterator[Course]:
    """Yield the runs on a text."""
    size, folder = _SIZES[work.scale], work.folder / STUDY.name
    folder.mkdir(parents=True, exist_ok=True)
    for key in range(1, size["seeds"] + 1):
        few, ten = (
            numbers_of(key, size["digits"], size["each"], TIMES),
            numbers_of(key, size["digits"], TEN, (1,)),
        )
        ten = ((size["ten_times"], ten[0][1]),)
        paths = [
            planted(marked(work, text), folder / f"{text}-{key}-{name}.jsonl", groups, size["documents"])
            for name, groups in (("few", few), ("ten", ten))
        ]
        for arm in size["arms"]:
            groups, path = (few, paths[0]) if arm in ARMS else (ten, paths[1])
            columns = {"study": STUDY.name, "scale": str(work.scale), "text": text, "arm": arm, "key": key}
            columns |= {"part": "test", "figure": "Figures 2 and 3" if arm in ARMS else "Figure 4"}
            raw = nested(_keys(work, text, path, key, {**ARMS, **ONLY}[arm]))
            name = f"{text}-{arm}-{key}".replace(",", "").replace(" ", "-")
            yield Course(columns, raw, folder / name, size["every"], size["steps"], size["digits"], groups)


def _keys(work: Work, text: str, path: Path, key: int, own: Keys) -> Keys:
    size = _SIZES[work.scale]
    is_twice = own["privacy.mechanism"] in ("selective", "crt")
    steps = size["steps"]
    return {
        **twice.keys(work, text, steps, size["batch"]),
        "model": str(stories(work)),
        "data.train": str(path),
        "data.eval": str(TEXTS[text].parts(work)["test"]),
        "data.text": TEXTS[text].template,
        "data.duplicates": False,
        "privacy.published_key": f"study {text} {key}",
        "train.learning_rate": size["rate"],
        "train.schedule": "constant",  # a step that is looked at is then the end of no other course
        "train.checkpoint_every": 10**6,
        "train.micro_tokens": 2048,
        "train.eval_on_start": False,
        **({"redacted.steps": steps // 2, "train.steps": steps - steps // 2} if is_twice else {}),
        **own,
    }


def planted(
    source: Path, path: Path, groups: Sequence[tuple[int, Sequence[str]]], documents: int | None
) -> Path:
    """Write some documents of a text, numbers planted in documents of their own, and the spans of every detector."""
    lines, every = [], source.read_text("utf-8").splitlines()
    for document in map(json.loads, every if documents is None else spread(every, documents)):
        fields = {CAUGHT: document[ENTITIES], MISSED: document[ENTITIES]}
        lines.append({"text": document["text"], **fields, **{recall_field(recall): [] for recall in RECALLS}})
    for times, numbers in groups:
        for place, number in enumerate(numbers):
            text, start = TEMPLATE.format(number), TEMPLATE.index("{")
            span = [[start, start + len(number), "NUMBER"]]
            shares = {recall_field(recall): span if is_caught(place, recall) else [] for recall in RECALLS}
            lines += [{"text": text, CAUGHT: span, MISSED: [], **shares}] * times
    # A detector that catches none of the numbers must find something, or the run is refused.
    everything = [CAUGHT, MISSED, *map(recall_field, RECALLS)]
    lines.append({"text": "One word is marked.", **{key: [[12, 18, "WORD"]] for key in everything}})
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))
    return path


def is_caught(place: int, recall: float) -> bool:
    """Tell whether a detector catches this one of the ten numbers."""
    return place < round(recall * TEN)


# as pictures and tables ----------------------------------------------------------------------------------------
def course(rows: Sequence[Row], text: str, arm: str, times: int) -> list[tuple[float, float]]:
    """Return perplexity and mean exposure at each step, both means over run keys: a curve of Figures 2 to 4."""
    own = [row for row in rows if (row["text"], row["arm"], row["times"]) == (text, arm, times)]
    return [
        (
            math.exp(mean([row["loss"] for row in own if row["step"] == step])),
            mean([row["exposure"] for row in own if row["step"] == step]),
        )
        for step in sorted({row["step"] for row in own})
    ]


def _groups(rows: Sequence[Row], text: str) -> list[tuple[str, int]]:
    """Return the figures of a text and how often their numbers stand."""
    return list(dict.fromkeys((row["figure"], row["times"]) for row in rows if row["text"] == text))


_OF_CRT = (
    ", but in CRT, which drops duplicates: there each stands once, however often it was planted, and one that the "
    "detector misses is read without noise"
)


def tables(rows: Sequence[Row]) -> list[Table]:
    found = []
    for text in texts_of(rows):
        for figure, times in _groups(rows, text):
            own = [row for row in rows if (row["text"], row["figure"], row["times"]) == (text, figure, times)]
            steps = sorted({row["step"] for row in own})
            reads = min(row["reads"] for row in own if row["step"] == steps[-1])
            but_for = _OF_CRT * any(row["arm"] == CRT for row in own)
            cells = [
                [SHOWN.get(arm, arm), *(_looked(own, arm, step) for step in steps)]
                for arm in dict.fromkeys(row["arm"] for row in own)
            ]
            note = (
                f"Mean exposure in bits of {own[0]['numbers']} numbers a run, with 95% intervals over run keys, at the "
                "mean test perplexity of that step. The numbers are drawn at random, so that one that a model does not "
                f"depend on is exposed by {CHANCE:.2f} bits at most in the mean, whatever the model prefers. "
                f"Each number is read {reads:.0f} times or more by the end, in the mean{but_for}. Private arms have "
                f"epsilon {at_most(EPSILON, 3)} for one row at the end, not for all rows that hold a number. The paper "
                "has plots, not numbers."
            )
            often = "once" if times == 1 else f"{times} times"
            title = f"{figure}, {text}: exposure of numbers that stand {often}"
            found.append(Table(title, ["training", *(f"step {step}" for step in steps)], cells, note))
    return found


def _looked(rows: Sequence[Row], arm: str, step: int) -> str:
    """Write the mean exposure at a step with its interval, and the perplexity there."""
    own = [row for row in rows if (row["arm"], row["step"]) == (arm, step)]
    bits = [row["exposure"] for row in own]
    written = f"{mean(bits):.1f}"
    if len(bits) > 1:
        low, high = interval(bits)
        written += f" ({max(0.0, low):.1f} to {high:.1f})"
    return f"{written} at {math.exp(mean([row['loss'] for row in own])):.2f}"


def _by_detector(arms: Iterable[str]) -> dict[str, list[str]]:
    """Split the ways to train by what the detector does: together their lines are too many for one chart."""
    found: dict[str, list[str]] = {}
    for arm in arms:
        if arm in ONLY:
            which = "by recall" if "recall" in arm else "others"
        else:
            which = "missed" if MISSED in arm else "none missed"
        found.setdefault(which, []).append(arm)
    return found


def _short(arm: str) -> str:
    """Return the part of an arm's name that the title of its chart does not say."""
    parts = arm.split(", ")
    return parts[-1] if "recall" in arm else parts[0]


_ORDER = (NONE, CRT, DPSGD, LIGHT, REDACTED, REDACTED_MISSED, JFT, JFT_MISSED, *ONLY)
"""Of lines in a chart, so that redaction and JFT have the same colours in all."""


def plots(rows: Sequence[Row]) -> list[Plot]:
    panels = []
    for text in texts_of(rows):
        for figure, times in _groups(rows, text):
            arms = dict.fromkeys(
                row["arm"]
                for row in rows
                if (row["text"], row["figure"], row["times"]) == (text, figure, times)
            )
            for which, names in _by_detector(arms).items():
                lines = {
                    _short(arm): course(rows, text, arm, times) for arm in sorted(names, key=_ORDER.index)
                }
                often = "once" if times == 1 else f"{times} times"
                title = f"{text}, {often}: {which} ({figure})"
                panels.append(Panel(title, "test perplexity", "mean exposure, bits", lines))
    words = "exposure of planted numbers against perplexity as training goes on, for each way to train; axes differ"
    return [Plot("exposure-course", words, panels_svg("Exposure along training", panels))]


STUDY = Study(
    name="exposure-course",
    paper="004",
    shows=("Figure 2", "Figure 3", "Figure 4"),
    question="How exposed do planted numbers become as training goes on, if the detector misses them?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=45,
    deviations=twice.DEVIATIONS
    + " One learning rate for all arms. Four numbers that stand once, four 10 times and "
    "four 100 times, in one run, in place of one number; Figure 4's ten numbers stand 100 times each in place of once, "
    "since once nearly all are at chance. Epsilon of CRT is its own, in place of JFT's noise. Three run keys were run "
    "on articles first. Five were added, since most claims were undecided; claims and bounds stayed as they were. "
    + twice.WORDS,
    reads=twice.READS,
    texts=_SMALL["texts"],
    plots=plots,
)
