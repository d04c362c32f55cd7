"""What a file or a path can do to whoever reads it: pipes, loops, links out, bombs, nesting; one sentence for each."""

import bz2
import gzip
import io
import json
import lzma
import os
import socket
import subprocess
import sys
import tarfile
import time
import tracemalloc
from pathlib import Path

import pytest

from confide.data.readers import Counts, patterns, read, records
from confide.data.readers.files import OUTSIDE
from confide.utils.errors import InputError

ROW = {"body": "tea at five", "user": "ann"}


def texts(source, **how):
    return [document.text for document in read(source, text="body", unit="user", **how)]


def refused(source, match, **how):
    with pytest.raises(InputError, match=match) as caught:
        for _ in records(source, **how):
            pass
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 500
    return said


# values --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("Infinity", "'user' holds an infinite number, not a name"),
        ("-Infinity", "'user' holds an infinite number, not a name"),
        ("1e999", "'user' holds an infinite number, not a name"),
        ("[[[[[[[[[[[[1]]]]]]]]]]]]", "'user' holds a list, not a name"),
        ('{"a": 1}', "'user' holds an object, not a name"),
        ("9" * 5000, r"not valid JSON \(a number is too long\)"),
        ("[" * 100_000, r"not valid JSON \(nested too deeply\)"),
        ("NaN", "no unit, since the field 'user' is empty"),
    ],
)
def test_units_that_are_none(tmp_path, value, said):
    (tmp_path / "m.jsonl").write_text(f'{{"body": "a", "user": {value}}}\n')
    with pytest.raises(InputError, match=rf"m\.jsonl line 1: .*{said}"):
        texts(tmp_path / "m.jsonl")


def test_strings_of_a_parquet_file_that_are_not_utf_8(tmp_path):
    import pyarrow
    import pyarrow.parquet

    bad = pyarrow.array([b"ok", b"secret \xff\xfe"]).cast(pyarrow.binary()).view(pyarrow.string())
    table = pyarrow.table({"body": bad, "user": ["ann", "bob"]})
    pyarrow.parquet.write_table(table, tmp_path / "m.parquet")
    said = refused(
        tmp_path / "m.parquet", r"m\.parquet: not a readable Parquet file .*bytes that are no UTF-8"
    )
    assert "secret" not in said
    (tmp_path / "folder").mkdir()
    os.rename(tmp_path / "m.parquet", tmp_path / "folder" / "train.parquet")
    said = refused(tmp_path / "folder", "folder: split 'train' breaks off after row")
    assert "secret" not in said


@pytest.mark.parametrize("depth", [90, 3000])
def test_multiparts_in_multiparts(tmp_path, depth):
    parts = "".join(
        f'Content-Type: multipart/mixed; boundary="b{number}"\n\n--b{number}\n' for number in range(depth)
    )
    mail = f"From: ann@x.org\nTo: bob@x.org\n{parts}Content-Type: text/plain\n\ninside\n"
    (tmp_path / "m.eml").write_text(mail)
    (tmp_path / "m.mbox").write_text(f"From ann Mon Jan  1 10:00:00 2001\n{mail}")
    for name in ("m.eml", "m.mbox"):
        if depth < 100:
            assert len(list(records(tmp_path / name))) == 1
        else:
            refused(tmp_path / name, rf"{name}.*: a message whose parts are nested too deeply; remove it")


# size ----------------------------------------------------------------------------------------------
def _xz(content: bytes) -> bytes:
    """With a dictionary that is small beside the text."""
    return lzma.compress(content, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 16}])


PACK = {".gz": gzip.compress, ".xz": _xz, ".bz2": bz2.compress, "": bytes}
LARGE = 1 << 21  # bytes of a text, where a document may have a quarter
WORDS = b"word " * (LARGE // 5)


def bomb(name: str) -> bytes:
    if ".tar" in name:
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as tar:
            info = tarfile.TarInfo("a.txt")
            info.size = len(WORDS)
            tar.addfile(info, io.BytesIO(WORDS))
        return stream.getvalue()
    return {
        "txt": WORDS,
        "jsonl": b'{"user": "u", "body": "' + WORDS + b'"}\n',
        "json": b'[{"user": "u", "body": "' + WORDS + b'"}]',
        "csv": b'user,body\nu,"' + WORDS + b'"\n',
        "tsv": b"user\tbody\nu\t" + WORDS + b"\n",
        "eml": b"From: a@x.org\nTo: b@x.org\n\n" + WORDS,
        "mbox": b"From a Mon Jan  1 10:00:00 2001\nFrom: a@x.org\n\n"
        + (b"word " * 10 + b"\n") * (LARGE // 50),
        "utf16": ("user,body\nu," + WORDS.decode() + "\n").encode("utf-16"),
    }[name.split(".")[1]]


@pytest.mark.parametrize(
    "name",
    [f"m.{kind}.gz" for kind in ("txt", "jsonl", "json", "csv", "tsv", "eml", "mbox", "utf16.csv", "tar")]
    + ["m.jsonl", "m.txt.xz", "m.txt.bz2", "m.tar.xz"],
)
def test_a_document_larger_than_allowed_is_never_held(tmp_path, name):
    packed = Path(name).suffix if Path(name).suffix in PACK else ""
    (tmp_path / name).write_bytes(PACK[packed](bomb(name)))
    list(zip(range(1), records(tmp_path / name), strict=False))  # imports are not what is measured
    limit = LARGE // 4
    tracemalloc.start()
    try:
        refused(
            tmp_path / name,
            f"a document of more than {limit:,} bytes; split it, or raise data.max_document_bytes",
            largest=limit,
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A piece at a time, joined and decoded: the text itself, four bytes a character, is not among it.
    assert peak < 8 * limit
    assert len(list(records(tmp_path / name, largest=2 * LARGE))) == 1


def test_a_parquet_cell_larger_than_allowed(tmp_path):
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"body": ["short", WORDS.decode()], "user": ["ann", "bob"]})
    pyarrow.parquet.write_table(table, tmp_path / "m.parquet")
    refused(
        tmp_path / "m.parquet",
        rf"rows 1 to 2, 'body': a document of more than {LARGE // 4:,}",
        largest=LARGE // 4,
    )
    assert len(list(records(tmp_path / "m.parquet", largest=LARGE))) == 2


def test_names_in_an_archive_may_be_as_long_as_a_bomb(tmp_path):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
        info = tarfile.TarInfo("n" * (1 << 23))
        tar.addfile(info, io.BytesIO(b""))
    (tmp_path / "m.tar.gz").write_bytes(gzip.compress(stream.getvalue()))
    refused(tmp_path / "m.tar.gz", "a document of more than 1,000 bytes", largest=1000)


# paths ---------------------------------------------------------------------------------------------
SPECIAL = {
    "a named pipe": os.mkfifo,
    "a socket": lambda path: socket.socket(socket.AF_UNIX).bind(str(path)),
}


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", ["m.jsonl", "m.csv", "m.parquet", "m.tar", "m"])
@pytest.mark.parametrize("format", ["auto", "jsonl", "parquet", "maildir"])
def test_what_is_no_plain_file_is_not_waited_for(tmp_path, monkeypatch, kind, name, format):
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    SPECIAL[kind](name)
    refused(name, f"{name}: is {kind}, not a file; write its content to a file first", format=format)
    refused("/dev/zero", "/dev/zero: is a device", format=format)
    with pytest.raises(InputError, match="no file matches the pattern"):
        list(records("m*"))
    Path("box").mkdir()
    os.rename(name, f"box/{name}")
    Path("box/a.txt").write_text("a")
    assert [r.fields["file"] for r in records("box", "text")] == ["a.txt"]


def test_every_file_that_a_config_names_may_be_a_pipe(tmp_path):
    from confide.sensitive.redaction.screening import Marks
    from confide.sensitive.secrets.words import read_words

    os.mkfifo(tmp_path / "words.txt")
    with pytest.raises(InputError, match=r"words\.txt: is a named pipe"):
        read_words(tmp_path / "words.txt", "secrets.words")
    with pytest.raises(InputError, match=r"words\.txt: is a named pipe"):
        Marks.load(tmp_path / "words.txt", "redacted.marks")


def tree(folder: Path) -> None:
    (folder / "data" / "inner").mkdir(parents=True)
    (folder / "data" / "inner" / "own.txt").write_text("own")
    (folder / "secret.txt").write_text("secret")
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "more.txt").write_text("secret")


def test_links_in_a_folder_stay_in_it(tmp_path):
    tree(tmp_path)
    data = tmp_path / "data"
    (data / "out.txt").symlink_to(tmp_path / "secret.txt")
    (data / "up.txt").symlink_to("../secret.txt")
    (data / "nothing.txt").symlink_to("none")
    (data / "loop.txt").symlink_to("loop.txt")
    (data / "twice.txt").symlink_to("out.txt")
    (data / "away").symlink_to(tmp_path / "elsewhere")
    (data / "round").symlink_to(data)
    (data / "inside.txt").symlink_to("inner/own.txt")
    counts = Counts()
    found = [(r.fields["path"], r.fields["text"]) for r in records(data, counts=counts)]
    assert found == [("inside.txt", "own"), ("inner/own.txt", "own")]
    assert counts[OUTSIDE] >= 5
    # A folder that is a link itself was named by whoever wrote the config.
    (tmp_path / "named").symlink_to(data)
    assert len(list(records(tmp_path / "named"))) == 2


def test_links_out_of_a_folder_of_tables_and_of_data_sets(tmp_path):
    import pyarrow
    import pyarrow.parquet

    (tmp_path / "data").mkdir()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([ROW]), tmp_path / "x.parquet")
    (tmp_path / "x.jsonl").write_text(json.dumps(ROW) + "\n")
    (tmp_path / "data" / "a.jsonl").symlink_to("../x.jsonl")
    refused(tmp_path / "data", r"1 links out of it or to nothing")
    os.unlink(tmp_path / "data" / "a.jsonl")
    (tmp_path / "data" / "train.parquet").symlink_to("../x.parquet")
    refused(tmp_path / "data", "1 .*links out of it or to nothing")
    (tmp_path / "data" / "own.parquet").write_bytes((tmp_path / "x.parquet").read_bytes())
    refused(tmp_path / "data", "1 of its files are links out of it or to nothing")


def test_a_folder_of_a_work_tree_that_became_a_link_is_not_followed(tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "a.py").write_text("secret = 1\n")
    code = tmp_path / "code"
    (code / "lib").mkdir(parents=True)
    (code / "lib" / "a.py").write_text("a = 1\n")
    (code / "b.py").write_text("b = 1\n")
    for arguments in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *arguments], cwd=code, check=True)
    (code / "lib" / "a.py").unlink()
    (code / "lib").rmdir()
    (code / "lib").symlink_to("../secret")
    assert [r.fields["text"] for r in records(code, "code")] == ["b = 1\n"]


def test_link_loops_and_broken_links(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "broken.jsonl").symlink_to("none")
    for name in ("loop", "broken.jsonl"):
        refused(
            tmp_path / name, rf"{name}: (a link that leads to nothing, or round in a circle|cannot be read)"
        )
    refused(tmp_path / "loop" / "m.jsonl", "cannot be read|no such file")
    refused(tmp_path / "lo*p", "no file matches the pattern")


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b.jsonl", "*\0", "x" * 5000, "a/" * 3000])
def test_paths_that_are_none(name):
    with pytest.raises(InputError):
        records(name)


def test_patterns_look_at_so_much_and_no_more(tmp_path, monkeypatch):
    tree(tmp_path)
    (tmp_path / "data" / "round").symlink_to(tmp_path / "data")
    found = patterns.matching(f"{tmp_path}/**/*.txt")
    assert [path.name for path in found] == ["own.txt", "more.txt", "secret.txt"]
    assert patterns.matching(f"{tmp_path}/data/*/*.txt") == [tmp_path / "data" / "inner" / "own.txt"]
    monkeypatch.setattr(patterns, "_MOST", 4)
    refused(
        f"{tmp_path}/**/*.txt", "more than 4 files and folders would be looked at; give a narrower pattern"
    )


def test_all_of_a_machine_is_no_data(tmp_path):
    """`/**` comes to an end: in a process of its own, which may be as slow as a disk is."""
    code = (
        "import confide.data.readers as t\n"
        "from confide.utils.errors import InputError\n"
        "from confide.data.readers import patterns\n"
        "patterns._MOST = 20_000\n"
        "try: next(t.records('/**'))\n"
        "except InputError as error: print(error)\n"
    )
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "more than 20,000 files and folders would be looked at" in done.stdout
    assert time.monotonic() - start < 30
