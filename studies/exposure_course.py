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
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

from confide.utils.chart import Panel, panels_svg
from confide.utils.files import write_text
from confide.utils.rounding import at_most
from studies.runner import twice
from studies.runner.course import TEMPLATE, Course, courses_of, numbers_of
from studies.runner.findings import MARGIN, Finding, interval, paired
from studies.runner.grid import Keys, nested
from studies.runner.marked import marked
from studies.runner.models import stories
from studies.runner.study import Plot, Row, Scale, Study, Table, Work
from studies.runner.texts import TEXTS, spread
from studies.runner.twice import ENTITIES, EPSILON
from studies.runner.users import texts_of

EXPOSED = 3.0
"""Bits: the paper calls a lower exposure not extractable (section A.5)."""

CHANCE = 1 / math.log(2)
"""Bits: the mean exposure of a random number is below this in any model that does not depend on it."""

NONE, DPSGD, CRT = "no DP", "DP-SGD", "CRT, missed"
REDACTED, REDACTED_MISSED = "redacted, caught", "redacted, missed"
JFT, JFT_MISSED, LIGHT = "JFT, caught", "JFT, missed", "JFT + light noise, missed"
TIMES = (1, 10, 100)
RECALLS = (1.0, 0.6, 0.4, 0.0)
TEN = 10  # numbers of Figure 4
_CAUGHT, _MISSED = "caught", "missed"  # fields of spans
_PRIVATE: Keys = {"privacy.epsilon": EPSILON, "privacy.delta": 1e-5}
_LIGHT: Keys = {
    "redacted.mode": "light-noise",
    "redacted.epsilon": EPSILON / 3,
    "redacted.missing_rate": [0.02, 0.05],  # of words: the numbers that are missed are 2.5% to 3.6% of all
}


def _field(share: float) -> str:
    """Return the field of spans of a detector that catches a share of the ten numbers."""
    return f"recall {share:g}"


def with_recall(recall: float) -> str:
    """Return the name of the arm whose detector catches a share of the ten numbers, which are all that is sensitive."""
    return f"JFT, {_field(recall)}"


ONLY_NONE, ONLY_DPSGD, ONLY_LIGHT = (
    f"{name}, only numbers sensitive" for name in ("no DP", "DP-SGD", "JFT + light noise")
)
_SAID: Mapping[str, str] = {
    DPSGD: "DP-SGD",
    CRT: "CRT, where the detector misses it",
    REDACTED: "redaction that catches it",
    JFT: "JFT, where the detector catches it",
    LIGHT: "JFT and light noise, where the detector misses it",
}
_SHOWN: Mapping[str, str] = {
    ONLY_NONE: "no DP",
    ONLY_DPSGD: "DP-SGD",
    ONLY_LIGHT: f"JFT + light noise, {_field(0.4)}",
}
"""How arms of Figure 4 are called where it is said already that only the numbers are sensitive."""

ARMS: Mapping[str, Keys] = {
    NONE: {"privacy.mechanism": "none"},
    DPSGD: {"privacy.mechanism": "dp-sgd", **_PRIVATE},
    CRT: {"privacy.mechanism": "crt", "detector.spans": _MISSED, **_PRIVATE},
    REDACTED: {"privacy.mechanism": "redacted", "detector.spans": _CAUGHT},
    REDACTED_MISSED: {"privacy.mechanism": "redacted", "detector.spans": _MISSED},
    JFT: {"privacy.mechanism": "selective", "detector.spans": _CAUGHT, **_PRIVATE},
    JFT_MISSED: {"privacy.mechanism": "selective", "detector.spans": _MISSED, **_PRIVATE},
    LIGHT: {"privacy.mechanism": "selective", "detector.spans": _MISSED, **_PRIVATE, **_LIGHT},
}
ONLY: Mapping[str, Keys] = {
    ONLY_NONE: {"privacy.mechanism": "none"},
    ONLY_DPSGD: {"privacy.mechanism": "dp-sgd", **_PRIVATE},
    **{
        with_recall(recall): {
            "privacy.mechanism": "selective",
            "detector.spans": _field(recall),
            **_PRIVATE,
        }
        for recall in RECALLS
    },
    ONLY_LIGHT: {"privacy.mechanism": "selective", "detector.spans": _field(0.4), **_PRIVATE, **_LIGHT},
}
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
        fields = {_CAUGHT: document[ENTITIES], _MISSED: document[ENTITIES]}
        lines.append({"text": document["text"], **fields, **{_field(recall): [] for recall in RECALLS}})
    for times, numbers in groups:
        for place, number in enumerate(numbers):
            text, start = TEMPLATE.format(number), TEMPLATE.index("{")
            span = [[start, start + len(number), "NUMBER"]]
            shares = {_field(recall): span if is_caught(place, recall) else [] for recall in RECALLS}
            lines += [{"text": text, _CAUGHT: span, _MISSED: [], **shares}] * times
    # A detector that catches none of the numbers must find something, or the run is refused.
    everything = [_CAUGHT, _MISSED, *map(_field, RECALLS)]
    lines.append({"text": "One word is marked.", **{key: [[12, 18, "WORD"]] for key in everything}})
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))
    return path


def is_caught(place: int, recall: float) -> bool:
    """Tell whether a detector catches this one of the ten numbers."""
    return place < round(recall * TEN)


# what was found ------------------------------------------------------------------------------------------------
def last(rows: Sequence[Row], text: str, arm: str, times: int | None, column: str) -> dict[int, float]:
    """Return a column after the last step, by run key.

    Args:
        times: how often the numbers stand; None for those of Figure 4.
    """
    own = [row for row in rows if (row["text"], row["arm"]) == (text, arm) and times in (None, row["times"])]
    steps = max((row["step"] for row in own), default=0)
    return {row["key"]: row[column] for row in own if row["step"] == steps}


def learnt(rows: Sequence[Row], text: str, arm: str, times: int | None) -> bool:
    """Tell whether this training without privacy exposes the numbers: if not, there is nothing to hide."""
    found = last(rows, text, arm, times, "exposure").values()
    return bool(found) and sum(found) / len(found) >= EXPOSED


def findings(rows: Sequence[Row]) -> list[Finding]:
    return [
        finding
        for text in texts_of(rows)
        for finding in (
            *_exposures(rows, text),
            *_missed(rows, text),
            *_utility(rows, text),
            *_ten(rows, text),
        )
        if finding.values  # an arm may be left out
    ]


def _is_papers(rows: Sequence[Row], text: str) -> bool:
    """Tell whether the ten numbers stand once, as in Figure 4."""
    return {row["times"] for row in rows if (row["text"], row["arm"]) == (text, ONLY_NONE)} == {1}


def _exposures(rows: Sequence[Row], text: str) -> Iterator[Finding]:
    for times in TIMES[1:]:
        yield Finding(
            f"Without privacy, a number that stands {times} times is exposed ({text}).",
            "Figure 2",
            f"mean exposure at the end; from {EXPOSED:g} bits on counts as exposed",
            tuple(last(rows, text, NONE, times, "exposure").values()),
            low=EXPOSED,
            unit="bits",
            is_beyond=times != TIMES[1],
        )
        for arm in (DPSGD, CRT, REDACTED, JFT, LIGHT) if learnt(rows, text, NONE, times) else ():
            yield Finding(
                f"With {_SAID[arm]}, a number that stands {times} times is not exposed ({text}).",
                "Figure 2",
                f"mean exposure at the end; up to {EXPOSED:g} bits counts as not exposed",
                tuple(last(rows, text, arm, times, "exposure").values()),
                high=EXPOSED,
                family=f"{text}, {times} times",
                unit="bits",
                is_beyond=times != TIMES[1],
            )
    once = {arm: found for arm in ARMS if (found := last(rows, text, arm, 1, "exposure"))}
    if not once:
        return
    # The arm is chosen by its mean over run keys: the greatest of all arms at each key would lean upward.
    most = max(once, key=lambda arm: mean(once[arm].values()))
    yield Finding(
        f"A number that stands once is not exposed by any training ({text}).",
        "Figure 3",
        f"mean exposure at the end, in the training where it is greatest: {most}; up to {EXPOSED:g} bits counts as "
        "not exposed",
        tuple(once[most].values()),
        high=EXPOSED,
        unit="bits",
    )
    yield Finding(
        f"CRT learns a number that stands once, where the detector misses it ({text}).",
        "Figure 3",
        f"mean exposure at the end; a model that does not depend on random numbers has {CHANCE:.2f} bits at most",
        tuple(once.get(CRT, {}).values()),
        low=CHANCE,
        unit="bits",
        is_beyond=True,
    )


def _missed(rows: Sequence[Row], text: str) -> Iterator[Finding]:
    for times in (each for each in TIMES[1:] if learnt(rows, text, NONE, each)):
        for missed, caught in ((REDACTED_MISSED, REDACTED), (JFT_MISSED, JFT)):
            name = {REDACTED: "redaction", JFT: "JFT"}[caught]
            yield Finding(
                f"With {name}, numbers that the detector misses are exposed more than caught ones, {times} times "
                f"({text}).",
                "Figure 2",
                "mean exposure missed less caught, in bits",
                paired(*(last(rows, text, arm, times, "exposure") for arm in (missed, caught))),
                low=0.0,
                family=f"{text}, missed",
                unit="bits",
                is_beyond=times != TIMES[1],
            )
        yield Finding(
            f"Light noise exposes missed numbers less, {times} times ({text}).",
            "Figure 2",
            "mean exposure of JFT with light noise less that without, in bits; the detector misses the numbers",
            paired(*(last(rows, text, arm, times, "exposure") for arm in (LIGHT, JFT_MISSED))),
            high=0.0,
            family=f"{text}, light noise",
            unit="bits",
            is_beyond=times != TIMES[1],
        )


def _utility(rows: Sequence[Row], text: str) -> Iterator[Finding]:
    for one, other in ((JFT, DPSGD), (JFT, REDACTED), (LIGHT, DPSGD), (LIGHT, CRT), (ONLY_LIGHT, ONLY_DPSGD)):
        is_only = one == ONLY_LIGHT
        names = [_SHOWN.get(arm, arm) for arm in (one, other)]
        yield Finding(
            f"{names[0]}: better perplexity than {names[1]}{', if ten numbers are all that is sensitive' * is_only} "
            f"({text}).",
            "Figure 4" if is_only else "Figure 2",
            f"loss at the end less that of {names[1]}",
            paired(*(last(rows, text, arm, None if is_only else 1, "loss") for arm in (one, other))),
            high=-MARGIN,
            family=f"{text}, utility",
            # The paper's redacted model has other steps: "similar exposure", not equal steps.
            is_beyond=other == REDACTED or (is_only and not _is_papers(rows, text)),
        )


def _ten(rows: Sequence[Row], text: str) -> Iterator[Finding]:
    """Judge Figure 4. The paper plants each of ten numbers once, and finds them at chance without privacy, too."""
    yield Finding(
        f"Without privacy, the ten numbers are exposed ({text}).",
        "Figure 4",
        f"mean exposure at the end; from {EXPOSED:g} bits on counts as exposed",
        tuple(last(rows, text, ONLY_NONE, None, "exposure").values()),
        low=EXPOSED,
        unit="bits",
        is_beyond=True,
    )
    if not learnt(rows, text, ONLY_NONE, None):
        return
    is_beyond = not _is_papers(rows, text)
    for high, low in pairwise(RECALLS):
        yield Finding(
            f"A detector of recall {high:g} exposes ten numbers less than one of {low:g} ({text}).",
            "Figure 4",
            "mean exposure with the higher recall less that with the lower, in bits",
            paired(*(last(rows, text, with_recall(each), None, "exposure") for each in (high, low))),
            high=0.0,
            family=f"{text}, recall",
            unit="bits",
            is_beyond=is_beyond,
        )
    yield Finding(
        f"JFT and light noise hide ten numbers of which the detector misses six ({text}).",
        "Figure 4",
        f"mean exposure at the end; up to {EXPOSED:g} bits counts as hidden",
        tuple(last(rows, text, ONLY_LIGHT, None, "exposure").values()),
        high=EXPOSED,
        unit="bits",
        is_beyond=is_beyond,
    )


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
                [_SHOWN.get(arm, arm), *(_looked(own, arm, step) for step in steps)]
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
            which = "missed" if _MISSED in arm else "none missed"
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
