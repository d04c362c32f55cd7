"""Quoted replies go, the writer's own words stay."""

import pytest

from confide.data.readers import records
from confide.data.readers.quotes import strip_quotes
from tests.places import DATA

LOTUS = (
    "Own words.\n\n\n\n\nAnn Lee@ACME\n10/17/2000 12:55 PM\n"
    "To: Bob Ray/HOU/ACME@ACME\ncc: \nSubject: lunch\n\ntheirs\n"
)


@pytest.mark.parametrize(
    ("body", "own"),
    [
        ("On Mon, 1 Jan 2001, Ann wrote:\n> theirs\n> theirs\n\nmine\n", "mine"),
        ("On Monday, January 1, 2001 Ann Lee\n<ann@x.org> wrote:\n\n> theirs\nmine", "mine"),
        ("In article <1@x> ann@x.org (Ann) writes:\n>theirs\nmine\n>theirs\nmine too", "mine\n\nmine too"),
        ("In article <1@x>, ann@x.org\n(Ann) writes:\n|> theirs\nmine", "mine"),
        ("ann@x.org (Ann) writes:\n: theirs\n: more\nmine", "mine"),
        ("ann@x.org wrote:\n\n] theirs\nmine", "mine"),
        ("mine\nAL> theirs\n  > theirs\nmine", "mine\n\nmine"),
        ("mine\n\n-----Original Message-----\nFrom: Ann\nSent: Monday\n\ntheirs", "mine"),
        (
            "mine\n---------------------- Forwarded by Ann Lee/X on 01/01/2001\n09:00 AM ------\n\ntheirs",
            "mine",
        ),
        ("mine\n\nBegin forwarded message:\ntheirs", "mine"),
        (LOTUS, "Own words."),
        (LOTUS.replace("\n10/17", "\n\t10/17").replace("To:", "\t\t To:"), "Own words."),
        (
            'mine\n\n"Lee, Ann" <a@x.org> on 10/17/2000 12:55:10 PM\nPlease respond to a@x.org\nTo: b@x.org\ncc:\n\nt',
            "mine",
        ),
        ("mine\n\nFrom: Ann Lee    10/17/2000 12:55 PM\n\n\nTo: Bob\ncc:\nSubject: s\n\ntheirs", "mine"),
        ("mine\n\nFrom: Ann\nSent: Monday, January 1, 2001 9:00 AM\nTo: Bob\nSubject: s\n\ntheirs", "mine"),
        ("mine\n\nTo: Bob\ncc: Cy\nSubject: s\n\ntheirs", "mine"),
    ],
)
def test_quotes_go(body, own):
    assert strip_quotes(body) == own
    assert strip_quotes(own) == own


@pytest.mark.parametrize(
    "body",
    [
        "  leading space, and\n\n\n\nmany blank lines \n\n",
        "As I wrote:\nthe meeting is off.",
        "the law says:\nno parking",
        "To: all hands\nSubject: the picnic\nBring food at 12:00.",
        "a < b and c > d\nx -> y",
        "- one\n- two: 10/17/2000\n| a | b |\n: smile",
        "I said on 10/17/2000 12:55 PM that it is so.\n\nYours",
        "",
    ],
)
def test_own_words_stay_to_the_character(body):
    assert strip_quotes(body) == body


def test_a_signature_stays():
    body = "mine\n-- \nAnn Lee\nACME\n"
    assert strip_quotes(body) == body


def test_newsgroups():
    source = DATA / "20newsgroups" / "20_newsgroups.jsonl.xz"
    if not source.exists():
        pytest.skip("../shared/data/20newsgroups is absent")
    rows = [record for record, _ in zip(records(source), range(2000), strict=False)]
    bodies = [record.fields["body"] for record in rows]
    stripped = [strip_quotes(body) for body in bodies]
    assert sum("\n>" in body for body in bodies) > 800
    assert not [body for body in stripped if "\n>" in body]
    assert 0.5 < sum(map(len, stripped)) / sum(map(len, bodies)) < 0.9
