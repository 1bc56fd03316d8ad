"""The llada sampler against a plain transcription, and its windows, quotas, ties and refusals."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope.decoding import Batch, LLaDASampler
from floatscope.errors import UserError
from tests.decoding import plain_samplers
from tests.decoding.comparing import (
    assert_asks_only,
    assert_each_slot_once,
    assert_same_canvases,
    assert_same_steps,
    run,
)
from tests.decoding.decoding_models import MASK, FormulaDenoiser, formula, likes_masks

PROMPTS = st.lists(st.lists(st.integers(0, MASK - 1), min_size=1, max_size=7), min_size=1, max_size=3)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(
    prompts=PROMPTS,
    block=st.integers(1, 4),
    blocks=st.integers(1, 3),
    steps_per_block=st.integers(1, 5),
    temperature=st.sampled_from([0.0, 0.0, 0.7]),
    remasking=st.sampled_from(["low_confidence", "random"]),
    cfg=st.sampled_from([0.0, 0.0, 1.5]),
    hold_eos=st.booleans(),
    block_causal=st.booleans(),
    seed=st.integers(0, 2**63),
)
def test_agrees_step_by_step_with_the_plain_transcription(
    prompts, block, blocks, steps_per_block, temperature, remasking, cfg, hold_eos, block_causal, seed
):
    length, steps, eos_ids = block * blocks, blocks * steps_per_block, (2, 5, 7)
    denoiser = FormulaDenoiser(formula(seed % 5, scale=0.5), eos_ids=eos_ids, block=block if block_causal else None)
    sampler = LLaDASampler(
        steps, length, None if block_causal else block, temperature, remasking, cfg, hold_eos, seed=99
    )
    seeds = [seed + number for number in range(len(prompts))]
    batch, done = run(denoiser, prompts, sampler, seeds)
    assert_each_slot_once(done)
    for sample, prompt in enumerate(prompts):
        expected = plain_samplers.llada(
            denoiser.logits, prompt, steps, length, block, temperature, remasking, cfg, hold_eos,
            seeds[sample], eos_ids, from_canvas=block_causal,
        )  # fmt: skip
        assert_same_steps(batch, done, sample, expected)


def test_quota_remainder_goes_to_the_first_steps():
    _, steps = run(FormulaDenoiser(formula(0)), [[1, 2]], LLaDASampler(steps=6, length=16, block=8), [0])
    assert [int(step.committed.sum()) for step in steps] == [3, 3, 2, 3, 3, 2]


def test_steps_without_anything_left_to_fill_are_dropped():
    _, steps = run(FormulaDenoiser(formula(0)), [[1, 2]], LLaDASampler(steps=20, length=6, block=3), [0])
    assert [int(step.committed.sum()) for step in steps] == [1] * 6


def test_asks_for_masked_slots_of_the_block_only():
    denoiser = FormulaDenoiser(formula(1))
    batch, steps = run(denoiser, [[1], [4, 5, 6]], LLaDASampler(steps=4, length=6, block=3), [0, 0])
    windows, masked = [], [set(range(6)), set(range(6))]
    for step in steps:
        first = 0 if step.index < 2 else 3
        windows.append([sorted(own & set(range(first, first + 3))) for own in masked])
        masked = [m - set(row.nonzero().flatten().tolist()) for m, row in zip(masked, step.committed, strict=True)]
    assert_asks_only(denoiser, batch, windows)


def test_blocks_of_a_block_causal_family_start_at_the_sample_s_own_position_0():
    denoiser = FormulaDenoiser(formula(1), block=4)
    # Prompts of 3, 4 and 5: first answer blocks of 1, 4 and 3 slots, whatever the pads.
    _, steps = run(denoiser, [[1] * 3, [1] * 4, [1] * 5], LLaDASampler(steps=2, length=8), [0] * 3)
    committed = torch.stack([step.committed for step in steps], dim=1)  # [B, steps, length]
    windows = [[own.nonzero().flatten().tolist() for own in sample if own.any()] for sample in committed]
    assert windows == [
        [[0], [1, 2, 3, 4], [5, 6, 7]],
        [[0, 1, 2, 3], [4, 5, 6, 7]],
        [[0, 1, 2], [3, 4, 5, 6], [7]],
    ]
    assert [step.active.tolist() for step in steps] == [[True] * 3, [True] * 3, [True, False, True]]
    assert denoiser.calls[2][1][1].tolist() == [5] * 3  # the finished sample names its first answer slot
    assert denoiser.calls[2][1][2].tolist() == [5 + 7] * 3  # one with fewer open slots repeats its first


def test_guidance_masks_the_prompt_but_not_the_pads_in_the_second_pass():
    denoiser = FormulaDenoiser(formula(1))
    run(denoiser, [[1], [4, 5, 6]], LLaDASampler(steps=1, length=2, cfg=0.5), [0, 0])
    (given_canvas, given_positions, first), (bare_canvas, bare_positions, second) = denoiser.calls
    assert (first, second) == (True, False)
    assert given_canvas.tolist() == [[0, 0, 1, MASK, MASK], [4, 5, 6, MASK, MASK]]
    assert bare_canvas.tolist() == [[0, 0, MASK, MASK, MASK], [MASK] * 5]
    assert torch.equal(given_positions, bare_positions)


def test_ties_go_to_the_lowest_position_and_the_mask_token_is_never_committed():
    def flat(canvas):
        rows = np.zeros((len(canvas), MASK + 1), np.float32)
        rows[:, MASK] = 9.0
        return rows

    _, steps = run(FormulaDenoiser(flat), [[1]], LLaDASampler(steps=4, length=4), [0])
    assert [step.committed[0].nonzero().item() for step in steps] == [0, 1, 2, 3]
    assert steps[-1].canvas.tolist() == [[1, 0, 0, 0, 0]]
    assert steps[0].confidence[0, 0].item() == pytest.approx(1 / MASK)


def test_held_eos_slots_commit_last_in_their_block_with_their_own_confidence():
    def ends_first(canvas):  # slots 0 and 2 are sure of eos (7), the others less sure of 3
        rows = np.zeros((len(canvas), MASK + 1), np.float32)
        for position in range(1, len(canvas)):
            rows[position, 7 if position in (1, 3) else 3] = 8.0 if position in (1, 3) else 1.0 + position / 10
        return rows

    def order(hold_eos):
        sampler = LLaDASampler(steps=4, length=4, hold_eos=hold_eos)
        _, steps = run(FormulaDenoiser(ends_first, eos_ids=(7,)), [[1]], sampler, [0])
        return [step.committed[0].nonzero().item() for step in steps], steps[-1].canvas.tolist(), steps

    free, tokens, _ = order(False)
    held, same_tokens, steps = order(True)
    assert (free, held) == ([0, 2, 3, 1], [3, 1, 0, 2])
    assert tokens == same_tokens == [[1, 7, 3, 7, 3]]
    assert steps[2].confidence[0, 0].item() == pytest.approx(np.exp(8) / (np.exp(8) + 11), rel=1e-5)


def test_large_logits_do_not_overflow_under_a_temperature():
    def steep(canvas):
        rows = np.full((len(canvas), MASK + 1), -1000, np.float32)
        rows[:, 4] = 2000
        return rows

    _, steps = run(FormulaDenoiser(steep), [[1]], LLaDASampler(steps=1, length=3, temperature=1.0), [0])
    assert steps[0].canvas.tolist() == [[1, 4, 4, 4]]


def test_noise_differs_by_seed_and_repeats_with_it():
    def answers(seed):
        sampler = LLaDASampler(steps=4, length=8, temperature=1.0, remasking="random")
        return run(FormulaDenoiser(formula(0)), [[1, 2]], sampler, [seed])[1][-1].canvas.tolist()

    assert answers(3) == answers(3)
    assert len({str(answers(seed)) for seed in range(5)}) > 1


def test_another_block_than_the_family_s_is_refused():
    denoiser = FormulaDenoiser(formula(0), block=4)
    with pytest.raises(UserError, match="block-causal with blocks of 4"):
        run(denoiser, [[1]], LLaDASampler(steps=8, length=8, block=8), [0])
    with pytest.raises(UserError, match="length=6 is not a multiple of block=4: choose a length such as 8"):
        run(denoiser, [[1]], LLaDASampler(steps=8, length=6), [0])
    with pytest.raises(UserError, match="choose steps such as 4"):
        run(denoiser, [[1]], LLaDASampler(steps=3, length=8), [0])


@pytest.mark.parametrize("remasking", ["low_confidence", "random"])
def test_logits_that_are_not_finite_stop_the_run(remasking):
    def overflow(canvas):
        rows = np.zeros((len(canvas), MASK + 1), np.float32)
        rows[:, 3] = np.nan if canvas[0] == 2 else 1.0
        return rows

    with pytest.raises(UserError, match="not finite at step 0 for sample 1"):
        run(FormulaDenoiser(overflow), [[1], [2]], LLaDASampler(4, 4, remasking=remasking), [0, 0])


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    prompts=PROMPTS,
    block=st.integers(1, 4),
    blocks=st.integers(1, 3),
    steps_per_block=st.integers(1, 5),
    remasking=st.sampled_from(["low_confidence", "random"]),
    seed=st.integers(0, 30),
)
def test_a_mask_token_that_is_a_candidate_leaves_its_slot_masked(
    prompts, block, blocks, steps_per_block, remasking, seed
):
    length, steps = block * blocks, blocks * steps_per_block
    denoiser = FormulaDenoiser(likes_masks(seed))
    sampler = LLaDASampler(steps, length, block, remasking=remasking, mask_is_candidate=True)
    batch, done = run(denoiser, prompts, sampler, [seed] * len(prompts))
    assert (torch.stack([step.committed for step in done]).sum(dim=0) == 1).all()
    for sample, prompt in enumerate(prompts):
        expected = plain_samplers.llada(
            denoiser.logits, prompt, steps, length, block, remasking=remasking, seed=seed, mask_is_candidate=True
        )
        assert_same_canvases(batch, done, sample, [step.canvas for step in expected])


def test_slots_that_are_tokens_from_the_start_stay_and_cost_no_step():
    """Two of six are given: of the block of three that has one left a step is spent, of the other all three."""
    ids = torch.tensor([[1, 2, MASK, 5, 6, MASK, MASK, MASK]])
    slots, state = torch.arange(2, 8)[None], torch.tensor([[0, 1, 1, 0, 0, 0]], dtype=torch.uint8)
    batch = Batch(ids, torch.tensor([0]), slots, state, (0,))
    steps = list(LLaDASampler(6, 6, 3).decode(FormulaDenoiser(formula(1)), batch))
    assert [step.committed[0].nonzero().flatten().tolist() for step in steps[:1]] == [[0]]
    assert [int(step.committed.sum()) for step in steps] == [1, 1, 1, 1]
    assert steps[-1].canvas[0, :5].tolist()[3:] == [5, 6] and MASK not in steps[-1].canvas
