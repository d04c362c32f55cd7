"""Mark tokens of a row that are read but not predicted: a token's complement, ~id, stands for it.

So the mark travels with the row wherever the row goes, and costs no further file.
"""

import numpy as np


def marked(ids: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Mark the tokens that are not predicted: int[n] and bool[n] -> int32[n]."""
    own = ids.astype(np.int32)
    return np.where(predicted, own, ~own)


def ids_of(row: np.ndarray) -> np.ndarray:
    """Return the token ids of a row, marked or not: int64[n]."""
    own = row.astype(np.int64)
    return np.where(own < 0, ~own, own)


def is_predicted(row: np.ndarray) -> np.ndarray:
    """Tell of each token whether it is predicted: bool[n]."""
    known: np.ndarray = row >= 0
    return known
