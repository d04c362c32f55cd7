"""A sample is drawn by the run key, and what a person did with it is taken only if it can be right."""

import json
import math
import re
import stat
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from confide.data.readers import Document
from confide.randomness.streams import RunKey
from confide.sensitive.detectors.spans import Span
from confide.sensitive.redaction.screening import Marks, sample
from confide.utils.errors import InputError

NAMES = ("Ann Lee", "Bob", "Łukasz Król")
KEY, OTHER_KEY = RunKey.from_text("one"), RunKey.from_text("two")


class Finder:
    """Finds the first two names, whole; stands in for the policy of a config."""

    fingerprint = "finder 1"

    def find(self, documents):
        return [
            [Span(*match.span(), "PERSON") for match in re.finditer("Ann Lee|Bob", document.text)]
            for document in documents
        ]


def documents(n: int = 40) -> list[Document]:
    """Of 12 words each: every second one holds a name that is found, every fourth one that is not."""
    made = []
    for number in range(n):
        words = f"document {number} was written on a day\u2028of rain and of".split(" ")
        words += [NAMES[number // 2 % 2] if number % 2 else "wind", NAMES[2] if number % 4 == 0 else "sun"]
        made.append(Document(" ".join(words), (f"row:{number}",), None, f"line {number + 1}", {}, 3 * number))
    return made


def write(path: Path, share: float = 0.25, draws: int = 1, key: RunKey = KEY, n: int = 40) -> dict:
    return sample(partial(documents, n), Finder(), key, share, draws, path, lambda *_: None)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]


def screen(path: Path, change=lambda record: None) -> Path:
    """Do what a careful person does: every missed name is listed. `change` then spoils it."""
    header, *records = lines(path)
    for record in records:
        record["screened"] = True
        record["missed"] = [NAMES[2]] if NAMES[2] in record["text"] else []
        change(record)
    path.write_text("".join(json.dumps(record) + "\n" for record in [header, *records]))
    return path


# the sample ---------------------------------------------------------------------------------------------------
def test_the_sample_is_private_and_holds_what_a_person_needs(tmp_path):
    path = tmp_path / "sample.jsonl"
    assert write(path) == {"documents": 10, "of": 40, "draws": 1, "share": 0.25}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    header, *records = lines(path)
    assert "set `screened` to true" in header["what to do"]
    assert len(records) == 10
    by_number = {document.number: document.text for document in documents()}
    for record in records:
        assert record["text"] == by_number[record["document"]]
        assert (record["screened"], record["missed"], record["draws"]) == (False, [], [1])
        assert not [name for name in NAMES[:2] if name in record["masked"]]
        assert record["masked"].count("█PERSON█") == sum(record["text"].count(name) for name in NAMES[:2])
        assert re.sub("█PERSON█", "*", record["masked"]) == re.sub("Ann Lee|Bob", "*", record["text"])


def test_draws_follow_the_run_key_and_are_independent(tmp_path):
    write(tmp_path / "a", 0.25, 8)
    write(tmp_path / "b", 0.25, 8)
    write(tmp_path / "c", 0.25, 8, OTHER_KEY)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    drawn = {name: {r["document"]: r["draws"] for r in lines(tmp_path / name)[1:]} for name in "ac"}
    assert drawn["a"] != drawn["c"]
    for found in drawn.values():
        members = Counter(draw for draws in found.values() for draw in draws)
        assert members == dict.fromkeys(range(1, 9), 10)
        assert len({frozenset(n for n, d in found.items() if draw in d) for draw in range(1, 9)}) == 8
        assert len(found) > 30  # 36 of 40 are expected
    write(tmp_path / "d", 1e-9)
    assert len(lines(tmp_path / "d")) == 2  # one document at least


def test_a_file_that_exists_is_not_written_over(tmp_path):
    path = tmp_path / "sample.jsonl"
    path.write_text("hours of work")
    with pytest.raises(InputError, match="exists already"):
        write(path)
    assert path.read_text() == "hours of work"


def test_a_stopped_sample_leaves_nothing(tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample(documents, Finder(), KEY, 0.5, 1, tmp_path / "sample.jsonl", stop)
    assert not list(tmp_path.iterdir())


# the marks ----------------------------------------------------------------------------------------------------
def test_marks_are_every_occurrence_of_what_was_missed(tmp_path):
    text = "Bob met Łukasz Król. Król, said Bob, ananana to Ann Lee, a Lee"
    document = Document(text, ("row:0",), None, "line 1", {}, 7)
    path = tmp_path / "sample.jsonl"
    sample(lambda: [document], Finder(), KEY, 1.0, 1, path, lambda *_: None)
    screen(path, lambda record: record.update(missed=["Król", "anana", "Lee"]))
    marks = Marks.load(path)
    assert marks.numbers == {7}
    places = [(15, 4), (21, 4), (37, 5), (39, 5), (52, 3), (59, 3)]
    found = marks.spans(document)
    assert [span for span in found if span.kind == "MARKED"] == [
        Span(start, start + n, "MARKED") for start, n in places
    ]
    # What was hidden while the person read stays hidden, whatever the detectors find by now.
    hidden = [span for span in found if span.kind != "MARKED"]
    assert hidden == sorted(Finder().find([document])[0])
    assert hidden
    assert marks.spans(Document("else", ("row:1",), None, "line 2", {}, 8)) == []
    with pytest.raises(InputError, match="line 1 holds another text now"):
        marks.spans(Document(text + ".", ("row:0",), None, "line 1", {}, 7))
    assert marks.rates() == [{"documents": 1, "words": 13, "masked": 4, "missed": 4}]


FAULTS = {
    "left out": (lambda r: r.update(screened=False), "not screened yet"),
    "not there": (lambda r: r.update(missed=["Kroll"]), "no. 1 does not occur"),
    "other case": (lambda r: r.update(missed=["day", "DAY"]), "no. 2 does not occur"),
    "empty": (lambda r: r.update(missed=[" "]), "no. 1 is empty"),
    "masked already": (lambda r: r.update(missed=["Ann"]), "no. 1 is masked wherever it occurs"),
    "no list": (lambda r: r.update(missed="Ann"), "`missed` is not as it was written: a list"),
    "a word for a truth value": (lambda r: r.update(screened="true"), "`screened` is not as it was written"),
    "a key lost": (lambda r: r.pop("text"), "`text` is missing"),
    "twice": (lambda r: r.update(document=6), "document 6 stands in the file twice"),
    "spans of another text": (lambda r: r.update(spans=[[0, 999, "X"]]), "`spans` reach beyond"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_file_that_is_not_screened_well_is_refused(tmp_path, name):
    path, (fault, message) = tmp_path / "sample.jsonl", FAULTS[name]
    write(path, 1.0)
    target = 6 if name != "masked already" else 3  # document 3, at line 3, holds Ann Lee
    line = next(i for i, record in enumerate(lines(path)[1:], 2) if record["document"] == target)

    def spoil(record):
        if record["document"] == target or (name == "twice" and record["document"] == 9):
            fault(record)

    with pytest.raises(
        InputError, match=rf"redacted\.marks: .* line {line + (name == 'twice')}: .*{message}"
    ) as found:
        Marks.load(screen(path, spoil), "redacted.marks")
    assert not [name for name in (*NAMES, "Kroll") if name in str(found.value)]


def test_all_faults_are_named_and_many_are_counted(tmp_path):
    path = tmp_path / "sample.jsonl"
    write(path, 1.0)
    with pytest.raises(InputError, match="40 faults") as found:
        Marks.load(path)
    assert str(found.value).count("not screened") == 20
    assert str(found.value).endswith("and 20 more")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "", "is empty"),
        (lambda text: text.split("\n", 1)[1], "line 1: not the first line of a sample"),
        (
            lambda text: text.replace('"missed": [', '"missed": [[', 1),
            "line 2: .*not valid JSON at character",
        ),
        (lambda text: "\n".join(text.split("\n")[:-3]), "holds 38 documents of a sample of 40"),
        (lambda text: text.encode("utf-16"), "not UTF-8"),
        (lambda text: '{"document": 1}', "line 1: not the first line"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, change, message):
    path = tmp_path / "sample.jsonl"
    write(path, 1.0)
    changed = change(screen(path).read_text())
    path.write_bytes(changed if isinstance(changed, bytes) else changed.encode())
    with pytest.raises(InputError, match=message):
        Marks.load(path)


def test_a_file_from_another_editor_is_read(tmp_path):
    path = tmp_path / "sample.jsonl"
    write(path, 1.0)
    text = screen(path).read_text().replace("\n", "\r\n\r\n")
    path.write_bytes("\ufeff".encode() + text.encode())
    Marks.load(path).check(KEY, "finder 1")


def test_another_run_detector_or_text_is_refused(tmp_path):
    path = tmp_path / "sample.jsonl"
    write(path, 0.5, 2)
    marks = Marks.load(screen(path))
    marks.check(KEY, "finder 1")
    with pytest.raises(InputError, match="not a sample of this run"):
        marks.check(OTHER_KEY, "finder 1")
    with pytest.raises(InputError, match="have changed since"):
        marks.check(KEY, "finder 2")
    for edit in (
        lambda record: record.update(text=record["text"] + " ."),
        lambda record: record.update(masked="all clear"),
        lambda record: record.update(draws=[1]),
        lambda record: record.update(spans=[]),
    ):
        (tmp_path / "edited").write_bytes(path.read_bytes())
        with pytest.raises(InputError, match=r"faults(.|\n)*line \d+: was edited"):
            Marks.load(screen(tmp_path / "edited", edit)).check(KEY, "finder 1")


# the missing rate ---------------------------------------------------------------------------------------------
def test_the_missing_rate_of_one_draw_is_an_exact_interval(tmp_path):
    path = tmp_path / "sample.jsonl"
    write(path, 1.0)
    marks = Marks.load(screen(path))
    words, missed = 40 * 13 + 10 + 10, 20  # two-word names: 10 found, 10 missed
    assert marks.rates() == [{"documents": 40, "words": words, "masked": 30, "missed": missed}]
    low, high = marks.missing_rate()
    assert low < missed / words < high

    def at_most(k, p):
        return sum(math.comb(words, i) * p**i * (1 - p) ** (words - i) for i in range(k + 1))

    assert at_most(missed, high) == pytest.approx(0.025)
    assert 1 - at_most(missed - 1, low) == pytest.approx(0.025)
    facts = marks.facts()
    assert facts["missing_rate"] == pytest.approx(missed / words)
    assert facts["recall"] == pytest.approx(30 / 50)
    assert facts["interval_by"].startswith("Clopper-Pearson")


def test_the_missing_rate_of_several_draws_is_a_t_interval(tmp_path):
    path = tmp_path / "sample.jsonl"
    write(path, 0.3, 5)
    marks = Marks.load(screen(path))
    shares = [draw["missed"] / draw["words"] for draw in marks.rates()]
    mean = sum(shares) / 5
    error = math.sqrt(sum((share - mean) ** 2 for share in shares) / 4 / 5)
    low, high = marks.missing_rate()
    assert high == pytest.approx(mean + 2.7764451 * error)  # the 97.5% point of t with 4 degrees of freedom
    assert low == pytest.approx(max(0, mean - 2.7764451 * error))
    assert marks.facts()["interval_by"] == "t-interval over 5 draws"


@pytest.mark.parametrize("draws", [1, 3])
def test_that_nothing_was_missed_is_no_proof(tmp_path, draws):
    path = tmp_path / "sample.jsonl"
    write(path, 0.2, draws)
    marks = Marks.load(screen(path, lambda record: record.update(missed=[])))
    words = sum(len(record["text"].split()) for record in lines(path)[1:])
    low, high = marks.missing_rate()
    assert low == 0
    assert high == pytest.approx(1 - 0.025 ** (1 / words))
    mode = marks.facts()["config"][1]
    assert 0 < high <= mode["missing_rate"][1] < 1.01 * high


def test_all_missed_stays_a_rate_that_a_config_takes(tmp_path):
    path = tmp_path / "sample.jsonl"
    without = [document for document in documents() if not Finder().find([document])[0]]
    sample(lambda: without, Finder(), KEY, 1.0, 1, path, lambda *_: None)
    marks = Marks.load(screen(path, lambda record: record.update(missed=record["text"].split())))
    assert marks.missing_rate()[1] == 1
    assert marks.facts()["recall"] == 0
    low, high = marks.facts()["config"][1]["missing_rate"]
    assert 0 < low < high < 1
