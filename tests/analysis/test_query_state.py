"""Query state: means over masked and committed rows of full matrices."""

from functools import partial

import numpy as np
import pytest

from floatscope.analysis import analyze
from floatscope.analysis.token_classes import CLASSES, step_classes
from floatscope.errors import UserError
from tests.traces.full_matrices import full_run, row_groups, to_trace

query_state = partial(analyze, "query_state")


def test_states_on_full_matrices():
    run = full_run(seed=12, kind="mdm")
    trace = to_trace(run)
    table = query_state([trace]).table
    classes = step_classes(trace)
    for layer, depth in enumerate(("shallow", "middle", "deep")):
        for state in ("masked", "committed"):
            region, kind = [], []
            for step, attention in enumerate(run.attention):
                rows = [i for i, group in enumerate(row_groups(run, step)) if group == f"answer:{state}"]
                if rows:
                    weights = attention[layer].mean(axis=0)[rows].mean(axis=0)
                    region.append(weights[[8, 9, 10]].sum())
                    kind.append(weights[classes[step] == CLASSES.index("content")].sum())
            found = table.filter(state=state, depth=depth)
            assert found.filter(target_kind="region", target="doc 2")["value"][0] == pytest.approx(
                np.mean(region), abs=1e-5
            )
            assert found.filter(target_kind="class", target="content")["value"][0] == pytest.approx(
                np.mean(kind), abs=1e-5
            )


def test_difference_is_paired_over_steps_with_both():
    run = full_run(seed=13, kind="mdm")
    gaps = []
    for step, attention in enumerate(run.attention):
        groups = row_groups(run, step)
        parts = [[i for i, g in enumerate(groups) if g == f"answer:{state}"] for state in ("masked", "committed")]
        if all(parts):
            mean = attention.mean(axis=(0, 1))
            gaps.append(mean[parts[0], 0].mean() - mean[parts[1], 0].mean())
    table = query_state([to_trace(run)]).table
    row = table.filter(state="masked - committed", depth="all", target_kind="region", target="bos").row(0, named=True)
    assert row["value"] == pytest.approx(np.mean(gaps), abs=1e-5)
    assert row["uniform"] == pytest.approx(0, abs=1e-6)


def test_shares_sum_to_one_and_uniform_is_by_length():
    table = query_state([to_trace(full_run())]).table.filter(state="masked", depth="all")
    for kind in ("region", "class"):
        part = table.filter(target_kind=kind)
        assert part["value"].sum() == pytest.approx(1, abs=1e-5)
    assert table.filter(target="doc 2")["uniform"][0] == pytest.approx(3 / 15, abs=1e-6)


def test_arm_has_no_masked_rows():
    result = query_state([to_trace(full_run(kind="arm"))])
    assert result.table.filter(state="masked")["value"].null_count() == result.table.filter(state="masked").height
    assert result.table.filter(state="committed", target="bos", depth="all")["value"][0] > 0
    assert any("no masked rows" in note for note in result.notes)


def test_without_texts_or_answer():
    result = query_state([to_trace(full_run(), texts=None)])
    assert set(result.table["target_kind"]) == {"region"}
    with pytest.raises(UserError, match="answer region"):
        query_state([to_trace(full_run(answer=0, steps=1))])
