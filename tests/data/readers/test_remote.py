"""Files behind URLs give the records of the same files on disk, and their faults are sentences without secrets."""

import gzip
import json

import fsspec
import pyarrow
import pyarrow.parquet
import pytest

from confide.config.loading import check
from confide.data.readers import records
from confide.data.readers.documents import Counts
from confide.data.readers.remote import RemoteFile
from confide.runs.data_source import files_of
from confide.utils.errors import InputError
from tests.data.readers.test_readers import ROWS, as_csv, as_jsonl, as_parquet


def zstd(content: bytes) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def read(source, *args, **options):
    return [dict(record.fields) for record in records(source, *args, **options)]


CONTENTS = {
    "m.jsonl": as_jsonl(),
    "m.jsonl.gz": gzip.compress(as_jsonl()),
    "m.jsonl.zst": zstd(as_jsonl()),
    "m.json": json.dumps(ROWS).encode(),
    "m.csv": as_csv().replace(b"\r\n", b"\n"),
    "m.csv.zst": zstd(as_csv().replace(b"\r\n", b"\n")),
    "m.parquet": as_parquet(),
    "no-extension": as_jsonl(),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_a_url_gives_what_the_file_gives(memory, tmp_path, name):
    memory.pipe(f"/bucket/{name}", CONTENTS[name])
    (tmp_path / name).write_bytes(CONTENTS[name])
    assert (
        read(f"memory://bucket/{name}") == read(tmp_path / name) == read(f"file://{tmp_path / name}") == ROWS
    )
    where = [record.where for record in records(f"memory://bucket/{name}")]
    assert where[0].startswith(f"memory://bucket/{name} ")


def test_a_pattern_is_read_in_order_of_names(memory, tmp_path):
    for number in (10, 2, 1):
        memory.pipe(f"/bucket/part-{number:02d}.jsonl", as_jsonl([{"body": str(number)}]))
    memory.pipe("/bucket/part-03.jsonl/not-a-file.jsonl", b"")
    assert [each["body"] for each in read("memory://bucket/part-*.jsonl")] == ["1", "2", "10"]
    for number in (10, 2):
        (tmp_path / f"p{number:02d}.jsonl").write_bytes(as_jsonl([{"body": str(number)}]))
    assert [each["body"] for each in read(f"file://{tmp_path}/p*.jsonl")] == ["2", "10"]


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("memory://bucket/none-*.jsonl", "memory://bucket/none-*.jsonl: no file matches the pattern"),
        ("memory://bucket/none.jsonl", "memory://bucket/none.jsonl: no such file"),
        (
            "memory://bucket",
            "memory://bucket: is a folder; give a pattern of its files, as memory://bucket/*.jsonl",
        ),
        ("memory://bucket/mail.mbox", "memory://bucket/mail.mbox: mbox is read from local files alone"),
        ("memory://bucket/*", "memory://bucket/*: matches files of several formats"),
        ("quux://bucket/a.jsonl", "quux://bucket/a.jsonl: no file system is known for quux://"),
        (
            "s3://bucket/a.jsonl",
            "s3://bucket/a.jsonl: needs a package that is not installed: pip install s3fs",
        ),
        ("simplecache://a::memory://b", "simplecache://a::memory://b: names one file system within another"),
        ("memory://bucket/bad.jsonl", "memory://bucket/bad.jsonl line 3: not valid JSON"),
        ("memory://bucket/cut.jsonl.zst", "memory://bucket/cut.jsonl.zst: the compressed file is damaged"),
    ],
)
def test_faults_are_one_sentence(memory, monkeypatch, url, sentence):
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    memory.pipe("/bucket/bad.jsonl", as_jsonl() + b"{\n")
    memory.pipe("/bucket/mail.mbox", b"From a@b Mon Jan  1 00:00:00 2024\n\nhello\n")
    memory.pipe("/bucket/cut.jsonl.zst", zstd(as_jsonl())[:-3])
    with pytest.raises(InputError) as caught:
        list(records(url))
    assert str(caught.value).startswith(sentence)


def test_what_a_file_system_raises_is_an_input_error(memory, monkeypatch):
    class Fault(Exception):
        pass

    memory.pipe("/bucket/a.jsonl", as_jsonl())

    def fails(*_, **__):
        raise Fault("https://host/a.jsonl?sig=secret refused\nsecond line")

    monkeypatch.setattr(type(memory), "_open", fails)
    with pytest.raises(
        InputError, match=r"^memory://bucket/a\.jsonl: cannot be read \(Fault: https://host/a\.jsonl"
    ):
        list(records("memory://bucket/a.jsonl"))
    monkeypatch.setattr(type(memory), "info", fails)
    with pytest.raises(InputError, match=r"^memory://bucket/a\.jsonl: cannot be reached \(Fault: ") as caught:
        list(records("memory://bucket/a.jsonl"))
    assert "secret" not in str(caught.value)


SECRETS = [
    "s3://AKIA:hunter2@bucket/a.jsonl",
    "s3://AKIA:hun/ter2@bucket/a.jsonl",
    "https://host/a.jsonl?X-Amz-Signature=hunter2",
    "s3://bucket/a.jsonl?key=hunter2",
    "file://me:hunter2@host/a.jsonl",
    "https://ghp_hunter2@raw.host/a.jsonl",
    "https://user:12/hunter2@host/a.jsonl",
    "https://host/a.jsonl?hunter2",
    "s3://bucket/a.jsonl#token=hunter2",
    "s3://bucket/a.jsonl;token=hunter2",
]


@pytest.mark.parametrize("url", SECRETS)
def test_a_url_with_a_secret_is_refused_and_never_shown(url):
    for data in ({"train": url}, {"train": "a.jsonl", "eval": url}):
        with pytest.raises(InputError, match="a URL may hold no password, key or query") as caught:
            check({"data": data, "privacy": {"mechanism": "dp-sgd", "noise_multiplier": 1.0}})
        assert "ter2" not in str(caught.value)
        assert str(caught.value).count("data.") == 1
    with pytest.raises(InputError, match="a URL may hold no password, key or query") as caught:
        list(records(url))
    assert "ter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["abfs://box@account.host/a.jsonl", "hdfs://host:80/a@b.jsonl", "s3://b/a-?.jsonl"]
)
def test_a_url_without_one_is_not(url):
    assert (
        check(
            {"data": {"train": url}, "privacy": {"mechanism": "dp-sgd", "noise_multiplier": 1.0}}
        ).data.train
        == url
    )


def test_a_change_behind_a_url_changes_the_stamp(memory):
    config = check(
        {
            "data": {"train": "memory://bucket/*.jsonl"},
            "privacy": {"mechanism": "dp-sgd", "noise_multiplier": 1.0},
        }
    )
    memory.pipe("/bucket/a.jsonl", as_jsonl())
    before = files_of(config)
    assert before == files_of(config)
    assert before["memory://bucket/*.jsonl"][0][0] == len(as_jsonl())
    memory.pipe("/bucket/a.jsonl", as_jsonl().replace(b"tea", b"pea"))
    assert files_of(config) != before
    memory.pipe("/bucket/b.jsonl", as_jsonl())
    assert len(files_of(config)["memory://bucket/*.jsonl"]) == 2


def test_versions_are_told_by_what_the_store_says(memory, monkeypatch):
    memory.pipe("/bucket/a.jsonl", as_jsonl())
    info = {"size": 5, "type": "file", "ETag": "one", "atime": 1}
    monkeypatch.setattr(type(memory), "info", lambda self, path, **_: dict(info))
    first = RemoteFile("memory://bucket/a.jsonl").stamp()
    info["atime"] = 2
    assert RemoteFile("memory://bucket/a.jsonl").stamp() == first
    info["ETag"] = "two"
    assert RemoteFile("memory://bucket/a.jsonl").stamp() != first


def test_the_same_remarks_are_made(memory):
    memory.pipe("/bucket/a.csv", b"body;user\ntea;ann\ncoffee;bob\n")
    counts = Counts()
    list(records("memory://bucket/a.csv", counts=counts))
    assert counts.notes() == [
        "memory://bucket/a.csv: read with semicolons between its fields (data.delimiter states it)"
    ]
