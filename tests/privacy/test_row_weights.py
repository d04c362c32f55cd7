"""The linear program: no limit is ever exceeded, and the gap it states is proven, whatever a solver returns."""

import importlib.util
import itertools
import json
import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.data import sorting
from confide.privacy import row_weights as program
from confide.privacy.bounding import bound_greedily, pairs_of
from confide.privacy.row_weights import Spread, largest_c, need, solve
from confide.utils.errors import CheckFailed, InputError
from tests.places import BENCHMARKS

HAS_PDLP = importlib.util.find_spec("ortools") is not None
needs_pdlp = pytest.mark.skipif(not HAS_PDLP, reason="OR-tools is not installed: PDLP cannot run")
SOLVERS = ["highs", pytest.param("pdlp", marks=needs_pdlp)]
COMMAND = BENCHMARKS / "program.py"

Incidence = tuple[np.ndarray, np.ndarray, int]


def incidence(units: list[list[int]], n_rows: int) -> Incidence:
    """Offsets, rows and the number of rows; `units` holds the rows of each unit."""
    offsets = np.cumsum([0, *map(len, units)], dtype=np.int64)
    return offsets, np.array([row for unit in units for row in unit], dtype=np.int64), n_rows


def drawn(seed: int, n_rows: int, n_units: int, per_row: float) -> Incidence:
    """Each pair of a row and a unit with equal probability, but some units far larger than others."""
    generator = np.random.default_rng(seed)
    size = generator.random(n_units) ** 2
    pairs = generator.random((n_units, n_rows)) < (per_row * size / size.sum())[:, None]
    return incidence([np.flatnonzero(unit).tolist() for unit in pairs], n_rows)


def dense(graph: Incidence) -> np.ndarray:
    offsets, rows, n_rows = graph
    matrix = np.zeros((len(offsets) - 1, n_rows))
    for unit, (first, last) in enumerate(itertools.pairwise(offsets.tolist())):
        matrix[unit, rows[first:last]] = 1
    return matrix


def optimum(graph: Incidence, limits: np.ndarray) -> float:
    """The best of all vertices: where as many constraints as there are rows hold with equality."""
    matrix, n_rows = dense(graph), graph[2]
    left = np.vstack([matrix, np.eye(n_rows), -np.eye(n_rows)])
    right = np.concatenate([limits, np.ones(n_rows), np.zeros(n_rows)])
    best = 0.0
    for active in itertools.combinations(range(len(left)), n_rows):
        chosen = left[list(active)]
        if abs(np.linalg.det(chosen)) > 1e-9:
            point = np.linalg.solve(chosen, right[list(active)])
            if (left @ point <= right + 1e-9).all():
                best = max(best, float(point.sum()))
    return best


def assert_allowed(graph: Incidence, limits: np.ndarray, weights: np.ndarray) -> None:
    """No limit is exceeded by the exact sum of a unit's weights, nor by a sum in float64 in three orders."""
    offsets, rows, n_rows = graph
    assert weights.shape == (n_rows,)
    assert weights.dtype == np.float64
    assert ((weights >= 0) & (weights <= 1)).all()
    for unit, (first, last) in enumerate(itertools.pairwise(offsets.tolist())):
        own = weights[rows[first:last]].tolist()
        assert sum(map(Fraction, own)) <= Fraction(float(limits[unit]))
        for order in (own, own[::-1], sorted(own)):
            assert sum(order) <= limits[unit]


# The target


@pytest.mark.parametrize(
    ("prior", "posterior", "gaussian", "kl"),  # from 60-digit arithmetic
    [
        (1e-10, 1e-3, 3.2711085962362427, 0.01511859591760837),
        (1e-10, 2e-4, 2.8212571031979111, 0.0027017516490183107),
        (1e-6, 0.01, 2.4270764347820579, 0.082154561225290403),
        (1e-10, 1.0001e-10, 1.5356486887055812e-5, 4.9998333421614793e-19),
        (1e-10, 1.0000001e-10, 1.5357236220835988e-8, 4.9999998266812969e-25),
        (0.3, 0.301, 0.0028739408791086492, 2.3794439885783233e-6),
        (0.5, 0.999, 3.0902323061678133, 0.68523992544771322),
    ],
)
def test_need_is_right_for_tiny_and_for_close_probabilities(prior, posterior, gaussian, kl):
    p, r = np.array([prior]), np.array([posterior])
    assert need("gaussian", p, r) == pytest.approx(gaussian, rel=1e-13, abs=5e-15)
    assert need("kl", p, r) == pytest.approx(kl, rel=1e-11, abs=0)
    assert need("sqrt-kl", p, r) == pytest.approx(kl**0.5, rel=1e-11, abs=0)


def test_need_of_many_secrets_is_that_of_each():
    p, r = np.array([1e-10, 1e-3, 0.2]), np.array([1e-3, 2e-3, 0.9])
    for kind in ("gaussian", "kl", "sqrt-kl"):
        each = [need(kind, p[i : i + 1], r[i : i + 1])[0] for i in range(3)]
        assert need(kind, p, r).tolist() == each


@pytest.mark.parametrize(("p", "r"), [(0.0, 0.1), (0.1, 0.1), (0.2, 0.1), (0.1, 1.0), (np.nan, 0.1)])
def test_need_refuses_what_is_no_target_and_says_which(p, r):
    with pytest.raises(InputError, match="secret 1 has"):
        need("kl", np.array([0.1, p]), np.array([0.2, r]))


def test_need_knows_three_kinds():
    with pytest.raises(InputError, match="renyi"):
        need("renyi", np.array([0.1]), np.array([0.2]))


# The largest c


@pytest.mark.parametrize(
    ("sizes", "m"),
    [([3, 1], [0.7, 2.0]), ([100, 50, 7], [3.1, 2.9, 0.3]), ([1], [1e-18]), ([0, 0], [1.0, 2.0]), ([], [])],
)
def test_the_largest_c_drops_nothing_and_no_smaller_one_does(sizes, m):
    graph = incidence([list(range(size)) for size in sizes], 100)
    m = np.array(m, dtype=np.float64)
    c = largest_c(graph[0], m)
    assert (c * m >= sizes).all()
    assert c == 0 or not (np.nextafter(c, 0) * m >= sizes).all()
    assert (solve(*graph, c * m).weights == 1).all()


def test_the_largest_c_takes_rounding_into_account():
    assert 3 / 0.7 * 0.7 < 3  # the quotient alone would drop a part of a row


def test_the_largest_c_refuses_a_need_of_nothing():
    with pytest.raises(InputError, match="unit 1 has a need of 0"):
        largest_c(np.array([0, 1, 2]), np.array([1.0, 0.0]))


# The optimum


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("seed", range(12))
def test_weights_are_as_good_as_the_best_vertex(seed, solver):
    generator = np.random.default_rng(seed)
    graph = drawn(seed, n_rows=4, n_units=3, per_row=1.8)
    limits = generator.choice([0.0, 0.3, 0.5, 1.0, 1.5, 2.0], 3)
    best = optimum(graph, limits)
    found = solve(*graph, limits, solver)
    assert_allowed(graph, limits, found.weights)
    assert found.objective == found.weights.sum()
    assert found.objective == pytest.approx(best, rel=1e-3 if solver == "pdlp" else 1e-9)
    assert found.objective <= best * (1 + 1e-12)
    assert found.objective >= best * (1 - found.gap) * (1 - 1e-12)  # the gap is a proof


@pytest.mark.parametrize("solver", SOLVERS)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    n_rows=st.integers(1, 120),
    n_units=st.integers(1, 40),
    per_row=st.floats(0.2, 8),
    power=st.integers(-9, 2),
)
def test_no_limit_is_exceeded_and_the_gap_is_small(solver, seed, n_rows, n_units, per_row, power):
    graph = drawn(seed, n_rows, n_units, per_row)
    limits = 10.0**power * np.random.default_rng(seed).lognormal(0, 2, n_units)
    found = solve(*graph, limits, solver)
    assert_allowed(graph, limits, found.weights)
    assert 0 <= found.gap < 1e-3


@pytest.mark.parametrize("solver", SOLVERS)
def test_more_allowed_is_never_less_kept(solver):
    graph = drawn(3, n_rows=400, n_units=60, per_row=3)
    limits = np.random.default_rng(3).uniform(0.1, 1, 60)
    found = [solve(*graph, scale * limits, solver) for scale in (0.1, 0.5, 1, 2, 8, 64)]
    sums = [solution.objective for solution in found]
    for small, large in itertools.pairwise(found):
        assert large.objective >= small.objective * (1 - large.gap)
    assert sums[0] < sums[2] < sums[4]


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_same_input_gives_the_same_weights(solver):
    graph = drawn(5, n_rows=3000, n_units=300, per_row=4)
    limits = np.random.default_rng(5).uniform(0.5, 3, 300)
    weights = [solve(*graph, limits, solver, threads).weights for threads in (1, 2, 2)]
    assert (weights[0] == weights[1]).all()
    assert (weights[0] == weights[2]).all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_rows_of_the_same_units_weigh_the_same(solver):
    graph = incidence([list(range(10)), list(range(5, 15)), list(range(13, 15))], 16)
    weights = solve(*graph, np.array([2.5, 3.0, 0.5]), solver).weights
    for group in (range(5), range(5, 10), range(10, 13), range(13, 15)):
        assert len(set(weights[list(group)].tolist())) == 1
    assert weights[15] == 1


# What needs no solver


@pytest.mark.parametrize(
    ("units", "limits", "expected"),
    [
        ([], [], [1, 1, 1]),
        ([[]], [0.0], [1, 1, 1]),
        ([[], [1]], [0.5, 0.0], [1, 0, 1]),
        ([[0, 1, 2]], [0.0], [0, 0, 0]),
        ([[0, 1], [1, 2]], [1.0, 0.0], [1, 0, 0]),  # without row 1, the first limit no longer binds
        ([[0, 1], [1, 2]], [2.0, 2.0], [1, 1, 1]),
        ([[0, 1, 2]], [np.inf], [1, 1, 1]),
    ],
)
def test_without_a_choice_there_is_no_program(units, limits, expected):
    found = solve(*incidence(units, 3), np.array(limits, dtype=np.float64))
    assert found.weights.tolist() == expected
    assert (found.objective, found.gap, found.solver) == (sum(expected), 0, "none")


def test_no_rows_at_all():
    found = solve(*incidence([[]], 0), np.array([1.0]))
    assert (len(found.weights), found.objective, found.gap) == (0, 0, 0)


def test_free_rows_are_full_beside_those_that_compete():
    found = solve(*incidence([[0, 1], [2, 3]], 5), np.array([0.5, 2.0]))
    assert found.weights == pytest.approx([0.25, 0.25, 1, 1, 1], rel=1e-12)
    assert found.gap < 1e-9


@pytest.mark.parametrize("limit", [-1e-300, np.nan])
def test_a_limit_that_is_none_is_refused(limit):
    with pytest.raises(InputError, match="unit 1 has a limit"):
        solve(*incidence([[0], [1]], 2), np.array([1.0, limit]))


def test_wrong_lengths_and_unknown_solvers_are_refused():
    with pytest.raises(ValueError, match="disagree"):
        solve(*incidence([[0, 1]], 2), np.array([1.0, 1.0]))
    with pytest.raises(InputError, match="simplex"):
        solve(*incidence([[0, 1]], 2), np.array([1.0]), "simplex")


# Solvers that fail


@pytest.mark.parametrize("seed", range(5))
def test_a_solver_that_is_wrong_costs_weight_but_breaks_no_limit_and_no_proof(monkeypatch, seed):
    graph = drawn(seed, n_rows=300, n_units=40, per_row=3)
    limits = np.random.default_rng(seed).uniform(0.1, 2, 40)
    best = solve(*graph, limits).objective

    def nonsense(own):
        generator = np.random.default_rng(seed)
        for _ in range(3):
            yield generator.normal(1, 3, len(own.bounds)), generator.normal(0, 1, len(own.limits))

    monkeypatch.setattr(program, "_highs", nonsense)
    found = solve(*graph, limits, "highs")
    assert_allowed(graph, limits, found.weights)
    assert 1e-3 < 1 - found.objective / best < found.gap < 1


def answer(monkeypatch, masses: list[float], y: list[float]) -> None:
    """HiGHS gives these, by group of equal rows in order of their first and by unit, whatever it is asked."""
    monkeypatch.setattr(program, "_highs", lambda own: iter([(np.array(masses), np.array(y))]))
    monkeypatch.setattr(
        program,
        "_equal_columns",
        lambda columns: (*[np.arange(columns.shape[1])] * 2, np.ones(columns.shape[1])),
    )


COMPETING = incidence(
    [[0, 1], [0, 2]], 10
)  # seven rows are free; at best, rows 1 and 2 are taken and row 0 is not


@pytest.mark.parametrize(
    ("y", "bound"),
    [([0, 0], 3), ([1, 0], 2), ([1, 1], 2), ([0.5, 0.5], 2), ([0, 0.25], 2.75), ([2, 3], 5), ([-9, -9], 3)],
)
def test_the_gap_is_that_of_weak_duality_free_rows_included(monkeypatch, y, bound):
    answer(monkeypatch, [0, 1, 1], y)
    found = solve(*COMPETING, np.array([1 - 2**-40] * 2), "highs")
    assert found.objective == pytest.approx(9, rel=1e-9)
    assert found.gap == pytest.approx(1 - 9 / (7 + bound), abs=1e-9)


def test_negative_prices_prove_nothing(monkeypatch):
    """The limit of the first unit cannot bind, since those of the others bind before: a price below 0 would pay."""
    answer(monkeypatch, [0.1] * 10, [-1000.0] * 11)
    found = solve(
        *incidence([[*range(10)], *([row] for row in range(10))], 10), np.array([5.0] + [0.1] * 10), "highs"
    )
    assert found.objective == pytest.approx(1)
    assert 0 <= found.gap < 1e-9


def test_slack_that_a_solver_leaves_is_filled(monkeypatch):
    answer(monkeypatch, [0, 0.2, 0], [0, 0])
    found = solve(*COMPETING, np.array([0.9, 0.4]), "highs")
    load = dense(COMPETING) @ found.weights
    assert load == pytest.approx([0.9, 0.4], rel=1e-6)
    assert_allowed(COMPETING, np.array([0.9, 0.4]), found.weights)


def test_a_solver_without_an_answer_is_named(monkeypatch):
    class Nothing:
        x, message = None, "numerical trouble"

    monkeypatch.setattr(program, "linprog", lambda *args, **kwargs: Nothing())
    with pytest.raises(CheckFailed, match=r"HiGHS.*numerical trouble"):
        solve(*incidence([[0, 1]], 2), np.array([1.0]))


def test_or_tools_is_needed_only_where_pdlp_is(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools.pdlp", None)
    graph = incidence([[0, 1]], 2)
    assert solve(*graph, np.array([1.0])).solver == "highs"
    with pytest.raises(InputError, match=r"pip install 'confide\[secrets\]'"):
        solve(*graph, np.array([1.0]), "pdlp")
    monkeypatch.setattr(program, "HIGHS_UP_TO", 0)
    with pytest.raises(InputError, match="OR-tools"):
        solve(*graph, np.array([1.0]))


@needs_pdlp
def test_large_programs_go_to_pdlp(monkeypatch):
    monkeypatch.setattr(program, "HIGHS_UP_TO", 0)
    assert solve(*incidence([[0, 1], [1, 2]], 3), np.array([1.0, 1.0])).solver == "pdlp"


def test_rows_are_not_merged_because_their_units_have_equal_sums(monkeypatch):
    """Were a hash trusted, rows of other units would share a weight, and the bound would be one of another program."""

    class Meeting:
        def __init__(self, salt):
            self.salt = salt

        def integers(self, low, high, size, dtype):
            return np.arange(1, size + 1, dtype=dtype) ** (3 if self.salt else 1)  # at first 1 + 4 = 2 + 3

    monkeypatch.setattr(program.np.random, "default_rng", Meeting)
    found = solve(*incidence([[0], [1], [1], [0]], 2), np.array([0.5, 0.6, 0.7, 0.8]))
    assert found.weights == pytest.approx([0.5, 0.6], rel=1e-9)
    assert found.gap < 1e-9


# Greedy bounding


def one_by_one(graph: Incidence, cap: int) -> list[bool]:
    matrix = dense(graph).astype(bool)
    order = sorted(range(graph[2]), key=lambda row: (matrix[:, row].sum(), row))
    kept, used = [False] * graph[2], np.zeros(len(matrix), dtype=int)
    for row in order:
        kept[row] = bool((used[matrix[:, row]] < cap).all())
        used += matrix[:, row] * kept[row]
    return kept


def greedily(graph: Incidence, cap: int) -> np.ndarray:
    offsets, rows, n_rows = graph
    return bound_greedily(pairs_of(*graph), len(rows), n_rows, len(offsets) - 1, cap)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    n_rows=st.integers(0, 60),
    n_units=st.integers(1, 15),
    per_row=st.floats(0.2, 5),
    cap=st.integers(1, 12),
    budget=st.integers(1, 70),
)
def test_greedy_bounding_is_the_rule_it_states(seed, n_rows, n_units, per_row, cap, budget):
    graph = drawn(seed, n_rows, n_units, per_row)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorting, "BUDGET", budget)  # below the owners of some rows
        patch.setattr(sorting, "BLOCK", max(1, budget // 2))
        kept = greedily(graph, cap)
    assert kept.dtype == np.bool_
    assert kept.tolist() == one_by_one(graph, cap)
    matrix = dense(graph)
    used = matrix @ kept
    assert (used <= cap).all()
    for row in np.flatnonzero(~kept):
        assert (used[matrix[:, row] > 0] == cap).any()  # none could be added


def test_greedy_bounding_takes_rows_with_few_owners_first():
    graph = incidence([[0, 1, 2], [0, 3], [0]], 5)
    assert greedily(graph, 1).tolist() == [False, True, False, True, True]
    assert greedily(graph, 2).tolist() == [False, True, True, True, True]
    with pytest.raises(InputError, match="at least 1 row"):
        greedily(graph, 0)


# What is left


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([1, 1, 0, 1], (3, 3, 3)),
        ([0.5, 0.5], (2, 1, 2)),
        ([1, 0.5, 0.5], (3, 2, 8 / 3)),
        ([1e-200, 1e-200], (2, 2e-200, 2)),  # whose squares are zero
        ([0, 0], (0, 0, 0)),
        ([], (0, 0, 0)),
    ],
)
def test_spread(weights, expected):
    spread = Spread.of(np.array(weights, dtype=np.float64))
    assert (spread.kept, spread.total, spread.effective) == pytest.approx(expected)


def test_faint_weights_do_not_count_as_rows():
    """Half of the rows cannot be worth their place: each costs the same limit as three others."""
    units = [[*range(10 * unit, 10 * unit + 10), *range(100, 110)] for unit in range(10)]
    for solver in ("highs", "pdlp") if HAS_PDLP else ("highs",):
        spread = Spread.of(solve(*incidence(units, 110), np.full(10, 5.0), solver).weights)
        assert spread.kept == 100
        assert spread.effective == pytest.approx(100)


def test_the_benchmark_says_what_it_promises():
    options = "--rows 600 --units 40 --incidences 3000 --parts 1 4 --solver highs --json".split()
    done = subprocess.run(
        [sys.executable, str(COMMAND), *options],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    whole, quarter = json.loads(done.stdout)
    assert whole["kept"] == 600
    assert 0 < quarter["sum"] < 600
    assert quarter["gap"] < 1e-3
    assert max(whole["excess"], quarter["excess"]) <= 0
