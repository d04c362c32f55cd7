"""The study of the Enron cleaning: what is counted of made-up mail, and what is said of it."""

from studies.runner.findings import NOT_REPRODUCED, REPRODUCED, judged

from confide.data.readers.documents import Record
from studies import enron_cleaning as study


def mail(sender, body, to=("b@x.com",), subject="hello"):
    date = "Mon, 1 Jan 2001 10:00:00 +0000"
    return Record({"from": sender, "to": list(to), "date": date, "subject": subject, "body": body}, "made up")


TWICE = " ".join(f"word{i}" for i in range(20))


def test_steps_senders_and_repeats_are_counted():
    raw = [
        mail("a@x.com", "one"),
        mail("a@x.com", "two", ("b@x.com", "c@x.com", "d@x.com")),
        mail("e@x.com", TWICE),
        mail("e@x.com", f"{TWICE} and {TWICE}"),
        mail("f@x.com", "passed on", subject="Fw: hello"),
    ]
    rows = study.counted(iter(raw))
    assert study._counts(rows) == {
        "read": 5,
        "unparsable": 0,
        "empty": 0,
        "forwarded": 1,
        "repeated 20-gram": 1,
        "receiver copies added": 2,
        "kept": 5,
    }
    assert sorted(row["value"] for row in rows if row["what"] == study.SENDER) == [1, 4]
    assert [row["value"] for row in rows if row["what"] == study.REPEATS] == [1]
    assert "x.com" not in str(rows)
    line = study.tables(rows)[1].cells[0]
    assert line == ["here", "2", "5", "2.5", "2.5", "1", "4"]


def test_claims_follow_the_outcome():
    def verdicts(read, kept, repeats):
        rows = [{"what": study.STEP, "name": "read", "value": read}]
        rows += [{"what": study.STEP, "name": "kept", "value": kept}]
        rows += [{"what": study.REPEATS, "value": repeats}]
        return [each.verdict for each in judged(study.findings(rows))]

    assert verdicts(100, 48, 1) == [REPRODUCED, REPRODUCED]
    assert verdicts(100, 60, 2) == [NOT_REPRODUCED, NOT_REPRODUCED]


def test_neither_counts_as_a_claim_of_the_paper():
    """Four mailboxes are not the paper's corpus, and what the cleaning removes is gone by construction."""
    rows = [{"what": study.STEP, "name": name, "value": 1} for name in ("read", "kept")]
    share, repeats = study.findings([*rows, {"what": study.REPEATS, "value": 1}])
    assert (share.is_beyond, share.is_check) == (True, False)
    assert repeats.is_check
