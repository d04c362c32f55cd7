import numpy as np
import pytest

from confide.packing import pack
from confide.sampling import Draw


def draw_of(sizes: list[list[int]]) -> Draw:
    rows = [np.arange(n) for unit in sizes for n in unit]
    group = np.repeat(np.arange(len(sizes)), [len(unit) for unit in sizes])
    return Draw(rows, group, np.ones(len(rows), np.float32))


@pytest.mark.parametrize("seed", range(20))
def test_every_row_once_units_whole_and_within_the_budget(seed):
    generator = np.random.default_rng(seed)
    sizes = [
        list(generator.integers(2, 40, generator.integers(1, 9))) for _ in range(generator.integers(1, 30))
    ]
    draw = draw_of(sizes)
    seen: list[int] = []
    units: list[int] = []
    for part in pack(draw, 200):
        seen += list(part.rows)
        for rows in part.parts or (part.rows,):
            assert len(rows) * max(len(draw.rows[i]) for i in rows) <= 200
        whole = {int(draw.group[i]) for i in part.rows}
        for unit in whole:
            assert (draw.group == unit).sum() == sum(draw.group[i] == unit for i in part.rows)
        assert sorted(set(part.units)) == list(range(len(whole)))
        if part.parts:
            assert len(whole) == 1
            assert sorted(np.concatenate(part.parts)) == sorted(part.rows)
        else:
            # Local unit numbers name the same partition as the draw's groups.
            assert len(
                {(int(draw.group[i]), int(u)) for i, u in zip(part.rows, part.units, strict=True)}
            ) == len(whole)
        units += whole
    assert sorted(seen) == list(range(len(draw.rows)))
    assert sorted(units) == list(range(len(sizes)))


def test_one_huge_unit_is_cut_into_parts():
    """Pitfall 22: a unit of 5,000 rows must fit."""
    parts = list(pack(draw_of([[10] * 5000, [10]]), 1000))
    large = [part for part in parts if part.parts]
    assert len(large) == 1
    assert max(len(p) for p in large[0].parts) == 100


def test_nothing_drawn_is_nothing_to_do():
    assert list(pack(Draw([], np.zeros(0, np.int64), np.zeros(0, np.float32)), 100)) == []


def test_a_row_longer_than_the_budget_still_goes():
    parts = list(pack(draw_of([[50]]), 10))
    assert [list(p.rows) for p in parts] == [[0]]
