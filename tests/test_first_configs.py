"""`confide init` and then `confide plan`, as somebody's first two commands, on data of many shapes."""

import csv
import gzip
import io
import json
import os
import random
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from confide.cli import show_look
from confide.config.loading import load
from confide.planning import plan as planning
from tests.command import WORDS, command, confide, environment, refused, tiny_model

ROWS = "ROW-LEVEL PROTECTION ONLY"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def words(number: int, length: int = 12) -> str:
    """A text of its own for each number."""
    generator = random.Random(number)
    return " ".join(generator.choice(WORDS) for _ in range(length))


def person(number: int) -> str:
    return f"p{number % 12}@x.org"


# the shapes --------------------------------------------------------------------------------------------------
def lines(name: str, record: Callable[[int], dict], count: int = 48) -> Callable[[], str]:
    """JSON lines, a record for each number."""

    def write() -> str:
        Path(name).write_text("".join(json.dumps(record(n)) + "\n" for n in range(count)), "utf-8")
        return name

    return write


def table(
    name: str, header: list[str], row: Callable[[int], list], delimiter: str = ","
) -> Callable[[], str]:
    def write() -> str:
        stream = io.StringIO()
        writer = csv.writer(stream, delimiter=delimiter)
        writer.writerows([header, *(row(n) for n in range(48))])
        content = stream.getvalue().encode()
        Path(name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return name

    return write


def array() -> str:
    Path("a.json").write_text(
        json.dumps([{"author": person(n), "text": words(n)} for n in range(48)], indent=1)
    )
    return "a.json"


def parquet() -> str:
    import pyarrow
    from pyarrow.parquet import write_table

    columns = {"Reviewer Name": [person(n) for n in range(48)], "content": [words(n) for n in range(48)]}
    write_table(pyarrow.table(columns), "reviews.parquet")
    return "reviews.parquet"


def mail(number: int, sender: str | None) -> str:
    named = f"From: {sender}\n" if sender is not None else ""
    return f"{named}To: z@x.org\nSubject: about {number}\nMessage-ID: <{number}@x.org>\n\n{words(number)}\n"


def mbox(sender: Callable[[int], str | None]) -> Callable[[], str]:
    def write() -> str:
        stamp = "From MAILER Mon Jan  5 10:00:00 2026\n"
        Path("all.mbox").write_text("".join(f"{stamp}{mail(n, sender(n))}\n" for n in range(48)))
        return "all.mbox"

    return write


def folder(
    name: str, path: Callable[[int], str], content: Callable[[int], str], count: int = 24
) -> Callable[[], str]:
    """A file for each number."""

    def write() -> str:
        for number in range(count):
            file = Path(name) / path(number)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content(number))
        return name

    return write


def maildir() -> str:
    folder("mail/cur", lambda n: f"{n}.host:2,S", lambda n: mail(n, person(n)))()
    for name in ("new", "tmp"):
        Path("mail", name).mkdir()
    return "mail"


def code() -> str:
    folder("repo", lambda n: f"m{n}.py", lambda n: f"def f{n}():\n    return '{words(n)}'\n")()
    for arguments in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", "-C", "repo", *arguments], check=True, capture_output=True)
    return "repo"


def archive() -> str:
    with tarfile.open("all.tar", "w") as tar:
        for number in range(24):
            content = words(number).encode()
            entry = tarfile.TarInfo(f"d/{number}.txt")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return "all.tar"


def saved() -> str:
    from datasets import Dataset

    Dataset.from_list([{"user": person(n), "text": words(n)} for n in range(48)]).save_to_disk("saved")
    return "saved"


def two_files() -> str:
    for name in ("one.jsonl", "two.jsonl"):
        lines(name, lambda n: {"user": person(n), "text": words(n)})()
    return "*.jsonl"


def one_text() -> str:
    Path("chat.txt").write_text("\n".join(f"[1/5/26, 10:{n:02}] Ann: {words(n)}" for n in range(48)))
    return "chat.txt"


def turns(who: str, said: str, *speakers: str) -> Callable[[int], list[dict]]:
    return lambda n: [{who: speaker, said: words(n + place)} for place, speaker in enumerate(speakers)]


chat = turns("role", "content", "user", "assistant")
shared = turns("from", "value", "human", "gpt")


@dataclass(frozen=True)
class Shape:
    """Data, and what a first config of it is to say.

    Attributes:
        refused: what `plan` says, if it refuses: `init` has then warned of it.
        warned: what else `init` warns of.
    """

    write: Callable[[], str]
    text: str
    unit: str | None
    refused: str | None = None
    warned: str | None = None


SHAPES = {
    "jsonl": Shape(lines("a.jsonl", lambda n: {"user_id": n % 12, "text": words(n)}), "text", "user_id"),
    "a name with a space": Shape(
        lines("a.jsonl", lambda n: {"Customer ID": f"c{n % 12}", "text": words(n)}), "text", "Customer ID"
    ),
    "a name in capitals": Shape(
        lines("a.jsonl", lambda n: {"SENDER_EMAIL": person(n), "BODY": words(n)}), "BODY", "SENDER_EMAIL"
    ),
    "a name in camels": Shape(
        lines("a.jsonl", lambda n: {"authorName": person(n), "Message": words(n)}), "Message", "authorName"
    ),
    "a name with hyphens": Shape(
        lines("a.jsonl", lambda n: {"e-mail address": person(n), "post": words(n)}), "post", "e-mail address"
    ),
    "a German export": Shape(
        table("a.csv", ["Benutzer-Nr.", "Größe", "Text"], lambda n: [n % 12, n, words(n)]),
        "Text",
        "Benutzer-Nr.",
    ),
    "some empty senders": Shape(
        lines("a.jsonl", lambda n: {"from": person(n) if n % 8 else "", "body": words(n)}),
        "body",
        "from",
        refused="unit",
        warned="name nobody in 'from'",
    ),
    "some senders that are not there": Shape(
        lines("a.jsonl", lambda n: {"text": words(n)} | ({"user": person(n)} if n % 8 else {})),
        "text",
        "user",
        refused="unit",
        warned="name nobody in 'user'",
    ),
    "no sender anywhere": Shape(
        lines("a.jsonl", lambda n: {"from": None, "body": words(n)}),
        "body",
        None,
        warned="'from' names nobody",
    ),
    "people by another name": Shape(
        lines("a.jsonl", lambda n: {"mitglied": person(n), "text": words(n)}),
        "text",
        None,
        warned="'mitglied' \\(12",
    ),
    "a number of each record": Shape(lines("a.jsonl", lambda n: {"id": n, "text": words(n)}), "text", None),
    "one person": Shape(
        lines("a.jsonl", lambda n: {"user": "me", "text": words(n)}), "text", "user", warned="one person"
    ),
    "each a person": Shape(
        lines("a.jsonl", lambda n: {"user": f"u{n}", "text": words(n)}),
        "text",
        "user",
        warned="differs in every one",
    ),
    "several owners": Shape(
        lines("a.jsonl", lambda n: {"participants": [person(n), person(n + 1)], "text": words(n)}),
        "text",
        None,
    ),
    "several senders": Shape(
        lines("a.jsonl", lambda n: {"author": [person(n), person(n + 1)], "text": words(n)}), "text", "author"
    ),
    "nested fields": Shape(
        lines("a.jsonl", lambda n: {"meta": {"author": person(n)}, "content": {"text": words(n)}}),
        "content.text",
        "meta.author",
    ),
    "some empty texts": Shape(
        lines("a.jsonl", lambda n: {"user": person(n), "text": words(n) if n % 3 else None}), "text", "user"
    ),
    "one record": Shape(
        lines("a.jsonl", lambda n: {"user": "u", "text": words(n)}, 1),
        "text",
        "user",
        refused="among 1 row nothing can be hidden",
        warned="one person alone",
    ),
    "a csv": Shape(
        table("a.csv", ["user", "text"], lambda n: [person(n), f'{words(n)}, "so"\nand {words(n)}']),
        "text",
        "user",
    ),
    "a csv of tweets": Shape(
        table(
            "t.csv",
            ["tweet_id", "author_id", "inbound", "created_at", "text"],
            lambda n: [n, n % 12, "True", f"Tue {n}", words(n)],
        ),
        "text",
        "author_id",
    ),
    "a csv with a number sign": Shape(
        table("a.csv", ["#1 String", "#2 String"], lambda n: [words(n), n % 2]), "#1 String", None
    ),
    "names that YAML takes for others": Shape(
        table("a.csv", ["null", "yes: no", "user"], lambda n: [n, words(n), person(n)]), "yes: no", "user"
    ),
    "a csv with spaces around names": Shape(
        table("a.csv", [" User Name ", " Text "], lambda n: [person(n), words(n)]), "Text", "User Name"
    ),
    "a tsv": Shape(table("a.tsv", ["owner", "text"], lambda n: [person(n), words(n)], "\t"), "text", "owner"),
    "a compressed csv": Shape(
        table("a.csv.gz", ["user", "text"], lambda n: [person(n), words(n)]), "text", "user"
    ),
    "json": Shape(array, "text", "author"),
    "parquet": Shape(parquet, "content", "Reviewer Name"),
    "a mailbox": Shape(mbox(person), "{subject}\n{body}", "from"),
    "a mailbox with mails of nobody": Shape(
        mbox(lambda n: person(n) if n % 6 else None),
        "{subject}\n{body}",
        "from",
        refused="unit",
        warned="16.7% of all 48 documents name nobody",
    ),
    "a maildir": Shape(maildir, "{subject}\n{body}", "from"),
    "a folder of mails": Shape(
        folder("mails", lambda n: f"{n}.eml", lambda n: mail(n, person(n))), "{subject}\n{body}", "from"
    ),
    "a folder of texts": Shape(folder("notes", lambda n: f"{n}.txt", words), "text", None),
    "a folder of texts for each": Shape(
        folder("notes", lambda n: f"f{n % 6}/{n}.txt", words),
        "text",
        "folder",
        warned="does not say that these are people",
    ),
    "a folder of XML": Shape(
        folder("xml", lambda n: f"{n}.xml", lambda n: f"<post><p>{words(n)}</p></post>"), "text", None
    ),
    "a code base": Shape(code, "text", None),
    "an archive": Shape(archive, "text", None),
    "a saved data set": Shape(saved, "text", "user"),
    "several files": Shape(two_files, "text", "user"),
    "one long text": Shape(one_text, "text", None, warned="one text alone"),
    "chats with roles": Shape(
        lines("a.jsonl", lambda n: {"messages": chat(n), "user": person(n)}), "messages", "user"
    ),
    "shared chats": Shape(
        lines("a.jsonl", lambda n: {"id": n, "conversations": shared(n)}), "conversations", None
    ),
    "a chat export": Shape(
        lines(
            "a.jsonl", lambda n: {"type": "message", "user": f"U{n % 12}", "ts": f"{n}.0", "text": words(n)}
        ),
        "text",
        "user",
    ),
    "instructions": Shape(
        lines(
            "a.jsonl",
            lambda n: {"instruction": words(n), "input": words(n) * (n % 2), "output": words(n + 1)},
        ),
        "{instruction}\n{input}\n{output}",
        None,
        warned="no field holds all of the text",
    ),
    "questions": Shape(
        lines("a.jsonl", lambda n: {"context": words(n), "question": words(n + 1), "answer": words(n + 2)}),
        "{context}\n{question}\n{answer}",
        None,
        warned="is read and .* is learnt",
    ),
    "prompts": Shape(
        lines("a.jsonl", lambda n: {"user": person(n), "Prompt": words(n), "Completion": words(n + 1)}),
        "{Prompt}\n{Completion}",
        "user",
    ),
    "preferences": Shape(
        lines("a.jsonl", lambda n: {"chosen": words(n, 30), "rejected": words(n + 1)}),
        "chosen",
        None,
        warned="'chosen' is taken, the longest",
    ),
    "braces in names": Shape(
        lines("a.jsonl", lambda n: {"{x}": words(n), "long text": words(n), "u{": "v"}), "long text", None
    ),
    "a file name that is YAML": Shape(
        lines("- a: 'b' #1 \"c\".jsonl", lambda n: {"user": person(n), "text": words(n)}), "text", "user"
    ),
    "a damaged line further on": Shape(
        lines("a.jsonl", lambda n: {"user": person(n), "text": words(n) if n < 40 else [1, 2]}),
        "text",
        "user",
        refused="holds a list",
        warned="will refuse this: .*holds a list",
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_first_config_is_one_that_plan_takes_or_said_why_not(name, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(planning, "alternatives", lambda *_: iter(()))  # they take most of the time
    shape = SHAPES[name]
    said = confide("init", "--out", "c.yaml", "--", shape.write())
    assert said.code == 0, said
    config = load(Path("c.yaml"))
    data = config.data
    text = data.messages or (data.text if data.completion is None else f"{data.prompt}{data.completion}")
    assert (text, data.unit) == (shape.text, shape.unit)
    assert (data.messages is not None) == (name in ("chats with roles", "shared chats"))
    assert (data.completion is not None) == (name in ("instructions", "questions", "prompts"))
    assert (ROWS in said.err) == (ROWS in Path("c.yaml").read_text()) == (shape.unit is None)
    if shape.warned is not None:
        assert [line for line in said.err.splitlines() if matches(shape.warned, line)], said.err
    planned = confide(
        "plan", "c.yaml", f"model={model}", "tokenizer=bundled", "data.max_length=64", "train.steps=2"
    )
    assert planned.code == (2 if shape.refused else 0), planned
    if shape.refused is not None:
        assert matches(shape.refused, planned.err)


def matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text) is not None


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"user": "u", "text": ""}, "'text' is empty in all 48 records"),
        ({"n": 1, "t": {}}, "no field holds text"),
    ],
)
def test_where_there_is_no_text_there_is_no_config(record, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = confide("init", lines("a.jsonl", lambda n: record)())
    assert said.code == 2
    assert why in said.err
    assert not Path("confide.yaml").exists()


def test_the_candidates_are_listed_with_the_share_of_documents_of_nobody(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record = {"Sender Name": "", "mitglied": "m", "text": "so"}
    said = confide(
        "init", lines("a.jsonl", lambda n: record | ({"Sender Name": f"s{n % 5}"} if n % 4 else {}))()
    )
    listed = [line.split() for line in said.out.splitlines() if line.startswith(("1 ", "2 "))]
    assert listed == [["1", "Sender", "Name", "5", "25.0%", "its", "name"]]
    assert "protects all documents of one 'Sender Name' together" in said.out


def test_two_sources_of_one_stem_and_a_run_that_is_there_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = []
    for place, name in enumerate(("mail.jsonl", "mail.ndjson", "post.jsonl", "post.jsonl")):
        lines("mail.ndjson", lambda n: {"text": words(n)})()
        assert (
            confide("init", lines(name, lambda n: {"text": words(n)})(), "--out", f"{place}.yaml").code == 0
        )
        runs.append(load(Path(f"{place}.yaml")).run)
        Path(runs[-1]).mkdir(parents=True)
    assert runs[1:] == ["runs/mail-ndjson", "runs/post", "runs/post-2"]
    assert len(set(runs)) == 4


# at a terminal -----------------------------------------------------------------------------------------------
def asked(monkeypatch, answers: list[str], *arguments: str):
    """`confide init` on 48 records as if at a terminal; the config's unit, and what was said."""
    lines(
        "a.jsonl", lambda n: {"from": person(n), "team": f"t{n % 3}", "topic ID": f"x{n}", "text": words(n)}
    )()
    monkeypatch.setattr(show_look, "at_terminal", lambda: True)
    monkeypatch.setattr("builtins.input", lambda prompt: answers.pop(0))
    said = confide("init", "a.jsonl", *arguments)
    assert said.code == 0, said
    config = load(Path("confide.yaml"))
    return config.data.unit, config.privacy.mechanism, said


@pytest.mark.parametrize(
    ("answers", "unit", "mechanism"),
    [
        ([""], "from", "uls"),
        (["2"], "team", "uls"),
        (["team"], "team", "uls"),
        (["Topic_id"], "topic ID", "uls"),
        (["none"], None, "dp-sgd"),
        (["9", "nobody", "text", "FROM"], "from", "uls"),
    ],
)
def test_at_a_terminal_it_is_asked_who_is_protected(answers, unit, mechanism, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = asked(monkeypatch, answers)
    assert found[:2] == (unit, mechanism)
    assert not answers
    assert (ROWS in found[2].err) == (unit is None)


def test_nothing_is_asked_with_yes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    unit, _, said = asked(monkeypatch, [], "--yes")
    assert unit == "from"
    assert "Who is protected?" not in said.out


@pytest.mark.skipif(sys.platform == "win32", reason="has no terminals of its own to open")
def test_a_terminal_is_known(tmp_path):
    import pty

    source = tmp_path / "a.jsonl"
    source.write_text(
        "".join(json.dumps({"from": person(n), "team": n % 3, "text": words(n)}) + "\n" for n in range(9))
    )
    ours, theirs = pty.openpty()
    os.write(ours, b"2\n")
    done = subprocess.run(
        command("init", source),
        cwd=tmp_path,
        env=environment(),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        timeout=100,
    )
    assert done.returncode == 0, os.read(ours, 9999)
    assert yaml.safe_load((tmp_path / "confide.yaml").read_text())["data"]["unit"] == "team"


def test_what_only_a_key_can_say_is_said_with_a_way_to_set_it(tmp_path):
    """There is no config yet, so a message that asks for a key alone would lead nowhere."""
    source = tmp_path / "mail.dat"
    source.write_bytes(bytes(range(256)))
    said = (
        rf"state data\.format .*; the key goes behind the name: `confide init {source} data\.format=\.\.\.`"
    )
    refused(confide("init", source, "--out", tmp_path / "mail.yaml"), said)
    found = confide("init", source, "data.format=text", "--out", tmp_path / "mail.yaml")
    refused(
        found, r"not valid UTF-8.*; the key goes behind the name: `confide init .* data\.encoding=\.\.\.`"
    )
    found = confide(
        "init", source, "data.format=text", "data.encoding=latin-1", "--out", tmp_path / "mail.yaml"
    )
    assert found.code == 0
    assert {"format": "text", "encoding": "latin-1"}.items() <= yaml.safe_load(
        (tmp_path / "mail.yaml").read_text()
    )["data"].items()
