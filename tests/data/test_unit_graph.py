"""The unit graph on disk: it gives back what went in, whole or not at all."""

import hashlib
import hmac
import json
import tracemalloc
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from confide.data import by_unit, sorting
from confide.data import unit_graph as units
from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.utils.errors import InputError
from confide.utils.histogram import histogram_svg
from confide.utils.tally import Tally

Rows = list[tuple[list[int], list[str]]]


def some_rows(rows: int = 60, owners: int = 1, seed: int = 0) -> Rows:
    generator = np.random.default_rng(seed)
    names = ["ann", "bob", "Zoë", "日本", "a b\n", "\ud800"]
    return [
        (
            generator.integers(0, 300, generator.integers(1, 9)).tolist(),
            generator.choice(names, generator.integers(1, owners + 1), replace=False).tolist(),
        )
        for _ in range(rows)
    ]


def write(folder: Path, rows: Rows, together: int = 1, vocabulary: int = 300) -> UnitGraph:
    with GraphWriter(folder, vocabulary, {"source": "test"}) as writer:
        for first in range(0, len(rows), together):
            part = rows[first : first + together]
            tokens = [token for row, _ in part for token in row]
            writer.add_many(tokens, [len(row) for row, _ in part], [names for _, names in part])
    return UnitGraph.open(folder)


@pytest.mark.parametrize("owners", [1, 4])
@pytest.mark.parametrize("block", [7, 1 << 20])
def test_a_graph_gives_back_what_went_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owners: int, block: int
) -> None:
    monkeypatch.setattr(sorting, "BLOCK", block)
    monkeypatch.setattr(sorting, "BUDGET", 2 * block)
    rows = some_rows(owners=owners)
    graph = write(tmp_path / "graph", rows, together=13)
    assert (graph.n_rows, graph.n_tokens) == (60, sum(len(tokens) for tokens, _ in rows))
    assert graph.single_owner == (owners == 1)
    assert graph.meta == {"source": "test"}
    assert graph.labels is None
    names = [graph.unit_name(unit) for unit in range(graph.n_units)]
    assert set(names) == {name for _, owned in rows for name in owned}
    for unit, name in enumerate(names):
        assert graph.rows_of(unit).tolist() == [i for i, (_, owned) in enumerate(rows) if name in owned]
    for row, (_, owned) in enumerate(rows):
        assert [names[unit] for unit in graph.owners_of(row)] == owned
    asked = np.array([59, 0, 7, 7])
    assert [tokens.tolist() for tokens in graph.fetch(asked)] == [rows[row][0] for row in asked]
    assert (
        graph.lengths_of(asked).tolist()
        == graph.row_lengths[asked].tolist()
        == [len(rows[r][0]) for r in asked]
    )


@pytest.mark.parametrize(("vocabulary", "dtype"), [(65536, np.uint16), (65537, np.uint32)])
def test_tokens_take_two_bytes_where_the_vocabulary_fits(
    tmp_path: Path, vocabulary: int, dtype: type
) -> None:
    graph = write(tmp_path / "graph", [([0, vocabulary - 1], ["ann"])], vocabulary=vocabulary)
    assert graph.tokens.dtype == dtype
    assert graph.fetch(np.array([0]))[0].tolist() == [0, vocabulary - 1]
    header = json.loads((tmp_path / "graph" / "meta.json").read_text())
    assert header["arrays"]["tokens"] == {"type": np.dtype(dtype).newbyteorder("<").str, "length": 2}


def test_one_row_at_a_time_and_many_give_the_same_digest(tmp_path: Path) -> None:
    def digest(graph: UnitGraph) -> str:
        code = hmac.new(b"key", digestmod=hashlib.sha256)
        graph.digest(code.update)
        return code.hexdigest()

    rows = some_rows()
    many = write(tmp_path / "many", rows, together=9)
    with GraphWriter(tmp_path / "one", 300, {"source": "test"}) as writer:
        for tokens, names in rows:
            writer.add(tokens, names[0])
    one = UnitGraph.open(tmp_path / "one")
    assert digest(one) == digest(many)
    path = tmp_path / "one" / "tokens.bin"
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)
    assert digest(UnitGraph.open(tmp_path / "one")) != digest(many)


def test_statistics_and_shape(tmp_path: Path) -> None:
    rows: Rows = [([1], ["ann"]), ([1, 2, 3], ["ann", "bob", "ann"]), ([1, 2], ["ann"])]
    graph = write(tmp_path / "graph", rows)
    assert graph.statistics() == {
        "rows": 3,
        "units": 2,
        "tokens": 6,
        "rows_per_unit": {"min": 1, "median": 2.0, "mean": 2.0, "max": 3},
        "row_tokens": {"min": 1, "median": 2.0, "mean": 2.0, "max": 3},
    }
    json.dumps(graph.statistics())
    shape = graph.shape()
    assert shape.rows_per_unit.tolist() == [3, 1]
    assert (shape.rows, shape.units, shape.tokens, shape.incidences) == (3, 2, 6, 4)
    assert not shape.single_owner


def test_labels_are_for_all_rows_or_none(tmp_path: Path) -> None:
    with GraphWriter(tmp_path / "graph", 10) as writer:
        writer.add([1], ["ann"], label=3)
        with pytest.raises(InputError, match=r"row 1 has no label"):
            writer.add([1], ["ann"])
        writer.add([2], ["bob"], label=0)
    labels = UnitGraph.open(tmp_path / "graph").labels
    assert labels is not None
    assert labels.tolist() == [3, 0]


@pytest.mark.parametrize(
    ("tokens", "lengths", "owners", "sentence"),
    [
        ([1, 2, 3], [1, 1, 1], ["ann", "", "bob"], "row 3 has no unit"),
        ([1, 2, 3], [1, 1, 1], ["ann", None, "bob"], "row 3 has no unit"),
        ([1, 2, 3], [1, 2], [["ann"], []], "row 3 has no unit"),
        ([1, 2, 3], [3, 0], ["ann", "bob"], "row 3 has no tokens"),
        ([1, 2, 10], [1, 2], ["ann", "bob"], "row 3 has token 10, outside the vocabulary of 10"),
        ([1, -1, 2], [1, 2], ["ann", "bob"], "row 3 has token -1"),
    ],
)
def test_a_bad_row_is_named_and_nothing_of_its_block_is_kept(
    tmp_path: Path, tokens: list[int], lengths: list[int], owners: list, sentence: str
) -> None:
    with GraphWriter(tmp_path / "graph", 10) as writer:
        writer.add_many([4, 5], [1, 1], ["eve", "eve"])
        with pytest.raises(InputError, match=sentence):
            writer.add_many(tokens, lengths, owners)
    graph = UnitGraph.open(tmp_path / "graph")
    assert (graph.n_rows, graph.n_units) == (2, 1)


def test_lengths_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    with GraphWriter(tmp_path / "graph", 10) as writer:
        for tokens, lengths, owners in (
            ([1, 2], [1], ["ann"]),
            ([1], [1], ["ann", "bob"]),
            ([0.5], [1], ["ann"]),
        ):
            with pytest.raises(ValueError, match=r"row|tokens"):
                writer.add_many(tokens, lengths, owners)  # type: ignore[arg-type]
        writer.add([1], "ann")


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with GraphWriter(tmp_path / "graph", 10) as writer:
            writer.add([1], "ann")
            assert not (tmp_path / "graph").exists()
            assert len(list(tmp_path.iterdir())) == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_no_row_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no row"), GraphWriter(tmp_path / "graph", 10):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["tokens", "owners", "unit_rows", "labels"])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full to stand for a full disk")

    def full(path: Path, mode: str):  # type: ignore[no-untyped-def]
        return open("/dev/full" if Path(path).stem == name else path, mode)

    for module in (units, by_unit):
        monkeypatch.setattr(module, "open", full, raising=False)
    with (
        pytest.raises(InputError, match=r"unit graph .*/graph cannot be written: no space left on device"),
        GraphWriter(tmp_path / "graph", 10) as writer,
    ):
        writer.add_many(np.ones(50_000, np.int64), np.ones(50_000, np.int64), ["ann"] * 50_000, [1] * 50_000)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_taken_is_not_overwritten(tmp_path: Path) -> None:
    write(tmp_path / "graph", some_rows(3))
    with pytest.raises(InputError, match="already there"):
        GraphWriter(tmp_path / "graph", 300)
    assert UnitGraph.open(tmp_path / "graph").n_rows == 3
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]


def damaged(folder: Path, kind: str) -> None:
    header = json.loads((folder / "meta.json").read_text())
    if kind == "version":
        header["version"] = 99
    elif kind == "other":
        header = {"name": "something else"}
    elif kind == "entry":
        del header["arrays"]["owners"]
    (folder / "meta.json").write_text("{" if kind == "json" else json.dumps(header))
    if kind == "truncated":
        path = folder / "unit_rows.bin"
        path.write_bytes(path.read_bytes()[:-8])
    elif kind == "missing":
        (folder / "tokens.bin").unlink()
    elif kind == "offsets":
        path = folder / "row_offsets.bin"
        path.write_bytes(bytes(path.stat().st_size))
    elif kind == "empty":
        (folder / "meta.json").unlink()


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("version", "version 99, and this confide reads version 1"),
        ("other", "is not a unit graph"),
        ("empty", "is not a unit graph"),
        ("json", r"meta\.json is damaged"),
        ("entry", r"meta\.json is damaged"),
        ("truncated", r"unit_rows\.bin has 472 bytes where 480 were written"),
        ("missing", r"tokens\.bin has 0 bytes"),
        ("offsets", r"row_offsets\.bin is damaged"),
    ],
)
def test_a_damaged_graph_is_refused_with_its_file(tmp_path: Path, kind: str, sentence: str) -> None:
    write(tmp_path / "graph", some_rows())
    damaged(tmp_path / "graph", kind)
    with pytest.raises(InputError, match=sentence):
        UnitGraph.open(tmp_path / "graph")


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a unit graph"):
        UnitGraph.open(tmp_path / "nowhere")


def test_numbers_out_of_range_are_errors(tmp_path: Path) -> None:
    graph = write(tmp_path / "graph", some_rows())
    for call in (graph.rows_of, graph.owners_of, graph.unit_name, lambda i: graph.fetch(np.array([0, i]))):
        for number in (-1, 60):
            with pytest.raises(IndexError):
                call(number)


def test_what_is_read_is_the_file_itself_and_read_only(tmp_path: Path) -> None:
    graph = write(tmp_path / "graph", some_rows())
    for part, whole in ((graph.rows_of(1), graph.unit_rows), (graph.fetch(np.array([3]))[0], graph.tokens)):
        assert np.shares_memory(part, whole)
        with pytest.raises(ValueError, match="read-only"):
            part[0] = 0


def test_memory_of_building_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "BLOCK", 1 << 12)
    monkeypatch.setattr(sorting, "BUDGET", 1 << 14)
    monkeypatch.setattr(units, "NAMES", 1 << 12)
    lengths = np.full(4000, 20)
    tokens, owners = np.zeros(80_000, dtype=np.int64), [f"u{i % 50}" for i in range(4000)]
    tracemalloc.start()
    with GraphWriter(tmp_path / "graph", 70_000) as writer:
        for _ in range(100):
            writer.add_many(tokens, lengths, owners)
        writer.close()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    graph = UnitGraph.open(tmp_path / "graph")
    assert graph.tokens.nbytes == 32_000_000
    assert peak < 4_000_000


@pytest.mark.parametrize("counts", [[1], [1, 1, 2, 3, 9], list(range(1, 70_000, 7))])
def test_the_histogram_shows_every_unit(counts: list[int]) -> None:
    svg = ElementTree.fromstring(histogram_svg(Tally.of([np.array(counts)])))
    space = "{http://www.w3.org/2000/svg}"
    bars = [title.text or "" for title in svg.iterfind(f"{space}rect/{space}title")]
    assert sum(int(bar.split()[0].replace(",", "")) for bar in bars) == len(counts)
    texts = [text.text or "" for text in svg.iter(f"{space}text")]
    assert "Rows per unit" in texts
    assert any(f"most {max(counts):,}" in text for text in texts)
