"""A source is read part by part: the graphs and the first error are those of a reading from one end to the other."""

import csv
import io
import json
import random
import runpy

import fsspec
import pyarrow
import pyarrow.parquet
import pytest

from confide.data import part_work
from confide.data.readers import parts
from confide.data.readers.opening import How
from confide.data.readers.readers import found
from confide.runs import reading
from confide.utils.errors import InputError
from confide.utils.workers import Crew
from tests.command import WORDS
from tests.places import BENCHMARKS
from tests.runs.test_crews import QUOTE, prepared, settings

DRAWS = random.Random(7)
ROWS = [
    {
        "user": "" if at == 30 else f"u{DRAWS.randint(0, 20)}",
        "kind": "ab"[at % 2],
        "text": ["", QUOTE, " ".join(DRAWS.choices(WORDS, k=DRAWS.randint(3, 40)))][min(2, at % 11)],
    }
    for at in range(90)
]


def as_jsonl(rows) -> bytes:
    # Blank lines, a line end of two characters, a mark at the beginning, no line end at the end.
    lines = [
        json.dumps(row) + ("\r\n" if at % 7 == 0 else "\n") + "\n" * (at % 5 == 0)
        for at, row in enumerate(rows)
    ]
    return b"\xef\xbb\xbf" + "".join(lines).rstrip().encode()


def as_csv(rows) -> bytes:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue().encode()


def as_parquet(rows) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink, row_group_size=11)
    return sink.getvalue()


WRITERS = {"jsonl": as_jsonl, "csv": as_csv, "parquet": as_parquet}


@pytest.fixture
def small(monkeypatch):
    """Parts of a few records, and batches of fewer."""
    monkeypatch.setattr(parts, "SMALLEST", 900)
    monkeypatch.setattr(parts, "LARGEST", 900)
    monkeypatch.setattr(reading, "BATCH", 4)


def source(folder, ending, rows=ROWS) -> str:
    for name, some in (("a", rows[:60]), ("b", rows[60:65]), ("c", rows[65:])):
        (folder / f"{name}.{ending}").write_bytes(WRITERS[ending](some))
    return str(folder / f"*.{ending}")


def config(tmp_path, model, run, train, task="causal-lm", **data):
    data = {"train": train, "without_unit": "own", "strip_quotes": True, "duplicates": True} | data
    changes = {"data": data, "task": task}
    return settings(tmp_path, model, tmp_path / run, changes)


def parts_in(train: str) -> int:
    files = found(train, "auto", How())
    return len(parts.parts_of(files.reader, files.paths, files.how))


@pytest.mark.subprocess
@pytest.mark.parametrize("ending", WRITERS)
def test_parts_make_the_graph_of_the_whole(tmp_path, model, monkeypatch, small, ending):
    train = source(tmp_path, ending)
    several = prepared(config(tmp_path, model, "several", train), Crew(1 if ending == "csv" else 2))
    assert parts_in(train) >= {"jsonl": 8, "csv": 3, "parquet": 4}[ending]
    monkeypatch.setattr(part_work, "reads_itself", lambda crew, files: False)
    assert prepared(config(tmp_path, model, "here", train), Crew()) == several
    monkeypatch.undo()
    whole = prepared(config(tmp_path, model, "whole", train), Crew())
    assert whole == several
    assert parts_in(train) == 1
    assert whole[0]["counts"]["documents without a unit, each one of its own"] == 1
    assert whole[0]["counts"]["documents dropped: only quotes"] > 3


@pytest.mark.parametrize("limit", [1, 17, 60])
def test_a_limit_ends_at_the_same_document(tmp_path, model, monkeypatch, small, limit):
    train = source(tmp_path, "jsonl")
    with open(tmp_path / "c.jsonl", "a") as stream:
        stream.write("\nnot read\n")
    few = prepared(config(tmp_path, model, "few", train, max_documents=limit, eval=None), Crew())
    monkeypatch.undo()
    assert prepared(config(tmp_path, model, "whole", train, max_documents=limit, eval=None), Crew()) == few
    assert few[0]["counts"]["documents"] - few[0]["counts"]["documents dropped: only quotes"] == limit


FAULTS = {
    "json": (40, lambda row: "{", r"a\.jsonl line 49: not valid JSON"),
    "unit": (
        41,
        lambda row: json.dumps(row | {"user": None}),
        r"a\.jsonl line 51: no unit, .* and so of 1 of 90 records",
    ),
    "label": (
        46,
        lambda row: json.dumps(row | {"kind": None}),
        r"a\.jsonl line 57: data\.label field 'kind' holds no",
    ),
    "field": (
        43,
        lambda row: json.dumps({"text": "tea"}),
        r"a\.jsonl line 53: data\.unit names 'user', which is not",
    ),
}


@pytest.mark.subprocess
@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_names_the_same_place(tmp_path, model, small, fault):
    at, change, sentence = FAULTS[fault]
    rows = [row | {"user": row["user"] or "u"} for row in ROWS]
    train = source(tmp_path, "jsonl", rows)
    lines = (tmp_path / "a.jsonl").read_bytes().split(b"\n")
    place = lines.index(json.dumps(rows[at]).encode())
    lines[place] = change(rows[at]).encode()
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    told = set()
    for crew in (Crew(), Crew(2)) if fault == "unit" else (Crew(),):
        made = config(
            tmp_path,
            model,
            f"run-{crew.processes}",
            train,
            "classification",
            without_unit="refuse",
            label="kind",
        )
        with pytest.raises(InputError, match=sentence) as caught:
            prepared(made, crew)
        told.add(str(caught.value))
    assert len(told) == 1


def test_lines_are_cut_where_they_end(tmp_path, small):
    lines = [json.dumps({"text": "é" * DRAWS.randint(0, 40)}, ensure_ascii=False) for _ in range(200)]
    (tmp_path / "t.jsonl").write_text("\n\n".join(lines))
    files = found(tmp_path / "t.jsonl", "auto", How())
    made = parts.parts_of(files.reader, files.paths, files.how)
    assert len(made) > 8
    records = [record for part in made for record in part.records(files.how)]
    assert [(record.where, record.fields) for record in records] == [
        (each.where, each.fields) for each in files
    ]
    assert records[-1].where.endswith(" line 399")


@pytest.mark.parametrize(
    "content",
    [b"\n" * 5000, "é".encode("utf-16") * 3000, b'{"text": "caf\xe9"}\n' * 500, b"\x1f\x8b" + b"\0" * 4000],
)
def test_what_cannot_be_cut_is_one_part(tmp_path, small, content):
    (tmp_path / "t.jsonl").write_bytes(content)
    assert parts_in(str(tmp_path / "t.jsonl")) == 1


@pytest.mark.subprocess
def test_what_only_this_process_sees_is_read_here(tmp_path, model, small):
    system = fsspec.filesystem("memory")
    for name, some in (("a", ROWS[:50]), ("b", ROWS[50:])):
        system.pipe(f"/parts/{name}.jsonl", as_jsonl(some))
        (tmp_path / f"{name}.jsonl").write_bytes(as_jsonl(some))
    try:
        made = [
            prepared(config(tmp_path, model, name, train), crew)
            for name, train, crew in (
                ("two", "memory://parts/*.jsonl", Crew(2)),
                ("path", str(tmp_path / "*.jsonl"), Crew()),
            )
        ]
    finally:
        system.rm("/parts", recursive=True)
    for _, files in made:  # the name of the source is in it
        del files["prepared.json"]
    assert made[0] == made[1]


def test_the_benchmark_compares_the_graphs(tmp_path, small, monkeypatch, capsys):
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS if row["text"].strip()))
    options = "--unit user --megabytes 0.02 --processes 1 --json".split()
    monkeypatch.setattr("sys.argv", ["reading.py", str(tmp_path / "t.jsonl"), *options])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(BENCHMARKS / "reading.py"), run_name="__main__")
    (figures,) = json.loads(capsys.readouterr().out)
    assert figures["megabytes_a_second"] > 0
