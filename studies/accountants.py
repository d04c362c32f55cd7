"""Epsilon of example-level sampling for a user, as users grow (Charles et al. 2024: Figure 1, Lemma 1, Theorem 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import stats
from scipy.special import logsumexp

from confide.privacy.accounting import MixtureOfGaussians
from confide.privacy.accounting.curves import group
from studies.runner.findings import ABOVE, Finding
from studies.runner.rows import number, version
from studies.runner.study import Row, Scale, Study, Table, Work

T, P, DELTA = 2000, 0.01, 1e-6  # of Figure 1
TRAINED_AT = (1.0, 4.0, 16.0, 64.0)  # epsilons that the paper trains at
MIXTURE, BLACK_BOX = "mixture of Gaussians", "black box"
TIGHT = {
    "rows": 4,
    "p": 0.05,
    "steps": 50,
    "noise": 1.0,
    "epsilon": 2.0,
}  # where delta is large enough to be sampled
_SIZES: Mapping[Scale, dict[str, Any]] = {
    Scale.TINY: {
        "noises": (1.0,),
        "groups": (1, 4),
        "points": 20,
        "samples": 20_000,
        "seeds": 2,
        "interval": 1e-2,
    },
    Scale.SMALL: {
        "noises": (0.5, 1.0, 2.0, 5.0),
        "groups": (1, 2, 4, 8, 16, 32, 64, 128, 256),
        "points": 500,
        "samples": 400_000,
        "seeds": 5,
        "interval": 1e-3,
    },
}
_SIZES = {**_SIZES, Scale.FULL: _SIZES[Scale.SMALL]}


def measure(work: Work) -> list[Row]:
    size = _SIZES[work.scale]
    columns = {"study": STUDY.name, "scale": str(work.scale), **version()}
    rows = [columns | row for row in _epsilons(size)]
    rows += [columns | row for row in _lemma(size["points"])]
    return rows + [columns | _sampled(seed, size["samples"]) for seed in range(1, size["seeds"] + 1)]


def _epsilons(size: Mapping[str, Any]) -> list[Row]:
    """Return epsilon at delta for every group size, by the mixture and by group privacy of a single row."""
    found: list[Row] = []
    for noise in size["noises"]:
        single = MixtureOfGaussians.bernoulli(P, T).curve(noise, size["interval"])
        for rows in size["groups"]:
            mixture = MixtureOfGaussians.binomial(rows, P, T).curve(noise, size["interval"])
            common = {"what": "epsilon", "noise": noise, "rows": rows}
            found.append(common | {"accountant": MIXTURE, "value": mixture.epsilon(DELTA)})
            found.append(common | {"accountant": BLACK_BOX, "value": group(single, rows).epsilon(DELTA)})
    return found


def _lemma(points: int) -> list[Row]:
    """Return both sides of Lemma 1 at points drawn at random."""
    generator = np.random.default_rng(1)
    found = []
    for _ in range(points):
        order, rows = int(generator.integers(2, 33)), int(generator.integers(2, 65))
        p, noise = float(10 ** generator.uniform(-4, -0.3)), float(10 ** generator.uniform(-0.3, 1))
        left, right = renyi(order, rows, p, rows * noise), renyi(order, 1, p, noise)
        found.append(
            {"what": "lemma 1", "order": order, "rows": rows, "p": p, "noise": noise, "value": left - right}
        )
    return found


def renyi(order: int, rows: int, p: float, noise: float) -> float:
    """Return the Renyi divergence of N(Binom(rows, p), noise^2) from N(0, noise^2), by the trapezoidal rule."""
    counts = np.arange(rows + 1)
    masses = stats.binom.logpmf(counts, rows, p)
    x = np.linspace(-12 * noise, order * rows + 12 * noise, 20_001)
    ratio = logsumexp(masses + (counts * x[:, None] - counts**2 / 2) / noise**2, axis=1)
    total = logsumexp(order * ratio + stats.norm.logpdf(x, scale=noise)) + math.log(x[1] - x[0])
    return float(total / (order - 1))


def _sampled(seed: int, samples: int) -> Row:
    """Return delta of the run that attains Theorem 3, by sampling, as a share of the accountant's.

    The loss is linear in one weight: every row of the user has the gradient C, every other row 0. So a step's output is
    the number of the user's rows that were drawn, plus noise. An observer sums the logarithms of likelihood ratios.
    """
    at = TIGHT
    generator = np.random.default_rng(seed)
    counts = np.arange(at["rows"] + 1)
    masses = stats.binom.logpmf(counts, at["rows"], at["p"])
    loss = np.zeros(samples)
    for _ in range(int(at["steps"])):
        x = generator.binomial(int(at["rows"]), at["p"], samples) + generator.normal(0, at["noise"], samples)
        loss += logsumexp(masses + (counts * x[:, None] - counts**2 / 2) / at["noise"] ** 2, axis=1)
    delta = float(np.mean(np.maximum(0, -np.expm1(at["epsilon"] - loss))))
    process = MixtureOfGaussians.binomial(int(at["rows"]), at["p"], int(at["steps"]))
    bound = float(process.curve(at["noise"]).removal.delta(at["epsilon"]))
    return {"what": "theorem 3", "key": seed, "value": delta / bound}


def findings(rows: Sequence[Row]) -> list[Finding]:
    of_mixture, of_black_box = _by_noise(rows, MIXTURE), _by_noise(rows, BLACK_BOX)
    steps = [step for epsilons in of_mixture.values() for step in slopes(epsilons)]
    found = [_linear("", [slope for _, slope in steps])]
    for low, high in pairwise((0.0, *TRAINED_AT, math.inf)):
        words = f" up to epsilon {high:g}" if high < math.inf else ""
        words = (f" from epsilon {low:g}" if low else "") + words
        if own := [slope for end, slope in steps if low < end <= high]:
            found.append(_linear(words, own))
    found += _of_black_box(of_mixture, of_black_box)
    groups = sorted({size for each in of_black_box.values() for size in each})
    found.append(
        Finding(
            "The black box diverges for large groups.",
            "Figure 1, caption",
            "rows of a user from which on its epsilon is infinite, from the least noise to the largest; "
            f"{groups[-1]} are the most that were computed",
            tuple(_diverges(epsilons) for epsilons in of_black_box.values()),
            high=float(groups[-1]),
            is_exact=True,
            unit="rows",
        )
    )
    gaps = [row["value"] for row in rows if row["what"] == "lemma 1"]
    found.append(
        Finding(
            f"R(P_K(K s), Q(K s)) <= R(P_1(s), Q(s)) at {len(gaps)} points drawn at random.",
            "Lemma 1",
            "the largest difference of the two sides",
            (max(gaps),),
            high=1e-9,
            is_exact=True,
            unit="nats of divergence",
        )
    )
    shares = tuple(row["value"] for row in rows if row["what"] == "theorem 3")
    found.append(
        Finding(
            "A loss of one dimension attains the bound.",
            "Theorem 3",
            "delta by sampling such a run, as a share of the accountant's",
            shares,
            0.98,
            1.02,
            unit="share",
            over="samples",
        )
    )
    return found


def _of_black_box(
    of_mixture: Mapping[float, Mapping[int, float]], of_black_box: Mapping[float, Mapping[int, float]]
) -> list[Finding]:
    """Judge how the black box compares: only where it is finite, and a user has more than one row."""
    finite = {
        noise: {size: epsilon for size, epsilon in epsilons.items() if math.isfinite(epsilon)}
        for noise, epsilons in of_black_box.items()
    }
    ratios = [
        epsilon / of_mixture[noise][size]
        for noise, epsilons in finite.items()
        for size, epsilon in epsilons.items()
        if size > 1
    ]
    if not ratios:
        return []
    return [
        Finding(
            "The mixture of Gaussians has a smaller epsilon than the black box.",
            "Figure 1",
            "epsilon of the black box as a multiple of that of the mixture, from the least to the largest, wherever it "
            "is finite and a user has several rows",
            (min(ratios), max(ratios)),
            low=1 + ABOVE,
            is_exact=True,
            unit="times",
            is_check=True,  # no sound bound lies below a tight one
            is_late=True,
        )
    ]


def _linear(words: str, found: Sequence[float]) -> Finding:
    """Judge whether slopes are near 1: all of them as the paper has it, or those that end in a range of epsilons."""
    return Finding(
        f"With the mixture of Gaussians, epsilon grows near-linearly with a user's rows{words}.",
        "Figure 1",
        "log of epsilon against log of the rows: the slopes of all doublings"
        + " that end there" * bool(words)
        + ", at all noises, from the least to the largest; 0.9 to 1.1 counts as near 1, by our choice",
        (min(found), max(found)),
        0.9,
        1.1,
        is_exact=True,
        unit="slope",
        is_beyond=bool(words),
    )


def slopes(epsilons: Mapping[int, float]) -> list[tuple[float, float]]:
    """Return the epsilon at the end of each step from one group size to the next, and the slope there, in logs."""
    return [
        (epsilons[more], math.log(epsilons[more] / epsilons[less]) / math.log(more / less))
        for less, more in pairwise(sorted(epsilons))
    ]


def _diverges(epsilons: Mapping[int, float]) -> float:
    """Return the least group size at which epsilon is infinite; twice the most that was computed if it is at none."""
    return float(next((size for size in sorted(epsilons) if math.isinf(epsilons[size])), 2 * max(epsilons)))


def _by_noise(rows: Sequence[Row], accountant: str) -> dict[float, dict[int, float]]:
    found: dict[float, dict[int, float]] = {}
    for row in rows:
        if row["what"] == "epsilon" and row["accountant"] == accountant:
            found.setdefault(row["noise"], {})[row["rows"]] = row["value"]
    return found


def tables(rows: Sequence[Row]) -> list[Table]:
    mixture, black_box = _by_noise(rows, MIXTURE), _by_noise(rows, BLACK_BOX)
    groups = sorted({size for each in mixture.values() for size in each})
    of_step = {noise: dict(slopes(epsilons)) for noise, epsilons in mixture.items()}
    cells = [
        [
            str(size),
            *(f"{number(mixture[noise][size])} / {number(black_box[noise][size])}" for noise in mixture),
            *(
                f"{step:.2f}" if (step := of_step[noise].get(mixture[noise][size])) else ""
                for noise in mixture
            ),
        ]
        for size in groups
    ]
    heads = ["rows of a user", *(f"noise {noise:g}" for noise in mixture)]
    heads += [f"slope, noise {noise:g}" for noise in mixture]
    note = (
        f"Epsilon by the mixture of Gaussians / by the black box. T = {T}, p = {P}, delta = {DELTA}. The slope is that "
        "of the mixture in logs from the line above: 1 is linear growth. The paper has a plot, not numbers, and does "
        "not name the noise and the rows that it draws."
    )
    return [Table("Figure 1: epsilon of a user under example-level sampling", heads, cells, note)]


STUDY = Study(
    name="accountants",
    paper="003",
    shows=("Figure 1", "Lemma 1", "Theorem 3"),
    question="How does epsilon of a user grow with the user's rows, and is the bound tight?",
    measure=measure,
    findings=findings,
    tables=tables,
    minutes=5,
    deviations="The black box is group privacy of the whole curve (Vadhan 2017, Lemma 2.2): its best epsilon.",
)
