"""The player's data: quantised values against the trace, anchors by the detector, texts, size, safe embedding."""

import base64
import dataclasses
import json

import numpy as np
import pytest

from floatscope.analysis.anchors import detect
from floatscope.canvas import Region
from floatscope.reports import player
from floatscope.reports.markup import script_json
from tests.traces.full_matrices import committing_row, full_run, row_groups, to_trace


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


@pytest.mark.slow
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
    assert player.run_data(gap)["by_region"]["names"] == ["doc 1", "doc 2", "text", "answer", "template"]
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


def shades(data: dict, *shape: int) -> np.ndarray:
    """What the browser computes: root * (q / 255)²."""
    levels = np.frombuffer(base64.b64decode(data["data"]), dtype="u1").astype(float)
    return (data["root"] * (levels / 255) ** 2).reshape(shape)


def numbers(data: dict, *shape: int) -> np.ndarray:
    levels = np.frombuffer(base64.b64decode(data["data"]), dtype="<u2").astype(float)
    return (data["scale"] * levels / 65535).reshape(shape)


@pytest.mark.parametrize("kind", ["mdm", "arm"])
def test_views_are_of_the_answers_rows_and_of_masked_slots(kind):
    run = full_run(kind=kind)
    trace = to_trace(run)
    made = player.run_data(trace)
    for step, found in enumerate(made["steps"]):
        groups = row_groups(run, step)
        for view, start in (("answer", "answer"), ("masked", "answer:masked")):
            chosen = [row for row, name in enumerate(groups) if name.startswith(start)]
            if kind == "arm" and view == "masked":
                assert "masked" not in found  # it has no such rows
                continue
            mean = run.attention[step][:, :, chosen].mean(axis=(1, 2)) if chosen else np.zeros((3, trace.canvas.size))
            error = found[view]["root"] / 255 + 1e-7
            np.testing.assert_allclose(shades(found[view], 3, -1), mean, atol=error)
    control = dataclasses.replace(trace, metadata={"control": "untrained"})
    assert all(set(step) == {"received", "anchors"} for step in player.run_data(control)["steps"])


@pytest.mark.parametrize("kind", ["mdm", "arm"])
def test_the_mass_on_each_region_is_that_of_the_full_matrices_from_every_view(kind):
    run = full_run(kind=kind, layers=12)
    found = player.run_data(to_trace(run), whole=False)
    names, layers = found["by_region"]["names"], found["layer_names"]
    assert names == ["doc 1", "doc 2", "query", "answer", "template"] and len(layers) == 10
    called = ["template" if label in ("bos", "scaffold") else label for label in run.labels]
    columns = [[place for place, label in enumerate(called) if label == name] for name in names]
    mass = numbers(found["by_region"]["mass"], 3, len(run.attention), 10, len(names))
    for step, attention in enumerate(run.attention):
        groups = np.array(row_groups(run, step))
        views = (groups != "", np.char.startswith(groups, "answer"), groups == "answer:masked")
        for view, rows in enumerate(views):
            for name, places in enumerate(columns):
                expected = attention[layers][:, :, rows][..., places].sum(axis=-1).mean(axis=(1, 2)) if any(rows) else 0
                np.testing.assert_allclose(mass[view, step, :, name], expected, atol=1e-4)


def test_a_slot_has_the_strongest_keys_and_regions_of_the_row_that_filled_it():
    """Of the mean over heads only what is among a head's three strongest is known; then each head's own."""
    run = full_run(logits="next", layers=12)
    found = player.run_data(to_trace(run), whole=True)["commit"]
    some = player.run_data(to_trace(run), whole=False)
    assert (found["heads"], found["ranks"], some["commit"]["heads"]) == (5, 3, 1)
    shape = (4, 12, 5, 3)
    keys = np.frombuffer(base64.b64decode(found["keys"]), dtype="<u2").reshape(shape)
    mass, regions = numbers(found["mass"], *shape), numbers(found["regions"], 4, 12, 5, len(found["names"]))
    few = numbers(some["commit"]["regions"], 4, 10, 1, len(found["names"]))
    np.testing.assert_allclose(few, regions[:, some["layer_names"], :1], atol=1e-4)
    place = found["names"].index("doc 2")
    for slot, layer in np.ndindex(4, 12):
        step, row = committing_row(run, slot)
        rows = run.attention[step][layer, :, row]  # [head, token]
        cut = np.where(rows >= np.sort(rows, axis=-1)[:, [-3]], rows, 0)
        for head, values in enumerate([cut.mean(axis=0), *rows]):
            order = np.argsort(-values, kind="stable")[:3]
            assert keys[slot, layer, head].tolist() == order.tolist()
            np.testing.assert_allclose(mass[slot, layer, head], values[order], atol=1e-4)
        own = rows[:, [8, 9, 10]].sum(axis=-1)  # doc 2
        np.testing.assert_allclose(regions[slot, layer, :, place], [own.mean(), *own], atol=1e-4)


def test_candidates_of_open_slots_with_their_texts_and_what_is_not_known():
    """A token of the canvas, one that passed by, one without a text; below half a thousandth none is told."""
    trace = to_trace(full_run(steps=2))
    shape = (2, 4)
    tokens = np.full((*shape, 3), -1)
    chances, numbers_of = np.zeros((*shape, 3)), {name: np.full(shape, -1.0) for name in ("margin", "entropy", "kl")}
    tokens[0, 1], chances[0, 1] = [trace.canvas[9], 900, 901], [0.61239, 0.0005, 0.0004]
    tokens[1, 3], chances[1, 3] = [901, 900, trace.canvas[9]], [0.5, 0.25, 0.125]
    numbers_of["margin"][0, 1], numbers_of["entropy"][0, 1] = 0.61189, 0.0
    numbers_of["margin"][1, 3], numbers_of["entropy"][1, 3], numbers_of["kl"][1, 3] = 0.25, 1.5, 0.0
    arrays = {"candidate_tokens": tokens, "candidate_probability": chances}
    arrays |= {f"candidate_{name}": values for name, values in numbers_of.items()}
    made = dataclasses.replace(
        trace, arrays={**trace.arrays, **arrays}, metadata={"passing_texts": {"900": " Bob", "x": "no"}}
    )
    word = dict(zip(trace.canvas.tolist(), trace.texts, strict=True))[int(trace.canvas[9])].strip()
    assert player.run_data(made)["candidates"] == [
        [[1, [[word, 0.6124], ["Bob", 0.0005]], 0.6119, 0.0, None]],
        [[3, [["#901", 0.5], ["Bob", 0.25], [word, 0.125]], 0.25, 1.5, 0.0]],
    ]


def test_as_many_samples_as_fit_together_are_shown():
    """The budget counts what was taken before: of three of one size two fit into the room of two."""
    traces = [to_trace(full_run(seed=0), metadata={"sample": str(number)}) for number in range(3)]
    one = len(json.dumps(player.player_data(traces[:1], budget=10**9)["samples"][0]))
    assert [s["id"] for s in player.player_data(traces, budget=one * 2)["samples"]] == ["0", "1"]
    assert len(player.player_data(traces, budget=one * 4)["samples"]) == 3


def test_text_after_a_gap_is_cut_at_its_end():
    trace = to_trace(full_run())
    gap = dataclasses.replace(trace, marks={"after": np.arange(1, 11).repeat(3)})
    [sample] = player.player_data([gap])["samples"]
    whole = " ".join(player.run_data(trace)["tokens"][place] for place in range(1, 11) for _ in range(3))
    assert sample["question"].startswith("▁▁▁ Question Question Question who") and sample["question"].endswith("…")
    assert len(sample["question"]) == 50 + len("▁▁▁ …") and len(whole) > 60
