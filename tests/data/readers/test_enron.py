"""The cleaning of appendix B, step by step and counted."""

import pytest

from confide.data.readers import Counts, Record, documents, records
from confide.data.readers.enron import clean_enron, is_forwarded, most_repeats
from confide.utils.errors import InputError
from tests.places import DATA

DATE = "Mon, 1 Jan 2001 10:00:00 -0800 (PST)"
TWENTY = " ".join(f"w{number}" for number in range(20))


def mail(**fields):
    usual = {"date": DATE, "from": "a@x.org", "to": "b@x.org", "subject": "s", "body": "hello"}
    return Record(usual | fields, "mail row 1")


@pytest.mark.parametrize(
    ("step", "fields"),
    [
        ("unparsable", {"from": "Ann"}),
        ("unparsable", {"from": None}),
        ("unparsable", {"date": "soon"}),
        ("unparsable", {"to": ""}),
        ("empty", {"body": " \n"}),
        ("forwarded", {"subject": "FW: s"}),
        ("forwarded", {"body": f"see below\n{'-' * 22} Forwarded by Ann Lee/X on 01/01/2001 --"}),
        ("repeated 20-gram", {"body": f"{TWENTY} and\n{TWENTY}"}),
    ],
)
def test_each_step_drops_and_counts(step, fields):
    counts = Counts()
    assert not list(clean_enron([mail(**fields)], counts))
    assert +counts == {"read": 1, step: 1}
    assert list(counts) == [
        "read",
        "unparsable",
        "empty",
        "forwarded",
        "repeated 20-gram",
        "receiver copies added",
        "kept",
    ]


def test_a_record_for_each_receiver():
    counts = Counts()
    record = mail(to="b@x.org, C@x.org", cc=["d@x.org", "B@x.org"], bcc="d@x.org, e@x.org")
    found = list(clean_enron([record], counts))
    assert [r.fields["to"] for r in found] == [["b@x.org"], ["c@x.org"], ["d@x.org"], ["e@x.org"]]
    assert {r.fields["body"] for r in found} == {"hello"}
    assert (counts["receiver copies added"], counts["kept"]) == (3, 4)
    assert {d.units for d in documents(found, "body", "from")} == {("a@x.org",)}


@pytest.mark.parametrize(
    ("subject", "body", "forwarded"),
    [
        ("Re: FWD: s", "b", True),
        ("Fw : s", "b", True),
        ("s (fwd)", "b", True),
        ("Forward curves", "please forward: this", False),
        ("fwdtrade: x", "b", False),
        ("Re: s", "a\n-----Original Message-----\nb", False),
        ("s", "a\n -----Original Message-----\nb", True),
        ("Re: s", "a\n---------- Forwarded message ----------\nb", True),
        ("s", "it was forwarded by Ann", False),
    ],
)
def test_forwarded(subject, body, forwarded):
    assert is_forwarded(subject, body) == forwarded


@pytest.mark.parametrize(
    ("body", "most"), [("a b", 0), (TWENTY, 1), (f"{TWENTY} {TWENTY}", 2), ("x " * 21, 2), ("x " * 20, 1)]
)
def test_most_repeats(body, most):
    assert most_repeats(body) == most


def test_records_that_are_no_mail():
    with pytest.raises(InputError, match="mail row 1: the Enron cleaning names 'date'"):
        list(clean_enron([Record({"text": "t"}, "mail row 1")]))


def test_enron_archive():
    source = DATA / "enron-maildir" / "maildir.tar.xz"
    if not source.exists():
        pytest.skip("../shared/data/enron-maildir is absent")
    counts = Counts()
    kept = sum(1 for _ in clean_enron(records(source), counts))
    dropped = sum(counts[step] for step in ("unparsable", "empty", "forwarded", "repeated 20-gram"))
    assert counts["read"] == 6_153
    assert kept == counts["kept"] == counts["read"] - dropped + counts["receiver copies added"]
    assert counts["forwarded"] > 2_500  # four mailboxes that forward a lot
