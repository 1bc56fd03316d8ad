"""Intervals and tests against scipy, closed forms and simulation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from floatscope.errors import UserError
from floatscope.qa import statistics
from floatscope.qa.statistics import (
    gain_difference,
    macro_difference,
    macro_interval,
    mcnemar,
    mean_interval,
    paired_difference,
    proportion_interval,
    rag_gain,
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
    wide = mean_interval([0, 1], level=0.9)
    assert (wide.low, wide.estimate, wide.high) == (0, 0.5, 1)
    narrow = mean_interval([0, 1], level=0.3)
    assert (narrow.low, narrow.high) == (0.5, 0.5)


def test_coverage_of_the_bootstrap_is_near_its_level() -> None:
    rng = np.random.default_rng(3)
    truth, covered = 0.7, 0
    for trial in range(400):
        interval = mean_interval(rng.random(80) < truth, resamples=400, seed=trial)
        covered += interval.low <= truth <= interval.high
    assert 0.91 <= covered / 400 <= 0.98


def test_false_alarms_of_the_paired_bootstrap_are_near_their_rate() -> None:
    rng = np.random.default_rng(4)
    alarms = 0
    for trial in range(400):
        alarms += paired_difference(rng.random(80), rng.random(80), resamples=400, seed=trial).p_value < 0.05
    assert 0.02 <= alarms / 400 <= 0.085


def test_same_seed_same_bytes_and_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    first = mean_interval(SCORES, seed=5)
    assert first == mean_interval(SCORES, seed=5)
    assert first != mean_interval(SCORES, seed=6)
    monkeypatch.setattr(statistics, "_CHUNK", 1000)
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
        ours = proportion_interval([1] * right + [0] * (n - right), level=0.9)
        theirs = stats.binomtest(right, n).proportion_ci(0.9, method="wilson")
        assert (ours.low, ours.high) == (pytest.approx(theirs.low, abs=1e-12), pytest.approx(theirs.high, abs=1e-12))


def test_pairing_takes_out_what_samples_share() -> None:
    hard = RNG.random(200)
    first, second = hard + 0.05 + 0.01 * RNG.standard_normal(200), hard
    difference = paired_difference(first, second)
    assert difference.interval.estimate == pytest.approx(np.mean(first - second))
    assert difference.interval.high - difference.interval.low < 0.004
    assert difference.p_value < 0.001
    theirs = stats.bootstrap((first, second), lambda a, b, axis: np.mean(a - b, axis=axis), paired=True, rng=0)
    assert difference.interval.low == pytest.approx(theirs.confidence_interval.low, abs=5e-4)


def test_no_difference_has_p_one_and_a_swap_changes_the_sign() -> None:
    assert paired_difference(SCORES, SCORES).p_value == 1
    one, other = paired_difference(SCORES, SCORES[::-1], seed=3), paired_difference(SCORES[::-1], SCORES, seed=3)
    assert one.interval.low == pytest.approx(-other.interval.high)
    assert one.p_value == other.p_value


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_mcnemar_agrees_with_the_binomial_test(pairs: list[tuple[bool, bool]]) -> None:
    first, second = zip(*pairs, strict=True)
    ours = mcnemar(first, second)
    only_first = sum(a and not b for a, b in pairs)
    only_second = sum(b and not a for a, b in pairs)
    assert (ours.only_first, ours.only_second) == (only_first, only_second)
    discordant = only_first + only_second
    expected = stats.binomtest(only_first, discordant).pvalue if discordant else 1.0
    assert ours.p_value == pytest.approx(expected)


def test_mcnemar_by_hand_and_at_size() -> None:
    # 1 against 5: 2 (C(6,0) + C(6,1)) / 2^6 = 14/64
    assert mcnemar([1, 0, 0, 0, 0, 0, 1], [0, 1, 1, 1, 1, 1, 1]).p_value == 14 / 64
    large = mcnemar([1] * 2100 + [0] * 1900, [0] * 2100 + [1] * 1900)
    assert large.p_value == pytest.approx(stats.binomtest(2100, 4000).pvalue, rel=1e-9)


def test_gains_by_hand() -> None:
    mdm_with, mdm_without = np.array([1, 1, 1, 0.0]), np.array([0, 0, 1, 0.0])
    arm_with, arm_without = np.array([1, 0, 1, 0.0]), np.array([0, 0, 1, 0.0])
    assert rag_gain(mdm_with, mdm_without).interval.estimate == 0.5
    assert rag_gain(arm_with, arm_without).interval.estimate == 0.25
    more = gain_difference((mdm_with, mdm_without), (arm_with, arm_without))
    assert more.interval.estimate == 0.25  # one sample of four gains for the MDM only
    assert (more.interval.low, more.interval.high) == (0, 0.75)
    assert more == paired_difference(mdm_with - arm_with, mdm_without - arm_without)


def test_macro_difference_averages_tasks() -> None:
    pairs = [(SCORES + 0.2, SCORES), (SCORES[:10] + 0.4, SCORES[:10])]
    assert macro_difference(pairs).interval.estimate == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: mean_interval([]), "one value per sample"),
        (lambda: mean_interval([[1.0]]), "one value per sample"),
        (lambda: mean_interval([1.0, np.nan]), "1 of 2 values are not finite"),
        (lambda: mean_interval([1.0], level=1.5), "between 0 and 1"),
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
