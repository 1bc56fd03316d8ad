"""Intervals, tests and correlations against scipy, closed forms, counting and simulation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from floatscope import statistics
from floatscope.errors import UserError
from floatscope.statistics import (
    Difference,
    Interval,
    bootstrap_mean,
    macro_difference,
    macro_interval,
    mcnemar,
    mean_interval,
    paired_difference,
    pearson,
    proportion_interval,
    sign_flip_test,
    spearman,
)

RNG = np.random.default_rng(7)
SCORES = RNG.beta(2, 5, size=120)


@pytest.mark.parametrize("scores", [SCORES, np.round(2 * SCORES) / 2], ids=["many values", "few values"])
def test_bootstrap_interval_agrees_with_scipy(scores: np.ndarray) -> None:
    ours = mean_interval(scores, resamples=20_000, seed=1)
    theirs = stats.bootstrap((scores,), np.mean, n_resamples=20_000, method="percentile", rng=2).confidence_interval
    width = theirs.high - theirs.low
    assert ours.estimate == pytest.approx(scores.mean())
    assert ours.low == pytest.approx(theirs.low, abs=0.04 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.04 * width)
    assert ours.n == 120


def test_bootstrap_of_two_values_is_exact() -> None:
    """Means of resamples of (0, 1) are 0, 1/2, 1 with chances 1/4, 1/2, 1/4."""
    found = mean_interval([0, 1])
    assert (found.low, found.estimate, found.high) == (0, 0.5, 1)


def test_coverage_of_the_bootstrap_is_near_its_level() -> None:
    rng = np.random.default_rng(3)
    truth, covered = 0.7, 0
    for trial in range(400):
        interval = mean_interval(rng.random(80) < truth, resamples=400, seed=trial)
        covered += interval.low <= truth <= interval.high
    assert 0.91 <= covered / 400 <= 0.98


@pytest.mark.slow
def test_false_alarms_of_the_paired_bootstrap_are_near_their_rate() -> None:
    rng = np.random.default_rng(4)
    alarms = 0
    for trial in range(400):
        alarms += paired_difference(rng.random(80), rng.random(80), resamples=400, seed=trial).p < 0.05
    assert 0.02 <= alarms / 400 <= 0.085


def test_same_seed_same_bytes_and_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    first = mean_interval(SCORES, seed=5)
    assert first == mean_interval(SCORES, seed=5)
    assert first != mean_interval(SCORES, seed=6)
    monkeypatch.setattr(statistics, "_INDICES_AT_ONCE", 1000)
    assert mean_interval(SCORES, seed=5) == first


def test_macro_interval_weighs_tasks_and_not_samples() -> None:
    big, small = np.ones(1000), np.zeros(10)
    assert macro_interval([big, small]).estimate == 0.5
    spread = macro_interval([SCORES, SCORES + 1], resamples=20_000)
    assert spread.estimate == pytest.approx(SCORES.mean() + 0.5)
    assert spread.high - spread.low == pytest.approx(
        2 * 1.96 * np.sqrt(2 * SCORES.var() / len(SCORES)) / 2, rel=0.05
    )  # the mean of two independent means
    assert macro_interval([SCORES]) == mean_interval(SCORES)


def test_wilson_interval_agrees_with_scipy() -> None:
    for right, n in ((0, 5), (5, 5), (70, 100), (1, 300)):
        ours = proportion_interval([1] * right + [0] * (n - right))
        theirs = stats.binomtest(right, n).proportion_ci(0.95, method="wilson")
        assert (ours.low, ours.high) == (pytest.approx(theirs.low, abs=1e-12), pytest.approx(theirs.high, abs=1e-12))


def test_wilson_interval_by_hand() -> None:
    """3 of 4: the roots of (3/4 - p)² = z² p (1 - p) / 4 with z = 1.959964."""
    found = proportion_interval([1, 0, 1, 1])
    assert (found.estimate, found.n) == (0.75, 4)
    assert (found.low, found.high) == (pytest.approx(0.300642, abs=1e-6), pytest.approx(0.954413, abs=1e-6))
    assert proportion_interval([0] * 7).low == 0 and proportion_interval([1] * 7).high == 1


def test_pairing_takes_out_what_samples_share() -> None:
    hard = RNG.random(200)
    first, second = hard + 0.05 + 0.01 * RNG.standard_normal(200), hard
    difference = paired_difference(first, second)
    assert difference.estimate == pytest.approx(np.mean(first - second))
    assert difference.high - difference.low < 0.004
    assert difference.p < 0.001
    theirs = stats.bootstrap((first, second), lambda a, b, axis: np.mean(a - b, axis=axis), paired=True, rng=0)
    assert difference.low == pytest.approx(theirs.confidence_interval.low, abs=5e-4)


def test_no_difference_has_p_one_and_a_swap_changes_the_sign() -> None:
    assert paired_difference(SCORES, SCORES).p == 1
    one, other = paired_difference(SCORES, SCORES[::-1], seed=3), paired_difference(SCORES[::-1], SCORES, seed=3)
    assert one.low == pytest.approx(-other.high)
    assert one.p == other.p


@pytest.mark.slow
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_mcnemar_agrees_with_the_binomial_test(pairs: list[tuple[bool, bool]]) -> None:
    first, second = zip(*pairs, strict=True)
    ours = mcnemar(first, second)
    only_first = sum(a and not b for a, b in pairs)
    only_second = sum(b and not a for a, b in pairs)
    assert (ours.only_first, ours.only_second) == (only_first, only_second)
    discordant = only_first + only_second
    expected = stats.binomtest(only_first, discordant).pvalue if discordant else 1.0
    assert ours.p == pytest.approx(expected)


def test_mcnemar_by_hand_and_at_size() -> None:
    # 1 against 5: 2 (C(6,0) + C(6,1)) / 2^6 = 14/64
    assert mcnemar([1, 0, 0, 0, 0, 0, 1], [0, 1, 1, 1, 1, 1, 1]).p == 14 / 64
    large = mcnemar([1] * 2100 + [0] * 1900, [0] * 2100 + [1] * 1900)
    assert large.p == pytest.approx(stats.binomtest(2100, 4000).pvalue, rel=1e-9)


def test_gains_and_their_difference_by_hand() -> None:
    mdm_with, mdm_without = np.array([1, 1, 1, 0.0]), np.array([0, 0, 1, 0.0])
    arm_with, arm_without = np.array([1, 0, 1, 0.0]), np.array([0, 0, 1, 0.0])
    assert paired_difference(mdm_with, mdm_without).estimate == 0.5
    assert paired_difference(arm_with, arm_without).estimate == 0.25
    more = paired_difference(mdm_with - mdm_without, arm_with - arm_without)
    # Resamples of (0, 1, 0, 0): k ones of 4 have the chance C(4,k) 3^(4-k) / 256, so 0 has 81/256, 3/4 and more 13/256.
    assert (more.estimate, more.low, more.high, more.n) == (0.25, 0, 0.75, 4)
    assert more.p == pytest.approx(2 * 81 / 256, abs=0.05)


def test_a_p_is_never_zero_however_clear_the_difference() -> None:
    """The sample itself counts as one more draw: the least p is 2 / (draws + 1), or 1 / (draws + 1) for signs."""
    clear = np.full(30, 0.5)
    assert paired_difference(clear, clear - 1, resamples=99).p == 2 / 100
    assert paired_difference(clear - 1, clear, resamples=99).p == 2 / 100
    assert macro_difference([(clear, clear - 1)]).p == 2 / 5001
    assert sign_flip_test(np.full(60, 0.5), draws=999) == 1 / 1000


def test_mean_paired_differences_have_the_p_of_counting_all_resamples() -> None:
    """Differences (1, 0): resamples (1, 1), (1, 0), (0, 1), (0, 0); a mean of at most 0 has the chance 1/4."""
    found = paired_difference([1, 1], [0, 1])
    assert found == Difference(0.5, 0.0, 1.0, 2, found.p)
    assert found.p == pytest.approx(0.5, abs=0.03)


def test_macro_difference_averages_tasks() -> None:
    pairs = [(SCORES + 0.2, SCORES), (SCORES[:10] + 0.4, SCORES[:10])]
    assert macro_difference(pairs).estimate == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: mean_interval([]), "one value per sample"),
        (lambda: mean_interval([[1.0]]), "one value per sample"),
        (lambda: mean_interval([1.0, np.nan]), "1 of 2 values are not finite"),
        (lambda: mean_interval([1.0], resamples=0), "resamples"),
        (lambda: macro_interval([]), "at least one group"),
        (lambda: macro_difference([]), "at least one group"),
        (lambda: paired_difference([1.0], [1.0, 0.0]), "1 and 2 values"),
        (lambda: mcnemar([1, 0], [1]), "2 and 1 values"),
        (lambda: mcnemar([0.5], [1]), "0 or 1"),
        (lambda: proportion_interval([0.5]), "0 or 1"),
    ],
)
def test_wrong_input_is_a_sentence(call, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        call()


@pytest.mark.slow
def test_means_of_many_cells_cover_the_truth() -> None:
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        interval = bootstrap_mean(rng.normal(3, 1, (30, 1)), seed=1, draws=400)
        inside += interval.low[0] <= 3 <= interval.high[0]
    assert 175 <= inside <= 199


def test_means_of_many_cells_leave_missing_values_out() -> None:
    values = np.array([[1.0, np.nan, np.nan], [3.0, 5.0, np.nan], [np.nan, 7.0, np.nan]])
    found = bootstrap_mean(values)
    assert isinstance(found, Interval)
    assert found.estimate[:2].tolist() == [2, 6] and np.isnan(found.estimate[2])
    assert found.low[:2].tolist() == [1, 5] and found.high[:2].tolist() == [3, 7]
    assert found.n.tolist() == [2, 2, 0]
    alone = bootstrap_mean(np.array([[4.0]]))
    assert alone.estimate[0] == 4 and np.isnan(alone.low[0]) and np.isnan(alone.high[0])


@pytest.mark.slow
def test_many_cells_at_once_or_few_give_the_same() -> None:
    values = np.random.default_rng(0).normal(size=(5, 5000))
    np.testing.assert_array_equal(bootstrap_mean(values).low[-3:], bootstrap_mean(values[:, -3:]).low)


def test_sign_flips_against_all_of_them() -> None:
    """Of the eight signs of (1, 2, 4) only two give a sum as far from 0 as 7; of (1, -1, 1, -1) all do."""
    assert sign_flip_test(np.array([1.0, 2.0, 4.0, np.nan])) == pytest.approx(2 / 8, abs=0.02)
    assert sign_flip_test(np.array([1.0, -1.0, 1.0, -1.0])) == 1
    assert np.isnan(sign_flip_test(np.array([1.0])))


def test_correlations_agree_with_numpy_and_scipy() -> None:
    rng = np.random.default_rng(1)
    first, second = rng.normal(size=(2, 9))
    assert pearson(first, second) == pytest.approx(np.corrcoef(first, second)[0, 1])
    assert spearman(first, second) == pytest.approx(stats.spearmanr(first, second).statistic)
    tied = np.array([1.0, 1, 2, 2, 3, 3, 3, 4, 5])
    assert spearman(tied, second) == pytest.approx(stats.spearmanr(tied, second).statistic)
    assert np.isnan(pearson(first, np.ones(9)))


def test_paired_chances_are_mcnemar_s_or_student_s():
    rng = np.random.default_rng(0)
    right, other = rng.integers(0, 2, (2, 30))
    assert statistics.paired_chance(right, other) == statistics.mcnemar(right, other).p
    first, second = rng.normal(size=(2, 30))
    assert statistics.paired_chance(first, second) == pytest.approx(stats.ttest_rel(first, second).pvalue)
    assert statistics.paired_chance([2.0, 2.0], [2.0, 2.0]) == 1.0
    assert statistics.paired_chance(first + 5, first + rng.normal(size=30) / 100) < 1e-20
