"""Units over ranks: every row once, units whole where that is as fast, and nobody idle for long."""

import json
import subprocess
import sys

import numpy as np
import pytest

from confide.privacy.sampling import Draw
from confide.training import schedule
from confide.training.lockstep import share_spread, share_together
from confide.training.packing import Lines
from confide.training.schedule import share
from confide.training.utilisation import apart, together, utilisation
from tests.command import environment
from tests.places import ROOT
from tests.training.test_packing import draw_of

NOTHING = Draw([], np.zeros(0, np.int64), np.zeros(0, np.float32))


def shares_of(draw, micro_tokens, ranks, packs_rows=False, deal=share):
    return [deal(draw, micro_tokens, ranks, number, packs_rows) for number in range(ranks)]


def mixed(seed: int, users: int = 40) -> Draw:
    generator = np.random.default_rng(seed)
    return draw_of([list(generator.integers(2, 40, generator.integers(1, 9))) for _ in range(users)])


def few(seed: int) -> Draw:
    """Some users of many rows, which no number of whole units per rank would balance."""
    generator = np.random.default_rng(seed)
    return draw_of(
        [list(generator.integers(2, 40, generator.integers(50, 90))) for _ in range(5)] + [[9]] * 6
    )


@pytest.mark.parametrize("deal", [share, share_together, share_spread])
@pytest.mark.parametrize("packs_rows", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("draw", [mixed(0), mixed(1), mixed(2, 3), few(0), few(1)], ids=range(5))
def test_every_row_once_and_within_the_budget(draw, ranks, packs_rows, deal):
    shares = shares_of(draw, 200, ranks, packs_rows, deal)
    rows = np.concatenate([part.rows for own in shares for part in own])
    assert sorted(rows) == list(range(len(draw.rows)))
    for part in (own for mine in shares for each in mine for own in each.parts or (each,)):
        widths = [sum(len(draw.rows[i]) for i in line) for line in part.lines]
        assert len(part.lines) * max(widths, default=0) <= 200
        assert all(len({int(draw.group[i]) for i in line}) == 1 for line in part.lines)


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("draw", [mixed(0), mixed(2, 3), few(0), few(1)], ids=range(4))
def test_a_unit_is_clipped_by_one_rank(draw, ranks):
    """It lies whole there, or that rank is the first of those that hold its pieces, and knows them all."""
    clips: dict[int, list[int]] = {}
    holds: dict[int, list[int]] = {}
    for rank, own in enumerate(shares_of(draw, 200, ranks)):
        for part in own:
            for unit in {int(draw.group[i]) for i in part.rows}:
                if not part.holders:
                    clips.setdefault(unit, []).append(rank)
                    assert sum(draw.group[i] == unit for i in part.rows) == (draw.group == unit).sum()
                    continue
                assert (part.unit, len({*part.holders})) == (unit, len(part.holders))
                holds.setdefault(unit, []).append(rank)
                if part.holders[0] == rank:
                    clips.setdefault(unit, []).append(rank)
                    holders = part.holders
                    assert all(part.holders == holders for part in own if part.unit == unit)
    assert sorted(clips) == list(range(draw.groups))
    assert all(len(by) == 1 for by in clips.values())
    named = {
        part.unit: sorted(part.holders) for own in shares_of(draw, 200, ranks) for part in own if part.holders
    }
    assert {unit: sorted(by) for unit, by in holds.items()} == named


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("draw", [few(0), few(1), few(2)], ids=range(3))
def test_a_rank_holds_pieces_of_two_units_at_most(draw, ranks):
    """So that little memory is taken by gradients that wait to be sent."""
    shares = shares_of(draw, 10_000, ranks)
    assert any(part.holders for own in shares for part in own) or ranks < 8
    assert all(sum(bool(part.holders) for part in own) <= 2 for own in shares)


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("draw", [mixed(0), mixed(2, 3), few(0)], ids=range(3))
def test_ranks_without_whole_gradients_take_equally_many_passes_of_the_same_units(draw, ranks):
    shares = shares_of(draw, 200, ranks, deal=share_spread)
    assert len({len(own) for own in shares}) == 1
    for at_once in zip(*shares, strict=True):
        assert len({len(part.parts) for part in at_once}) == 1
        if at_once[0].parts:
            assert len({int(draw.group[i]) for part in at_once for i in part.rows}) == 1
        assert not any(part.holders for part in at_once)


@pytest.mark.parametrize("packs_rows", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("draw", [mixed(0), mixed(2, 3), few(0), few(1)], ids=range(4))
def test_a_unit_over_several_passes_is_clipped_once_with_all_its_rows(draw, ranks, packs_rows):
    """What is not whole in a pass says so; it goes on in the next pass, and ends once on each rank that holds it."""
    shares = shares_of(draw, 200, ranks, packs_rows, deal=share_together)
    assert len({len(own) for own in shares}) == 1
    ends: dict[int, list[int]] = {}
    holders: dict[int, tuple[int, ...]] = {}
    for rank, own in enumerate(shares):
        begun: set[int] = set()
        for part in own:
            units = [int(draw.group[line[0]]) for line in part.lines]
            opens = {each.number: each for each in part.opens}
            assert begun <= {each.unit for each in part.opens}, "a unit that has begun goes on"
            begun = {each.unit for each in part.opens if not each.ends}
            assert len(begun) <= 1
            for number in set(part.units.tolist()):
                [unit] = {unit for unit, own in zip(units, part.units, strict=True) if own == number}
                rows = sum(
                    len(line) for line, own in zip(part.lines, part.units, strict=True) if own == number
                )
                if number not in opens:
                    assert rows == (draw.group == unit).sum()
                    ends.setdefault(unit, []).append(rank)
                    continue
                assert opens[number].unit == unit
                if opens[number].holders:
                    assert holders.setdefault(unit, opens[number].holders) == opens[number].holders
                if opens[number].ends:
                    ends.setdefault(unit, []).append(rank)
        assert not begun
    assert sorted(ends) == list(range(draw.groups))
    for unit, by in ends.items():
        assert sorted(by) == sorted(holders.get(unit, by[:1]))


def equal(users: int, rows: int, tokens: int) -> Draw:
    return draw_of([[tokens] * rows] * users)


@pytest.mark.parametrize(
    ("draw", "ranks"),
    [
        (equal(128, 10, 2048), 8),  # units of more than a micro-batch
        (equal(128, 10, 2048), 16),
        (equal(12, 100, 512), 8),  # whole units would keep half of the ranks idle for a half of the time
        (equal(10, 500, 1024), 64),  # fewer units than ranks
        (equal(10_000, 1, 64), 16),
    ],
    ids=range(5),
)
@pytest.mark.parametrize("deal", [apart, together])
def test_ranks_are_busy(draw, ranks, deal):
    assert utilisation(draw, 16_384, ranks, deal) >= 0.93


def test_whole_units_are_not_cut_for_a_little():
    """128 units of one kind on 16 ranks: 8 for each. A piece would have its gradient sent for nothing."""
    shares = shares_of(equal(128, 10, 2048), 16_384, 16)
    assert not any(part.holders for own in shares for part in own)
    assert [len({int(i) for part in own for i in part.rows}) for own in shares] == [80] * 16


def test_no_choice_hangs_on_how_a_machine_rounds():
    """A unit dealt to two ranks would count twice: every rank must come to the same hands from the same draw."""
    for draw in (mixed(0), few(0), equal(12, 100, 512)):
        lines = Lines.of(draw, 200, True)
        costs = schedule._costs(lines, 200)
        assert np.issubdtype(costs.dtype, np.integer)
        hands, loads = schedule.whole_units(np.arange(len(costs)), costs, 3)
        assert all(type(load) is int for load in loads)
        some, left = schedule._in_pieces(np.arange(len(costs)), lines, costs, int(costs.sum()) // 7, 7)
        assert all(type(load) is int for load in left)
        assert np.issubdtype(schedule._cuts(costs, loads).dtype, np.integer)
        assert type(schedule._level(loads, 10)) is int
        assert hands
        assert some


def test_more_ranks_than_rows():
    for deal in (share, share_together, share_spread):
        shares = shares_of(draw_of([[5], [7, 3]]), 100, 4, deal=deal)
        assert sorted(np.concatenate([part.rows for own in shares for part in own])) == [0, 1, 2]
        assert shares_of(NOTHING, 100, 2, deal=deal) == [[], []]


def test_the_benchmark_meets_its_figures():
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "utilisation.py"), "--lengths", "equal", "--ways", "ddp", "fsdp"],
        capture_output=True, text=True, env=environment(), check=True, timeout=300,
    )  # fmt: skip
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for way in ("ddp", "fsdp"):
        reached = [each[way] for each in found]
        assert len(reached) == 20
        assert min(reached) >= 0.93, way
        assert np.mean(reached) >= 0.97, way
