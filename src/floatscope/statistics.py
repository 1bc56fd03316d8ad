"""How sure a mean is: intervals, paired comparisons, permutation tests, correlations. What is averaged is not its job.

Scores take one value per sample (`mean_interval` and its neighbours); analyses take many cells at once, with values
missing (`bootstrap_mean`). Paired functions need the same samples in the same order on both sides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from floatscope.errors import UserError

RESAMPLES = 5_000
LEVEL = 0.95
_INDICES_AT_ONCE = 4_000_000  # so that memory stays at tens of megabytes for any number of samples
_CELLS_AT_ONCE = 2048
_FEW = 16  # a multinomial draw of one value costs about as much as drawing so many indices

Floats = NDArray[np.float64]
Array = NDArray[Any]
Number = TypeVar("Number", float, Array)


@dataclass(frozen=True)
class Interval(Generic[Number]):
    """An estimate with its confidence interval, from `n` samples; all four are arrays where there are many cells."""

    estimate: Number
    low: Number
    high: Number
    n: Number


@dataclass(frozen=True)
class Difference(Interval[float]):
    """A mean difference with its interval, and the two-sided bootstrap p-value of there being none."""

    p: float


@dataclass(frozen=True)
class McNemar:
    """Samples that only one side got right, and the exact two-sided p-value of this being chance."""

    only_first: int
    only_second: int
    p: float


def mean_interval(values: ArrayLike, resamples: int = RESAMPLES, seed: int = 0) -> Interval[float]:
    """The mean with its percentile bootstrap interval."""
    return macro_interval([values], resamples, seed)


def macro_interval(groups: Sequence[ArrayLike], resamples: int = RESAMPLES, seed: int = 0) -> Interval[float]:
    """The mean of the groups' means (the average over tasks), each group resampled within itself."""
    arrays = [_checked(group) for group in groups]
    return Interval(*_estimate(arrays, _resampled(arrays, resamples, seed)))


def proportion_interval(values: ArrayLike) -> Interval[float]:
    """The share of ones with Wilson's interval, which has a width even where all samples are right or wrong."""
    from scipy.stats import binomtest  # loaded here: scipy is slow to import

    array = _checked(values, binary=True)
    share = float(array.mean())
    # Of the two things that it gives only the interval is wanted; the test of the share itself costs least.
    found = binomtest(int(array.sum()), len(array), share).proportion_ci(LEVEL, method="wilson")
    return Interval(share, float(found.low), float(found.high), len(array))


def paired_difference(first: ArrayLike, second: ArrayLike, resamples: int = RESAMPLES, seed: int = 0) -> Difference:
    """mean(first) - mean(second) on the same samples, samples resampled as pairs."""
    return macro_difference([(first, second)], resamples, seed)


def macro_difference(
    pairs: Sequence[tuple[ArrayLike, ArrayLike]], resamples: int = RESAMPLES, seed: int = 0
) -> Difference:
    """The mean over groups (tasks) of paired differences, pairs resampled within their group."""
    arrays = [one - other for one, other in (_checked_pair(*pair) for pair in pairs)]
    means = _resampled(arrays, resamples, seed)
    # Both tails count the observed sample itself, so that p is never 0 (Davison and Hinkley 1997, eq. 4.11).
    tail = min(int(np.sum(means <= 0)), int(np.sum(means >= 0)))
    return Difference(*_estimate(arrays, means), min(1.0, 2 * (tail + 1) / (resamples + 1)))


def mcnemar(first: ArrayLike, second: ArrayLike) -> McNemar:
    """McNemar's exact test on right (1) and wrong (0): is either side right more often where they differ?"""
    from scipy.stats import binomtest

    one, other = _checked_pair(first, second, binary=True)
    only_first, only_second = int(np.sum(one > other)), int(np.sum(one < other))
    apart = only_first + only_second
    return McNemar(only_first, only_second, float(binomtest(only_first, apart).pvalue) if apart else 1.0)


def paired_chance(first: ArrayLike, second: ArrayLike) -> float:
    """The two-sided p of no difference on the same samples, however small: McNemar's exact test for right and wrong,
    else Student's paired test. A bootstrap's p cannot be smaller than its number of draws lets it, which a correction
    for hundreds of comparisons needs."""
    from scipy.stats import ttest_1samp

    one, other = _checked_pair(first, second)
    if np.isin([one, other], (0, 1)).all():
        return mcnemar(one, other).p
    apart = one - other
    if len(apart) < 2 or np.ptp(apart) == 0:
        return 1.0
    test: Any = ttest_1samp(apart, 0)
    return float(test.pvalue)


def holm(chances: Sequence[float]) -> list[float]:
    """p of several tests corrected for their number, so that one below .05 is rarely false (Holm 1979)."""
    order = np.argsort(chances, kind="stable")
    found, highest = [0.0] * len(chances), 0.0
    for place, number in enumerate(order):
        highest = max(highest, min(1.0, (len(chances) - place) * chances[number]))
        found[number] = highest
    return found


def bootstrap_mean(values: Array, seed: int = 0, draws: int = 1000) -> Interval[Array]:
    """The mean of each cell with its 95 % percentile bootstrap interval; values [sample, cell].

    Missing values (nan) are left out: a cell is resampled among the samples that have it. Cells with the same samples
    share their draws, so their intervals belong together. With one sample the interval is undefined (nan), not empty
    of doubt; with none the mean is nan too.
    """
    present = ~np.isnan(values)
    mean, low, high = (np.full(values.shape[1], np.nan) for _ in range(3))
    patterns, pattern_of = np.unique(present, axis=1, return_inverse=True)
    for number, chosen in enumerate(patterns.T):
        cells, count = np.flatnonzero(pattern_of.reshape(-1) == number), int(chosen.sum())
        if not count:
            continue
        weights = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=draws) / count
        for start in range(0, len(cells), _CELLS_AT_ONCE):
            here = cells[start : start + _CELLS_AT_ONCE]
            known = values[chosen][:, here].astype(np.float64)  # [sample, cell]
            mean[here] = known.mean(axis=0)
            if count > 1:
                low[here], high[here] = np.percentile(weights @ known, (2.5, 97.5), axis=0)
    return Interval(mean, low, high, present.sum(axis=0))


def ratio_interval(above: Array, below: Array, seed: int = 0, draws: int = RESAMPLES) -> Interval[Array]:
    """mean(above) / mean(below) of each cell [sample, cell] with its bootstrap interval; nan where the latter is 0."""
    weights = np.random.default_rng(seed).multinomial(len(below), np.full(len(below), 1 / len(below)), size=draws)
    whole = np.concatenate([np.ones((1, len(below)), weights.dtype), weights])  # the samples as they are come first
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = (whole @ above) / (whole @ below)[:, None]
    low, high = np.nanquantile(ratios[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return Interval(ratios[0], low, high, np.full(above.shape[1], len(below)))


def spread_difference(first: Array, second: Array, seed: int = 0, draws: int = RESAMPLES) -> Difference:
    """How much further the means of the first lie apart (highest minus lowest) than those of the second.

    Both [place, sample], of the same samples, which are resampled with all their places and on both sides at once.
    """
    count = first.shape[1]
    weights = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=draws) / count
    one, other = (np.ptp(side @ weights.T, axis=0) for side in (first, second))
    apart = one - other
    low, high = np.quantile(apart, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    tail = min(int(np.sum(apart <= 0)), int(np.sum(apart >= 0)))
    estimate = float(np.ptp(first.mean(1)) - np.ptp(second.mean(1)))
    return Difference(estimate, float(low), float(high), count, min(1.0, 2 * (tail + 1) / (draws + 1)))


def sign_flip_test(differences: Array, seed: int = 0, draws: int = 10_000) -> float:
    """Two-sided p of a mean paired difference of 0, by flipping signs; nan for fewer than two samples."""
    known = differences[~np.isnan(differences)]
    if len(known) < 2:
        return float("nan")
    signs = np.random.default_rng(seed).choice((-1.0, 1.0), size=(draws, len(known)))
    extreme = np.abs(signs @ known) >= abs(known.sum()) - 1e-12
    # The observed signs count as one draw, so that p is never 0.
    return float((extreme.sum() + 1) / (draws + 1))


def spearman(first: Array, second: Array) -> Array:
    """Rank correlation along the last axis, ties by mean rank; nan where either side is constant."""
    from scipy.stats import rankdata

    first, second = np.broadcast_arrays(first, second)
    return pearson(rankdata(first, axis=-1), rankdata(second, axis=-1))


def pearson(first: Array, second: Array) -> Array:
    """Correlation along the last axis; nan where either side is constant."""
    first = first - first.mean(axis=-1, keepdims=True)
    second = second - second.mean(axis=-1, keepdims=True)
    scale = np.sqrt((first**2).sum(axis=-1) * (second**2).sum(axis=-1))
    product = (first * second).sum(axis=-1)
    return np.divide(product, scale, out=np.full(np.shape(product), np.nan), where=scale > 1e-12)


def _resampled(arrays: Sequence[Floats], resamples: int, seed: int) -> Floats:
    """The mean over groups in each resample: [resamples]."""
    if not arrays:
        raise UserError("An average over groups needs at least one group.")
    if resamples < 1:
        raise UserError(f"{resamples} resamples are too few: ask for at least 1, better 1000 or more.")
    rng = np.random.default_rng(seed)
    total = np.zeros(resamples)
    for array in arrays:
        n = len(array)
        distinct, counts = np.unique(array, return_counts=True)
        if _FEW * len(distinct) <= n:
            # Scores take few values (right or wrong): how often each is drawn is multinomial, and much quicker to draw.
            total += rng.multinomial(n, counts / n, size=resamples) @ distinct / n
            continue
        rows = max(1, _INDICES_AT_ONCE // n)
        for start in range(0, resamples, rows):
            drawn = rng.integers(0, n, size=(min(rows, resamples - start), n), dtype=np.int32)
            total[start : start + rows] += array[drawn].mean(axis=1)
    return total / len(arrays)


def _estimate(arrays: Sequence[Floats], means: Floats) -> tuple[float, float, float, int]:
    """Estimate, low, high and n from the samples and the means of their resamples."""
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(np.mean([array.mean() for array in arrays])), float(low), float(high), sum(map(len, arrays))


def _checked_pair(first: ArrayLike, second: ArrayLike, binary: bool = False) -> tuple[Floats, Floats]:
    one, other = _checked(first, binary), _checked(second, binary)
    if len(one) != len(other):
        sizes = f"{len(one)} and {len(other)} values"
        raise UserError(f"A paired comparison needs the same samples on both sides, not {sizes}.")
    return one, other


def _checked(values: ArrayLike, binary: bool = False) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise UserError(f"Statistics need one value per sample, not an array of shape {array.shape}.")
    if not np.isfinite(array).all():
        raise UserError(f"{int(np.sum(~np.isfinite(array)))} of {len(array)} values are not finite: leave them out.")
    if binary and not np.isin(array, (0.0, 1.0)).all():
        raise UserError("This needs values that are 0 or 1 (right or wrong), such as accuracy or exact match.")
    return array
