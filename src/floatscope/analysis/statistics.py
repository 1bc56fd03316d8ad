"""Means over samples with bootstrap intervals, and permutation tests; what is averaged is left to others."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]
_CHUNK = 2048


class Interval(NamedTuple):
    """Mean over samples with a 95 % percentile bootstrap interval; nan where no sample has a value."""

    mean: Floats
    low: Floats
    high: Floats
    spread: Floats
    samples: NDArray[np.int64]


def bootstrap_mean(values: Floats, seed: int = 0, draws: int = 1000) -> Interval:
    """values [sample, cell]; samples are resampled with replacement, missing values (nan) are left out.

    All cells share the same draws, so intervals of one table belong together. With one sample the interval is
    undefined (nan), not empty of doubt.
    """
    count, cells = values.shape
    weights = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=draws)  # [draw, sample]
    mean, low, high, spread = (np.full(cells, np.nan) for _ in range(4))
    present = ~np.isnan(values)
    samples = present.sum(axis=0)
    for start in range(0, cells, _CHUNK):
        chosen = slice(start, start + _CHUNK)
        here = present[:, chosen]
        filled = np.where(here, values[:, chosen], 0.0).astype(np.float64)
        total = here.sum(axis=0)
        known = total > 0
        average = np.divide(filled.sum(axis=0), total, out=np.full(total.shape, np.nan), where=known)
        mean[chosen] = average
        squares = np.where(here, (filled - np.where(known, average, 0)) ** 2, 0).sum(axis=0)
        spread[chosen] = np.sqrt(np.divide(squares, total, out=np.full(total.shape, np.nan), where=known))
        sums, counts = weights @ filled, weights @ here  # [draw, cell]
        drawn = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
        for cells_here, percentile in (
            (here.all(axis=0) & (total > 1), np.percentile),
            (~here.all(axis=0) & (total > 1), np.nanpercentile),  # slow: only where a draw can be empty
        ):
            if cells_here.any():
                edges = percentile(drawn[:, cells_here], (2.5, 97.5), axis=0)
                low[chosen][cells_here], high[chosen][cells_here] = edges
    return Interval(mean, low, high, spread, samples)


def sign_flip_test(differences: Floats, seed: int = 0, draws: int = 10_000) -> float:
    """Two-sided p of a mean paired difference of 0, by flipping signs; nan for fewer than two samples."""
    known = differences[~np.isnan(differences)]
    if len(known) < 2:
        return float("nan")
    signs = np.random.default_rng(seed).choice((-1.0, 1.0), size=(draws, len(known)))
    extreme = np.abs(signs @ known) >= abs(known.sum()) - 1e-12
    return float((extreme.sum() + 1) / (draws + 1))


def spearman(first: Floats, second: Floats) -> Floats:
    """Rank correlation along the last axis, ties by mean rank; nan where either side is constant."""
    from scipy.stats import rankdata  # loaded here: scipy is slow to import

    first, second = np.broadcast_arrays(first, second)
    return pearson(rankdata(first, axis=-1), rankdata(second, axis=-1))


def pearson(first: Floats, second: Floats) -> Floats:
    """Correlation along the last axis; nan where either side is constant."""
    first = first - first.mean(axis=-1, keepdims=True)
    second = second - second.mean(axis=-1, keepdims=True)
    scale = np.sqrt((first**2).sum(axis=-1) * (second**2).sum(axis=-1))
    product = (first * second).sum(axis=-1)
    return np.divide(product, scale, out=np.full(np.shape(product), np.nan), where=scale > 1e-12)
