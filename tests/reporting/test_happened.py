"""What a page says of the things that no claim covers: did they happen in this run?"""

import functools
import re

import pytest
import textstat

from confide.config.loading import check
from confide.integrations import base as trainer
from confide.privacy.mechanisms import statement
from confide.reporting.claim_lines import lines
from confide.reporting.happened import _ANSWERS, UNKNOWN, Course
from confide.runs import earlier
from tests.every_claim import CASES, stated

OTHERS = (
    *statement._WATCHED,
    *statement._OF_NOBODY,
    *statement._OWN_ROWS,
    "the other sides of a conversation: data.unit names user",
    "losses and other measurements made from private rows: they were sent to W&B",
    "a row's loss that hangs on other rows: the program's own loss was tried on some, which is no proof",
    earlier._sentence("of this program"),
    trainer._LOGGED,
    trainer._SENT,
    trainer._EVALUATED,
)
"""What a config or a program adds; tests of their own hold these sentences."""


@functools.cache
def items() -> tuple[str, ...]:
    """Return all lines of "not covered". To make all claims takes long: not while tests are collected."""
    claimed = [item for name in CASES for item in stated(name).not_covered]
    return tuple(dict.fromkeys((*claimed, *OTHERS)))


def course(twin: bool = False, told: str = "", audited: bool = False, **sections) -> Course:
    raw = {"data": {"train": "mail.jsonl", "unit": "from"}, "privacy": {"epsilon": 8.0}}
    for section, values in sections.items():
        raw[section] = raw.get(section, {}) | values if isinstance(values, dict) else values
    return Course(check(raw), twin, told, audited)


def fitting(item: str) -> str | None:
    return next((start for start in _ANSWERS if item.startswith(start)), None)


def test_there_is_an_answer_of_its_own_for_everything_and_none_for_nothing():
    assert [item for item in items() if fitting(item) is None] == []
    assert {fitting(item) for item in items()} == set(_ANSWERS)


def here(found: Course, start: str) -> str:
    (item,) = [item for item in stated("uls").not_covered if item.startswith(start)]
    return found.here(item)


@pytest.mark.parametrize(
    ("start", "with_it", "then", "without", "otherwise"),
    [
        ("evaluation", {"data": {"eval": 0.1}}, "held-out text were", {"data": {"eval": None}}, "No text was held out"),
        ("a non-private twin", {"twin": True}, "Yes. One was trained", {}, "None lies in the run folder"),
        ("what the base model", {"model": "tiny.json"}, "No.", {"model": "gpt2"}, "cannot know"),
        ("the tokenizer", {}, "of the bundled model", {"tokenizer": "gpt2"}, "cannot know"),
        ("logs", {"told": "MLflow"}, "sent to MLflow", {}, "who saw its screen"),
        ("the same words", {}, "The run looked for them", {"data": {"duplicates": False}}, "did not look"),
        ("the same words", {"data": {"strip_quotes": True}}, "Quoted replies were removed", {}, "The run looked"),
        ("the tuning", {}, "No search is recorded here", {}, "cannot know"),
        ("manual screening", {}, "Not as a part of this run", {}, "cannot know who read"),
        (
            "statistics",
            {"privacy": {"mechanism": "els", "rows_per_unit": "median"}},
            "chosen by their median",
            {},
            "cannot know whether settings",
        ),
    ],
)  # fmt: skip
def test_what_happened_is_said_and_what_did_not(start, with_it, then, without, otherwise):
    assert then in here(course(**with_it), start)
    assert otherwise in here(course(**without), start)
    if with_it != without:
        assert here(course(**with_it), start) != here(course(**without), start)


def test_a_search_and_a_screening_are_told():
    (searched,) = [item for item in stated("uls, searched").not_covered if "12 runs were made" in item]
    assert course().here(searched) == "Yes. The search is recorded."
    marked = course(
        privacy={"mechanism": "selective"},
        detector={"patterns": "all"},
        redacted={"mode": "screened", "marks": "marks.jsonl"},
    )
    assert here(marked, "manual screening").startswith("Yes. A person read")


def test_canaries_and_attacks_are_told():
    assert (
        course(canaries={"count": 100}, audited=True)
        .besides()[0]
        .startswith("100 made-up units were prepared for an audit. A coin for each")
    )
    assert course(audited=True).besides() == [
        "No made-up units were planted in the text.",
        "The model was attacked by confide audit. Line 12 says what that showed.",
    ]
    assert course().besides()[1] == "The model was not attacked by confide audit."


def test_what_nobody_foresaw_is_not_said_to_have_happened_or_not():
    assert course().here("something new") == UNKNOWN


def test_a_release_alone_says_that_it_does_not_know():
    claim = stated("uls")
    alone, whole = (
        next(line for line in lines(claim, of) if "not covered" in line.title) for of in (None, course())
    )
    assert "A release alone does not know" in " ".join(alone.sentences)
    assert not alone.here
    assert not alone.besides
    assert set(whole.here) == set(claim.not_covered)


def test_the_answers_are_easy_to_read():
    several = (course(), course(twin=True, told="MLflow", audited=True, canaries={"count": 9}, model="gpt2"))
    said = dict.fromkeys(s for found in several for s in (*map(found.here, items()), *found.besides()))
    sentences = re.split(r"(?<=[.:]) ", " ".join(said))
    lengths = sorted(len(sentence.split()) for sentence in sentences)
    assert lengths[len(lengths) // 2] <= 12
    assert lengths[-1] <= 22
    assert textstat.flesch_reading_ease(" ".join(sentences)) >= 50


def test_what_stays_is_told_also_where_the_model_must_stay():
    assert (
        course()
        .stays(releases=True)
        .startswith("Hand on nothing but the folder release, and report.html. All else")
    )
    assert course().stays(releases=False).startswith("The run's folder holds the text, names or the key.")
