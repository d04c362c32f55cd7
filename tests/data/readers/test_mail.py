"""Messages out of trees, maildirs, mboxes and archives; headers and charsets as bad as they come."""

import gzip
import tarfile
from pathlib import Path

import pytest

from confide.data.readers import read, records
from confide.data.readers.mail import mailbox_and_folder, parse_message
from tests.places import DATA


def message(sender="Ann Lee <Ann@X.org>", to="Bob <bob@y.org>, CY@z.org", body="hello\n", extra=""):
    return (
        f"From: {sender}\nTo: {to}\nSubject: lunch\nDate: Mon, 1 Jan 2001 10:00:00 +0000\n{extra}\n{body}"
    ).encode("latin-1")


def test_fields():
    fields = parse_message(
        message(extra="Cc: D@w.org\nBcc: d@w.org\nMessage-ID: <1@x>\n").replace(b"\n", b"\r\n")
    )
    assert fields == {
        "from": "ann@x.org",
        "to": ["bob@y.org", "cy@z.org"],
        "cc": ["d@w.org"],
        "bcc": ["d@w.org"],
        "subject": "lunch",
        "date": "Mon, 1 Jan 2001 10:00:00 +0000",
        "message_id": "<1@x>",
        "body": "hello\n",
    }


PARTS = (
    'MIME-Version: 1.0\nContent-Type: multipart/alternative; boundary="b"\n',
    "--b\nContent-Type: text/html\n\n<p>rich</p>\n--b\nContent-Type: text/plain\n\nplain\n--b--\n",
)


@pytest.mark.parametrize(
    ("extra", "body", "expected"),
    [
        ("Content-Type: text/plain; charset=iso-8859-1\n", "caf\xe9", "café"),
        ("Content-Type: text/plain; charset=no-such\n", "caf\xe9", "café"),
        ("Content-Type: text/plain; charset=us-ascii\n", "caf\xc3\xa9", "café"),
        ("", "\x93hi\x94", "“hi”"),
        ("Content-Transfer-Encoding: quoted-printable\n", "a=3Db=20\nc=\nd", "a=b \ncd"),
        ("Content-Transfer-Encoding: base64\n", "aGk=", "hi"),
        (
            "Content-Type: text/html\n",
            "<style>p{}</style><p>a &amp; b<br>c</p>\n<div>d</div>",
            "a & b\nc\n\nd",
        ),
        ("Content-Type: image/png\nContent-Transfer-Encoding: base64\n", "aGk=", ""),
        ("Content-Type: ;;;=broken\n", "still here", "still here"),
        (*PARTS, "plain"),
        ("Content-Type: multipart/mixed\n", "no boundary", "no boundary"),
    ],
)
def test_bodies(extra, body, expected):
    assert parse_message(message(body=body, extra=extra))["body"] == expected


@pytest.mark.parametrize(
    ("sender", "expected"),
    [
        ("=?iso-8859-1?q?Andr=E9?= <A@x.org>", "a@x.org"),
        ('"bob@y.org via list" <List@x.org>', "list@x.org"),
        ("Ann Lee", "ann lee"),
        ("<<@,;:broken", "<<@,;:broken"),
        ("=?no-such-charset?b?!!!?= <a@x.org>", "a@x.org"),
    ],
)
def test_senders(sender, expected):
    assert parse_message(message(sender=sender))["from"] == expected


def test_a_message_without_headers_has_only_a_body():
    fields = parse_message(b"\nno headers at all\n")
    assert (fields["from"], fields["to"], fields["body"]) == ("", [], "no headers at all\n")


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("maildir/lee-a/sent/1.", "/any", ("lee-a", "sent")),
        ("lee-a/sent/mail/1.", "/any/maildir", ("lee-a", "sent/mail")),
        ("sent/1.", "/any/maildir/lee-a", ("lee-a", "sent")),
        ("1.", "/any/maildir/lee-a/sent", ("lee-a", "sent")),
        ("ann/sent/1.", "/any/mails", ("ann", "sent")),
        ("cur/1:2,S", "/srv/ann", ("ann", "")),
        (".Sent/cur/1:2,S", "/srv/ann", ("ann", "Sent")),
        ("ann/cur/1:2,S", "/srv", ("ann", "")),
        ("1.eml", "/srv/ann", ("ann", "")),
    ],
)
def test_mailbox(path, source, expected):
    assert mailbox_and_folder(path, Path(source)) == expected


def enron_tree(root):
    folder = root / "maildir" / "lee-a" / "sent"
    folder.mkdir(parents=True)
    for number in (2, 10, 1):
        (folder / f"{number}.").write_bytes(message(body=f"message {number}\n"))
    return root / "maildir"


def test_tree_of_messages_and_archive(tmp_path):
    tree = enron_tree(tmp_path)
    found = [
        (r.fields["body"], r.fields["mailbox"], r.fields["folder"], r.fields["path"]) for r in records(tree)
    ]
    assert found == [(f"message {n}\n", "lee-a", "sent", f"lee-a/sent/{n}.") for n in (1, 2, 10)]
    with tarfile.open(tmp_path / "m.tar.xz", "w:xz") as tar:
        tar.add(tree, "maildir")
    packed = {
        (r.fields["body"], r.fields["mailbox"], r.fields["folder"]) for r in records(tmp_path / "m.tar.xz")
    }
    assert packed == {row[:3] for row in found}


def test_maildir(tmp_path):
    for folder in ("cur", "new", "tmp", ".Sent/cur", ".Sent/new", ".Sent/tmp"):
        (tmp_path / "ann" / folder).mkdir(parents=True)
    (tmp_path / "ann" / "uidlist").write_text("index, no message")
    (tmp_path / "ann" / "cur" / "1.h:2,S").write_bytes(message(body="old\n"))
    (tmp_path / "ann" / "new" / "2.h").write_bytes(message(body="new\n"))
    (tmp_path / "ann" / "tmp" / "3.h").write_bytes(message(body="half written"))
    (tmp_path / "ann" / ".Sent" / "cur" / "4.h:2,S").write_bytes(message(body="sent\n"))
    found = {(d.text, d.units) for d in read(tmp_path / "ann", text="body", unit="mailbox")}
    assert found == {("old\n", ("ann",)), ("new\n", ("ann",)), ("sent\n", ("ann",))}


def test_mbox(tmp_path):
    line = b"From ann@x.org Mon Jan  1 10:00:00 2001\n"
    body = "one\n\nFrom here on it is prose\n>From the start\n>>From deeper\n"
    content = line + message(body=body) + b"\n" + line + message(to="", body="two\n")
    (tmp_path / "ann.mbox").write_bytes(content)
    (tmp_path / "packed").write_bytes(gzip.compress(content))
    for name in ("ann.mbox", "packed"):
        first, second = records(tmp_path / name)
        assert first.fields["body"] == "one\n\nFrom here on it is prose\nFrom the start\n>From deeper\n\n"
        assert (second.fields["body"], second.fields["to"]) == ("two\n", [])
        assert second.where.endswith(f"{name} message 2")
    assert first.fields["mailbox"] == "packed"
    (one,) = {d.units for d in read(tmp_path / "ann.mbox", text="body", unit=["from"])}
    assert one == ("ann@x.org",)


def test_several_owners(tmp_path):
    (tmp_path / "1.eml").write_bytes(message())
    (document,) = read(tmp_path / "1.eml", text="{subject}: {body}", unit=["from", "to"])
    assert document.units == ("ann@x.org", "bob@y.org", "cy@z.org")
    assert document.text == "lunch: hello\n"


def test_enron_archive():
    source = DATA / "enron-maildir" / "maildir.tar.xz"
    if not source.exists():
        pytest.skip("../shared/data/enron-maildir is absent")
    found = list(read(source, text="body", unit="mailbox"))
    assert len(found) == 6_153
    assert len({document.units for document in found}) == 4
