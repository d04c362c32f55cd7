"""Who took part in a noised sum, if the gradient of everybody who may have done so is known?

The sum is G b + noise: the columns of G are the clipped gradients, and b counts how often each of them is in it. Texts
have much in common, so that the gradients overlap: the inner product of the sum with one gradient says more of all
others than of that one. The best linear guess of b (linear minimum mean square error) takes the others into account.
"""

import numpy as np

_PARALLEL = 1e-6  # directions in which the gradients vary less than this, relative to the most, count as none
_SHARPEST = 1e-4  # the least variance of a guess, in counts
_LARGER = 4.0 ** np.arange(9)  # variances that are tried, over that of a count that is 0 or 1
_ENOUGH = 100  # dimensions from which the noise is estimated
_TINY = 1e-30
_MOST = 50.0  # nats of one step: more would only say that rounding was taken for a sum without noise


def evidence(
    products: np.ndarray, along: np.ndarray, square: float, dimensions: int, rate: float, stated: float
) -> np.ndarray:
    """Compute how strongly a noised sum suggests that each may take part in such sums: float64[m], in nats.

    It is the logarithm of a ratio of likelihoods. By one hypothesis somebody is in the sum with probability `rate`, by
    the other never. Beforehand both are equally likely, for each of the m independently. The size of the noise is
    estimated from the part of the sum in which no gradient lies, so that less noise than is stated makes the guesses
    sharper. So is the variance of counts: gradients that were not clipped are in the sum many times over.

    Args:
        products: float64[m, m], inner products of the gradients.
        along: float64[m], inner products of each gradient with the sum.
        square: of the length of the sum.
        dimensions: of the sum.
        stated: standard deviation of the noise. It counts where the gradients leave too few dimensions to estimate it.
    """
    values, vectors = np.linalg.eigh(products)
    spans = values > _PARALLEL * max(values[-1], 0.0)
    values, vectors = values[spans], vectors[:, spans]
    if not len(values):
        return np.zeros(len(along))
    part = (vectors.T @ along) ** 2 / values  # of the sum's square, in each direction of the gradients
    free = dimensions - len(values)
    noise = max(square - float(part.sum()), 1e-12 * square, _TINY) / free if free >= _ENOUGH else stated**2
    noise = max(noise, _TINY)
    expected = rate / 2
    rest = along - products @ np.full(len(along), expected)
    variance = _likeliest(expected * (1 - expected), (vectors.T @ rest) ** 2 / values, values, noise)
    penalty = noise / variance
    guess = vectors @ ((vectors.T @ rest) / (values + penalty))
    gain = vectors**2 @ (values / (values + penalty))  # how much of a count the guess keeps
    is_seen = gain > 1e-9
    gain = np.where(is_seen, gain, 1.0)
    count = expected + guess / gain
    spread = np.maximum(variance * (1 - gain) / gain, _SHARPEST)
    with np.errstate(divide="ignore"):
        ratio = np.logaddexp(np.log1p(-rate), np.log(rate) + (count - 0.5) / spread)
    return np.where(is_seen, ratio, 0.0).clip(-_MOST, _MOST)


def _likeliest(least: float, squares: np.ndarray, values: np.ndarray, noise: float) -> float:
    """Choose a variance of the counts by the likelihood of the sum.

    Args:
        least: the variance if each count is 0 or 1.
        squares: of the sum's part in each direction that the gradients span.
        values: how much the gradients vary in it.
    """
    tried = least * _LARGER
    expected = noise + tried[:, None] * values
    return float(tried[np.argmin((np.log(expected) + squares / expected).sum(1))])
