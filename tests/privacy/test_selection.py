"""Which rows a unit may contribute: what the rules choose, and that no unit's choice hangs on another."""

import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.data import sorting
from confide.data.shape import Shape
from confide.data.unit_graph import GraphWriter, UnitGraph
from confide.privacy.selection import RULES, median_cap, random_chunks, random_rows, select
from confide.utils.errors import InputError


class Words:
    """A stream of 64-bit words by index: splitmix64."""

    def __init__(self, seed: int) -> None:
        self.seed = np.array([seed], dtype=np.uint64)  # an array wraps around without a warning

    def uint64(self, n: int, start: int = 0) -> np.ndarray:
        state = np.arange(start + 1, start + n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        state += self.seed * np.uint64(0xD1342543DE82EF95)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return state ^ (state >> np.uint64(31))


def build(folder: Path, owners: list[list[str]], lengths: list[int] | None = None) -> UnitGraph:
    """Row i has lengths[i] tokens, and no token occurs twice in the graph."""
    lengths = lengths or [1 + (7 * row) % 11 for row in range(len(owners))]
    with GraphWriter(folder, 60_000) as writer:
        writer.add_many(np.arange(sum(lengths)), lengths, owners)
    return UnitGraph.open(folder)


@pytest.fixture
def graph(tmp_path: Path) -> UnitGraph:
    """Units of 1, 2, 3, 5, 8, ... rows that lie scattered among each other."""
    sizes = np.array([1, 2, 3, 5, 8, 13, 21])
    # One row of each first, so that the number of a unit is its place in `sizes`.
    rest = np.random.default_rng(3).permutation(np.repeat(np.arange(7), sizes - 1))
    return build(tmp_path / "graph", [[f"u{unit}"] for unit in [*range(7), *rest]])


PERPLEXITY = np.random.default_rng(5).random(53).round(1)  # rounded, so that ties occur


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("cap", [1, 4, 100])
@pytest.mark.parametrize("resample", [False, True])
def test_each_rule_takes_the_best_rows_of_each_unit(
    graph: UnitGraph, rule: str, cap: int, resample: bool
) -> None:
    keys = {
        "random": Words(9).uint64(53).tolist(),
        "longest": (-graph.row_lengths).tolist(),
        "shortest": graph.row_lengths.tolist(),
        "highest-ppl": (-PERPLEXITY).tolist(),
        "lowest-ppl": PERPLEXITY.tolist(),
    }[rule]
    expected: list[int] = []
    for unit in range(graph.n_units):
        best = sorted(graph.rows_of(unit).tolist(), key=lambda row: (keys[row], row))[:cap]
        expected += [best[place % len(best)] for place in range(cap)] if resample else best
    rows = select(rule, graph, cap, Words(9), PERPLEXITY, resample)
    assert rows.dtype == np.int64
    assert rows.tolist() == expected


def in_memory(
    rule: str, graph: UnitGraph, cap: int, stream: Words, perplexity: np.ndarray, resample: bool
) -> np.ndarray:
    """The same choice by one sort of all rows."""
    scores = {
        "random": stream.uint64(graph.n_rows),
        "longest": -graph.row_lengths,
        "shortest": graph.row_lengths,
        "highest-ppl": -perplexity,
        "lowest-ppl": perplexity,
    }[rule]
    rows, counts = np.asarray(graph.unit_rows), np.diff(graph.unit_offsets)
    order = np.lexsort((scores[rows], np.repeat(np.arange(graph.n_units), counts)))
    if resample:
        places = np.tile(np.arange(cap), graph.n_units) % np.repeat(counts, cap)
        return rows[order[np.repeat(graph.unit_offsets[:-1], cap) + places]]
    return rows[order[np.arange(len(rows)) - np.repeat(graph.unit_offsets[:-1], counts) < cap]]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 120),
    units=st.integers(1, 30),
    rule=st.sampled_from(RULES),
    cap=st.integers(1, 60),
    resample=st.booleans(),
    budget=st.integers(1, 30),
    block=st.integers(1, 30),
)
def test_blocks_of_any_size_choose_what_one_sort_chooses(
    tmp_path_factory, seed, rows, units, rule, cap, resample, budget, block
):
    generator = np.random.default_rng(seed)
    owners = [[f"u{unit}"] for unit in (units * generator.random(rows) ** 3).astype(int).tolist()]
    graph = build(tmp_path_factory.mktemp("graph") / "graph", owners, generator.integers(1, 5, rows).tolist())
    perplexity = generator.integers(-3, 3, rows).astype(np.float64)  # ties occur
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorting, "BUDGET", budget)
        patch.setattr(sorting, "BLOCK", block)
        found = select(rule, graph, cap, Words(seed % 1000), perplexity, resample)
        middle = median_cap(graph.shape())
    assert found.dtype == np.int64
    assert found.tolist() == in_memory(rule, graph, cap, Words(seed % 1000), perplexity, resample).tolist()
    assert middle == int(np.median(graph.shape().rows_per_unit))
    assert [path for path in graph.folder.iterdir() if not path.is_file()] == []


@pytest.mark.parametrize("rule", ["random", "longest"])
def test_memory_of_a_choice_is_that_of_its_rows(tmp_path, monkeypatch, rule):
    monkeypatch.setattr(sorting, "BUDGET", 1 << 13)
    monkeypatch.setattr(sorting, "BLOCK", 1 << 13)
    rows, units = 400_000, 20_000
    names = [f"u{unit}" for unit in range(units)]
    with GraphWriter(tmp_path / "graph", 10) as writer:
        writer.add_many(np.ones(rows, np.uint8), np.ones(rows, np.int64), names * (rows // units))
    graph = UnitGraph.open(tmp_path / "graph")
    tracemalloc.start()
    found = select(rule, graph, 1, Words(0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found) == units
    assert peak < found.nbytes + 2_000_000  # scores of all rows alone take 3,200,000 bytes


def test_random_choice_is_uniform(tmp_path: Path) -> None:
    graph = build(tmp_path / "graph", [["ann"], ["bob"], ["ann"], ["ann"], ["ann"]])
    chosen = Counter(row for seed in range(2000) for row in select("random", graph, 2, Words(seed)).tolist())
    assert chosen[1] == 2000
    # Each of ann's four rows is taken with probability 1/2: a standard deviation of 22.
    assert all(abs(chosen[row] - 1000) < 110 for row in (0, 2, 3, 4))


@pytest.mark.parametrize("rule", RULES)
def test_one_units_rows_move_no_other_units_choice(tmp_path: Path, rule: str) -> None:
    owners = [[f"u{row % 5}"] for row in range(60)]
    lengths = [1 + (7 * row) % 11 for row in range(60)]
    perplexity = np.random.default_rng(0).random(60)
    graph = build(tmp_path / "graph", owners, lengths)
    # u2 says something else altogether, in the same rows.
    changed = build(tmp_path / "changed", owners, [20 if row % 5 == 2 else lengths[row] for row in range(60)])
    other = np.where(np.arange(60) % 5 == 2, 1e6, perplexity)
    before, after = select(rule, graph, 4, Words(1), perplexity), select(rule, changed, 4, Words(1), other)
    assert before[before % 5 != 2].tolist() == after[after % 5 != 2].tolist()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("best", 1, None), r"selection 'best' .* use one of random, longest"),
        (("random-chunk", 1, None), r"selection 'random-chunk' chooses no rows before training"),
        (("longest", 0, None), r"rows_per_unit is 0"),
        (("lowest-ppl", 1, None), r"needs the perplexity of each of the 53 rows"),
        (("lowest-ppl", 1, PERPLEXITY[:5]), r"needs the perplexity of each of the 53 rows"),
        (("lowest-ppl", 1, np.where(np.arange(53) == 7, np.nan, 1.0)), r"row 7 has no finite perplexity"),
    ],
)
def test_what_cannot_be_selected_is_said(graph: UnitGraph, arguments: tuple, sentence: str) -> None:
    rule, cap, perplexity = arguments
    with pytest.raises(InputError, match=sentence):
        select(rule, graph, cap, Words(0), perplexity)


def test_rows_with_several_owners_are_refused(tmp_path: Path) -> None:
    graph = build(tmp_path / "graph", [["ann"], ["ann", "bob"]])
    drawn = np.array([0])
    for call in (
        lambda: select("random", graph, 1, Words(0)),
        lambda: random_rows(graph, drawn, 1, Words(0)),
        lambda: random_chunks(graph, drawn, 1, 4, Words(0)),
    ):
        with pytest.raises(InputError, match=r"removing one owner would change the rows of another"):
            call()


@pytest.mark.parametrize(("counts", "cap"), [([1], 1), ([1, 2, 4, 9], 3), ([2, 3], 2), ([1, 1, 50], 1)])
def test_the_median_is_a_cap(counts: list[int], cap: int) -> None:
    assert median_cap(Shape(np.array(counts), sum(counts), 100, True)) == cap


def test_random_rows_are_distinct_and_the_units_own(graph: UnitGraph) -> None:
    drawn = np.array([6, 0, 3, 2])
    rows, places = random_rows(graph, drawn, 3, Words(4))
    assert places.tolist() == [0, 0, 0, 1, 2, 2, 2, 3, 3, 3]
    for place, unit in enumerate(drawn):
        mine = rows[places == place].tolist()
        assert len(set(mine)) == len(mine)
        assert set(mine) <= set(graph.rows_of(unit).tolist())


def test_random_rows_are_uniform_over_subsets(tmp_path: Path) -> None:
    graph = build(tmp_path / "graph", [["ann"]] * 5)
    subsets = Counter(
        tuple(random_rows(graph, np.array([0]), 2, Words(seed))[0].tolist()) for seed in range(3000)
    )
    assert len(subsets) == 10
    assert all(abs(number - 300) < 85 for number in subsets.values())  # standard deviation 16


def test_nothing_drawn_is_nothing(graph: UnitGraph) -> None:
    nobody = np.empty(0, dtype=np.int64)
    rows, places = random_rows(graph, nobody, 3, Words(4))
    chunks, of = random_chunks(graph, nobody, 3, 8, Words(4))
    assert (len(rows), len(places), chunks, len(of)) == (0, 0, [], 0)
    assert rows.dtype == places.dtype == of.dtype == np.int64


def test_a_units_draw_does_not_hang_on_who_else_was_drawn(graph: UnitGraph) -> None:
    alone, everyone = np.array([5]), np.arange(7)
    assert random_rows(graph, alone, 3, Words(4))[0].tolist() == [
        row for row, place in zip(*random_rows(graph, everyone, 3, Words(4)), strict=True) if place == 5
    ]
    chunks, places = random_chunks(graph, everyone, 3, 10, Words(4))
    mine = [chunk.tolist() for chunk, place in zip(chunks, places, strict=True) if place == 5]
    assert [chunk.tolist() for chunk in random_chunks(graph, alone, 3, 10, Words(4))[0]] == mine
    assert len(mine) == 3


def test_chunks_are_windows_of_the_units_rows(graph: UnitGraph) -> None:
    drawn = np.array([6, 1, 4])
    for length in (1, 3, 17, 40, 1000):
        chunks, places = random_chunks(graph, drawn, 5, length, Words(length))
        for place, unit in enumerate(drawn):
            text = np.concatenate(graph.fetch(graph.rows_of(unit)))
            mine = [chunk for chunk, of in zip(chunks, places, strict=True) if of == place]
            assert len(mine) == (5 if len(text) > length else 1)
            for chunk in mine:
                start = int(np.flatnonzero(text == chunk[0])[0])  # no token occurs twice
                assert chunk.tolist() == text[start : start + length].tolist()
                assert len(chunk) == min(length, len(text))


def test_chunks_start_anywhere_with_equal_probability(tmp_path: Path) -> None:
    graph = build(tmp_path / "graph", [["ann"], ["bob"], ["ann"], ["ann"]], [3, 2, 1, 4])
    text = [0, 1, 2, 5, 6, 7, 8, 9]
    starts = Counter(
        text.index(int(chunk[0]))
        for seed in range(500)
        for chunk in random_chunks(graph, np.array([0]), 4, 5, Words(seed))[0]
    )
    assert sorted(starts) == [0, 1, 2, 3]
    assert all(abs(number - 500) < 100 for number in starts.values())  # standard deviation 19


def test_a_window_reads_only_the_rows_under_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = build(tmp_path / "graph", [["ann"]] * 100, [10] * 100)
    fetched: list[int] = []
    fetch = graph.fetch

    def watched(rows: np.ndarray) -> list[np.ndarray]:
        fetched.append(len(rows))
        return fetch(rows)

    monkeypatch.setattr(graph, "fetch", watched)
    random_chunks(graph, np.array([0]), 50, 20, Words(0))
    assert set(fetched) == {2, 3}


def test_units_choose_independently_of_each_other(tmp_path: Path) -> None:
    # Two units of eight rows, one after the other: the same words would choose the same places in both.
    graph = build(tmp_path / "graph", [["ann"]] * 8 + [["bob"]] * 8, [3] * 16)
    both, equal = np.array([0, 1]), Counter[str]()
    for seed in range(400):
        pairs = {
            "select": select("random", graph, 1, Words(seed)),
            "rows": random_rows(graph, both, 1, Words(seed))[0],
            "chunks": np.array([chunk[0] // 3 for chunk in random_chunks(graph, both, 1, 3, Words(seed))[0]]),
        }
        equal.update(name for name, (ann, bob) in pairs.items() if bob - ann == 8)
    assert all(25 <= equal[name] <= 80 for name in ("select", "rows", "chunks"))  # 50 by chance
