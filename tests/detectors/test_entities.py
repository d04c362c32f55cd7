"""Entities by a spaCy pipeline: places, kinds by level, long texts, and what is refused."""

import sys

import pytest

from confide import detectors
from confide.detectors import LEVELS, Entities, Span
from confide.errors import InputError
from confide.settings import Detector

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
