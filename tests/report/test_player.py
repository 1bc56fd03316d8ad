"""The player's data: quantised values against the trace, anchors by the detector, texts, size, safe embedding."""

import base64
import dataclasses
import json

import numpy as np
import pytest

from floatscope.analysis.anchors import detect
from floatscope.canvas import Region
from floatscope.report import player
from floatscope.report.markup import script_json
from tests.traces.full_matrices import full_run, to_trace


def decoded(step: dict, layers: int) -> np.ndarray:
    """What the browser computes: scale * q / 65535, [layer, token]."""
    levels = np.frombuffer(base64.b64decode(step["received"]["data"]), dtype="<u2").astype(float)
    return (step["received"]["scale"] * levels / 65535).reshape(layers, -1)


@pytest.mark.parametrize("kind", ["mdm", "arm"])
def test_a_run_holds_the_values_and_anchors_of_the_trace(kind):
    trace = dataclasses.replace(to_trace(full_run(kind=kind)), confidence=np.array([0.123456, 0.25, 0.5, 1.0]))
    run = player.run_data(trace, "zscore(1)")
    anchors = detect(trace, "zscore(1)")
    assert len(run["steps"]) == trace.steps and anchors.any()
    for number, step in enumerate(run["steps"]):
        values = decoded(step, trace.layers)
        assert np.abs(values - trace.received[number]).max() <= step["received"]["scale"] / 131070 + 1e-7
        for layer, places in enumerate(step["anchors"]):
            assert places == np.flatnonzero(anchors[number, layer]).tolist()
    assert run["commit_step"] == trace.commit_step.tolist() and run["slots"] == trace.slots.tolist()
    assert run["kind"] == kind and run["tokens"][1] == "Question" and run["tokens"][4] == "↵"
    assert run["special"][0] == 0  # <s>
    assert (run["gold"], run["marked"]) == (["doc 2"], [10])  # as full_run has them: evidence at 9 and 10, answer at 10
    assert run["confidence"] == [0.1235, 0.25, 0.5, 1.0]


def test_a_report_has_some_layers_of_a_deep_model_evenly_spaced():
    trace = to_trace(full_run(steps=2, layers=21))
    whole, some = player.run_data(trace), player.run_data(trace, whole=False)
    names = [0, 2, 4, 7, 9, 11, 13, 16, 18, 20]  # the first, the last and eight between them
    assert (some["layers"], some["layer_names"], some["of_layers"]) == (10, names, 21)
    assert (whole["layers"], whole["layer_names"], whole["of_layers"]) == (21, list(range(21)), 21)
    for number, step in enumerate(some["steps"]):
        np.testing.assert_allclose(decoded(step, 10), trace.received[number, names], atol=1e-4)
        assert step["anchors"] == [whole["steps"][number]["anchors"][layer] for layer in names]
    shallow = to_trace(full_run(steps=2, layers=10))
    assert player.run_data(shallow, whole=False)["layer_names"] == list(range(10))


def test_a_confidence_that_was_not_kept_is_null():
    """As a trace that was imported from the reference has it."""
    trace = to_trace(full_run())
    trace = dataclasses.replace(trace, confidence=np.full_like(trace.confidence, np.nan))
    assert player.run_data(trace, "zscore(1)")["confidence"] == [None] * len(trace.slots)


def test_nothing_received_is_zero():
    assert player.encode_values(np.zeros((2, 3)))["scale"] == 0.0


@pytest.mark.parametrize(
    ("texts", "shown", "glued", "special"),
    [
        (["Ġfound", "er", "Ċ", "."], ["found", "er", "↵", "."], [1, 2], []),
        (["<s>", "Doc", ":"], ["<s>", "Doc", ":"], [2], [0]),
        (["<s>", "▁a", "Doc"], ["<s>", "a", "Doc"], [2], [0]),
        (["▁a", "<s>", "Doc"], ["a", "<s>", "Doc"], [], [1]),  # a word does not run into a special token
        (["<bos>", "Who", "?", ""], ["<bos>", "Who", "?", ""], [2], [0]),
        (["found", "##er", " "], ["found", "er", "␣"], [1], []),
        (["Ġa", "<eos>", "<eos>", "Ġb"], ["a", "<eos>", "<eos>", "b"], [], [1, 2]),
        (["a", ")", "(", "%", "’", "?!", "-"], ["a", ")", "(", "%", "’", "?!", "-"], [1, 3, 4, 5], []),
    ],
)
def test_texts_as_they_are_shown(texts, shown, glued, special):
    data = player.canvas_data(texts, [])
    assert (data["tokens"], data["glued"], data["special"]) == (shown, glued, special)


def test_commits_of_a_live_step():
    found = player.commits_data(["Who", "?", "Ida", "<eos>"], {0: 2, 1: 3}, [0.9, 0.5])
    assert found == [[0, "Ida", 0.9, ""], [1, "<eos>", 0.5, "special"]]
    step = player.step_data(np.ones((1, 4)), np.zeros((1, 4), bool), found)
    assert step["commits"] == found and step["anchors"] == [[]]


def test_samples_are_grouped_and_bounded():
    about = [{"sample": str(number), "task": "t", "answers": ["Ann"], "accuracy": 1.0} for number in (0, 1, 0, 1)]
    traces = [
        dataclasses.replace(to_trace(full_run(seed=seed), model="ab"[seed // 2]), metadata=known)
        for seed, known in enumerate(about)
    ]
    data = player.player_data(traces)
    assert [[run["model"] for run in sample["runs"]] for sample in data["samples"]] == [["a", "b"], ["a", "b"]]
    assert data["samples"][0]["answers"] == ["Ann"] and data["samples"][0]["runs"][0]["correct"] is True
    assert data["samples"][0]["question"] == "who rules"
    assert len(player.player_data(traces, budget=10)["samples"]) == 1


def test_samples_that_a_model_got_wrong_come_before_those_that_all_got_right():
    right = {"0": (1.0, 1.0), "1": (1.0, 1.0), "2": (1.0, 0.0), "3": (1.0, 1.0), "4": (0.0, 0.0)}
    traces = [
        dataclasses.replace(to_trace(full_run(), model=model), metadata={"sample": sample, "accuracy": score})
        for sample, scores in right.items()
        for model, score in zip("ab", scores, strict=True)
    ]  # none moves more than another, so the first stays first
    assert [sample["id"] for sample in player.player_data(traces)["samples"]] == ["0", "2", "4", "1", "3"]


def test_the_sample_whose_anchors_move_most_comes_first():
    """1 - Jaccard of first and last anchors by hand; an ARM and a control move more and do not count."""

    def made(name, *moments, kind="mdm", control=""):
        trace = to_trace(full_run(steps=len(moments), layers=2, kind=kind))
        received = np.full(trace.received.shape, 0.01, np.float32)
        for step, places in enumerate(moments):
            received[step, 0, places] = 0.5
            received[step, 1, 2] = 0.5 if name == "half" else 0.01  # a flat layer has no anchors and does not count
        arrays = {**trace.arrays, "received": received}
        return dataclasses.replace(trace, arrays=arrays, metadata={"sample": name, "control": control})

    still = made("still", [3], [5], [3])
    half = made("half", [3], [3], [4])
    moving = [still, made("still", [3], [6], control="untrained"), made("still", [3], [6], kind="arm"), half]
    assert [player.moved(trace) for trace in moving] == [0, 0, 0, 0.5]
    assert [sample["id"] for sample in player.player_data(moving)["samples"]] == ["half", "still"]
    assert [sample["id"] for sample in player.player_data(moving, budget=10)["samples"]] == ["half"]
    most = made("most", [3], [6])  # a sample that moves less comes first where an ARM is beside it
    assert [sample["id"] for sample in player.player_data([half, most])["samples"]] == ["most", "half"]
    moving = [most, half, made("half", [3], [6], kind="arm")]
    assert [sample["id"] for sample in player.player_data(moving)["samples"]] == ["half", "most"]
    moving.append(made("most", [3], [6], control="untrained"))  # it was not chosen by its answers
    assert [sample["id"] for sample in player.player_data(moving)["samples"]] == ["most", "half"]


def test_a_gap_is_told_by_the_words_around_it():
    trace = to_trace(full_run())  # <s> Question who rules / Paris 42. the king Ann, then the answer
    marks = {"before": np.arange(1, 4), "after": np.arange(5, 8)}
    gap = dataclasses.replace(trace, marks=marks, metadata={"condition": "left"})
    [sample] = player.player_data([gap])["samples"]
    assert (sample["question"], sample["condition"]) == ("Question who rules ▁▁▁ Paris 42.", "left")
    long = dataclasses.replace(gap, marks={"before": np.arange(1, 11).repeat(3)})
    [sample] = player.player_data([long])["samples"]
    assert sample["question"] == "…42 42 42... the the the king king king Ann Ann Ann ▁▁▁"  # 50 characters


def test_text_around_slots_is_called_after_its_side():
    regions = [Region("bos", 0, 1), Region("query", 1, 3), Region("answer", 3, 5), Region("query", 5, 6)]
    marks = {"before": np.array([1, 2]), "after": np.array([5])}
    assert player.named_regions(regions, marks) == [("bos", 0, 1), ("before", 1, 3), ("answer", 3, 5), ("after", 5, 6)]
    assert player.named_regions(regions, {})[1] == ("query", 1, 3)


def test_what_does_not_fit_comes_without_controls_and_no_regions_are_two():
    own = to_trace(full_run(), metadata={"sample": "0"})
    control = to_trace(full_run(sharpness=0.1), metadata={"sample": "0", "control": "untrained"})
    assert [run["control"] for run in player.player_data([own, control])["samples"][0]["runs"]] == ["", "untrained"]
    assert [run["control"] for run in player.player_data([own, control], budget=10)["samples"][0]["runs"]] == [""]
    bare = player.run_data(dataclasses.replace(own, regions=()))
    assert [label for label, _, _ in bare["regions"]] == ["query", "answer"]
    assert bare["regions"][1][1:] == [own.slots[0], len(own.canvas)]


def test_data_cannot_end_their_script():
    text = script_json({"text": "</script><!-- \u2028"})
    assert "<" not in text and "\u2028" not in text
    assert json.loads(text)["text"] == "</script><!-- \u2028"


def test_changed_and_withdrawn_tokens_are_told_step_by_step():
    """Slot 0 commits A, becomes B, slot 1 commits C, is withdrawn and commits D; plain commits need no such list."""
    trace = to_trace(full_run())
    assert "events" not in player.run_data(trace, "zscore(1)")
    first, second = trace.slots[:2].tolist()
    canvas = trace.canvas.copy()
    canvas[[first, second]] = [7007, 7009]
    steps, answer = trace.steps, len(trace.slots)
    tokens, state = np.zeros((steps, answer), np.int64), np.zeros((steps, answer), np.uint8)
    state[1:], tokens[1:] = 1, canvas[trace.slots]
    tokens[1, :2], state[2, 1] = [7006, 7008], 0
    texts = dict(zip(trace.canvas.tolist(), trace.texts, strict=True))
    metadata = {"passing_texts": {"7006": "A", "7008": "C"}}
    changed = dataclasses.replace(
        trace,
        canvas=canvas,
        texts=tuple({7007: "B", 7009: "D"}.get(token, texts.get(token, "x")) for token in canvas.tolist()),
        arrays=dict(trace.arrays) | {"tokens": tokens, "state": state},
        metadata=metadata,
    )
    events = player.run_data(changed, "zscore(1)")["events"]
    assert events[0][:2] == [[0, "commits", "A"], [1, "commits", "C"]]
    assert events[1] == [[0, "revised", "B"], [1, "renoised", "C"]]
    assert events[2] == [[1, "commits", "D"]] and not any(events[3:])
