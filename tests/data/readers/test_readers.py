"""Every format in, the same documents out; and bad input in one sentence that says where."""

import bz2
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import tarfile
import tracemalloc

import pytest

from confide.data.readers import read, records
from confide.utils.errors import InputError
from tests.places import DATA

ROWS = [{"body": "tea at five", "user": "ann"}, {"body": 'no, "six"\nplease', "user": "bob"}]


def as_jsonl(rows=ROWS):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_csv():
    return b'body,user\r\ntea at five,ann\r\n"no, ""six""\nplease",bob\r\n'


def as_parquet(rows=ROWS):
    import pyarrow
    import pyarrow.parquet

    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
    return sink.getvalue()


def pairs(source, **how):
    return [(d.text, d.units) for d in read(source, text="body", unit="user", **how)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("m.jsonl", as_jsonl()),
        ("m.ndjson", b"\xef\xbb\xbf" + as_jsonl().replace(b"\n", b"\n\n")),
        ("m.jsonl.gz", gzip.compress(as_jsonl())),
        ("m.jsonl.xz", lzma.compress(as_jsonl())),
        ("m.jsonl.bz2", bz2.compress(as_jsonl())),
        ("m.json", json.dumps(ROWS, indent=2).encode()),
        ("oneline.json", b"\n " + json.dumps(ROWS).encode() + b"\n"),
        ("lines.json", as_jsonl()),
        ("m.csv", as_csv()),
        ("m.csv.gz", gzip.compress(as_csv())),
        ("m.parquet", as_parquet()),
        ("no-extension", as_jsonl()),
        ("array", json.dumps(ROWS).encode()),
        ("table", as_parquet()),
    ],
)
def test_formats(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert pairs(tmp_path / name) == [(row["body"], (row["user"],)) for row in ROWS]


def test_tsv_takes_quotes_as_they_are(tmp_path):
    (tmp_path / "m.tsv").write_text('body\tuser\nsay "hi\tann\n"\tbob\n')
    assert pairs(tmp_path / "m.tsv") == [('say "hi', ("ann",)), ('"', ("bob",))]


def test_folder_glob_and_stated_format(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_bytes(as_jsonl([{"body": name, "user": name}]))
    expected = [("a", ("a",)), ("b", ("b",))]
    (tmp_path / "README.md").write_text("about")
    assert pairs(tmp_path) == pairs(f"{tmp_path}/*.jsonl") == expected
    os.rename(tmp_path / "a.jsonl", tmp_path / "a.txt")
    assert pairs(tmp_path / "a.txt", format="jsonl") == expected[:1]


def test_text_folder_and_tar(tmp_path):
    (tmp_path / "t" / "ann").mkdir(parents=True)
    (tmp_path / "t" / "ann" / "10.txt").write_text("ten")
    (tmp_path / "t" / "ann" / ".hidden").write_text("no")
    (tmp_path / "t" / "one.txt").write_text("one")
    found = [
        (r.fields["text"], r.fields["path"], r.fields["folder"], r.fields["file"])
        for r in records(tmp_path / "t")
    ]
    assert found == [("one", "one.txt", "t", "one.txt"), ("ten", "ann/10.txt", "ann", "10.txt")]
    with tarfile.open(tmp_path / "t.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "t" / "ann" / "10.txt", "ann/10.txt")
    (document,) = read(tmp_path / "t.tar.gz", text="text", unit="folder")
    assert (document.text, document.units) == ("ten", ("ann",))


def test_saved_data_sets_and_folders_with_a_card(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    data = datasets.Dataset.from_list(ROWS)
    data.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict(train=data).save_to_disk(str(tmp_path / "many"))
    (tmp_path / "card").mkdir()
    (tmp_path / "card" / "README.md").write_text("---\nlicense: mit\n---\n")
    (tmp_path / "card" / "train-00000-of-00001.parquet").write_bytes(as_parquet())
    (tmp_path / "card" / "test-00000-of-00001.parquet").write_bytes(as_parquet(ROWS[:1]))
    expected = [(row["body"], (row["user"],)) for row in ROWS]
    for name in ("one", "many", "card"):
        assert pairs(tmp_path / name) == expected
    assert pairs(tmp_path / "card", split="test") == expected[:1]
    with pytest.raises(InputError, match=r"has no split 'tran'.*did you mean 'train'"):
        pairs(tmp_path / "many", split="tran")
    with pytest.raises(InputError, match="split 'tran'"):
        pairs(tmp_path / "card", split="tran")


def test_a_name_that_is_no_data_set(monkeypatch):
    datasets = pytest.importorskip("datasets")

    def unreachable(*_, **__):
        raise ConnectionError("no route\nto the hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    said = r"^acme/mail: is not a local path and could not be loaded as a data set, split 'train' \(Conn.*no route\)"
    with pytest.raises(InputError, match=said):
        pairs("acme/mail")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("m.jsonl", b"", r"m\.jsonl: is empty"),
        ("m.jsonl", b"\n \n", "is empty"),
        ("m.jsonl", as_jsonl() + b'{"body": "\xff"}\n', "line 3: not valid UTF-8 \\(byte 11"),
        ("m.jsonl", as_jsonl() + b"{oops\n", r"line 3: not valid JSON \(.* at character 2\)\.$"),
        (
            "m.jsonl",
            as_jsonl() + b'{"body": "the key is',
            r"line 3: .*it ends at character 20, before its JSON does: is the",
        ),
        (
            "m.jsonl",
            as_jsonl() + b'{"body": "the key"\n',
            r"line 3: .*it ends at character 18, before its JSON",
        ),
        ("m.jsonl", as_jsonl() + b"[1]\n", "line 3: a list, where an object"),
        ("m.jsonl", b"[" * 100_000, "line 1: not valid JSON"),
        ("m.jsonl.gz", gzip.compress(as_jsonl() * 99)[:-20], "damaged after line"),
        ("m.jsonl.xz", lzma.compress(as_jsonl())[:-20], "damaged after line"),
        ("m.json", b"[]", "array is empty"),
        ("m.json", b'[{"body": "a", "user": "u"} {}]', "element 1: no comma"),
        ("m.json", b'[{"body": "a", "user": "u"}, 3]', "element 2: a number"),
        ("m.json", b'[{"body": "a", "user": "u"}, {"b', "element 2: not valid JSON"),
        ("m.csv", b"", r"m\.csv: is empty"),
        ("m.csv", b"body,user\n", "has a header and no rows"),
        ("m.csv", b"body,\na,b\n", "line 1: column 2 has no name"),
        ("m.csv", b"body,body\na,b\n", "line 1: columns 1 and 2 have the same name"),
        ("m.csv", b"x" * 200 + b",a\nb,c\n", "does not look like a header"),
        ("m.csv", b'body,user\n"a\nb",u\na,b,c\n', "line 4: 3 fields, where the header has 2"),
        ("m.csv", b'body,user\na,u\n"b"x,c\n', "line 3: not valid CSV"),
        ("m.csv", b"a,b\nc,d\n", r"line 2: data\.text names 'body'"),
        ("m.tsv", b"body\tuser\n\xe9\tu\n", "line 2: not valid UTF-8"),
        ("m.parquet", b"PAR1 no", "not a readable Parquet file"),
        (
            "m.parquet",
            as_parquet([{"boddy": "a", "user": "u"}]),
            r"row 1: data\.text names 'body'.*mean 'boddy'",
        ),
        ("m.parquet", as_parquet()[:0], "not a readable Parquet file"),
        ("m.bin", b"\x00\x01\x02", "neither text nor a known format"),
        ("m.txt", b"ok\n\xff", "line 2: not valid UTF-8"),
        ("m.mbox", b"", r"m\.mbox: is empty"),
        ("m.mbox", b"hello\n", 'line 1: an mbox begins with a "From " line'),
        ("m.tar.gz", b"\x1f\x8bnot", "not a readable tar archive"),
        ("m.tar.xz", lzma.compress(b"x" * 9999)[:-30], "not a readable tar archive"),
        ("nameless", lzma.compress(as_jsonl())[:-20] + b"?" * 20, "cannot be read|damaged"),
    ],
)
def test_bad_files(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        pairs(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("source", "format", "said"),
    [
        ("{}/mial.jsonl", "auto", "no such file or folder.*did you mean 'mail.jsonl'"),
        ("{}/none/mail.jsonl", "auto", "nor is there a folder"),
        ("{}/*.csv", "auto", "no file matches the pattern"),
        ("{}/mail.jsonl", "jsonnl", "data.format: 'jsonnl' is not known.*did you mean 'jsonl'"),
        ("{}/void", "auto", "the folder is empty"),
        ("{}/void", "csv", "holds no csv files"),
        ("{}/void", "maildir", "holds no messages"),
        ("{}/mixed", "auto", "several formats"),
        ("{}/mixed/*", "auto", "several formats"),
        ("{}/splits", "auto", r"several splits \(test, train\)"),
    ],
)
def test_bad_sources(tmp_path, source, format, said):
    (tmp_path / "mail.jsonl").write_bytes(as_jsonl())
    for folder in ("void", "mixed", "splits"):
        (tmp_path / folder).mkdir()
    (tmp_path / "mixed" / "a.jsonl").write_bytes(as_jsonl())
    (tmp_path / "mixed" / "b.csv").write_bytes(as_csv())
    (tmp_path / "splits" / "train.jsonl").write_bytes(as_jsonl())
    (tmp_path / "splits" / "mail-test.jsonl").write_bytes(as_jsonl())
    with pytest.raises(InputError, match=said):
        list(records(source.format(tmp_path), format))


@pytest.mark.parametrize("name", ["mails", "tests/mails", "./acme/mail", "acme/mail/2024", "acme/mail.csv"])
def test_a_mistyped_path_asks_nothing_of_the_network(name, tmp_path, monkeypatch):
    (tmp_path / "tests").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no such file or folder"):
        records(name)


def test_missing_file_is_told_before_the_first_record(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "none.jsonl", text="body", unit=None)


def test_unreadable_folder(tmp_path, monkeypatch):
    def denied(folder):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("confide.data.readers.files.os.scandir", denied)
    with pytest.raises(InputError, match=r"the folder cannot be read .Permission denied"):
        records(tmp_path)


@pytest.mark.parametrize("name", ["m.jsonl", "m.json", "m.parquet", "m.tar"])
def test_memory_stays_bounded(tmp_path, name):
    rows = [{"body": f"{number} " + "word " * 400, "user": "u"} for number in range(8000)]  # 16 MB
    if name == "m.jsonl":
        (tmp_path / name).write_bytes(as_jsonl(rows))
    elif name == "m.json":
        (tmp_path / name).write_text(json.dumps(rows))
    elif name == "m.parquet":
        (tmp_path / name).write_bytes(as_parquet(rows))
    else:
        with tarfile.open(tmp_path / name, "w") as tar:
            for number, row in enumerate(rows):
                info = tarfile.TarInfo(f"{number}.txt")
                info.size = len(row["body"])
                tar.addfile(info, io.BytesIO(row["body"].encode()))
    field = "text" if name == "m.tar" else "body"
    list(zip(range(3), records(tmp_path / name), strict=False))  # imports are not what is measured
    del rows
    tracemalloc.start()
    count = sum(1 for _ in read(tmp_path / name, text=field, unit=None))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 8000
    assert peak < 2e6


def test_import_is_cheap():
    heavy = ("datasets", "pyarrow", "numpy", "torch")
    code = f"import sys, confide.data.readers; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_newsgroups():
    source = DATA / "20newsgroups" / "20_newsgroups.jsonl.xz"
    if not source.exists():
        pytest.skip("../shared/data/20newsgroups is absent")
    found = list(read(source, text="body", unit="from"))
    assert len(found) == 19_997 - 42  # 42 posts have no body
    assert len({document.units for document in found}) == 8_562
