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

    A cell is resampled among the samples that have it; cells with the same samples share their draws, so their
    intervals belong together. With one sample the interval is undefined (nan), not empty of doubt.
    """
    present = ~np.isnan(values)
    mean, low, high, spread = (np.full(values.shape[1], np.nan) for _ in range(4))
    patterns, pattern_of = np.unique(present, axis=1, return_inverse=True)
    for number, chosen in enumerate(patterns.T):
        cells, count = np.flatnonzero(pattern_of.reshape(-1) == number), int(chosen.sum())
        if not count:
            continue
        weights = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=draws) / count
        for start in range(0, len(cells), _CHUNK):
            here = cells[start : start + _CHUNK]
            known = values[chosen][:, here].astype(np.float64)  # [sample, cell]
            mean[here], spread[here] = known.mean(axis=0), known.std(axis=0)
            if count > 1:
                low[here], high[here] = np.percentile(weights @ known, (2.5, 97.5), axis=0)
    return Interval(mean, low, high, spread, present.sum(axis=0))


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
