"""A policy: the union of all that a config names, at exact places, kept on disk, and refused where it cannot be."""

import json

import pytest

from confide.config.loading import Config
from confide.data.readers import read
from confide.data.readers.documents import Document
from confide.data.readers.documents import documents as make
from confide.data.readers.readers import records
from confide.randomness.streams import RunKey
from confide.sensitive.detectors import Span
from confide.sensitive.redaction.policy import Policy
from confide.utils.errors import InputError


def config(detector, **data):
    data = {"train": "x.jsonl"} | data
    return Config.model_validate({"data": data, "detector": detector})


def documents(*texts, **fields):
    return [
        Document(text, ("u",), None, f"line {n}", {"text": text, **fields}, n) for n, text in enumerate(texts)
    ]


@pytest.fixture
def words(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("Ann\nProject Apollo\n", encoding="utf-8")
    return path


def test_all_that_is_named_counts(words):
    settings = {
        "words": str(words),
        "expressions": {"account": r"\bA-\d+", "id:part": "#[0-9]"},
        "patterns": ["URL_PASSWORD"],
        "spans": "marks",
    }
    text = "ann has A-12 and #3 of project\nApollo at ftp://bob:pw@c.de."
    with Policy.of(config(settings)) as policy:
        assert policy.kinds == ("URL_PASSWORD", "WORD", "account", "id:part", "STATED")
        (found, empty) = policy.find(documents(text, "nothing", marks=[[0, 3], [4, 7, "VERB"]]))
    assert [(text[each.start : each.end], each.kind) for each in found] == [
        ("ann", "STATED"), ("ann", "WORD"), ("has", "VERB"), ("A-12", "account"), ("#3", "id:part"),
        ("project\nApollo", "WORD"), ("pw", "URL_PASSWORD"),
    ]  # fmt: skip
    assert empty == [Span(0, 3, "STATED"), Span(4, 7, "VERB")]


def test_contextual_levels_mark_parts_of_speech(shared):
    pytest.importorskip("spacy", reason="spaCy is not installed")
    settings = {"level": "low-contextual", "pipeline": str(shared / "models" / "en_confide_sm")}
    with Policy.of(config(settings)) as policy:
        (found,) = policy.find(documents("She saw Paris."))
        assert {(each.start, each.kind) for each in found} >= {(0, "PRONOUN"), (8, "GPE"), (8, "OBJECT")}
        assert "VERB" not in policy.kinds


class TestStatedSpans:
    def find(self, text, spans, cleaned=None, **data):
        cleaned = text if cleaned is None else cleaned
        document = Document(cleaned, ("u",), None, "line 7", {"text": text, "marks": spans}, 0)
        with Policy.of(config({"spans": "marks"}, **data)) as policy:
            return policy.find([document])[0]

    @pytest.mark.parametrize(
        ("text", "span", "expected"),
        [
            ("ab\r\ncd", [4, 6], "cd"),
            ("ab\rcd", [3, 5], "cd"),
            ("a\x00b\x00cd", [4, 6], "cd"),
            ("ab\r\ncd", [0, 3], "ab\n"),  # half of a line end is a line end
            ("ab\r\ncd", [3, 6], "\ncd"),
            ("ab\r\ncd", [2, 4], "\n"),
            ("\r\n\r\nab\ud800", [4, 7], "ab\ufffd"),
            ("a\r\x00\nb", [2, 5], "\nb"),
            ("plain", [1, 1], ""),
        ],
    )
    def test_they_stand_where_they_stood_before_cleaning(self, tmp_path, text, span, expected):
        path = tmp_path / "x.jsonl"
        path.write_text(json.dumps({"text": text, "marks": [span]}), encoding="utf-8")
        (document,) = read(path, text="text", unit=None)
        with Policy.of(config({"spans": "marks"})) as policy:
            (found,) = policy.find([document])
        assert [document.text[each.start : each.end] for each in found] == ([expected] if expected else [])

    @pytest.mark.parametrize(
        "stated", ["[[5, 8]]", [{"start": 5, "end": 8, "kind": "PERSON"}], [[5, 8, "PERSON"]]]
    )
    def test_lists_come_as_json_and_as_mappings_too(self, stated):
        """As a CSV or a table of structs holds them."""
        with Policy.of(config({"spans": "marks"})) as policy:
            (found,) = policy.find(documents("I am Ann.", marks=stated))
        assert [(each.start, each.end) for each in found] == [(5, 8)]

    def test_one_that_cleaning_leaves_nothing_of_is_refused(self, tmp_path):
        """Another text in its place would be marked, so it is no neighbour of this one."""
        path = tmp_path / "x.jsonl"
        path.write_text(json.dumps({"text": "a\x00b", "marks": [[1, 2]]}), encoding="utf-8")
        (document,) = read(path, text="text", unit=None)
        with Policy.of(config({"spans": "marks"})) as policy, pytest.raises(InputError, match="NUL"):
            policy.find([document])

    def test_turns_have_theirs_in_the_whole_text(self, tmp_path):
        path = tmp_path / "x.jsonl"
        turns = [
            {"speaker": "A", "text": "I am Ann.", "marks": [[5, 8, "PERSON"]]},
            {"speaker": "B", "text": "Hi", "marks": [[0, 2]]},
        ]
        path.write_text(json.dumps({"turns": turns}), encoding="utf-8")
        (document,) = make(records(path), "turns", None, spans="marks")
        with Policy.of(config({"spans": "marks"}, text="turns")) as policy:
            (found,) = policy.find([document])
        assert [(document.text[each.start : each.end], each.kind) for each in found] == [
            ("Ann", "PERSON"),
            ("Hi", "STATED"),
        ]

    @pytest.mark.parametrize(
        "spans",
        [
            None,
            "0-3",
            5,
            [[0]],
            [[0, 99]],
            [[3, 1]],
            [[-1, 2]],
            [[0, 1, ""]],
            [[0, 1, 2]],
            [[0.0, 1]],
            [[True, 2]],
            [3],
        ],
    )
    def test_what_is_no_list_of_spans_is_refused(self, spans):
        with pytest.raises(InputError, match=r"line 7: detector\.spans field 'marks'"):
            self.find("sensitive", spans)

    def test_a_record_without_the_field_is_refused(self):
        with (
            Policy.of(config({"spans": "absent"})) as policy,
            pytest.raises(InputError, match=r"line 0: detector\.spans names 'absent', which is not there"),
        ):
            policy.find(documents("text"))

    def test_a_text_that_was_changed_is_refused(self):
        with pytest.raises(InputError, match="the text is not that of the record"):
            self.find("a whole text", [[0, 1]], "a text")

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ({"text": "{a} {b}"}, "data.text is the template"),
            ({"text": "Text: {text}"}, "data.text is the template"),
            ({"strip_quotes": True}, "data.strip_quotes changes the text"),
            ({"clean": "enron"}, "data.clean changes the text"),
        ],
    )
    def test_a_config_that_changes_texts_is_refused(self, data, message):
        with pytest.raises(InputError, match=f"detector.spans: .*{message}"):
            Policy.of(config({"spans": "marks"}, **data))


@pytest.mark.parametrize(
    ("detector", "message"),
    [
        ({}, r"detector: says nothing"),
        ({"patterns": []}, r"detector: says nothing"),
        ({"patterns": ["NONE"]}, r"detector\.patterns: no recogniser 'NONE'"),
        ({"level": "low-entity", "pipeline": "en_core_none"}, r"detector\.pipeline: no spaCy pipeline"),
        ({"words": "absent.txt"}, r"detector\.words: absent\.txt"),
        ({"expressions": {"a": "("}}, r"detector\.expressions\.a: not a regular expression"),
        ({"expressions": {"a": "x*"}}, r"detector\.expressions\.a: matches the empty string"),
        ({"expressions": {" ": "x"}}, r"detector\.expressions: a name is blank"),
    ],
)
def test_what_cannot_be_had_is_named(detector, message):
    with pytest.raises(InputError, match=message):
        Policy.of(config(detector))


def test_the_fingerprint_is_of_all_that_findings_depend_on(words, tmp_path):
    settings = {"words": str(words), "patterns": ["PRIVATE_KEY"], "expressions": {"a": "x"}}

    def fingerprint(**changed):
        with Policy.of(config(settings | changed)) as policy:
            return policy.fingerprint

    first = fingerprint()
    assert fingerprint() == fingerprint(recall=1.0) == first
    changes = (
        {"patterns": None},
        {"patterns": ["URL_PASSWORD"]},
        {"expressions": {"a": "y"}},
        {"spans": "marks"},
    )
    assert len({first, *(fingerprint(**change) for change in changes)}) == 5
    other = tmp_path / "other.txt"
    other.write_bytes(words.read_bytes())
    assert fingerprint(words=str(other)) == first  # where the list lies decides nothing
    other.write_text("Bob\n", encoding="utf-8")
    assert fingerprint(words=str(other)) != first


def test_findings_of_the_detector_are_kept_and_the_list_may_change(words, tmp_path, monkeypatch):
    cache = tmp_path / "spans.db"
    texts = documents("Ann: ftp://joe:pw@c.de", "Bob")
    settings = {"words": str(words), "patterns": ["URL_PASSWORD"]}
    with Policy.of(config(settings), cache, RunKey(bytes(32))) as policy:
        first = policy.find(texts)
    assert first == [[Span(0, 3, "WORD"), Span(15, 17, "URL_PASSWORD")], []]
    words.write_text("Bob\n", encoding="utf-8")
    with Policy.of(config(settings), cache, RunKey(bytes(32))) as policy:
        monkeypatch.setattr(policy._detector, "find", lambda texts: pytest.fail("it was looked for again"))
        assert policy.find(texts) == [[Span(15, 17, "URL_PASSWORD")], [Span(0, 3, "WORD")]]
    assert b"pw" not in cache.read_bytes()


@pytest.mark.parametrize(
    ("speakers", "marked"), [({"A": "PAT:", "B": "SYS:"}, "Pat Pat"), ({}, "PAT PAT Pat Pat")]
)
def test_prompts_of_the_config_are_not_sensitive_and_names_in_the_data_are(tmp_path, speakers, marked):
    path = tmp_path / "x.jsonl"
    names = ("A", "B", "A") if speakers else ("PAT", "SYS", "PAT")
    said = ("I am Pat.", "", "Pat again")
    turns = [{"speaker": name, "text": text} for name, text in zip(names, said, strict=True)]
    path.write_text(json.dumps({"turns": turns}), encoding="utf-8")
    (document,) = make(records(path), "turns", None, speakers=speakers)
    with Policy.of(config({"expressions": {"name": "(?i)pat"}}, text="turns")) as policy:
        (found,) = policy.find([document])
    assert sorted(document.text[each.start : each.end] for each in found) == sorted(marked.split())
    assert all(document.text[start:end].rstrip() in ("PAT:", "SYS:") for start, end in document.given)
    assert len(document.given) == (3 if speakers else 0)
