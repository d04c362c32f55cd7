"""A classifier of texts that is quick to train: the words and pairs of words, weighed, and one linear layer."""

import zlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from scipy import sparse

_FEATURES = 1 << 16
_PENALTY = 1e-4  # on the squared weights, of the mean loss
_ROUNDS = 60


def features(texts: Sequence[str]) -> sparse.csr_array:
    """Count words and pairs of words, in lower case, in hashed columns: float64[texts, columns], each row at length 1.

    Counts are taken as logarithms. CRC-32 puts a word into the same column in every process.
    """
    rows, columns = [], []
    for row, text in enumerate(texts):
        words = text.lower().split()
        for term in (*words, *map(" ".join, pairwise(words))):
            rows.append(row)
            columns.append(zlib.crc32(term.encode("utf-8", "surrogatepass")) % _FEATURES)
    ones = np.ones(len(rows))
    found = sparse.csr_array((ones, (rows, columns)), shape=(len(texts), _FEATURES))
    found.sum_duplicates()
    found.data = 1 + np.log(found.data)
    return _of_length_one(found)


def rarity(found: sparse.csr_array) -> np.ndarray:
    """Return how rare each column is among these texts, as a weight: float64[columns]."""
    holding = np.bincount(found.indices, minlength=_FEATURES)
    return np.asarray(np.log((1 + found.shape[0]) / (1 + holding)) + 1)


def weighed(found: sparse.csr_array, weights: np.ndarray) -> sparse.csr_array:
    """Multiply the columns by weights; rows keep length 1."""
    return _of_length_one(sparse.csr_array(found @ sparse.diags_array(weights)))


def _of_length_one(found: sparse.csr_array) -> sparse.csr_array:
    norms = np.sqrt(np.asarray(found.multiply(found).sum(axis=1)).ravel())
    return sparse.csr_array(sparse.diags_array(1 / np.maximum(norms, 1e-12)) @ found)


def predictions(texts: Sequence[str], labels: Sequence[str], asked: Sequence[str]) -> list[str]:
    """Train on labelled texts, and name the label of others.

    It is a logistic regression on TF-IDF, with a small penalty on its weights, by L-BFGS. The same input gives the same
    labels.

    Raises:
        ValueError: there is no text to train on.
    """
    if not texts:
        raise ValueError("nothing to train on")
    names = sorted(set(labels))
    if len(names) == 1:
        return names * len(asked)
    own = features(texts)
    weights = rarity(own)
    kept = np.unique(own.indices)  # weights of other columns would stay 0
    x, y = _tensor(weighed(own, weights)[:, kept]), torch.tensor([names.index(label) for label in labels])
    linear = torch.zeros(len(kept), len(names), dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(len(names), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([linear, bias], max_iter=_ROUNDS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(x @ linear + bias, y) + _PENALTY * linear.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    with torch.no_grad():
        scores = _tensor(weighed(features(asked), weights)[:, kept]) @ linear + bias
    return [names[number] for number in scores.argmax(1).tolist()]


def _tensor(found: sparse.csr_array) -> torch.Tensor:
    coo = found.tocoo()
    places = torch.from_numpy(np.stack(coo.coords).astype(np.int64))
    return torch.sparse_coo_tensor(
        places, torch.from_numpy(coo.data), coo.shape, check_invariants=False
    ).coalesce()
