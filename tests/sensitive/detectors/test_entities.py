"""Entities by a spaCy pipeline: places, kinds by level, long texts, and what is refused."""

import sys

import pytest

from confide.config.schema import Detector
from confide.sensitive import detectors
from confide.sensitive.detectors import LEVELS, Entities, Span
from confide.utils.errors import InputError

pytest.importorskip("spacy", reason="spaCy is not installed")

TEXT = "John Smith moved to Paris in June 1999 and paid $ 300 to Acme Corp."
LOW = [Span(0, 10, "PERSON"), Span(20, 25, "GPE"), Span(29, 38, "DATE"), Span(57, 67, "ORG")]


@pytest.fixture(scope="module")
def pipeline(shared):
    return str(shared / "models" / "en_confide_sm")


@pytest.fixture(scope="module")
def low(pipeline):
    return Entities(pipeline, "low-entity")


def test_entities_are_found_by_level(pipeline, low):
    assert low.find([TEXT, "", "no one"]) == [LOW, [], []]
    (spans,) = Entities(pipeline, "high-entity").find([TEXT])
    assert set(LOW) < set(spans)
    assert {span.kind for span in spans} - set(LEVELS["low-entity"]) == {"MONEY"}


def test_a_text_longer_than_the_pipeline_takes_is_cut_at_white_space(low, monkeypatch):
    text = TEXT + "\n" + TEXT + " " + TEXT
    monkeypatch.setattr(low._language, "max_length", len(TEXT) + 5)
    spans = low.find(["before", text])[1]
    starts = [0, len(TEXT) + 1, 2 * len(TEXT) + 2]
    for start in starts:  # an entity or two at a cut may be seen otherwise without what surrounds it
        assert Span(start + 20, start + 25, "GPE") in spans
    assert max(span.end for span in spans) <= len(text)


def test_levels_are_those_of_the_paper():
    assert len(LEVELS["high-entity"]) == len(set(LEVELS["high-entity"])) == 18
    assert set(LEVELS["low-entity"]) == {"PERSON", "ORG", "DATE", "GPE", "LOC"}


def test_several_detectors_are_one(pipeline):
    pytest.importorskip("presidio_analyzer", reason="Presidio is not installed")
    both = detectors.detector(Detector(level="low-entity", pipeline=pipeline, patterns=["IP_ADDRESS"]))
    assert both.find([TEXT + " From 10.0.0.1"]) == [[*LOW, Span(73, 81, "IP_ADDRESS")]]


def test_what_is_not_there_is_said(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"key: no spaCy pipeline 'en_core_none': python -m spacy download"):
        Entities("en_core_none", "low-entity", "key")
    with pytest.raises(InputError, match="cannot be loaded"):
        Entities(str(tmp_path), "low-entity")
    import spacy

    spacy.blank("en").to_disk(tmp_path / "blank")
    with pytest.raises(InputError, match="no component `ner`"):
        Entities(str(tmp_path / "blank"), "low-entity")
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(InputError, match=r"pip install 'confide\[detectors\]'"):
        Entities("en_core_web_sm", "low-entity")


def test_a_pipeline_that_does_not_know_a_kind_is_refused(tmp_path):
    import spacy

    language = spacy.blank("en")
    recogniser = language.add_pipe("ner")
    for label in ("PERSON", "ORG", "GPE"):
        recogniser.add_label(label)
    language.initialize()
    language.to_disk(tmp_path)
    with pytest.raises(InputError, match="does not find DATE, LOC, which low-entity asks for"):
        Entities(str(tmp_path), "low-entity")


DIVORCE = "My lawyer and Bob have left: she gave him the keys to their house; the judge whom they saw was told nothing."


@pytest.fixture(scope="module")
def contextual(pipeline):
    return {level: Entities(pipeline, level) for level in ("low-contextual", "high-contextual")}


def words(text, spans, *kinds):
    return {text[span.start : span.end] for span in spans if span.kind in kinds}


def test_contextual_levels_add_parts_of_speech_and_places_in_the_sentence(contextual):
    (spans,) = contextual["low-contextual"].find([DIVORCE])
    assert spans == sorted(spans)
    assert "Bob" in words(DIVORCE, spans, "PROPER_NOUN")
    assert {"My", "she", "him", "their", "whom", "they", "nothing"} <= words(DIVORCE, spans, "PRONOUN")
    assert {"lawyer", "Bob", "she", "judge", "they"} <= words(DIVORCE, spans, "SUBJECT")  # Bob by `and`
    assert {"him", "keys", "house", "whom"} <= words(DIVORCE, spans, "OBJECT")
    everything = words(DIVORCE, spans, *LEVELS["high-contextual"])
    assert not everything & {"and", ":", "the", ",", "to", "gave", "was", "told", "left"}
    (more,) = contextual["high-contextual"].find([DIVORCE])
    assert set(spans) < set(more)
    assert {span.kind for span in set(more) - set(spans)} == {"VERB"}
    assert {"have", "left", "gave", "saw", "was", "told"} <= words(DIVORCE, more, "VERB")


def test_a_preposition_is_no_object_and_a_predicate_noun_is_neither(contextual):
    text = "The book was given to John. The man is a doctor and may have left."
    (spans,) = contextual["high-contextual"].find([text])
    assert words(text, spans, "OBJECT") == {"John"}
    assert words(text, spans, "SUBJECT") == {"book", "man"}
    assert {"may", "have", "left", "is"} <= words(text, spans, "VERB")


def test_places_count_from_the_text_in_any_piece_and_batch(contextual):
    find = contextual["high-contextual"].find
    texts = [DIVORCE, "", TEXT, "\n\n"]
    assert find(texts) == [find([text])[0] for text in texts]
    assert words(TEXT, find(texts)[2], "PROPER_NOUN") >= {"John", "Smith", "Paris", "Acme"}


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        ("tagger", "no component `tagger`, which low-contextual asks for"),
        ("parser", "no component `parser`, which low-contextual asks for"),
        ("ner", "no component `ner`"),
    ],
)
def test_a_pipeline_without_a_component_is_refused(pipeline, tmp_path, removed, message):
    import spacy

    spacy.load(pipeline, exclude=[removed]).to_disk(tmp_path)
    with pytest.raises(InputError, match=message):
        Entities(str(tmp_path), "low-contextual", "key")
    if removed != "ner":
        Entities(str(tmp_path), "high-entity")


def test_only_what_the_level_needs_runs(pipeline, low, contextual):
    assert low._language.pipe_names == ["tok2vec", "ner"]
    assert contextual["low-contextual"]._language.pipe_names == [
        "tok2vec",
        "tagger",
        "parser",
        "attribute_ruler",
        "ner",
    ]
