"""The dream sampler against a plain transcription, and its schedule, sampling of slots and refusals."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope.decoding import DreamSampler
from floatscope.decoding.dream import keep_likely
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
    steps=st.integers(1, 10),
    length=st.integers(1, 9),
    alg=st.sampled_from(["entropy", "origin", "maskgit_plus", "topk_margin"]),
    eps=st.sampled_from([1e-3, 0.2]),
    temperature=st.sampled_from([0.0, 0.6]),
    top_p=st.sampled_from([None, 0.8, 1.0]),
    top_k=st.sampled_from([None, 2, 5, 500]),
    alg_temp=st.sampled_from([None, 0.0, 0.3]),
    hold_eos=st.booleans(),
    seed=st.integers(0, 2**63),
)
def test_agrees_step_by_step_with_the_plain_transcription(
    prompts, steps, length, alg, eps, temperature, top_p, top_k, alg_temp, hold_eos, seed
):
    if alg == "origin":
        alg_temp, hold_eos = None, False
    eos_ids = (2, 5, 7)
    denoiser = FormulaDenoiser(formula(seed % 5, scale=1.0), eos_ids=eos_ids)
    sampler = DreamSampler(steps, length, alg, eps, temperature, top_p, top_k, alg_temp, hold_eos, seed=99)
    seeds = [seed + number for number in range(len(prompts))]
    batch, done = run(denoiser, prompts, sampler, seeds)
    assert_each_slot_once(done)
    for sample, prompt in enumerate(prompts):
        expected = plain_samplers.dream(
            denoiser.logits, prompt, steps, length, alg, eps, temperature, top_p, top_k, alg_temp, hold_eos,
            seeds[sample], eos_ids,
        )  # fmt: skip
        assert_same_steps(batch, done, sample, expected)


def test_int_truncates_so_the_first_step_commits_nothing_and_the_last_two():
    _, steps = run(FormulaDenoiser(formula(0)), [[1]], DreamSampler(steps=8, length=8), [0])
    left = [int((step.canvas == MASK).sum()) for step in steps]
    assert left == [8, 7, 6, 5, 4, 3, 2, 0]
    assert steps[0].active.all()


def test_origin_stops_when_nothing_is_left_and_asks_for_masked_slots_only():
    denoiser = FormulaDenoiser(formula(0))
    batch, steps = run(denoiser, [[1], [2, 3]], DreamSampler(steps=12, length=3, alg="origin"), [7, 8])
    assert 0 < steps[-1].active.sum() < 2 and len(steps) < 12
    masked, windows = [{0, 1, 2}, {0, 1, 2}], []
    for step in steps:
        windows.append([sorted(own) for own in masked])
        masked = [m - set(row.nonzero().flatten().tolist()) for m, row in zip(masked, step.committed, strict=True)]
    assert_asks_only(denoiser, batch, windows)


def test_tokens_are_sampled_from_the_tempered_and_filtered_softmax():
    row = np.full(MASK + 1, -9.0, np.float32)
    row[:4] = [1.0, 0.5, 0.0, -0.5]
    sampler = DreamSampler(steps=1, length=50, alg="maskgit_plus", temperature=0.5, top_k=3)
    denoiser = FormulaDenoiser(lambda canvas: np.tile(row, (len(canvas), 1)))
    _, steps = run(denoiser, [[1]] * 80, sampler, list(range(80)))
    counts = torch.bincount(steps[0].canvas[:, 1:].flatten(), minlength=4)[:4] / 4000
    expected = torch.softmax(torch.tensor([2.0, 1.0, 0.0]), dim=0)
    assert counts[3] == 0
    torch.testing.assert_close(counts[:3], expected, atol=0.03, rtol=0)


@pytest.mark.slow
def test_alg_temp_samples_slots_from_the_softmax_of_confidences():
    def rows(canvas):  # slots of confidence 1/(1 + 12 e^-z)
        table = np.zeros((len(canvas), MASK + 1), np.float32)
        table[1:, 3] = [0.0, 1.0, 2.0, 4.0]
        return table

    sampler = DreamSampler(steps=2, length=4, alg="maskgit_plus", alg_temp=0.5)  # the first step commits one
    _, steps = run(FormulaDenoiser(rows), [[1]] * 1000, sampler, list(range(1000)))
    confidence = torch.tensor([0.0, 1.0, 2.0, 4.0]).exp()
    confidence = confidence / (confidence + MASK - 1)
    assert (steps[0].committed.sum(dim=1) == 1).all()
    shares = steps[0].committed.float().mean(dim=0)
    torch.testing.assert_close(shares, torch.softmax(confidence / 0.5, dim=0), atol=0.05, rtol=0)


def test_block_causal_models_are_refused():
    with pytest.raises(UserError, match=r"block-causal with blocks of 4: leave the sampler out"):
        run(FormulaDenoiser(formula(0), block=4), [[1]], DreamSampler(), [0])


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    prompts=PROMPTS,
    steps=st.integers(1, 10),
    length=st.integers(1, 9),
    alg=st.sampled_from(["entropy", "origin", "maskgit_plus", "topk_margin"]),
    temperature=st.sampled_from([0.0, 0.6]),
    top_k=st.sampled_from([None, 3]),
    seed=st.integers(0, 30),
)
def test_a_mask_token_that_is_a_candidate_leaves_its_slot_masked(prompts, steps, length, alg, temperature, top_k, seed):
    denoiser = FormulaDenoiser(likes_masks(seed))
    sampler = DreamSampler(steps, length, alg, temperature=temperature, top_k=top_k, mask_is_candidate=True)
    seeds = [seed + number for number in range(len(prompts))]
    batch, done = run(denoiser, prompts, sampler, seeds)
    assert (torch.stack([step.committed for step in done]).sum(dim=0) == 1).all()
    low, high = sampler.step_bounds(0, None)
    for sample, prompt in enumerate(prompts):
        expected = plain_samplers.dream(
            denoiser.logits, prompt, steps, length, alg, temperature=temperature, top_k=top_k, seed=seeds[sample],
            mask_is_candidate=True,
        )  # fmt: skip
        assert_same_canvases(batch, done, sample, [step.canvas for step in expected])
        assert low <= len(expected) <= high


def test_a_token_stays_where_those_before_it_reach_top_p_exactly():
    """Four equal tokens: the first two reach 1/2 to the bit and do not pass it, so the third stays, as published."""
    row = torch.tensor([[0.0, 0.0, 0.0, 0.0, -torch.inf]])
    kept = [keep_likely(row, 0.0, top_p, None).isfinite().sum().item() for top_p in (0.24, 0.25, 0.5, 0.75, 1)]
    assert kept == [1, 2, 3, 4, 4]
