"""Recognisers of structured identifiers: recall on synthetic sentences, and silence about what they find."""

import json
import logging
import socket

import pytest

from confide.config.schema import Detector
from confide.sensitive import detectors
from confide.sensitive.detectors import Recognisers, Span
from confide.sensitive.detectors.patterns import RECOGNISERS, _cards, _phones
from confide.utils.errors import InputError

pytest.importorskip("presidio_analyzer", reason="Presidio is not installed")

CARD, IBAN = "4012 8888 8888 1881", "DE89 3704 0044 0532 0130 00"


@pytest.fixture(scope="module")
def everything():
    return Recognisers("all")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("EMAIL_ADDRESS", "ann@example.org"),
        ("EMAIL_ADDRESS", "ann@mail.corp.internal"),  # no public suffix
        ("PHONE_NUMBER", "+41 44 668 18 00"),
        ("PHONE_NUMBER", "212-555-5555"),
        ("PHONE_NUMBER", "(0)20 7946 0991"),
        ("PHONE_NUMBER", "001-755-329-4431x818"),
        ("CREDIT_CARD", CARD),
        ("CREDIT_CARD", "4012-8888-8888-1881"),
        ("CREDIT_CARD", "2223003122003222"),
        ("IBAN_CODE", IBAN),
        ("IBAN_CODE", IBAN.replace(" ", "").lower()),
        ("US_SSN", "536-90-4399"),
        ("IP_ADDRESS", "192.168.0.17"),
        ("IP_ADDRESS", "2001:db8::8a2e:370:7334"),
        ("MAC_ADDRESS", "00:1A:2B:3C:4D:5E"),
        ("CRYPTO", "1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2"),
        ("URL", "https://example.org/a"),
    ],
)
def test_each_kind_is_found_where_it_stands(everything, kind, text):
    (spans,) = everything.find([f"It is {text}, he said."])
    assert any(s.kind == kind and s.start <= 6 and s.end >= 6 + len(text) for s in spans)
    assert spans == sorted(spans)


def test_a_card_needs_its_check_digit():
    assert list(_cards(f"a {CARD} b")) == [(2, 21)]
    assert list(_cards("a 4012 8888 8888 1882 b")) == []


@pytest.mark.parametrize("text", ["12.3", "1,234,567", "v1.2.3", "a1234567", "12345678b", "in 1999"])
def test_what_is_no_telephone_number(text):
    assert list(_phones(text)) == []


def test_recall_on_synthetic_sentences(shared, everything):
    """At least 95% of each kind are covered in full; 99% of all."""
    folder = shared / "data" / "presidio-research"
    rows = json.loads((folder / "synth_dataset_v2.json").read_text(encoding="utf-8"))
    counts = {
        kind: [0, 0]
        for kind in ("EMAIL_ADDRESS", "PHONE_NUMBER", "CREDIT_CARD", "US_SSN", "IBAN_CODE", "IP_ADDRESS")
    }
    rows = [row for row in rows if any(span["entity_type"] in counts for span in row["spans"])]
    for row, spans in zip(rows, everything.find([row["full_text"] for row in rows]), strict=True):
        for truth in row["spans"]:
            kind = truth["entity_type"]
            if kind in counts:
                places = {place for s in spans if s.kind == kind for place in range(s.start, s.end)}
                counts[kind][0] += places.issuperset(range(truth["start_position"], truth["end_position"]))
                counts[kind][1] += 1
    assert min(total for _, total in counts.values()) >= 10
    assert {kind: hits / total for kind, (hits, total) in counts.items() if hits < 0.95 * total} == {}
    assert sum(hits for hits, _ in counts.values()) >= 0.99 * sum(total for _, total in counts.values())


def test_nothing_is_logged_and_nothing_leaves_the_machine(everything, monkeypatch, caplog):
    def refuse(*_args, **_keywords):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    caplog.set_level(logging.DEBUG)
    everything.find([f"ann@example.org https://example.co.uk {IBAN} GBÀ2 ABCD EFGH IJKL MNOP"])
    everything._recognisers["IBAN_CODE"].validate_result = _log_and_fail
    everything.find([IBAN])
    del everything._recognisers["IBAN_CODE"].validate_result
    assert caplog.text == ""
    assert logging.getLogger("presidio-analyzer").propagate


def _log_and_fail(text):
    logging.getLogger("presidio-analyzer").error("Failed to validate text %s", text)
    return False


def test_a_recogniser_that_gave_up_is_an_error(monkeypatch):
    finder = Recognisers(["US_SSN"])

    def give_up(*_args):
        logging.getLogger("presidio-analyzer").warning(
            "Regex pattern '%s' timed out after %s seconds", "a", 60
        )
        return []

    monkeypatch.setattr(finder._recognisers["US_SSN"], "analyze", give_up)
    with pytest.raises(InputError, match="ran out of time"):
        finder.find(["536-90-4399"])


def test_an_unknown_recogniser_is_refused():
    with pytest.raises(
        InputError, match=r"my\.key: no recogniser 'EMAIL_ADRESS' \(did you mean 'EMAIL_ADDRESS'\?\)"
    ):
        Recognisers(["URL", "EMAIL_ADRESS"], "my.key")


def test_the_section_makes_detectors_and_names_their_kinds():
    settings = Detector.model_validate({"patterns": ["US_SSN", "IP_ADDRESS"]})
    assert detectors.kinds(settings) == ("US_SSN", "IP_ADDRESS")
    assert detectors.detector(settings).find(["on 10.0.0.1 now", ""]) == [[Span(3, 11, "IP_ADDRESS")], []]
    assert set(detectors.kinds(Detector(level="low-entity", patterns="all"))) == {
        "PERSON", "ORG", "DATE", "GPE", "LOC", *RECOGNISERS,
    }  # fmt: skip
    assert detectors.kinds(Detector()) == ()
    with pytest.raises(InputError, match=r"secrets\.detector: names neither"):
        detectors.detector(Detector(patterns=[]))
