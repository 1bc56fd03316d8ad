"""The map of one sample: which sample, layer and runs it shows, and every mark at its place."""

import dataclasses

import numpy as np
import pytest

from floatscope.analysis import Options, draw_traces
from floatscope.analysis.palette import ACCENT, INK
from floatscope.analysis.step_map import MOST_ROWS, exchanged, temporal_heatmap
from floatscope.errors import UserError
from tests.analysis.scenes import scenes
from tests.analysis.test_floating import placed
from tests.traces.full_matrices import full_run, to_trace

OPTIONS = Options(detector="zscore(1)")
MODELS = ("m", "w")


def made(model: str, name: str, *tops: list[int], control: str = "", condition: str = ""):
    """A trace of 15 tokens, as many layers as a list has, a step per list: of layer l, tops[step][l] receives most."""
    trace = to_trace(full_run(steps=len(tops), layers=len(tops[0])), model=f"{model}-{control}" if control else model)
    received = np.full(trace.received.shape, 0.01, np.float32)
    for step, tokens in enumerate(tops):
        for layer, token in enumerate(tokens):
            received[step, layer, token] = 0.5 + layer / 10
    about = {"sample": name, "condition": condition, "control": control, "control_of": model}
    return dataclasses.replace(trace, arrays={**trace.arrays, "received": received}, metadata=about)


STILL = [3, 4, 5], [3, 4, 5], [3, 4, 5]
ONE = [3, 4, 5], [3, 6, 5], [3, 7, 5]
TWO = [3, 4, 5], [2, 4, 6], [1, 4, 7]


def test_the_share_of_anchors_that_are_exchanged():
    assert [exchanged(made("m", "s", *tops), OPTIONS) for tops in (STILL, ONE, TWO)] == pytest.approx([0, 1 / 3, 2 / 3])
    back = made("m", "s", [3, 4, 5], [6, 7, 8], [3, 4, 5])
    assert exchanged(back, OPTIONS) == 0  # what comes back has not gone


@pytest.mark.slow
def test_the_sample_that_moves_most_is_mapped_under_every_model_and_untrained():
    traces = [
        made("w", "other", *TWO),
        made("m", "still", *STILL),
        made("m", "moving", *TWO, control="untrained"),
        made("m", "still", *TWO, control="untrained"),
        made("w", "moving", *STILL),
        made("m", "moving", *ONE),
    ]
    figure = draw_traces("drift", traces, MODELS, options=OPTIONS)
    assert figure is not None
    assert figure.finding == (
        "Anchors that change from the first step to the last in this sample: m 33 %, m-untrained 67 %, w 0 %."
    )
    assert figure.caption.endswith(
        "The control is the untrained model. The sample is the one in which most is exchanged, “moving”; layer 1: the "
        "one that exchanges most anchors in m."
    )
    assert [scene.title for scene in scenes(figure)] == ["m, layer 1", "m-untrained, layer 1", "w, layer 1"]
    scene = scenes(figure)[0]
    step, width = 16, 640 / 15
    cells = [mark for mark in scene.marks("rect") if mark.get("fill") != ACCENT]
    dark = [(round(mark["x"] / width), round(mark["y"] / step)) for mark in cells if mark["opacity"] > 0.9]
    assert dark == [(4, 0), (6, 1), (7, 2)]  # token by step, not step by token
    squares = [(x / width - 0.5, y / step - 0.5) for x, y in scene.places("symbol", fill=INK)]
    assert squares == [pytest.approx(place, abs=0.02) for place in ((4, 0), (6, 1), (7, 2))]
    line = [(round(mark["x"] / width), mark["y"]) for mark in scene.marks("rect", fill=ACCENT)]
    assert line == [(token, -5) for token in traces[0].slots]


@pytest.mark.slow
def test_a_model_without_that_sample_is_shown_on_its_own_first_one():
    traces = [made("w", "first", *TWO), made("w", "second", *TWO), made("m", "moving", *ONE)]
    figure = draw_traces("drift", traces, MODELS, options=OPTIONS)
    assert figure is not None and figure.table["model"].unique(maintain_order=True).to_list() == ["m", "w"]
    assert "m 33 %, w 67 %." in figure.finding
    unknown = draw_traces("drift", traces, ("w",), options=OPTIONS)
    assert unknown is not None and "“first”; layer 2: " in unknown.caption  # of equals, where most is received


@pytest.mark.slow
def test_a_deeper_model_is_mapped_at_the_same_relative_depth():
    traces = [made("m", "s", *ONE), made("w", "s", *[[3, 4, 5, 6, 7]] * 3)]
    figure = draw_traces("drift", traces, MODELS, options=OPTIONS)
    assert figure is not None
    assert [scene.title for scene in scenes(figure)] == ["m, layer 1", "w, layer 2"]  # the middle of three and of five


@pytest.mark.slow
def test_a_sample_with_controls_goes_before_one_that_was_chosen_by_its_answers():
    traces = [made("m", "wrong", *TWO), made("m", "planned", *ONE), made("m", "planned", *STILL, control="untrained")]
    figure = draw_traces("drift", traces, MODELS, options=OPTIONS)
    assert figure is not None and "“planned”" in figure.caption


@pytest.mark.slow
def test_the_same_sample_can_be_seen_at_other_layers(monkeypatch):
    """As many layers as there is room for, evenly spaced, each with its own numbers; of one there is no choice."""
    deep = made("m", "s", *[list(range(1, 13))] * 2, [*range(1, 11), 14, 12])  # layer 10 exchanges its anchor
    figure = draw_traces("drift", [deep, made("w", "s", *ONE)], MODELS, options=OPTIONS)
    assert figure is not None and figure.layer == 10
    shown = [0, 2, 3, 5, 6, 8, 9, 10, 11]  # eight of 0 to 11, evenly, and the one first shown
    assert [one.layer for one in figure.layers] == shown
    for one in figure.layers:
        assert one.finding == figure.finding
        for model, trace, layer in (("m", deep, one.layer), ("w", None, round((one.layer or 0) * 2 / 11))):
            own = one.table.filter(model=model)
            assert set(own["layer"]) == {layer}
            if trace is not None:
                expected = trace.received[:, layer].ravel()  # every token is there at every step
                assert own.sort("step", "position")["received"].to_list() == pytest.approx(expected.tolist(), rel=1e-3)
    cells = figure.table.height
    monkeypatch.setattr("floatscope.analysis.step_map.MOST_CELLS", 3 * cells)
    figure = draw_traces("drift", [deep, made("w", "s", *ONE)], MODELS, options=OPTIONS)
    assert figure is not None and [one.layer for one in figure.layers] == [0, 6, 10, 11]
    monkeypatch.setattr("floatscope.analysis.step_map.MOST_CELLS", cells - 1)
    figure = draw_traces("drift", [deep, made("w", "s", *ONE)], MODELS, options=OPTIONS)
    assert figure is not None and figure.layers == ()


@pytest.mark.slow
def test_each_side_of_the_answer_has_its_row():
    """The answer at the left: the same canvas from its end to its beginning, so that token t stands at 14 - t."""
    left = {name: placed(made(model, name, *tops, condition="left"), np.arange(15)[::-1]) for model, name, tops in
            (("m", "s", ONE), ("m", "t", TWO))}  # fmt: skip
    traces = [
        *left.values(),
        made("m", "s", *TWO, condition="right"),
        made("m", "s", *STILL, control="untrained"),
        made("w", "s", *STILL, condition="other"),
        made("w", "s", *ONE, condition="right"),
    ]
    figure = draw_traces("drift", traces, MODELS, options=OPTIONS)
    assert figure is not None
    found = scenes(figure)
    right, at_left = "Answer at the right", "Answer at the left"
    assert [(scene.heading, scene.title) for scene in found] == [
        (right, "m, layer 2"), (right, "w, layer 2"), (at_left, "m, layer 2"),
    ]  # fmt: skip
    assert figure.finding == (
        "Anchors that change from the first step to the last in this sample: m 67 %, w 33 % (answer at the right); "
        "m 67 % (answer at the left)."
    )
    width = 420 / 15
    slots = [[round(mark["x"] / width) for mark in scene.marks("rect", fill=ACCENT)] for scene in found]
    assert slots == [[11, 12, 13, 14], [11, 12, 13, 14], [0, 1, 2, 3]]
    places = [[round(x / width - 0.5) for x, _ in scene.places("symbol", fill=INK)] for scene in found]
    assert places == [[5, 6, 7], [5, 5, 5], [9, 8, 7]]
    assert "An ARM writes at the right only." in figure.caption


@pytest.mark.slow
def test_long_runs_are_thinned_out_from_their_first_step_to_their_last():
    tops = [[3, 4, 5 + step // 10] for step in range(40)]
    figure = draw_traces("drift", [made("m", "s", *tops)], ("m",), options=OPTIONS)
    assert figure is not None
    steps = figure.table["step"].unique().sort().to_list()
    assert len(steps) == MOST_ROWS and steps[0] == 0 and steps[-1] == 39 and set(np.diff(steps)) == {2, 3}
    whole = draw_traces("drift", [made("m", "s", *tops)], ("m",), 2, OPTIONS)
    assert whole is not None and whole.table["step"].n_unique() == 40


@pytest.mark.slow
def test_a_map_of_a_layer_asked_for_has_texts_anchors_and_commits():
    trace = to_trace(full_run(seed=0), model="m", metadata={"sample": "0"})
    figure = draw_traces("drift", [trace], ("m",), -1, OPTIONS)
    assert figure is not None
    (scene,) = scenes(figure)
    assert scene.title == "m, layer 2" and figure.caption.endswith("“0”; layer 2: as asked for.")
    assert scene.labels["x"][:5] == ["<s>", "Question", "who", "rules", "↵"]
    assert len(scene.marks("symbol", fill=INK)) == figure.table["anchor"].sum() > 0
    rings = scene.marks("symbol", stroke=ACCENT)
    width = scene.marks("rect")[0]["width"] / 1.03
    there = sorted((round(mark["x"] / width - 0.5) - trace.slots[0], round(mark["y"] / 16 - 0.5)) for mark in rings)
    assert there == [(slot, int(step)) for slot, step in enumerate(trace.commit_step)]
    with pytest.raises(UserError, match="no layer 7"):
        draw_traces("drift", [trace], ("m",), 7)
    assert draw_traces("flow", [trace], ("m",)) is None
    assert draw_traces("drift", [], ("m",)) is None


def test_documents_have_bands_in_their_order():
    trace = made("m", "s", *ONE)
    table = temporal_heatmap(trace, 0, OPTIONS).filter(step=0).sort("position")
    for label, band in (("doc 1", 1), ("doc 2", 2)):
        own = [place for one in trace.regions if one.label == label for place in range(one.start, one.stop)]
        assert own and table.filter(region=label)["position"].to_list() == own
        assert set(table.filter(region=label)["band"]) == {band}
    assert set(table.filter(region="")["band"]) == {0}
