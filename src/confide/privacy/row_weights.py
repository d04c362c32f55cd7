"""A linear program that says how often each row may be drawn if every unit has its own limit.

    maximise sum_i w_i   subject to   sum of w_i over the rows of unit j <= limit_j,   0 <= w_i <= 1

This is Algorithm 2 of Ganesh et al. 2025 ("Hush!") with limit_j = c m_j; row i is then drawn with probability
rho_i = B w_i / sum w. A unit may be a secret, or one of several owners of a row. The code here sees only the incidence
of rows and units and the units' limits, so its results may be published wherever these are.

A solver's result is not trusted. Weights are scaled back until no limit is exceeded in float64, in whatever order
a unit's weights are added up. The gap to the optimum follows from weak duality: for every y >= 0,

    sum_j y_j limit_j + sum_i u_i max(0, 1 - sum of y_j over the units of row i)

is at least the optimum, u_i being any bound on w_i that the limits imply. A solver that stopped early therefore gives
weights that are less good, never wrong ones.

The incidence is given by unit, as `UnitGraph` keeps it: `rows[offsets[j]:offsets[j + 1]]` are the distinct rows of
unit j; int64[N + 1] and int64[incidences].
"""

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from scipy import sparse
from scipy.optimize import linprog
from scipy.special import ndtri

from confide.utils.errors import CheckFailed, InputError

Kind = Literal["gaussian", "kl", "sqrt-kl"]
Solver = Literal["auto", "highs", "pdlp"]

HIGHS_UP_TO = 50_000  # incidences, which take half a second; with 200,000 in a chain, crossover takes minutes
GOAL = 3e-4  # relative gap at which PDLP stops
TOLERANCES = (1e-4, 1e-5, 1e-6)  # of PDLP; each run starts from the solution before
ITERATIONS = 4096  # of PDLP per tolerance; with a limit in seconds, weights would depend on the machine
SHARDS = 16  # parts that PDLP adds up separately; fixed, so that weights do not depend on its threads
LIFTS = 12
FAINT, DUST = (
    1e-3,
    1e-5,
)  # drop weights this far below their bounds, if together they are this little of the sum
ROUNDING = 2.0**-52


@dataclass(frozen=True, eq=False)
class Solution:
    """Weights, and how good they are.

    Attributes:
        weights: float64[M].
        objective: the sum of the weights.
        gap: relative distance to an upper bound of the optimum.
        solver: `highs`, `pdlp`, or `none` if no limit is left to bind.
        seconds: duration of the whole call.
    """

    weights: np.ndarray
    objective: float
    gap: float
    solver: str
    seconds: float


@dataclass(frozen=True)
class Spread:
    """The share of a data set that weights leave.

    Attributes:
        kept: rows that can be drawn.
        total: sum w.
        effective: (sum w)^2 / sum w^2 rows.
    """

    kept: int
    total: float
    effective: float

    @classmethod
    def of(cls, weights: np.ndarray) -> Self:
        """Compute the spread of weights: float64[M], not negative."""
        top = float(weights.max(initial=0.0))
        if top == 0:
            return cls(0, 0.0, 0.0)
        shares = weights / top  # scaled, since squares of very small weights would vanish
        total = float(shares.sum())
        return cls(int(np.count_nonzero(weights)), total * top, total * total / float(shares @ shares))


def need(kind: Kind, prior: np.ndarray, posterior: np.ndarray) -> np.ndarray:
    """Compute m_j, a secret's share of the common budget, from its prior p and allowed posterior r; float64[K].

    `gaussian` is Phi^-1(r) - Phi^-1(p), which grows with the rows of a secret as the tight accounting does. `kl` is
    KL(Bern(r) || Bern(p)), the target of Ganesh et al. 2025. `sqrt-kl` is its square root, which fits accounting by
    KL. Divergences are computed without cancellation, however small or close p and r are.

    Raises:
        InputError: some secret does not have 0 < p < r < 1.
    """
    p, r = np.asarray(prior, dtype=np.float64), np.asarray(posterior, dtype=np.float64)
    sound = (p > 0) & (p < r) & (r < 1)
    if not sound.all():
        place = int(np.argmin(sound))
        raise InputError(
            f"a secret needs 0 < prior < allowed posterior < 1; secret {place} has {p[place]:g} and {r[place]:g}"
        )
    if kind == "gaussian":
        gap: np.ndarray = ndtri(r) - ndtri(p)
        return gap
    if kind not in ("kl", "sqrt-kl"):
        raise InputError(f"{kind!r} is no kind of need: use gaussian, kl or sqrt-kl")
    kl: np.ndarray = p * _bregman((r - p) / p) + (1 - p) * _bregman((p - r) / (1 - p))
    if kind == "kl":
        return kl
    root: np.ndarray = np.sqrt(kl)
    return root


def largest_c(offsets: np.ndarray, m: np.ndarray) -> float:
    """Compute the least c in float64 with c m_j >= rows_j for every unit, at which every weight is 1.

    Args:
        offsets: int64[N + 1], as in the incidence.
        m: float64[N], above 0.
    """
    counts = np.diff(offsets)
    if not (m > 0).all():
        raise InputError(
            f"unit {int(np.argmin(m > 0))} has a need of {m[np.argmin(m > 0)]}: it must be above 0"
        )
    c = np.float64((counts / m).max(initial=0.0))
    while (c * m < counts).any():  # a quotient rounded down
        c = np.nextafter(c, np.inf)
    return float(c)


def solve(
    offsets: np.ndarray,
    rows: np.ndarray,
    n_rows: int,
    limits: np.ndarray,
    solver: Solver = "auto",
    threads: int = 2,
) -> Solution:
    """Compute weights of M = `n_rows` rows that respect every unit's limit, and a bound on their distance to the best.

    Rows that belong to the same units, counting only units whose limit can bind, get the same weight. Rows without
    such a unit get 1, and rows of a unit with limit 0 get 0. The same input gives the same weights.

    Args:
        offsets: int64[N + 1], see above.
        rows: int64[incidences], see above.
        n_rows: M.
        limits: float64[N], c m_j, at least 0.
        solver: `auto` takes HiGHS (interior point) for small programs and PDLP (Applegate et al. 2021) for large ones.
        threads: of PDLP.

    Raises:
        InputError: a limit is negative or not a number, or PDLP is needed and OR-tools is missing.
        CheckFailed: a solver breaks down.
    """
    began = time.perf_counter()
    limits = np.asarray(limits, dtype=np.float64)
    if len(limits) != len(offsets) - 1 or len(rows) != offsets[-1]:
        raise ValueError("offsets, rows and limits disagree about the number of units or incidences")
    if not (limits >= 0).all():
        unit = int(np.argmin(limits >= 0))
        raise InputError(f"unit {unit} has a limit of {limits[unit]}: it must be at least 0")
    if solver not in ("auto", "highs", "pdlp"):
        raise InputError(f"{solver!r} is no solver: use auto, highs or pdlp")
    incidence, limits, weights = _binding(offsets, rows, n_rows, limits)
    free = np.count_nonzero(weights)
    if incidence.nnz == 0:
        return Solution(weights, float(free), 0.0, "none", time.perf_counter() - began)
    constrained = np.flatnonzero(np.diff(incidence.indptr))
    incidence = incidence[:, constrained]
    program, group = _Program.merging(incidence, limits)
    if solver == "auto":
        solver = "highs" if program.incidence.nnz <= HIGHS_UP_TO else "pdlp"
    masses, bound = _best(program, _highs(program) if solver == "highs" else _pdlp(program, threads))
    weights[constrained] = _within(incidence, limits, np.minimum(1.0, masses / program.sizes)[group])
    objective = float(weights.sum())
    return Solution(
        weights, objective, max(0.0, 1 - objective / (free + bound)), solver, time.perf_counter() - began
    )


@dataclass(frozen=True, eq=False)
class _Program:
    """The program in terms of groups: rows that belong to the same units, of J units whose limits can bind.

    Its variables are masses x, the sum of w over a group.

    Attributes:
        incidence: J x G ones, by column.
        limits: float64[J], above 0.
        sizes: float64[G], rows of a group.
        bounds: float64[G], implied on x by sizes and limits.
    """

    incidence: sparse.csc_array
    limits: np.ndarray
    sizes: np.ndarray
    bounds: np.ndarray

    @classmethod
    def merging(cls, incidence: sparse.csc_array, limits: np.ndarray) -> tuple[Self, np.ndarray]:
        """Build the program from an incidence J x R without empty columns.

        Returns:
            The program, and the group of each row, int64[R].
        """
        first, group, sizes = _equal_columns(incidence)
        incidence = incidence[:, first]
        bounds = np.minimum(sizes, _least(incidence, limits))
        return cls(incidence, limits, sizes.astype(np.float64), bounds), group

    def scaled(self) -> sparse.csc_array:
        """Return coefficients for x_g / bound_g and a limit of 1: between 0 and 1, however far apart limits lie."""
        counts = np.diff(self.incidence.indptr)
        data = np.repeat(self.bounds, counts) / self.limits[self.incidence.indices]
        return sparse.csc_array((data, self.incidence.indices, self.incidence.indptr), self.incidence.shape)

    def upper_bound(self, y: np.ndarray) -> float:
        """Compute a bound of the optimum from any y >= 0, float64[J], raised by what float64 may have rounded away."""
        prices = self.incidence.T @ y
        parameters = np.maximum(0.0, 1 - prices)
        counts = np.diff(self.incidence.indptr)
        rounded = ROUNDING * float(self.bounds @ (counts * (1 + prices)))
        total = float(y @ self.limits) + float(self.bounds @ parameters)
        return float((total + rounded) * (1 + ROUNDING * sum(self.incidence.shape)))

    def lifted(self, masses: np.ndarray, which: np.ndarray) -> np.ndarray:
        """Use up what limits leave: each unit shares its slack among its groups in proportion to their room."""
        for _ in range(LIFTS):
            room = np.where(which, self.bounds - masses, 0.0)
            slack = np.maximum(0.0, self.limits - self.incidence @ masses)
            wanted = self.incidence @ room
            share = np.divide(slack, wanted, out=np.ones_like(slack), where=wanted > slack)
            masses = np.minimum(self.bounds, masses + room * _least(self.incidence, share))
        return masses

    def polished(self, masses: np.ndarray) -> np.ndarray:
        """Compute feasible masses near those of a solver, with more in them; very small ones are set to zero.

        Interior-point and first-order methods leave weights near 0 that no draw would ever reach. Without them, "rows
        kept" counts only rows that matter.
        """
        masses = _within(self.incidence, self.limits, np.clip(masses, 0.0, self.bounds))
        masses = self.lifted(masses, np.ones(len(masses), dtype=np.bool_))
        faint = np.flatnonzero(masses < FAINT * self.bounds)
        faint = faint[np.argsort(masses[faint], kind="stable")]
        faint = faint[np.cumsum(masses[faint]) <= DUST * masses.sum()]
        masses[faint] = 0.0
        return self.lifted(masses, masses > 0)


def _best(program: _Program, attempts: Iterator[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, float]:
    """Return the best masses and the least upper bound over attempts (masses, y), until the gap is small enough."""
    best, most, bound = np.zeros_like(program.bounds), 0.0, np.inf
    for masses, y in attempts:
        masses = program.polished(masses)
        if masses.sum() > most:
            best, most = masses, float(masses.sum())
        bound = min(bound, program.upper_bound(np.maximum(0.0, y)))
        if bound - most <= GOAL * bound:
            break
    return best, bound


def _highs(program: _Program) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the attempt of HiGHS' interior point with crossover."""
    scale = program.bounds.max()
    found = linprog(
        -program.bounds / scale,
        A_ub=program.scaled(),
        b_ub=np.ones(len(program.limits)),
        bounds=(0, 1),
        method="highs-ipm",
    )
    if found.x is None:
        raise CheckFailed(f"HiGHS found no solution of the program ({found.message}); try the solver pdlp")
    yield found.x * program.bounds, -found.ineqlin.marginals * scale / program.limits


def _pdlp(program: _Program, threads: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield PDLP's attempts at ever finer tolerances, each started from the end of the one before."""
    try:
        from ortools.pdlp import solvers_pb2
        from ortools.pdlp.python import pdlp
    except ImportError as error:
        raise InputError(
            f"a program of {program.incidence.nnz:,} incidences needs OR-tools: pip install 'confide[secrets]'"
        ) from error
    scale = program.bounds.max()
    units, groups = program.incidence.shape
    linear = pdlp.QuadraticProgram()
    linear.resize_and_initialize(groups, units)
    linear.objective_vector = -program.bounds / scale
    linear.constraint_matrix = sparse.csc_matrix(program.scaled())
    linear.variable_lower_bounds = np.zeros(groups)
    linear.variable_upper_bounds = np.ones(groups)
    linear.constraint_lower_bounds = np.full(units, -np.inf)
    linear.constraint_upper_bounds = np.ones(units)
    settings = solvers_pb2.PrimalDualHybridGradientParams(num_threads=threads, num_shards=SHARDS)
    settings.termination_criteria.iteration_limit = ITERATIONS
    near: Any = None
    for tolerance in TOLERANCES:
        criteria = settings.termination_criteria.simple_optimality_criteria
        criteria.eps_optimal_relative, criteria.eps_optimal_absolute = tolerance, 0.0
        found = pdlp.primal_dual_hybrid_gradient(linear, settings, initial_solution=near)
        x, y = np.asarray(found.primal_solution), np.asarray(found.dual_solution)
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            raise CheckFailed("PDLP found no solution of the program; try the solver highs")
        yield x * program.bounds, -y * scale / program.limits
        near = pdlp.PrimalAndDualSolution()
        near.primal_solution, near.dual_solution = x, y


def _binding(
    offsets: np.ndarray, rows: np.ndarray, n_rows: int, limits: np.ndarray
) -> tuple[sparse.csc_array, np.ndarray, np.ndarray]:
    """Find the units whose limit is below their number of rows, not counting rows forced to 0.

    Returns:
        The incidence J x M of these units, by column, their limits, and float64[M] that is 1 for rows without such a
            unit
        and 0 for all others.
    """
    counts = np.diff(offsets)
    unit = np.repeat(np.arange(len(counts)), counts)
    live = np.ones(n_rows, dtype=np.bool_)
    live[rows[np.repeat(limits == 0, counts)]] = False
    binding = limits < np.bincount(unit[live[rows]], minlength=len(counts))
    decided = live[rows] & binding[unit]
    number = np.cumsum(binding) - 1
    pairs = number[unit[decided]], rows[decided]
    shape = (int(np.count_nonzero(binding)), n_rows)
    incidence = sparse.coo_array((np.ones(len(pairs[0])), pairs), shape).tocsc()
    incidence.sort_indices()
    live[pairs[1]] = False
    return incidence, limits[binding], live.astype(np.float64)


def _equal_columns(incidence: sparse.csc_array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Group equal columns: return each group's first column, the group of each column and group sizes, int64."""
    starts, units = incidence.indptr, incidence.indices
    counts = np.diff(starts)
    for salt in itertools.count():  # sums of 64-bit words seldom collide: a second salt has never been needed
        words = np.random.default_rng(salt).integers(0, 2**64, incidence.shape[0], dtype=np.uint64)
        sums = np.add.reduceat(words[units], starts[:-1])
        _, first, group, sizes = np.unique(sums, return_index=True, return_inverse=True, return_counts=True)
        model = first[group]
        if (counts == counts[model]).all():
            shift = np.repeat(starts[model] - starts[:-1], counts)
            if (units == units[np.arange(len(units)) + shift]).all():
                return first, group, sizes
    raise AssertionError("unreachable")


def _least(incidence: sparse.csc_array, of_unit: np.ndarray) -> np.ndarray:
    """Return the least value among the units of each column; no column may be empty."""
    return np.minimum.reduceat(of_unit[incidence.indices], incidence.indptr[:-1])


def _within(incidence: sparse.csc_array, limits: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Scale weights down, each by its most exceeded limit, until none is exceeded in any order of adding up.

    A float64 sum of n numbers is off by less than n 2^-53 of it (Higham 2002, section 4.2). This much is left free
    below each limit: at most a few parts in 10^10 for a unit of a million rows.
    """
    parameters = np.bincount(incidence.indices, minlength=len(limits))
    loads = incidence @ weights
    allowed = limits * (1 - ROUNDING * (2 * parameters + 8))
    factor = np.divide(allowed, loads, out=np.ones_like(limits), where=loads > allowed)
    weights = weights * _least(incidence, factor)
    if not (incidence @ weights * (1 + ROUNDING * parameters) <= limits).all():
        raise CheckFailed("weights exceed a limit after they were scaled back: a fault of confide")
    return weights


def _bregman(t: np.ndarray) -> np.ndarray:
    """Compute (1 + t) log(1 + t) - t for t > -1, without cancellation near 0."""
    series = sum((-t) ** k / (k * (k - 1)) for k in range(2, 12))
    return np.where(np.abs(t) < 0.02, series, (1 + t) * np.log1p(t) - t)
