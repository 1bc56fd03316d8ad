"""Task dependence: tasks whose anchors differ, tasks whose anchors do not, and the distances by hand."""

from functools import partial

import numpy as np
import pytest

from floatscope.analysis import Controls, analyze
from floatscope.analysis.anchors import detect
from floatscope.analysis.task_dependence import REGIONS, anchor_profiles
from floatscope.analysis.token_classes import CLASSES, step_classes
from floatscope.errors import UserError
from tests.traces.full_matrices import constant_rows, full_run, peaked, to_trace

task_dependence = partial(analyze, "task_dependence")


def sample(position: int, task: str, seed: int):
    run = constant_rows(peaked(np.full((2, 3), position), 40), seed=seed)
    return to_trace(run, metadata={"task": task})


@pytest.mark.slow
def test_different_anchors_are_found():
    traces = [sample(3, "qa", n) for n in range(6)] + [sample(30, "code", n) for n in range(6)]
    row = task_dependence(traces).table.filter(depth="all", profile="position").row(0, named=True)
    assert row["between"] == pytest.approx(1) and row["within"] == pytest.approx(0)
    assert row["p"] < 0.01 and row["value"] == pytest.approx(1)
    assert abs(row["random"]) < 0.3
    assert (row["samples"], row["tasks"]) == (12, 2)


@pytest.mark.slow
def test_same_anchors_are_not():
    rng = np.random.default_rng(0)
    traces = [sample(int(rng.integers(1, 36)), task, n) for n in range(8) for task in ("qa", "code")]
    row = task_dependence(traces).table.filter(depth="all", profile="position").row(0, named=True)
    assert row["p"] > 0.05


@pytest.mark.slow
def test_distance_by_hand():
    traces = [sample(p, t, n) for n, (p, t) in enumerate([(1, "a"), (2, "a"), (9, "b"), (39, "b")])]
    row = task_dependence(traces).table.filter(depth="deep", profile="position").row(0, named=True)
    # tenths 0, 0 | 2, 9: within distances 0 and 1, between all 1
    assert row["within"] == pytest.approx(0.5) and row["between"] == pytest.approx(1)


@pytest.mark.slow
def test_p_counts_permutations_that_do_as_well_and_is_never_zero():
    """Of the three ways to part four samples into pairs one is the tasks': p = 1/3. Of those of 24 almost none is."""
    few = [sample(p, t, n) for n, (p, t) in enumerate([(3, "a"), (3, "a"), (30, "b"), (30, "b")])]
    row = task_dependence(few).table.filter(depth="all", profile="position").row(0, named=True)
    assert row["p"] == pytest.approx(1 / 3, abs=0.04)
    many = [sample(3 if task == "a" else 30, task, n) for n in range(12) for task in "ab"]
    row = task_dependence(many).table.filter(depth="all", profile="position").row(0, named=True)
    assert row["p"] == 1 / 2001


def test_one_task_is_a_sentence():
    with pytest.raises(UserError, match="at least two tasks"):
        task_dependence([sample(3, "qa", 0), sample(4, "qa", 1)])
    with pytest.raises(UserError, match="no trace"):
        task_dependence([])


@pytest.mark.slow
def test_too_few_samples_are_null():
    table = task_dependence([sample(3, "qa", 0), sample(4, "code", 1)]).table
    assert table["value"].null_count() == table.height
    lone = [sample(3, "qa", 0), sample(4, "qa", 1), sample(30, "code", 2)]
    assert task_dependence(lone).table["value"].null_count() == table.height  # one pair within is no mean


def test_profiles_are_shares_of_anchor_mass_by_tenth_region_and_class():
    """By loops over the full matrices: steps summed, layers by their third; all of documents is one region."""
    run = full_run(seed=3, layers=4)
    trace = to_trace(run)
    found = anchor_profiles(trace, detect(trace, "zscore(1)"))
    classes = step_classes(trace)
    regions = [REGIONS.index("doc" if label.startswith("doc") else label) for label in run.labels]
    for third, layers in enumerate(([0, 1], [2], [3], [0, 1, 2, 3])):
        expected = {"position": np.zeros(10), "region": np.zeros(len(REGIONS)), "class": np.zeros(len(CLASSES))}
        for step, attention in enumerate(run.attention):
            for layer in layers:
                received = attention[layer].mean(axis=(0, 1))
                for place in np.flatnonzero(received > received.mean() + received.std()):
                    expected["position"][place * 10 // run.tokens] += received[place]
                    expected["region"][regions[place]] += received[place]
                    expected["class"][classes[step, place]] += received[place]
        for name, mass in expected.items():
            np.testing.assert_allclose(found[name][third], mass / mass.sum(), atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_the_untrained_model_is_compared_in_the_same_way():
    """Trained anchors are one for all tasks, untrained ones differ: 0 beside 1."""
    traces = [sample(3, task, n) for n in range(3) for task in "ab"]
    bare = [sample(3 if task == "a" else 30, task, n) for n in range(3) for task in "ab"]
    table = task_dependence(traces, controls=Controls(untrained=bare)).table
    row = table.filter(depth="all", profile="position").row(0, named=True)
    assert (row["value"], row["untrained"]) == (pytest.approx(0, abs=1e-6), pytest.approx(1, abs=1e-6))
