"""The order of commits: what is asked for is what happens, in every sampler of masks, block by block."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope.decoding import DreamSampler, LLaDASampler, ThresholdSampler
from tests.decoding.comparing import run
from tests.decoding.decoding_models import MASK, FormulaDenoiser, formula

PROMPTS = st.lists(st.lists(st.integers(0, MASK - 1), min_size=1, max_size=6), min_size=1, max_size=3)


def plain(logits, prompt, length, groups):
    """Groups of slots, one per step: (canvas, confidence of each slot) by a loop over one canvas."""
    canvas, confidence = [*prompt, *[MASK] * length], {}
    for group in groups:
        rows = logits(canvas).astype(np.float64)
        rows[:, MASK] = -np.inf
        chances = np.exp(rows - rows.max(-1, keepdims=True))
        chances /= chances.sum(-1, keepdims=True)
        for slot in group:
            token = int(chances[len(prompt) + slot].argmax())
            canvas[len(prompt) + slot] = token
            confidence[slot] = chances[len(prompt) + slot, token]
    return canvas, [confidence[slot] for slot in range(length)]


def in_groups(order, each):
    return [sorted(order[start : start + each]) for start in range(0, len(order), each)]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    prompts=PROMPTS,
    block=st.integers(1, 4),
    blocks=st.integers(1, 3),
    each=st.integers(1, 5),
    order=st.sampled_from(["left-to-right", "right-to-left", "given"]),
    seed=st.integers(0, 1000),
)
def test_slots_commit_in_the_order_that_is_asked_for(prompts, block, blocks, each, order, seed):
    """Blocks from left to right, and inside of each the order, so many slots at every step."""
    length = block * blocks
    given_order = np.random.default_rng(seed).permutation(length).tolist()
    wanted = {"left-to-right": list(range(length)), "right-to-left": list(range(length))[::-1], "given": given_order}[
        order
    ]
    asked = given_order if order == "given" else order
    inside = [[slot for slot in wanted if slot // block == number] for number in range(blocks)]
    by_block = list(chain.from_iterable(in_groups(own, each) for own in inside))
    logits = formula(seed % 5)
    for sampler, groups in (
        (LLaDASampler(length=length, block=block, order=asked, tokens_per_step=each), by_block),
        (ThresholdSampler(length, block=block, order=asked, tokens_per_step=each), by_block),
        (DreamSampler(length=length, alg="maskgit_plus", order=asked, tokens_per_step=each), in_groups(wanted, each)),
    ):
        batch, steps = run(FormulaDenoiser(logits), prompts, sampler, [seed] * len(prompts))
        assert (len(steps),) * 2 == sampler.step_bounds(len(prompts[0]), None)
        for sample, prompt in enumerate(prompts):
            found = [step.committed[sample].nonzero().flatten().tolist() for step in steps]
            assert found == groups
            canvas, confidence = plain(logits, prompt, length, groups)
            assert steps[-1].canvas[sample, batch.pads[sample] :].tolist() == canvas
            kept = np.nanmax([step.confidence[sample].numpy() for step in steps], axis=0)
            np.testing.assert_allclose(kept, confidence, rtol=1e-4)


@pytest.mark.parametrize("sampler", [LLaDASampler, DreamSampler])
def test_an_order_without_a_number_keeps_the_schedule(sampler):
    own, ordered = sampler(steps=5, length=8), sampler(steps=5, length=8, order="right-to-left")
    counts = []
    for one in (own, ordered):
        _, steps = run(FormulaDenoiser(formula(1)), [[1, 2]], one, [0])
        counts.append([int(step.committed.sum()) for step in steps])
        if one is ordered:
            committed = [slot for step in steps for slot in step.committed[0].nonzero().flatten().tolist()[::-1]]
            assert committed == list(range(8))[::-1]
    assert counts[0] == counts[1]


def test_a_number_without_an_order_commits_the_surest():
    logits = formula(1)
    _, steps = run(FormulaDenoiser(logits), [[1, 2]], LLaDASampler(length=6, tokens_per_step=4), [0])
    rows = logits([1, 2, *[MASK] * 6])[2:]
    rows[:, MASK] = -np.inf
    chances = np.exp(rows - rows.max(-1, keepdims=True))
    surest = np.argsort(-(chances / chances.sum(-1, keepdims=True)).max(-1))[:4]
    assert sorted(surest) == steps[0].committed[0].nonzero().flatten().tolist()
    assert [int(step.committed.sum()) for step in steps] == [4, 2]


@pytest.mark.slow
def test_a_random_order_is_drawn_from_the_sample_s_seed():
    def orders(seeds, prompts):
        sampler = ThresholdSampler(12, order="random", tokens_per_step=1)
        _, steps = run(FormulaDenoiser(formula(1)), prompts, sampler, seeds)
        return [[step.committed[k].nonzero().item() for step in steps] for k in range(len(seeds))]

    found = orders([1, 2, 1], [[1], [1, 2, 3], [4]])
    assert found[0] == found[2] != found[1] and all(sorted(own) == list(range(12)) for own in found)
    assert orders([2], [[1, 2, 3]]) == [found[1]]
    firsts = {orders([seed], [[1]])[0][0] for seed in range(40)}
    assert len(firsts) > 8


def test_an_order_is_stronger_than_held_eos():
    def ends_first(canvas):
        rows = np.zeros((len(canvas), MASK + 1), np.float32)
        rows[:, 7], rows[-1, 3] = 2.0, 9.0
        return rows

    for sampler in (LLaDASampler, DreamSampler, ThresholdSampler):
        asked = sampler(length=4, hold_eos=True, order="left-to-right", tokens_per_step=1)
        _, steps = run(FormulaDenoiser(ends_first, eos_ids=(7,)), [[1]], asked, [0])
        assert [step.committed[0].nonzero().item() for step in steps] == [0, 1, 2, 3]
