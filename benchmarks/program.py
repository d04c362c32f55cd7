"""How long the linear program of secret protection takes at full size, and how close to the best its weights are.

    python benchmarks/program.py [--rows 1500000 --units 100000 --incidences 7500000] [--parts 4 64] [--json]

The incidence is generated: units have between 1.4 and 0.7 times the mean number of rows, by a Zipf law (words of rank N
to 2N); every row has at least one unit, and long rows have more (log-normal). Priors are 1e-10 and posteriors lie
between 2e-4 and 1e-3, as in Ganesh et al. 2025, and c is a part of the c that drops nothing. `excess` is the largest
relative excess over a limit, each unit's weights added up exactly; where it is not above 0, no limit is exceeded.
Greedy bounding, for comparison, lets every unit keep as many rows as the largest limit. The noise is certified for
every unit by both accountants; "within half percent" says that at 0.5% less noise some unit's own process exceeds its
posterior.
"""

import argparse
import itertools
import json
import math
import resource
import sys
import time
from typing import Any

import numpy as np

from confide.privacy.accounting import Population, Targets, achieved, least_noise_for_secrets
from confide.privacy.bounding import bound_greedily, pairs_of
from confide.privacy.row_weights import Spread, largest_c, need, solve

PRIOR = 1e-10


def generate(rows: int, units: int, incidences: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Offsets, int64[units + 1], and rows, int64[incidences]. A pair that is drawn twice counts once."""
    generator = np.random.default_rng(seed)
    shares = units / (units + np.arange(units))
    sizes = np.floor(shares * incidences / shares.sum()).astype(np.int64)
    sizes[: incidences - int(sizes.sum())] += 1
    lengths = np.cumsum(generator.lognormal(0.0, 0.7, rows))
    more = np.searchsorted(lengths, lengths[-1] * generator.random(incidences - rows), side="right")
    row = np.concatenate([np.arange(rows), np.minimum(more, rows - 1)])
    generator.shuffle(row)
    pairs = np.unique(np.repeat(np.arange(units), sizes) * rows + row)
    return np.searchsorted(pairs, np.arange(units + 1) * rows), pairs % rows


def excess(offsets: np.ndarray, rows: np.ndarray, weights: np.ndarray, limits: np.ndarray) -> float:
    """The largest relative excess over a limit."""
    of_unit = weights[rows].tolist()
    starts = offsets.tolist()
    loads = [math.fsum(of_unit[first:last]) for first, last in itertools.pairwise(starts)]
    return max((load - limit) / limit for load, limit in zip(loads, limits.tolist(), strict=True))


def peak_megabytes() -> int:
    kilobytes = 1 if sys.platform != "darwin" else 1 / 1024  # macOS counts bytes
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilobytes / 1024)


def noise(
    offsets: np.ndarray,
    rows: np.ndarray,
    weights: np.ndarray,
    posterior: np.ndarray,
    args: argparse.Namespace,
) -> dict[str, Any]:
    """The least noise for all units by both accountants, and whether 0.5% less would be too little for one of them."""
    rho = np.minimum(1.0, weights * (args.batch / weights.sum()))
    population = Population(offsets, rows, rho, args.steps)
    targets = Targets(np.arange(args.units), np.full(args.units, PRIOR), posterior)
    found: dict[str, Any] = {}
    for name in ("blow-up", "kl"):
        start = time.perf_counter()
        found[f"noise_{name}"] = least_noise_for_secrets(population, targets, name)
        found[f"seconds_{name}"] = round(time.perf_counter() - start, 1)
    less = 0.995 * found["noise_blow-up"]
    reached = achieved(population, targets, found["noise_blow-up"])
    strain = (np.log(reached / posterior), population.evenness * population.means**2 / posterior)
    closest = np.unique(np.concatenate([np.argsort(-values)[: args.candidates] for values in strain]))
    found["within_half_percent"] = any(
        float(process.curve(less).reconstruction(PRIOR)) > posterior[unit]
        for unit in closest
        if (process := population.process(int(unit))) is not None
    )
    return found


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    offsets, rows = generate(args.rows, args.units, args.incidences)
    posterior = np.random.default_rng(1).uniform(2e-4, 1e-3, args.units)
    m = need(args.kind, np.full(args.units, PRIOR), posterior)
    most = largest_c(offsets, m)
    figures = []
    for part in args.parts:
        limits = most / part * m
        solution = solve(offsets, rows, args.rows, limits, args.solver, args.threads)
        spread = Spread.of(solution.weights)
        pairs, cap = pairs_of(offsets, rows, args.rows), max(1, int(limits.max()))
        figures.append(
            {
                "incidences": len(rows),
                "c": f"c_max / {part:g}",
                "solver": solution.solver,
                "seconds": round(solution.seconds, 2),
                "gap": solution.gap,
                "excess": excess(offsets, rows, solution.weights, limits),
                "sum": round(spread.total, 1),
                "kept": spread.kept,
                "effective": round(spread.effective, 1),
                "greedy_kept": int(bound_greedily(pairs, len(rows), args.rows, args.units, cap).sum()),
                **noise(offsets, rows, solution.weights, posterior, args),
                "peak_memory_mb": peak_megabytes(),
            }
        )
    return figures


def table(figures: list[dict[str, Any]]) -> str:
    names = list(figures[0])
    lines = ["| " + " | ".join(names).replace("_", " ") + " |", "|---" * len(names) + "|"]
    for line in figures:
        cells = [f"{value:,}" if isinstance(value, int) else f"{value}" for value in line.values()]
        cells[names.index("gap")], cells[names.index("excess")] = (
            f"{line['gap']:.1e}",
            f"{line['excess']:.1e}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_500_000)
    parser.add_argument("--units", type=int, default=100_000)
    parser.add_argument("--incidences", type=int, default=7_500_000)
    parser.add_argument(
        "--parts", type=float, nargs="+", default=[4.0, 64.0], help="c is c_max divided by these"
    )
    parser.add_argument("--kind", choices=("gaussian", "kl", "sqrt-kl"), default="gaussian")
    parser.add_argument("--solver", choices=("auto", "highs", "pdlp"), default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=float, default=2048.0, help="rows a step, for the noise")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--candidates", type=int, default=20, help="units that the least noise is tested on")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.incidences < args.rows:
        parser.error("every row has a unit: there are at least as many incidences as rows")
    figures = measure(args)
    print(json.dumps(figures) if args.json else table(figures))


if __name__ == "__main__":
    main()
