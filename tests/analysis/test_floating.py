"""Drift from end to end: every measure again in plain numpy, slots at either side, states, heads, verdicts by hand."""

import dataclasses
from functools import partial

import numpy as np
import polars as pl
import pytest
from scipy.stats import spearmanr

from floatscope.analysis import Controls, analyze, draw
from floatscope.analysis.floating import POINTS, end_to_end, side_of, towards_answer, verdicts, views
from floatscope.analysis.results import Options, Panel
from floatscope.canvas import regions_from_labels
from tests.analysis.scenes import scenes
from tests.traces.full_matrices import constant_rows, full_run, peaked, row_groups, to_trace

drift = partial(analyze, "drift")
OPTIONS = Options(detector="zscore(1)", draws=50)
TOKENS = 40


def measured(trace, options=OPTIONS):
    return end_to_end(trace, views(trace, options))


def placed(trace, order):
    """The same trace with its tokens in another order; only what drift reads."""
    names = ("received", "received_answer", "received_masked", "seen_by")
    labels = [label for region in trace.regions for label in [region.label] * len(region)]
    slots = [new for new, old in enumerate(order) if old in trace.slots]
    answer = [list(trace.slots).index(order[new]) for new in slots]
    return dataclasses.replace(
        trace,
        canvas=trace.canvas[order],
        slots=np.array(slots),
        texts=tuple(trace.texts[old] for old in order),
        regions=regions_from_labels(labels[old] for old in order),
        marks={},
        commit_step=trace.commit_step[answer],
        confidence=trace.confidence[answer],
        arrays={name: trace.arrays[name][..., order] for name in names},
        qk_steps=(),
    ).validate()


def plain(maps, sizes, columns):
    """Measures between the first of some maps [token] and each, over the columns of the first; and top positions."""
    columns, every = [j for j in columns if j < sizes[0]], columns
    found = {name: [] for name in ("turnover", "correlation", "total_variation", "displacement", "top_moved")}
    sets, tops = [], []
    for values, size in zip(maps, sizes, strict=True):
        own = values[columns]
        sets.append({j for j in columns if values[j] > own.mean() + own.std()})
        tops.append(max((j for j in every if j < size), key=lambda j: values[j]))
    first = maps[0][columns] / maps[0][columns].sum()
    for values, anchors in zip(maps, sets, strict=True):
        share = values[columns] / values[columns].sum()
        union = sets[0] | anchors
        found["turnover"].append(1 - len(sets[0] & anchors) / len(union) if union else np.nan)
        found["correlation"].append(np.corrcoef(first, share)[0, 1])
        found["total_variation"].append(0.5 * np.abs(first - share).sum())
        found["displacement"].append(abs(np.array(columns) @ share - np.array(columns) @ first))
        found["top_moved"].append(float(share.argmax() != first.argmax()))
    return found, tops


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mdm", "arm"])
@pytest.mark.parametrize("rows", ["all", "masked"])
@pytest.mark.parametrize("which", ["all", "context"])
def test_every_measure_on_full_matrices(kind, rows, which):
    run = full_run(seed=7, kind=kind, steps=6, answer=6)
    found = measured(to_trace(run), OPTIONS)
    if kind == "arm" and rows == "masked":
        assert ("turnover", which, rows) not in found
        return
    columns = list(range(run.prompt_length if which == "context" else run.tokens))
    for layer in range(3):
        maps = []
        for step, attention in enumerate(run.attention):
            asking = [i for i, group in enumerate(row_groups(run, step)) if rows == "all" or group == "answer:masked"]
            maps.append(attention[layer].mean(axis=0)[asking].mean(axis=0))
        sizes = [a.shape[2] if kind == "arm" else run.tokens for a in run.attention]
        expected, tops = plain(maps, sizes, columns)
        steps = [round(5 * point / (POINTS - 1)) for point in range(POINTS)]
        for name, values in expected.items():
            own = found[name, which, rows][layer]
            assert own == pytest.approx([values[step] for step in steps], abs=1e-5, nan_ok=True), name
        if len(set(tops)) > 1:
            way = spearmanr(tops, range(len(tops))).statistic
            for name in ("rightward", "towards"):  # the answer is at the right
                assert found[name, which, rows][layer, -1] == pytest.approx(way)
                assert np.isnan(found[name, which, rows][layer, :-1]).all()


def test_the_mirrored_layout_turns_right_into_left_and_nothing_else():
    trace = to_trace(full_run(seed=3, steps=6, answer=6))
    mirrored = placed(trace, np.arange(len(trace.canvas))[::-1])
    assert (side_of(trace), side_of(mirrored)) == ("right", "left")
    after_bos = placed(to_trace(full_run(steps=6, answer=6)), [0, *range(11, 17), *range(1, 11)])
    assert side_of(after_bos) == "left"  # all but the bos token stand at its right
    before_end = placed(to_trace(full_run(steps=6, answer=6)), [*range(1, 17), 0])
    assert side_of(before_end) == "right"  # all but one token at the end
    one, other = (measured(each, OPTIONS) for each in (trace, mirrored))
    for (name, *label), values in one.items():
        sign = -1 if name == "rightward" else 1
        np.testing.assert_allclose(other[name, *label], sign * values, atol=1e-5, err_msg=name)


def test_slots_in_the_middle_are_approached_from_both_sides():
    trace = to_trace(constant_rows(peaked(np.array([[0], [1], [2], [30]]), 35), answer=5))
    order = np.array([*range(10), *range(30, 35), *range(10, 30)])  # slots at 10 to 14
    middle = placed(trace, order)
    assert side_of(middle) == "between" and middle.slots.tolist() == [10, 11, 12, 13, 14]
    assert towards_answer(middle)[[0, 9, 10, 12, 14, 15, 34]].tolist() == [-10, -1, 0, 0, 0, -1, -20]
    found = measured(middle, Options())
    assert found["towards", "all", "all"][0, -1] == pytest.approx(1)  # 0, 1, 2 and then into the slots


def test_a_peak_that_moves_into_the_answer():
    run = constant_rows(peaked(np.array([[2], [2], [5], [38]]), TOKENS))
    found = {label: values[0] for label, values in measured(to_trace(run), Options()).items()}
    rest = 0.4 / (TOKENS - 1)
    assert found["turnover", "all", "all"][-1] == 1 and found["top_moved", "all", "all"][-1] == 1
    assert found["total_variation", "all", "all"][-1] == pytest.approx(0.6 - rest, abs=1e-5)
    assert found["displacement", "all", "all"][-1] == pytest.approx(36 * (0.6 - rest), abs=1e-4)
    assert found["rightward", "all", "all"][-1] == pytest.approx(spearmanr([2, 2, 5, 38], range(4)).statistic)
    assert found["turnover", "all", "all"][[0, 3, 7]].tolist() == [0, 0, 1]  # steps 0, 1 and 2
    # without the answer's columns the last step is flat: no anchors there, and none of the first stays
    assert found["turnover", "context", "all"][-1] == 1
    assert found["total_variation", "context", "all"][-1] == pytest.approx(0.6 / (0.6 + 35 * rest) - 1 / 36, abs=1e-5)


def test_a_sink_that_stays_does_not_float():
    found = measured(to_trace(constant_rows(peaked(np.full((5, 1), 2), TOKENS))), Options())
    for name, value in {
        "turnover": 0,
        "correlation": 1,
        "total_variation": 0,
        "displacement": 0,
        "top_moved": 0,
    }.items():
        assert found[name, "all", "all"] == pytest.approx(np.full((1, POINTS), value), abs=1e-5), name
    assert np.isnan(found["rightward", "all", "all"][0, -1])


@pytest.mark.slow
def test_controls_are_even_attention_shuffled_positions_and_the_untrained_model():
    traces = [to_trace(full_run(seed=seed, steps=5), metadata={"sample": str(seed)}) for seed in range(4)]
    bare = [to_trace(full_run(seed=seed, steps=5, sharpness=0.1)) for seed in range(10, 13)]
    tables = drift(traces, OPTIONS, Controls(untrained=bare)).tables
    row = tables["drift_ends"].filter(measure="total_variation", columns="all", rows="all", layer=1).row(0, named=True)
    each = [measured(trace, OPTIONS)["total_variation", "all", "all"][1, -1] for trace in (*traces, *bare)]
    assert row["value"] == pytest.approx(np.mean(each[:4])) and row["untrained"] == pytest.approx(np.mean(each[4:]))
    assert row["uniform"] == pytest.approx(0, abs=1e-6) and row["samples"] == 4 and row["side"] == "right"
    assert row["random"] > row["value"] / 2
    sink = to_trace(constant_rows(peaked(np.full((6, 1), 2), TOKENS)))
    shuffled = drift([sink]).tables["drift_ends"].filter(measure="total_variation", columns="all", rows="all")
    assert shuffled["value"].item() == pytest.approx(0, abs=1e-6) and shuffled["random"].item() > 0.5
    wander = to_trace(constant_rows(peaked(np.arange(8)[:, None], TOKENS)))
    way = drift([wander]).tables["drift_ends"].filter(measure="rightward", columns="all", rows="all").row(0, named=True)
    assert way["value"] == pytest.approx(1) and abs(way["random"]) < 0.9  # shuffled positions go nowhere
    curve = tables["drift_curve"].filter(measure="displacement", columns="context", rows="masked")
    assert curve["percent"].to_list() == list(range(0, 101, 10))
    means = [measured(trace, OPTIONS)["displacement", "context", "masked"].mean(axis=0) for trace in traces]
    np.testing.assert_allclose(curve["value"], np.mean(means, axis=0))


@pytest.mark.slow
def test_where_anchors_are_over_the_run():
    """Slots 36 to 39 commit one a step; peaks: context, a masked slot, the slot just committed, one of before."""
    run = constant_rows(peaked(np.array([[2], [39], [37], [36]]), TOKENS))
    run.commit_step[:] = [0, 1, 2, 3]
    trace = to_trace(run)
    shown = drift([trace]).tables["drift_states"]
    share = {state: part["value"].to_list() for (state,), part in shown.group_by("state")}
    steps = [round(3 * point / (POINTS - 1)) for point in range(POINTS)]
    wanted = {0: "context", 1: "masked", 2: "just committed", 3: "committed earlier"}
    for state, values in share.items():
        assert values == [float(wanted[step] == state) for step in steps], state
    even = {state: part["random"].to_list() for (state,), part in shown.group_by("state")}
    masked, just, earlier = [4, 3, 2, 1], [0, 1, 1, 1], [0, 0, 1, 2]
    for state, counts in (("masked", masked), ("just committed", just), ("committed earlier", earlier)):
        assert even[state] == pytest.approx([counts[step] / TOKENS for step in steps])


def test_an_arm_has_no_masked_slots_and_its_last_token_is_just_committed():
    shown = drift([to_trace(full_run(kind="arm", answer=4))], OPTIONS).tables["drift_states"]
    end = {row["state"]: row["random"] for row in shown.filter(percent=100).iter_rows(named=True)}
    assert end == pytest.approx(
        {"context": 11 / 14, "masked": 0, "just committed": 1 / 14, "committed earlier": 2 / 14}
    )
    assert set(shown.filter(state="masked")["value"].drop_nulls()) <= {0.0}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mdm", "arm"])
def test_heads_apart(kind):
    run = full_run(seed=5, kind=kind, steps=5, answer=5)
    table = drift([to_trace(run)], OPTIONS).tables["drift_heads"]
    for layer, head in ((0, 0), (2, 3)):
        maps = [attention[layer, head].mean(axis=0) for attention in run.attention]
        sizes = [a.shape[2] if kind == "arm" else run.tokens for a in run.attention]
        expected, _ = plain(maps, sizes, list(range(run.tokens)))
        for name, values in expected.items():
            (found,) = table.filter(measure=name, columns="all", rows="all", layer=layer, head=head)["value"]
            assert found == pytest.approx(values[-1], abs=1e-5), name
        if kind == "mdm":
            ends = (0, len(run.attention) - 1)
            asking = {step: np.array(row_groups(run, step)) == "answer:masked" for step in ends}
            maps = [run.attention[step][layer, head][asking[step]].mean(axis=0) for step in ends]
            expected, _ = plain(maps, [run.tokens] * 2, list(range(run.prompt_length)))
            (found,) = table.filter(
                measure="total_variation", columns="context", rows="masked", layer=layer, head=head
            )["value"]
            assert found == pytest.approx(expected["total_variation"][-1], abs=1e-5)
    trace = to_trace(run)
    compact = dataclasses.replace(trace, arrays={n: v for n, v in trace.arrays.items() if n != "head_attention"})
    result = drift([compact], OPTIONS)
    assert "drift_heads" not in result.tables and any("--keep heads" in note for note in result.notes)


def ends_of(groups) -> Panel:
    """The panel of ends of samples written out: (model, kind, condition, side): {measure: a value per sample}."""
    panel = Panel(("side", "measure", "columns", "rows", "layer"))
    for (model, kind, condition, side), measures in groups.items():
        for number in range(len(next(iter(measures.values())))):
            trace = to_trace(
                full_run(kind=kind), model=model, metadata={"sample": f"s{number}", "condition": condition}
            )
            values = {name: each[number] for name, each in measures.items()}
            about = {"side": [side] * len(values), "columns": ["all"] * len(values), "rows": ["all"] * len(values)}
            numbers = {"measure": list(values), "layer": [0] * len(values), "value": list(values.values())}
            panel.add(trace, about | numbers)
    return panel


@pytest.mark.slow
def test_floating_is_change_above_the_arms_on_the_same_text():
    ends = ends_of(
        {
            ("arm", "arm", "right", "right"): {"turnover": [0.1, 0.3, 0.2, 0.2], "correlation": [0.9] * 4},
            ("far", "mdm", "right", "right"): {"turnover": [0.7, 0.8, 0.9, 0.6], "correlation": [0.4] * 4},
            ("far", "mdm", "left", "left"): {"turnover": [0.2, 0.4, 0.3, 0.3]},
            ("same", "mdm", "right", "right"): {"turnover": [0.1, 0.3, 0.2, 0.2]},
            ("wild", "mdm", "right", "right"): {"turnover": [0.0, 1.0, 0.0, 0.9]},
        }
    )
    table = verdicts(ends, Options())
    found = {(row["model"], row["condition"]): row for row in table.filter(measure="turnover").to_dicts()}
    assert {key: row["verdict"] for key, row in found.items()} == {
        ("far", "right"): "floating",
        ("far", "left"): "floating",  # against the ARM's samples in the other layout: 0.1 more each
        ("same", "right"): "absent",
        ("wild", "right"): "undecided",
    }
    assert found["far", "right"]["value"] == pytest.approx(np.mean([0.6, 0.5, 0.7, 0.4]))
    assert [found["far", "left"][name] for name in ("value", "low", "high")] == pytest.approx([0.1] * 3)
    assert found["far", "right"]["beside"] == "arm" and found["far", "right"]["samples"] == 4
    # a correlation that falls is a change too
    (row,) = table.filter(measure="correlation").to_dicts()
    assert (row["value"], row["verdict"]) == (pytest.approx(0.5), "floating")
    groups = {
        ("arm", "arm", name, name): {"turnover": values}
        for name, values in (("left", [0.9, 0.8]), ("right", [0.1, 0.1]))
    }
    both = verdicts(ends_of(groups | {("m", "mdm", "right", "right"): {"turnover": [0.5, 0.6]}}), Options())
    assert both["value"].to_list() == pytest.approx([0.45])  # the ARM of the same condition, where there is one
    alone = verdicts(ends_of({("far", "mdm", "", "right"): {"turnover": [0.7, 0.8]}}), Options()).row(0, named=True)
    assert (alone["verdict"], alone["value"], alone["beside"]) == ("no ARM on the same text", None, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "left", "rightward", "towards"),
    [
        ([0.5, 0.6, 0.7, 0.6], [-0.5, -0.4, -0.6, -0.5], "absent", "towards"),
        ([0.5, 0.6, 0.7, 0.6], [0.5, 0.4, 0.6, 0.5], "rightward", "absent"),
        ([0.5, 0.6, 0.7, 0.6], [-0.5, 0.6, 0.4, 0.0], "undecided", "undecided"),
        ([0.5, 0.6, 0.7, 0.6], None, "one layout only", "one layout only"),
        ([0.5, 0.6, 0.7], [0.5, 0.4, 0.6], "too few samples", "too few samples"),
    ],
)
def test_direction_is_judged_in_both_layouts(right, left, rightward, towards):
    groups = {("m", "mdm", "r", "right"): {"rightward": right, "towards": right}}
    if left is not None:
        groups["m", "mdm", "l", "left"] = {"rightward": left, "towards": [-value for value in left]}
    table = verdicts(ends_of(groups), Options())
    assert set(table.filter(claim="rightward")["verdict"]) == {rightward}
    assert set(table.filter(claim="towards")["verdict"]) == {towards}
    row = table.filter(claim="rightward", side="right").row(0, named=True)
    assert row["value"] == pytest.approx(np.mean(right)) and row["samples"] == len(right)


@pytest.mark.slow
def test_the_figure_compares_conditions_and_says_what_became_of_the_claims():
    def sample(model, seed, condition, kind="mdm", mirrored=False):
        trace = to_trace(full_run(seed=seed, kind=kind, steps=6, answer=6), model=model)
        trace = placed(trace, np.arange(len(trace.canvas))[:: -1 if mirrored else 1])
        return dataclasses.replace(trace, metadata={"sample": str(seed), "task": "t", "condition": condition})

    own = [sample("m", seed, "at the right") for seed in range(4)]
    own += [sample("m", seed, "at the left", mirrored=True) for seed in range(4)]
    own += [sample("a", seed, "at the right", "arm") for seed in range(4)]
    result = drift(own, OPTIONS)
    assert [group["condition"] for group in result.groups] == ["at the right", "at the left"]
    figure = draw("drift", {"drift": result}, ("m", "a"))
    row = result.tables["drift_verdicts"].filter(measure="turnover", columns="all", side="right").row(0, named=True)
    numbers = [f"{row[name]:.2f}".replace("-", "−") for name in ("value", "low", "high")]
    assert figure.finding.startswith(
        "Turnover of anchors from the first step to the last, m {} [{}, {}] above a: {}.".format(
            *numbers, row["verdict"]
        )
    )
    ways = result.tables["drift_verdicts"].filter(claim="rightward")
    assert ways["value"][0] == pytest.approx(-ways["value"][1])
    assert "with the answer at the right" in figure.finding and "with the answer at the left" in figure.finding
    first = scenes(figure)[0]
    assert (first.heading, first.title) == ("from the first step to the last", "turnover of anchors")
    assert first.labels["x"] == ["at the right", "at the left"]
    table = result.tables["drift_ends_depth"].filter(measure="turnover", columns="all", rows="all", depth="all")
    heights = sorted(mark["y"] for mark in first.marks("symbol", strokeWidth=14))
    values = sorted(table.drop_nulls("value")["value"], reverse=True)
    assert len(heights) == len(values) == 3 and values[0] > values[-1]
    lower, upper = heights[-1] - heights[0], values[0] - values[-1]
    assert (heights[1] - heights[0]) / lower == pytest.approx((values[0] - values[1]) / upper)
    assert {scene.heading for scene in scenes(figure)} == {
        "from the first step to the last",
        "from the first step on",
        "where anchors are",
        "from one step to the next",
    }


def test_traces_without_a_way_are_left_out_with_a_sentence():
    result = drift([to_trace(full_run(steps=1, answer=1))])
    assert list(result.tables) == ["drift", "drift_depth"]
    assert any("first step to their last" in note for note in result.notes)
    assert isinstance(result.table, pl.DataFrame)
