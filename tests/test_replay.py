"""Replay: given tokens in a given order, with the probabilities and the attention of plain passes over each canvas."""

import dataclasses

import numpy as np
import pytest
import torch

import floatscope as fs
from tests.test_tracing import ARMS, MDMS, close, compare, plain_probability
from tests.tiny_models import MASK, tiny_model

FREE = [name for name in MDMS if tiny_model(name).block is None]
ORDERS = {
    "left-to-right": [0, 1, 2, 3],
    "right-to-left": [3, 2, 1, 0],
    "2,0,3,1": [2, 0, 3, 1],
}


def canvases(model, rng, slots=4):
    """Slots in the middle, at the left and at the right, unequal lengths, with tokens for them."""
    ends = [(3, 4), (0, 9), (6, 0)] if model.block is None and not model.is_arm else [(3, 0), (9, 0), (6, 0)]
    made = [fs.build_canvas(None, rng.integers(3, 90, a), slots, rng.integers(3, 90, b)) for a, b in ends]
    return made, [rng.integers(3, 90, slots) for _ in made]


def check_against_plain_passes(model, trace, tokens, order, tokens_per_step):
    """Every commit is where the order has it, of the token that was given, at its probability on that canvas."""
    assert trace.answer.tolist() == tokens.tolist()
    shown = trace.canvas.copy()
    shown[trace.slots] = MASK
    for step, start in enumerate(range(0, len(order), tokens_per_step)):
        own = order[start : start + tokens_per_step]
        assert np.flatnonzero(trace.commit_step == step).tolist() == sorted(own)
        for slot in own:
            chance = plain_probability(model, shown, trace.slots[slot], tokens[slot])
            close(trace.confidence[slot], chance, "confidence")
        shown[trace.slots[own]] = tokens[own]
    assert trace.sampler["replay"] is True


@pytest.mark.slow
@pytest.mark.parametrize("tokens_per_step", [1, 2, 3])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", FREE)
def test_replay_commits_exactly_the_order(name, order, tokens_per_step):
    model = tiny_model(name)
    prompts, tokens = canvases(model, np.random.default_rng(2))
    given = [int(slot) for slot in order.split(",")] if "," in order else order
    traces = fs.replay(model, prompts, tokens, order=given, tokens_per_step=tokens_per_step)
    for trace, own in zip(traces, tokens, strict=True):
        check_against_plain_passes(model, trace, own, ORDERS[order], tokens_per_step)
        compare(model, trace)


@pytest.mark.slow
@pytest.mark.parametrize("name", FREE)
def test_a_random_order_is_the_seed_s(name):
    model = tiny_model(name)
    prompts, tokens = canvases(model, np.random.default_rng(3))
    traces = fs.replay(model, prompts, tokens, order="random", seeds=[5, 6, 5])
    orders = [np.argsort(trace.commit_step).tolist() for trace in traces]
    assert orders[0] == orders[2] and len({str(order) for order in orders}) == 2
    for trace, own, order in zip(traces, tokens, orders, strict=True):
        check_against_plain_passes(model, trace, own, order, 1)
    alone = fs.replay(model, prompts[1], tokens[1], order="random", seeds=[6])
    assert np.argsort(alone.commit_step).tolist() == orders[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llada", "bert"])
def test_by_confidence_the_slot_that_the_model_is_surest_of_commits_whatever_it_is_given(name):
    model = tiny_model(name)
    prompts, tokens = canvases(model, np.random.default_rng(3))
    for trace, own in zip(fs.replay(model, prompts, tokens, order="confidence"), tokens, strict=True):
        order = np.argsort(trace.commit_step)
        check_against_plain_passes(model, trace, own, order.tolist(), 1)
        shown = trace.canvas.copy()
        shown[trace.slots] = MASK
        for slot in order:
            left = order[list(order).index(slot) :]
            sure = [surest(model, shown, trace.slots[other]) for other in left]
            assert int(np.argmax(sure)) == 0
            shown[trace.slots[slot]] = own[slot]


def surest(model, canvas, position):
    with torch.no_grad():
        row = model.backbone(input_ids=torch.tensor(canvas)[None]).logits[0, position].double().clone()
    row[MASK] = -torch.inf
    return float(row.softmax(-1).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sdar", "fast-dllm-v2"])
def test_a_block_causal_model_replays_block_by_block(name):
    model = tiny_model(name)
    slots = 2 * model.block
    prompts, tokens = canvases(model, np.random.default_rng(3), slots)
    for trace, own in zip(fs.replay(model, prompts, tokens, order="right-to-left"), tokens, strict=True):
        assert trace.answer.tolist() == own.tolist()
        blocks = trace.slots // model.block
        for block in np.unique(blocks):
            inside = trace.commit_step[blocks == block]
            assert inside.max() < trace.commit_step[blocks > block].min(initial=10**9)
        if name == "sdar":
            assert all((np.diff(trace.commit_step[blocks == block]) == -1).all() for block in np.unique(blocks))
        compare(model, trace)


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_s_replay_is_its_plain_pass(name):
    model = tiny_model(name)
    prompts, tokens = canvases(model, np.random.default_rng(2))
    tokens[1][1] = model.eos_ids[0]  # which ends nothing here
    for prompt, own, trace in zip(prompts, tokens, fs.replay(model, prompts, tokens, order="random"), strict=True):
        text = prompt.ids.copy()
        text[prompt.slots] = own
        assert (trace.canvas.tolist(), trace.commit_step.tolist()) == (text.tolist(), [0, 1, 2, 3])
        with torch.inference_mode():
            rows = model.backbone(input_ids=torch.tensor(text)[None]).logits[0].double().softmax(-1).numpy()
        close(trace.confidence, rows[prompt.slots - 1, own], "confidence")
        compare(model, trace)
        assert "order" not in trace.sampler and trace.sampler["replay"] is True


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "llada"])
def test_what_a_model_says_under_an_edit_it_is_as_sure_of_in_a_replay_under_it(name):
    model, edits = tiny_model(name), [fs.Edit("block", keys="3-5", layers="1-2", steps="1-2")]
    told = {"order": "left-to-right", "tokens_per_step": 1, "mask_is_candidate": False}
    sampler = model.sampler(length=4, **({} if model.is_arm else told))
    said = fs.trace(model, list(range(5, 14)), sampler, edits=edits)
    assert len(said.answer) == 4
    again = fs.replay(model, list(range(5, 14)), said.answer, edits=edits, keep="heads")
    plain = fs.replay(model, list(range(5, 14)), said.answer)
    close(again.confidence, said.confidence, "confidence")
    close(again.received, said.received, "received")
    assert np.abs(plain.confidence - said.confidence).max() > 1e-4


def test_bits_per_token_follow_and_generate_replays_too():
    model = tiny_model("llada")
    prompts, tokens = canvases(model, np.random.default_rng(2))
    sampler = fs.LLaDASampler(length=4, order="left-to-right", tokens_per_step=1)
    answered = [dataclasses.replace(prompt, answer=own) for prompt, own in zip(prompts, tokens, strict=True)]
    forced = fs.generate(model, answered, sampler, replay=True)
    for trace, done in zip(fs.replay(model, prompts, tokens), forced, strict=True):
        assert done.canvas.tolist() == trace.canvas.tolist()
        close(done.confidence, trace.confidence, "confidence")
    free = fs.generate(model, answered, sampler)
    assert any(one.answer.tolist() != own.tolist() for one, own in zip(free, tokens, strict=True))


def test_a_text_is_replayed_in_its_place():
    model = fs.load("twin-llada")
    canvas = fs.build_canvas(model, "Port Alden is", " in the north", " of it.")
    trace = fs.replay(model, canvas, order="right-to-left", tokens_per_step=2)
    assert trace.answer.tolist() == canvas.answer.tolist() and len(trace.answer) == 3
    assert trace.commit_step.tolist() == [1, 0, 0]
    assert set(trace.region_labels) == {"bos", "query", "answer"} and {"before", "after"} <= set(trace.marks)


@pytest.mark.parametrize(
    ("prompts", "tokens", "sentence"),
    [
        ([5, 6], None, "has no answer: give tokens"),
        (fs.build_canvas(None, [5], 2), None, "has no answer: give tokens"),
        (fs.build_canvas(None, [5], 2), [7], "The prompt has 2 answer slots and the sampler fills 1"),
        ([[5], [6]], [[7, 8]], "tokens for 1 canvases and 2 of these"),
        ([[5], [6]], [[7, 8], [7]], "have 1 to 2 slots: replay those of one number together"),
        ([[5], [6]], [7, 8], "whole numbers"),
        ([5], [7, MASK], "holds the mask token 95"),
        ([5], [7, 96], "token id 96 is outside the vocabulary of 96"),
        ([5], [7, -1], "whole numbers"),
    ],
)
def test_what_cannot_be_replayed_is_a_sentence(prompts, tokens, sentence):
    with pytest.raises(fs.UserError, match=sentence):
        fs.replay(tiny_model("llada"), prompts, tokens)
