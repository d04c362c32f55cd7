from itertools import combinations, pairwise

import numpy as np
import pytest

from confide.privacy.sampling import Draw
from confide.training.packing import PASS, Pack, pack


def draw_of(sizes: list[list[int]]) -> Draw:
    rows = [np.arange(n) for unit in sizes for n in unit]
    group = np.repeat(np.arange(len(sizes)), [len(unit) for unit in sizes])
    return Draw(rows, group, np.ones(len(rows), np.float32))


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_every_row_once_units_whole_and_within_the_budget(seed, shares):
    generator = np.random.default_rng(seed)
    sizes = [
        list(generator.integers(2, 40, generator.integers(1, 9))) for _ in range(generator.integers(1, 30))
    ]
    draw = draw_of(sizes)
    seen: list[int] = []
    units: list[int] = []
    for part in pack(draw, 200, shares):
        seen += list(part.rows)
        for own in part.parts or (part,):
            assert len(own.lines) * max(sum(len(draw.rows[i]) for i in line) for line in own.lines) <= 200
            assert all(len({int(draw.group[i]) for i in line}) == 1 for line in own.lines)
        whole = {int(draw.group[i]) for i in part.rows}
        for unit in whole:
            assert (draw.group == unit).sum() == sum(draw.group[i] == unit for i in part.rows)
        assert sorted(set(part.units)) == list(range(len(whole)))
        if part.parts:
            assert len(whole) == 1
            assert sorted(np.concatenate([own.rows for own in part.parts])) == sorted(part.rows)
        else:
            # Local unit numbers name the same partition as the draw's groups.
            assert len(
                {(int(draw.group[line[0]]), int(u)) for line, u in zip(part.lines, part.units, strict=True)}
            ) == len(whole)
        units += whole
    assert sorted(seen) == list(range(len(draw.rows)))
    assert sorted(units) == list(range(len(sizes)))


def test_one_huge_unit_is_cut_into_parts():
    """Pitfall 22: a unit of 5,000 rows must fit."""
    parts = list(pack(draw_of([[10] * 5000, [10]]), 1000))
    large = [part for part in parts if part.parts]
    assert len(large) == 1
    assert max(len(p.lines) for p in large[0].parts) == 100


def test_nothing_drawn_is_nothing_to_do():
    assert list(pack(Draw([], np.zeros(0, np.int64), np.zeros(0, np.float32)), 100)) == []


def test_a_row_longer_than_the_budget_still_goes():
    parts = list(pack(draw_of([[50]]), 10))
    assert [list(p.rows) for p in parts] == [[0]]


def price(draw: Draw, parts: list[Pack]) -> int:
    """Tokens with padding, and what passes take besides."""
    widths = [max(sum(len(draw.rows[i]) for i in line) for line in part.lines) for part in parts]
    return sum(len(part.lines) * width + PASS for part, width in zip(parts, widths, strict=True))


@pytest.mark.parametrize("seed", range(10))
def test_no_other_cut_costs_less(seed):
    """Of all ways to cut units in the order of their longest row into micro-batches that are not too large."""
    generator = np.random.default_rng(seed)
    limit = int(generator.integers(100, 1500))
    sizes = [list(generator.integers(2, 100, generator.integers(1, 4))) for _ in range(9)]
    sizes = [unit for unit in sizes if len(unit) * max(unit) <= limit]
    draw = draw_of(sizes)
    shapes = sorted((max(unit), len(unit)) for unit in sizes)
    costs = []
    for cuts in (each for n in range(len(shapes)) for each in combinations(range(1, len(shapes)), n)):
        packs = [shapes[a:b] for a, b in pairwise((0, *cuts, len(shapes)))]
        tokens = [sum(rows for _, rows in own) * own[-1][0] for own in packs]
        if max(tokens) <= limit:
            costs.append(sum(tokens) + PASS * len(packs))
    assert price(draw, list(pack(draw, limit))) == min(costs)


@pytest.mark.parametrize("shares", [False, True])
def test_a_small_draw_of_rows_of_all_lengths_is_not_padded_to_the_longest(shares):
    """In one micro-batch, into which they would fit, nearly half would be padding."""
    draw = draw_of([[n] for n in np.random.default_rng(0).integers(8, 129, 60)])
    parts = list(pack(draw, 8192, shares))
    tokens = sum(len(row) for row in draw.rows)
    assert price(draw, parts) < 1.3 * tokens
    assert 2 <= len(parts) <= 8
    equal = draw_of([[128]] * 60)
    assert len(list(pack(equal, 8192, shares))) == 1
