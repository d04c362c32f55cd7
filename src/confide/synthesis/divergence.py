"""How far two collections of texts lie apart: as points, as counts of words, as lengths."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
from scipy.cluster.vq import kmeans2

T = TypeVar("T")

SCALING = 5.0
"""The exponent's factor in Pillutla et al. 2021."""
_PARTS, _MOST_CLUSTERS, _KEPT = 25, 100, 0.9


def likeness(first: np.ndarray, second: np.ndarray, seed: int = 0) -> float:
    """Compute the area under the divergence frontier of two clouds of points, float[n, d] and float[m, d].

    It lies between 0 and 1; 1 means the same. As in MAUVE (Pillutla et al. 2021) both clouds are put into common
    clusters, and the Kullback-Leibler divergences of the two histograms from each mixture of them are traded off. The
    value depends on embeddings, clusters and sizes, so it compares with others of the same call alone.

    Raises:
        ValueError: a cloud has fewer than two points.
    """
    if min(len(first), len(second)) < 2:
        raise ValueError("a cloud takes two points at least")
    points = _reduced(np.concatenate([first, second]).astype(np.float64))
    clusters = max(2, min(_MOST_CLUSTERS, len(points) // 20))
    _, labels = kmeans2(points, clusters, minit="++", rng=np.random.default_rng(seed), missing="warn")
    counts = [np.bincount(own, minlength=clusters) for own in np.split(labels, [len(first)])]
    return frontier(*(own / own.sum() for own in counts))


def frontier(p: np.ndarray, q: np.ndarray) -> float:
    """Compute the area under the divergence frontier of two histograms, float[k] each with the sum 1."""
    shares = np.linspace(1e-6, 1 - 1e-6, _PARTS)
    curve = [(0.0, 1.0), (1.0, 0.0)]
    for share in shares:
        mixed = share * p + (1 - share) * q
        curve.append((float(np.exp(-SCALING * _kl(q, mixed))), float(np.exp(-SCALING * _kl(p, mixed)))))
    x, y = np.array(sorted(curve, key=lambda point: (point[0], -point[1]))).T
    return float(np.trapezoid(y, x))


def _kl(p: np.ndarray, q: np.ndarray) -> float:
    some = p > 0
    return float((p[some] * np.log(p[some] / q[some])).sum())


def _reduced(points: np.ndarray) -> np.ndarray:
    """Keep the directions that hold most of the variance, each point at length 1."""
    points = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-12)
    centred = points - points.mean(0)
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    share = np.cumsum(sizes**2) / max(float((sizes**2).sum()), 1e-300)
    kept = 1 + int(np.searchsorted(share, _KEPT))
    return np.asarray(centred @ directions[:kept].T)


def of_runs(first: Iterable[str], second: Iterable[str], words: int) -> float:
    """Compute the Jensen-Shannon distance of two collections' runs of so many words."""
    return distance(Counter(_runs(first, words)), Counter(_runs(second, words)))


def of_lengths(first: Iterable[str], second: Iterable[str]) -> float:
    """Compute the Jensen-Shannon distance of the lengths in words, in bins of 1, 2 to 3, 4 to 7 and so on."""
    counts = (Counter(len(text.split()).bit_length() for text in texts) for texts in (first, second))
    return distance(*counts)


def distance(first: Counter[T], second: Counter[T]) -> float:
    """Compute the Jensen-Shannon distance of two histograms, as the root of a divergence in bits: from 0 to 1.

    Raises:
        ValueError: a histogram is empty.
    """
    sums = sum(first.values()), sum(second.values())
    if not all(sums):
        raise ValueError("a histogram is empty")
    found = 0.0
    for key in {*first, *second}:
        p, q = first.get(key, 0) / sums[0], second.get(key, 0) / sums[1]
        middle = (p + q) / 2
        found += sum(x * float(np.log2(x / middle)) / 2 for x in (p, q) if x)
    return float(np.sqrt(min(1.0, max(0.0, found))))


def _runs(texts: Iterable[str], words: int) -> Iterable[tuple[str, ...]]:
    for text in texts:
        own: Sequence[str] = text.split()
        yield from zip(*(own[place:] for place in range(words)), strict=False)
