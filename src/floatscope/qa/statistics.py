"""How sure a score is: bootstrap intervals, paired comparisons, gains from documents. Plain arrays only.

Every function takes one value per sample. Paired ones need the same samples in the same order on all sides.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from floatscope.errors import UserError

RESAMPLES = 5_000
LEVEL = 0.95
_CHUNK = 4_000_000  # drawn indices at a time, so that memory stays at tens of megabytes for any number of samples
_FEW = 16  # a multinomial draw of one value costs about as much as drawing so many indices

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval at `level`, from `n` samples."""

    estimate: float
    low: float
    high: float
    level: float
    n: int


@dataclass(frozen=True)
class Difference:
    """A mean difference with its interval, and the two-sided bootstrap p-value of there being none."""

    interval: Interval
    p_value: float


@dataclass(frozen=True)
class McNemar:
    """Samples that only one side got right, and the exact two-sided p-value of this being chance."""

    only_first: int
    only_second: int
    p_value: float


def mean_interval(values: ArrayLike, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """The mean with its percentile bootstrap interval."""
    return macro_interval([values], level, resamples, seed)


def macro_interval(
    groups: Sequence[ArrayLike], level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """The mean of the groups' means (the average over tasks), each group resampled within itself."""
    arrays = [_checked(group) for group in groups]
    return _interval(arrays, _resampled(arrays, resamples, seed), level)


def proportion_interval(values: ArrayLike, level: float = LEVEL) -> Interval:
    """The share of ones with Wilson's interval, which has a width even where all samples are right or wrong.

    (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n), Wilson 1927.
    """
    array = _checked_binary(values)
    n, share = len(array), float(array.mean())
    z = NormalDist().inv_cdf(0.5 + _checked_level(level) / 2)
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half), level, n)


def paired_difference(
    first: ArrayLike, second: ArrayLike, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> Difference:
    """mean(first) - mean(second) on the same samples, samples resampled as pairs."""
    return macro_difference([(first, second)], level, resamples, seed)


def macro_difference(
    pairs: Sequence[tuple[ArrayLike, ArrayLike]],
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Difference:
    """The mean over groups (tasks) of paired differences, pairs resampled within their group."""
    return _difference([_subtract(first, second) for first, second in pairs], level, resamples, seed)


def rag_gain(
    with_documents: ArrayLike,
    without: ArrayLike,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Difference:
    """What documents add to a model: its scores with them minus its scores without, paired by sample."""
    return paired_difference(with_documents, without, level, resamples, seed)


def gain_difference(
    first: tuple[ArrayLike, ArrayLike],
    second: tuple[ArrayLike, ArrayLike],
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Difference:
    """How much more the first model gains than the second; each is (with, without), all paired by sample."""
    return paired_difference(_subtract(*first), _subtract(*second), level, resamples, seed)


def mcnemar(first: ArrayLike, second: ArrayLike) -> McNemar:
    """McNemar's exact test on right (1) and wrong (0): is either side right more often where they disagree?

    By chance the smaller count b of n disagreements is Binomial(n, 1/2): p = min(1, 2 Σ_{i<=b} C(n,i) / 2^n).
    """
    one, other = _checked_binary(first), _checked_binary(second)
    _same_length(one, other)
    only_first, only_second = int(np.sum(one > other)), int(np.sum(one < other))
    n, term, tail = only_first + only_second, 1, 0
    for i in range(min(only_first, only_second) + 1):
        tail += term
        term = term * (n - i) // (i + 1)
    return McNemar(only_first, only_second, min(1.0, 2 * tail / 2**n))


def _difference(arrays: Sequence[Floats], level: float, resamples: int, seed: int) -> Difference:
    means = _resampled(arrays, resamples, seed)
    # Both tails count the observed sample itself, so that p is never 0 (Davison and Hinkley 1997, eq. 4.11).
    tail = min(int(np.sum(means <= 0)), int(np.sum(means >= 0)))
    return Difference(_interval(arrays, means, level), min(1.0, 2 * (tail + 1) / (resamples + 1)))


def _resampled(arrays: Sequence[Floats], resamples: int, seed: int) -> Floats:
    """The mean over groups in each resample: [resamples]."""
    if not arrays:
        raise UserError("An average over groups needs at least one group.")
    if resamples < 1:
        raise UserError(f"{resamples} resamples are too few: ask for at least 1, better 1000 or more.")
    rng = np.random.default_rng(seed)
    total = np.zeros(resamples)
    for array in arrays:
        total += np.concatenate(list(_resampled_means(array, resamples, rng)))
    return total / len(arrays)


def _resampled_means(values: Floats, resamples: int, rng: np.random.Generator) -> Iterator[Floats]:
    n = len(values)
    distinct, counts = np.unique(values, return_counts=True)
    if _FEW * len(distinct) <= n:
        # Scores take few values (right or wrong): how often each is drawn is multinomial, and much quicker to draw.
        yield rng.multinomial(n, counts / n, size=resamples) @ distinct / n
        return
    rows = max(1, _CHUNK // n)
    for start in range(0, resamples, rows):
        drawn = rng.integers(0, n, size=(min(rows, resamples - start), n), dtype=np.int32)
        yield values[drawn].mean(axis=1)


def _interval(arrays: Sequence[Floats], means: Floats, level: float) -> Interval:
    tail = (1 - _checked_level(level)) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    estimate = np.mean([array.mean() for array in arrays])
    return Interval(float(estimate), float(low), float(high), level, sum(map(len, arrays)))


def _subtract(first: ArrayLike, second: ArrayLike) -> Floats:
    one, other = _checked(first), _checked(second)
    _same_length(one, other)
    return one - other


def _same_length(first: Floats, second: Floats) -> None:
    if len(first) != len(second):
        sizes = f"{len(first)} and {len(second)} values"
        raise UserError(f"A paired comparison needs the same samples on both sides, not {sizes}.")


def _checked(values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise UserError(f"Statistics need one value per sample, not an array of shape {array.shape}.")
    if not np.isfinite(array).all():
        raise UserError(f"{int(np.sum(~np.isfinite(array)))} of {len(array)} values are not finite: leave them out.")
    return array


def _checked_binary(values: ArrayLike) -> Floats:
    array = _checked(values)
    if not np.isin(array, (0.0, 1.0)).all():
        raise UserError("This needs values that are 0 or 1 (right or wrong), such as accuracy or exact match.")
    return array


def _checked_level(level: float) -> float:
    if not 0 < level < 1:
        raise UserError(f"The confidence level is {level}: use a number between 0 and 1, such as 0.95.")
    return level
