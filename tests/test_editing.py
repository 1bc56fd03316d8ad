"""Edits through `generate` and `trace`: the same answers with and without the probe, arrays as plain numpy has them."""

import numpy as np
import pytest

import floatscope as fs
from tests.plain_attention import canvas_at
from tests.probe.plain_edits import hide, run_edited, softmax
from tests.probe.test_edits import canvas
from tests.tiny_models import MASK, tiny_model

pytestmark = pytest.mark.slow

EDITS = {
    "block": [fs.Edit("block", keys="doc 2")],
    "late": [fs.Edit("block", keys="doc 1", steps="1-2", layers="0-1")],
    "zero": [fs.Edit("zero", keys="query", rows="answer")],
    "pick": [fs.Edit("block", keys="top(2)")],
    "held": [fs.Edit("block", keys="top(2)", source="first", by_head=True)],
    "drawn": [fs.Edit("block", keys="like(top(2))")],
    "pin": [fs.Edit("pin", keys="bos or query")],
    "sink": [fs.Edit("sink", steps="0-50%")],
    "heads": [fs.Edit("heads", heads="1.2, 2.0"), fs.Edit("scale", keys="bos", factor=0.3)],
    "state": [fs.Edit("block", keys="answer:committed", rows="answer:masked")],
}
PROMPTS = [canvas(13), canvas(18, seed=1), canvas(9, seed=2)]


@pytest.mark.parametrize("edits", EDITS)
@pytest.mark.parametrize("name", ["llada", "dream", "bert", "sdar", "llama", "gemma2"])
def test_with_and_without_the_probe_the_answers_are_the_same_and_so_they_are_alone(name, edits):
    model = tiny_model(name)
    if name in ("llama", "gemma2") and edits == "state":
        pytest.skip("an ARM has no masked rows")
    sampler = model.sampler(length=8, **({"steps": 9} if name == "dream" else {}))  # not its own 512
    given = EDITS[edits]
    generations = fs.generate(model, PROMPTS, sampler, edits=given)
    traces = fs.trace(model, PROMPTS, sampler, edits=given)
    for prompt, generation, trace in zip(PROMPTS, generations, traces, strict=True):
        assert trace.canvas.tolist() == generation.canvas.tolist()
        assert trace.commit_step.tolist() == generation.commit_step.tolist()
        assert fs.generate(model, prompt, sampler, edits=given).canvas.tolist() == generation.canvas.tolist()
        assert [edit["op"] for edit in trace.edits] == [edit.op for edit in given]


@pytest.mark.parametrize("name", ["llada", "dream", "sdar"])
def test_the_arrays_of_an_edited_run_are_those_of_a_plain_one(name):
    model = tiny_model(name)
    trace = fs.trace(model, PROMPTS[0], model.sampler(length=4), edits=EDITS["block"])
    hidden = np.zeros((17, 17), bool)
    hidden[:, 8:13] = True
    for step in range(len(trace.received)):
        _, attention = run_edited(model, canvas_at(trace, step, MASK), lambda layer, scores: hide(scores, hidden))
        for layer, found in enumerate(attention):
            np.testing.assert_allclose(trace.received[step, layer], found.mean((0, 1)), atol=1e-5)


def test_picks_of_a_step_come_from_the_step_before():
    model = tiny_model("llada")
    sampler = fs.LLaDASampler(steps=4, length=4)
    trace = fs.trace(model, PROMPTS[0], sampler, edits=EDITS["pick"])
    _, before = run_edited(model, canvas_at(trace, 0, MASK), lambda layer, scores: softmax(scores))
    for step in range(4):

        def change(layer, scores, before=before):
            hidden = np.zeros(scores.shape[1:], bool)
            hidden[:, np.argsort(-before[layer].mean((0, 1)))[:2]] = True
            return hide(scores, hidden)

        _, before = run_edited(model, canvas_at(trace, step, MASK), change)
        for layer, found in enumerate(before):
            np.testing.assert_allclose(trace.received[step, layer], found.mean((0, 1)), atol=1e-5)


@pytest.mark.parametrize("name", ["llada", "llama"])
def test_picks_come_from_the_same_step_of_the_unedited_run(name):
    model = tiny_model(name)
    sampler = model.sampler({"steps": 4}, length=4)
    plain = fs.trace(model, PROMPTS[:2], sampler, keep="heads")
    edit = fs.Edit("block", keys="top(2)", source="unedited")
    for own, trace in zip(plain, fs.trace(model, PROMPTS[:2], sampler, edits=[edit]), strict=True):
        picks = [np.argsort(-own.received[min(step, own.steps - 1)], -1)[:, :2] for step in range(trace.steps)]
        if not model.is_arm:
            for step in range(trace.steps):

                def change(layer, scores, step=step, picks=picks):
                    hidden = np.zeros(scores.shape[1:], bool)
                    hidden[:, picks[step][layer]] = True
                    return hide(scores, hidden)

                _, found = run_edited(model, canvas_at(trace, step, MASK), change)
                for layer, attention in enumerate(found):
                    np.testing.assert_allclose(trace.received[step, layer], attention.mean((0, 1)), atol=1e-5)
            continue
        last, start = len(trace.canvas) - 1, int(trace.slots[0])

        def change_rows(layer, scores, picks=picks, start=start):
            hidden = np.zeros(scores.shape[1:], bool)
            hidden[:start, picks[0][layer]] = True
            for row in range(start, len(hidden)):
                hidden[row, picks[row - start + 1][layer]] = True
            return hide(scores, hidden)

        _, found = run_edited(model, trace.canvas[:-1], change_rows)
        for layer, attention in enumerate(found):
            np.testing.assert_allclose(trace.received[-1, layer, :last], attention.mean((0, 1)), atol=1e-5)


def test_a_pin_to_the_unedited_run_holds_step_by_step():
    """Where another edit changes the attention, a pin brings the mass of its keys back to the unedited run's."""
    model, tokens = tiny_model("llada"), [7, 30, 8, 9]
    plain = fs.replay(model, PROMPTS[0], tokens, keep="heads")
    edits = [fs.Edit("pin", keys="query", source="unedited"), fs.Edit("scale", keys="doc 1", factor=0.2, when="before")]
    pinned = fs.replay(model, PROMPTS[0], tokens, keep="heads", edits=edits)
    held, found = (trace.received[:, :, 1:4].sum(-1) for trace in (plain, pinned))
    np.testing.assert_allclose(found[:, 0], held[:, 0], atol=2e-3)  # the first layer sees the same states
    loose = fs.replay(model, PROMPTS[0], tokens, keep="heads", edits=edits[1:])
    assert np.abs(loose.received[:, 0, 1:4].sum(-1) - held[:, 0]).max() > 5e-3


def test_an_arm_is_edited_in_the_rows_of_the_step_and_its_cached_rows_stay():
    """A block at steps 2 and 3 acts on the rows that steps 2 and 3 compute, in the answer and in the trace."""
    model = tiny_model("llama")
    edit = fs.Edit("block", keys="doc 1", steps="2-3")
    sampler = fs.AutoregressiveSampler(length=5)
    trace = fs.trace(model, PROMPTS[0], sampler, edits=[edit])
    rows = [13 + 2 - 1, 13 + 3 - 1]
    last = len(trace.canvas) - 1
    hidden = np.zeros((last, last), bool)
    hidden[np.ix_([row for row in rows if row < last], list(range(4, 8)))] = True
    logits, attention = run_edited(model, trace.canvas[:-1], lambda layer, scores: hide(scores, hidden))
    answer = logits[12:].argmax(-1)
    assert answer.tolist() == trace.canvas[13:].tolist()
    for layer, found in enumerate(attention):
        np.testing.assert_allclose(trace.received[-1, layer, :last], found.mean((0, 1)), atol=1e-5)


ROWS = [14, 15]  # those that steps 2 and 3 compute after a prompt of 13 tokens


def scaled(attention, factor):
    found = attention.copy()
    found[:, ROWS, 4:8] *= factor
    return found


def biased(scores, bias):
    found = scores.copy()
    found[:, ROWS, 4:8] += bias
    return softmax(found)


def with_sink(scores):
    found = softmax(scores)
    wider = np.concatenate([scores, np.zeros((*scores.shape[:2], 1))], -1)
    found[:, ROWS] = softmax(wider)[:, ROWS, :-1]
    return found


@pytest.mark.parametrize(
    ("edit", "change"),
    [
        (fs.Edit("zero", keys="doc 1", steps="2-3"), lambda scores: scaled(softmax(scores), 0)),
        (fs.Edit("scale", keys="doc 1", factor=3.0, steps="2-3"), lambda scores: scaled(softmax(scores), 3)),
        (
            fs.Edit("scale", keys="doc 1", factor=3.0, when="before", steps="2-3"),
            lambda scores: biased(scores, np.log(3)),
        ),
        (fs.Edit("sink", steps="2-3"), with_sink),
    ],
)
def test_an_arm_s_rows_of_a_step_are_changed_and_no_others(edit, change):
    model = tiny_model("llama")
    trace = fs.trace(model, PROMPTS[0], fs.AutoregressiveSampler(length=5), edits=[edit])
    logits, attention = run_edited(model, trace.canvas[:-1], lambda layer, scores: change(scores))
    assert logits[12:].argmax(-1).tolist() == trace.canvas[13:].tolist()
    for layer, found in enumerate(attention):
        np.testing.assert_allclose(trace.received[-1, layer, :17], found.mean((0, 1)), atol=1e-5)


@pytest.mark.parametrize(
    "edits",
    [
        [fs.Edit("heads", heads="0.1, 1.2", to_mean=True)],
        [fs.Edit("heads", heads="0.1", to_mean=True, rows="query"), fs.Edit("heads", heads="1.3", factor=0.5)],
    ],
)
def test_the_mean_of_an_arm_s_head_is_over_the_rows_of_one_step(edits):
    """The prompt's rows are computed together; a row of the answer is alone, and its own mean."""
    model = tiny_model("llama")
    trace = fs.trace(model, PROMPTS[0], fs.AutoregressiveSampler(length=5), edits=edits)

    def after(layer, output):
        found = output.copy()
        if layer == 0:
            rows = slice(1, 4) if len(edits) > 1 else slice(13)
            found[rows, 1] = output[:13, 1].mean(0)
        elif layer == 1 and len(edits) > 1:
            found[:, 3] /= 2
        elif layer == 1:
            found[:13, 2] = output[:13, 2].mean(0)
        return found

    logits, attention = run_edited(model, trace.canvas[:-1], lambda layer, scores: softmax(scores), after)
    assert logits[12:].argmax(-1).tolist() == trace.canvas[13:].tolist()
    for layer, found in enumerate(attention):
        np.testing.assert_allclose(trace.received[-1, layer, :17], found.mean((0, 1)), atol=1e-5)


def test_what_is_drawn_by_chance_is_drawn_anew_in_every_layer_and_step():
    model = tiny_model("llada")
    trace = fs.trace(model, PROMPTS[1], model.sampler(length=6), edits=[fs.Edit("zero", keys="random(3)")])
    drawn = [tuple(np.flatnonzero(received == 0)) for step in trace.received for received in step]
    assert set(map(len, drawn)) == {3} and len(set(drawn)) > len(drawn) // 2
    layers = trace.received.shape[1]
    assert all(len(set(drawn[at : at + layers])) > 1 for at in range(0, len(drawn), layers))


def test_edits_of_a_step_that_never_comes_change_nothing():
    model = tiny_model("llada")
    sampler = fs.LLaDASampler(steps=4, length=4)
    plain = fs.trace(model, PROMPTS[0], sampler)
    edited = fs.trace(model, PROMPTS[0], sampler, edits=[fs.Edit("zero", keys="answer:committed", steps="first")])
    for name, values in plain.arrays.items():
        assert np.array_equal(values, edited.arrays[name]), name


def test_edits_are_told_from_other_things():
    model = tiny_model("llada")
    for wrong in (["block"], [[fs.Edit("sink")]], [fs.Edit("sink"), []]):
        with pytest.raises(fs.UserError, match=r"list of fs\.Edit"):
            fs.generate(model, PROMPTS, model.sampler(length=4), edits=wrong)


def test_a_trace_keeps_its_edits_in_its_file(tmp_path):
    model = tiny_model("llada")
    trace = fs.trace(model, PROMPTS[0], model.sampler(length=4), edits=EDITS["heads"])
    trace.save(tmp_path / "one.safetensors")
    read = fs.Trace.load(tmp_path / "one.safetensors")
    assert [fs.Edit(**edit) for edit in read.edits] == EDITS["heads"]
