"""The threshold sampler against a plain transcription, and its windows and refusals."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope.decoding import Step, ThresholdSampler, generate
from floatscope.errors import UserError
from tests.decoding import plain_samplers
from tests.decoding.comparing import (
    assert_asks_only,
    assert_each_slot_once,
    assert_same_canvases,
    assert_same_steps,
    run,
)
from tests.decoding.decoding_models import MASK, FormulaDenoiser, formula

PROMPTS = st.lists(st.lists(st.integers(0, MASK - 1), min_size=1, max_size=7), min_size=1, max_size=3)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(
    prompts=PROMPTS,
    block=st.integers(1, 4),
    blocks=st.integers(1, 3),
    threshold=st.sampled_from([0.05, 0.4, 0.6, 0.9, 1.0]),
    hold_eos=st.booleans(),
    block_causal=st.booleans(),
    seed=st.integers(0, 20),
)
def test_agrees_step_by_step_with_the_plain_transcription(
    prompts, block, blocks, threshold, hold_eos, block_causal, seed
):
    eos_ids = (2, 5, 7)
    denoiser = FormulaDenoiser(formula(seed, scale=1.0), eos_ids=eos_ids, block=block if block_causal else None)
    sampler = ThresholdSampler(block * blocks, threshold, None if block_causal else block, hold_eos)
    batch, done = run(denoiser, prompts, sampler, [0] * len(prompts))
    assert_each_slot_once(done)
    for sample, prompt in enumerate(prompts):
        expected = plain_samplers.threshold(
            denoiser.logits, prompt, block * blocks, threshold, block, hold_eos, eos_ids, block_causal
        )
        assert_same_steps(batch, done, sample, expected)


def sure_of(confidences):
    """A model whose slots have these confidences in token 3 (token 7 where negative), whatever the canvas."""

    def rows(canvas):
        table = np.zeros((len(canvas), MASK + 1), np.float32)
        for slot, value in enumerate(confidences):
            odds = abs(value) / (1 - abs(value)) * (MASK - 1)
            table[len(canvas) - len(confidences) + slot, 3 if value > 0 else 7] = np.log(odds)
        return table

    return rows


def commits(confidences, **settings):
    denoiser = FormulaDenoiser(sure_of(confidences), eos_ids=(7,))
    batch, steps = run(denoiser, [[1]], ThresholdSampler(len(confidences), **settings), [0])
    return [step.committed[0].nonzero().flatten().tolist() for step in steps], denoiser, batch


def test_commits_all_above_the_threshold_of_the_block_and_at_least_the_surest():
    done, denoiser, batch = commits([0.95, 0.5, 0.6, 0.99, 0.92, 0.91], threshold=0.9, block=3)
    assert done == [[0], [2], [1], [0 + 3, 1 + 3, 2 + 3]]
    assert_asks_only(denoiser, batch, [[[0, 1, 2]], [[1, 2]], [[1]], [[3, 4, 5]]])


def test_held_eos_slots_wait_while_the_block_has_others_and_then_need_no_single_file():
    assert commits([-0.95, 0.5, -0.96, 0.6], hold_eos=False)[0] == [[0, 2], [3], [1]]
    assert commits([-0.95, 0.5, -0.96, 0.6], hold_eos=True)[0] == [[3], [1], [0, 2]]


def test_ties_of_the_surest_go_to_the_lowest_position():
    assert commits([0.5, 0.5, 0.5])[0] == [[0], [1], [2]]


def test_another_block_than_the_family_s_is_refused():
    with pytest.raises(UserError, match="block-causal with blocks of 4"):
        run(FormulaDenoiser(formula(0), block=4), [[1]], ThresholdSampler(length=8, block=2), [0])


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    prompts=PROMPTS,
    small=st.integers(1, 3),
    parts=st.integers(1, 3),
    blocks=st.integers(1, 3),
    threshold=st.sampled_from([0.2, 0.4, 0.6, 0.9]),
    seed=st.integers(0, 20),
)
def test_small_blocks_with_the_first_slot_alone_are_fast_dllm_s_way(prompts, small, parts, blocks, threshold, seed):
    block = small * parts
    denoiser = FormulaDenoiser(formula(seed, scale=1.0), block=block)
    sampler = ThresholdSampler(block * blocks, threshold, small_block=small, first_alone=True)
    batch, done = run(denoiser, prompts, sampler, [0] * len(prompts))
    assert_each_slot_once(done)
    for sample, prompt in enumerate(prompts):
        expected = plain_samplers.fast_dllm(denoiser.logits, prompt, block * blocks, threshold, block, small)
        assert_same_canvases(batch, done, sample, expected)
        low, high = sampler.step_bounds(len(prompt), block)
        assert low <= len(expected) <= high


def test_a_small_block_that_does_not_divide_its_block_is_refused():
    with pytest.raises(UserError, match="small_block=3 does not divide blocks of 4 slots"):
        run(FormulaDenoiser(formula(0), block=4), [[1]], ThresholdSampler(length=8, small_block=3), [0])


@pytest.mark.parametrize(("threshold", "steps"), [(0.25, 4), (0.2499, 1)])
def test_a_slot_that_is_exactly_as_sure_as_the_threshold_waits(threshold, steps):
    """Four tokens are equally likely, so that every confidence is 1/4 to the bit."""

    def even(canvas):
        rows = np.full((len(canvas), MASK + 1), -np.inf, np.float32)
        rows[:, :4] = 0.0
        return rows

    _, done = run(FormulaDenoiser(even), [[1]], ThresholdSampler(4, threshold), [0])
    assert done[0].confidence[0, 0].item() == 0.25
    assert len(done) == steps


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    prompts=PROMPTS,
    block=st.integers(1, 6),
    length=st.integers(1, 11),
    threshold=st.sampled_from([0.2, 0.4, 0.6, 0.95]),
    steps=st.sampled_from([None, 1, 2, 3, 32]),
    edit_threshold=st.sampled_from([None, 0.0, 0.3, 0.5, 0.9]),
    edit_steps=st.sampled_from([0, 1, 3]),
    seed=st.integers(0, 20),
)
def test_whole_blocks_even_shares_and_edits_are_llada2_s_way(
    prompts, block, length, threshold, steps, edit_threshold, edit_steps, seed
):
    denoiser = FormulaDenoiser(formula(seed, scale=1.0), block=block)
    sampler = ThresholdSampler(
        length,
        threshold,
        steps_per_block=steps,
        whole_blocks=True,
        edit_threshold=edit_threshold,
        edit_steps=edit_steps,
    )
    taken: list[list[Step]] = [[] for _ in prompts]
    whole = generate(denoiser, prompts, sampler)
    for prompt, steps_taken, generation in zip(prompts, taken, whole, strict=True):
        alone = generate(denoiser, prompt, sampler, on_step=steps_taken.append)
        assert alone.canvas.tolist() == generation.canvas.tolist()
        expected = plain_samplers.llada2(
            lambda canvas, stop: denoiser.logits(canvas), prompt, length, threshold, block, steps, edit_threshold,
            edit_steps,
        )  # fmt: skip
        assert [step.canvas[0].tolist() for step in steps_taken] == expected
        changed = [int((step.committed | step.revised).sum()) for step in steps_taken]
        assert changed == [np.count_nonzero(np.subtract(*pair)) for pair in pairwise([
            [*prompt, *[MASK] * (len(expected[0]) - len(prompt))], *expected])]  # fmt: skip
        low, high = sampler.fitted(denoiser, len(prompt)).step_bounds(len(prompt), block)
        assert low <= len(expected) <= high


def test_an_order_that_is_asked_for_and_a_replay_leave_edits_out():
    denoiser = FormulaDenoiser(formula(3, scale=1.0))
    for more in ({"order": "right-to-left"}, {"tokens_per_step": 1}):
        steps: list[Step] = []
        generate(denoiser, [1, 2], ThresholdSampler(5, edit_threshold=0.0, **more), on_step=steps.append)
        assert len(steps) <= 5 and not any(step.revised.any() for step in steps)


@pytest.mark.parametrize(
    ("settings", "first_slot", "family_block", "bounds"),
    [
        ({"block": 4}, 3, None, (2, 8)),
        ({"block": 4, "steps_per_block": 2}, 3, None, (2, 4)),
        ({"steps_per_block": 2}, 2, 4, (3, 1 + 2 + 1)),  # two slots, four, two; a step fills two at least
        ({"steps_per_block": 3}, 3, 4, (3, 1 + 3 + 2)),  # one slot, four, three; 2, 1 and 1 at its steps
        ({"steps_per_block": 3, "mask_is_candidate": True}, 3, 4, (3, 9)),
        ({"block": 4, "tokens_per_step": 3}, 3, None, (4, 4)),
        ({"block": 4, "tokens_per_step": 3, "steps_per_block": 1, "edit_threshold": 0.5}, 3, None, (4, 4)),
        ({"block": 4, "edit_threshold": 0.5, "edit_steps": 3}, 3, None, (4, 14)),
        ({"block": 4, "edit_threshold": 0.5, "edit_steps": 0}, 3, None, (2, 8)),
        ({"block": 4, "edit_threshold": 0.5, "order": "random"}, 3, None, (2, 8)),
        ({"block": 4, "small_block": 2}, 3, None, (4, 8)),
        ({"block": 4, "first_alone": True}, 3, None, (4, 8)),
        ({"first_alone": True}, 2, 4, (5, 8)),  # the first block began in the prompt: two, one and three, one and one
    ],
)
def test_bounds_of_eight_slots(settings, first_slot, family_block, bounds):
    assert ThresholdSampler(8, **settings).step_bounds(first_slot, family_block) == bounds


@pytest.mark.parametrize(
    ("settings", "first_slot", "family_block", "length", "steps_per_block"),
    [
        ({"whole_blocks": True}, 5, 4, 7, None),
        ({"whole_blocks": True}, 6, 4, 6, None),
        ({"whole_blocks": True, "block": 4}, 5, None, 8, None),  # counted from the first slot
        ({"whole_blocks": True, "steps_per_block": 32}, 5, 4, 7, 6),
        ({"steps_per_block": 32}, 5, 4, 6, 32),
    ],
)
def test_whole_blocks_make_an_answer_of_six_slots_longer(settings, first_slot, family_block, length, steps_per_block):
    found = ThresholdSampler(6, **settings).fitted(FormulaDenoiser(formula(0), block=family_block), first_slot)
    assert (found.length, found.steps_per_block) == (length, steps_per_block)


def test_tokens_that_are_edited_take_no_mask():
    assert not ThresholdSampler(4, edit_threshold=0.5, mask_is_candidate=True).mask_is_candidate
    assert ThresholdSampler(4, mask_is_candidate=True).mask_is_candidate


def test_prompts_whose_canvases_differ_keep_their_seeds_and_their_place():
    """Prompts of 5, 8, 9 and 8 tokens under blocks of four get 3, 4, 3 and 4 slots."""
    denoiser = FormulaDenoiser(formula(2, scale=1.0), block=4)
    prompts = [list(range(1, 6)), list(range(8)), list(range(2, 11)), list(range(8))]
    sampler = ThresholdSampler(3, order="random", tokens_per_step=1, whole_blocks=True)
    for seeds in ([4, 7, 5, 9], np.array([4, 7, 5, 9])):
        steps: list[Step] = []
        together = generate(denoiser, prompts, sampler, seeds=seeds, on_step=steps.append)
        assert [len(one.slots) for one in together] == [3, 4, 3, 4] and len(steps) == 3 + 4
        for prompt, seed, found in zip(prompts, [4, 7, 5, 9], together, strict=True):
            alone = generate(denoiser, prompt, sampler, seeds=[seed])
            assert alone.canvas.tolist() == found.canvas.tolist()
            assert alone.commit_step.tolist() == found.commit_step.tolist()
    assert together[1].commit_step.tolist() != together[3].commit_step.tolist()
