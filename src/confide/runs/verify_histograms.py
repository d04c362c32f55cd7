"""Verify the histograms that a run releases: what units add, the bound on it, the noise, and that it stays the same.

What units add is counted a second time, a document at a time, as it is written in the claim.
"""

from collections.abc import Iterator

import numpy as np
from scipy.stats import chi2

from confide.data.conditions import Conditions
from confide.data.lengths import BOUNDS
from confide.data.unit_graph import UnitGraph
from confide.privacy.histograms import GRID, Histograms, blocks, vectors_of
from confide.randomness.streams import RunKey
from confide.runs import histograms
from confide.runs.job import Job
from confide.utils.rounding import at_most

UNITS = 200
"""The number of units that are counted a second time, the first and the last of the graph."""

_KEYS = 400  # for which noise is drawn
ALARM = 1e-9  # probability that correct noise fails the check

Check = tuple[str, bool, str]


def histogram_checks(job: Job) -> Iterator[Check]:
    """Yield the name, the outcome and what was seen of each check; nothing if the run releases no histogram."""
    asked, graph = job.mechanism.histograms, job.prepared.train
    if asked is None:
        return
    by_user = job.mechanism.draws == "units"
    listed = Conditions.of(job.run.config.data)
    size = 0 if listed is None else len(listed.listed)
    cells = asked.cells(size)
    units = graph.n_units if by_user else graph.n_rows
    wrong, seen, most = 0, 0, 0.0
    for low, high in ((0, min(UNITS, units)), (max(UNITS, units - UNITS), units)):
        if low >= high:
            continue
        fast = {name: vectors_of(graph, name, n, by_user, low, high) for name, n in cells.items()}
        for unit in range(low, high):
            slow = _one_by_one(graph, unit, by_user, cells)
            wrong += any(np.abs(fast[name][unit - low] / GRID - slow[name]).max() > 1e-6 for name in cells)
        seen += high - low
    yield (
        "histograms count the documents of each unit",
        wrong == 0,
        f"{seen:,} units counted twice, {wrong:,} of them differently",
    )
    sums = {name: np.zeros(n, np.int64) for name, n in cells.items()}
    for low, high in blocks(graph, max(cells.values()), by_user):
        parts = {name: vectors_of(graph, name, n, by_user, low, high) for name, n in cells.items()}
        squares = sum(((part / GRID) ** 2).sum(axis=1) for part in parts.values())
        most = max(most, float(np.sqrt(squares).max()))
        for name, part in parts.items():
            sums[name] += part.sum(axis=0)
    bound = asked.pair("zero-out").values[0] * asked.deviation / asked.noise_multiplier
    yield (
        "no unit moves the histograms further than is accounted",
        most <= bound * (1 + 1e-9),
        f"{units:,} units: the largest norm is {at_most(most, 6)}, accounted {at_most(bound, 6)}",
    )
    yield _noise(asked, sums, job.key)
    again = [histograms.counted(job.mechanism, graph, job.key, listed) for _ in range(2)]
    yield (
        "a second release has the same noise",
        again[0] == again[1],
        "the same counts twice"
        if again[0] == again[1]
        else "the counts differ: averages would free them of noise",
    )


def _one_by_one(graph: UnitGraph, unit: int, by_user: bool, cells: dict[str, int]) -> dict[str, np.ndarray]:
    """Return what a unit adds to each histogram, by a loop over its documents."""
    assert graph.documents is not None
    found = {name: np.zeros(n) for name, n in cells.items()}
    documents: list[list[int]] = []  # condition and tokens
    if by_user:
        for row in graph.rows_of(unit).tolist():
            mark, tokens = int(graph.documents[row]), int(graph.lengths_of(np.array([row]))[0])
            if mark >= 0 or not documents:
                documents.append([max(mark, 0), tokens])
            else:
                documents[-1][1] += tokens
    elif graph.documents[unit] >= 0:
        documents.append([int(graph.documents[unit]), 0])  # lengths are counted of users only
    for condition, tokens in documents:
        if "conditions" in cells and condition:
            found["conditions"][condition - 1] += 1 / len(documents)
        if "lengths" in cells:
            place = next((at for at, bound in enumerate(BOUNDS) if tokens <= bound), len(BOUNDS) - 1)
            found["lengths"][place] += 1 / len(documents)
    return found


def _noise(asked: Histograms, sums: dict[str, np.ndarray], key: RunKey) -> Check:
    """Check the size of the noise, under keys of their own: the noise of the release is not looked at."""
    drawn = []
    for number in range(_KEYS):
        noised = asked.noised(sums, key.bound_to(b"verify histograms", number.to_bytes(4, "big")))
        drawn += [noised[name] - sums[name] / GRID for name in sums]
    values, stated = np.concatenate(drawn), asked.noise_multiplier * len(asked.of) ** 0.5
    squares, n = float(((values / stated) ** 2).sum()), len(values)
    ok = min(chi2.cdf(squares, n), chi2.sf(squares, n)) > ALARM
    return (
        "noise of the histograms of the stated size",
        bool(ok),
        f"standard deviation {(squares / n) ** 0.5 * stated:.6g} over {n:,} values, stated {stated:.6g}",
    )
