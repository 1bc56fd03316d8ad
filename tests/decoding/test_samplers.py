"""The registry of samplers: names, settings, and every value that must be refused."""

import time
from dataclasses import FrozenInstanceError, asdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope.decoding import (
    SAMPLERS,
    Batch,
    DreamSampler,
    Generation,
    LLaDASampler,
    ThresholdSampler,
    generate,
    make_sampler,
)
from floatscope.errors import UserError
from tests.decoding.decoding_models import FormulaDenoiser, formula


def test_names_and_settings_make_samplers():
    assert sorted(SAMPLERS) == ["autoregressive", "dream", "entropy_bound", "llada", "threshold"]
    assert make_sampler("llada", steps=8, length=16) == LLaDASampler(steps=8, length=16)
    for name, sampler in SAMPLERS.items():
        assert make_sampler(name, **asdict(sampler())) == sampler()
        with pytest.raises(FrozenInstanceError):
            sampler().length = 3  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("lada", {}, "no sampler 'lada': did you mean 'llada'\\? Known are llada, dream, threshold, entropy_bound"),
        ("llada", {"temprature": 1}, "no setting 'temprature': did you mean 'temperature'\\?"),
        (
            "threshold",
            {"steps": 3},
            "'threshold' has no setting 'steps': did you mean 'edit_steps'\\? Known are order, tokens_per_step",
        ),
        ("llada", {"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ("llada", {"steps": 8.0}, "steps must be a whole number"),
        ("llada", {"steps": True}, "steps must be a whole number"),
        ("llada", {"length": 0}, "length must be a whole number"),
        ("llada", {"block": 0}, "block must be a whole number"),
        ("llada", {"block": 5}, "length=32 is not a multiple of block=5: choose a length such as 35"),
        (
            "llada",
            {"block": 8, "steps": 6},
            "steps=6 do not divide among 4 blocks of 8 slots: choose steps such as 8",
        ),
        ("llada", {"temperature": -0.1}, "temperature must be a number in \\[0, inf\\), got -0.1"),
        ("llada", {"temperature": float("nan")}, "temperature must be a number"),
        ("llada", {"temperature": float("inf")}, "temperature must be a number"),
        ("llada", {"temperature": "1"}, "temperature must be a number"),
        ("llada", {"cfg": -1}, "cfg must be a number"),
        ("llada", {"remasking": "low-confidence"}, "did you mean 'low_confidence'"),
        ("llada", {"hold_eos": "false"}, "hold_eos must be True or False, got 'false'"),
        ("llada", {"seed": -1}, "seed must be a whole number from 0"),
        ("dream", {"alg": "entrop"}, "alg='entrop' is unknown: did you mean 'entropy'"),
        ("dream", {"steps": 0}, "steps must be"),
        ("dream", {"length": -1}, "length must be"),
        ("dream", {"eps": 0.0}, "eps must be a number in \\(0, 1\\), got 0.0"),
        ("dream", {"eps": 1.0}, "eps must be"),
        ("dream", {"temperature": -1}, "temperature must be"),
        ("dream", {"top_p": 0.0}, "top_p must be a number in \\(0, 1\\]"),
        ("dream", {"top_p": 1.01}, "top_p must be"),
        ("dream", {"top_k": 0}, "top_k must be"),
        ("dream", {"alg_temp": -1}, "alg_temp must be"),
        ("dream", {"seed": 2**64}, "seed must be"),
        ("dream", {"alg": "origin", "alg_temp": 0.5}, "leave out alg_temp, hold_eos"),
        ("dream", {"alg": "origin", "hold_eos": True}, "leave out alg_temp, hold_eos"),
        ("dream", {"steps": 10**7 + 1}, "steps=10000001 are more than 10000000: ask for fewer"),
        ("dream", {"alg": "origin", "order": "random"}, "order and tokens_per_step"),
        ("dream", {"alg": "origin", "tokens_per_step": 2}, "order and tokens_per_step"),
        ("llada", {"tokens_per_step": 0}, "tokens_per_step must be a whole number of at least 1, got 0"),
        ("llada", {"order": "leftward"}, "order='leftward' should be one of confidence, left-to-right, right-to-left"),
        ("dream", {"order": "0,1,1", "length": 3}, "each of the slots 0 to 2 once"),
        ("threshold", {"order": (0, 1), "length": 3}, "order='0,1' should be"),
        ("threshold", {"threshold": 0.0}, "threshold must be a number in \\(0, 1\\]"),
        ("threshold", {"threshold": 1.5}, "threshold must be"),
        ("threshold", {"length": 0}, "length must be"),
        ("threshold", {"block": 3}, "not a multiple of block=3"),
        ("threshold", {"edit_threshold": 1.1}, "edit_threshold must be a number in \\[0, 1\\]"),
        ("threshold", {"edit_steps": -1}, "edit_steps must be a whole number of at least 0, got -1"),
        ("threshold", {"small_block": 0}, "small_block must be a whole number of at least 1"),
        ("threshold", {"order": "0,2,3", "length": 3}, "each of the slots 0 to 2 once"),
        ("entropy_bound", {"entropy_bound": 0.0}, "entropy_bound must be a number in \\(0, inf\\), got 0.0"),
        ("entropy_bound", {"t_min": -0.1}, "t_min must be a number in \\[0, inf\\)"),
        ("entropy_bound", {"stability_threshold": 1.0}, "stability_threshold must be a whole number of at least 0"),
        ("entropy_bound", {"canvas": 0}, "canvas must be a whole number"),
        ("autoregressive", {"length": 0}, "length must be"),
        ("autoregressive", {"temperature": -1}, "temperature must be"),
    ],
)
def test_mistakes_are_sentences(name, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        make_sampler(name, **settings)


def test_the_ends_of_closed_intervals_are_accepted():
    assert make_sampler("dream", top_p=1, alg_temp=0, temperature=0) == DreamSampler(top_p=1.0, alg_temp=0.0)
    make_sampler("threshold", threshold=1.0)
    sampler = LLaDASampler(2, 2, temperature=1.0, seed=2**64 - 1)
    assert generate(FormulaDenoiser(formula(0)), [1], sampler).steps == 2


def test_batches_that_do_not_fit_are_refused():
    tokens, pads = torch.zeros(2, 5, dtype=torch.int64), torch.tensor([0, 2])
    slots = torch.tensor([[3, 4], [3, 4]])
    assert Batch(tokens, pads, slots, torch.zeros_like(slots), (0, 0)).positions.tolist() == [[3, 4], [1, 2]]
    with pytest.raises(UserError, match="1 seeds"):
        Batch(tokens, pads, slots, torch.zeros_like(slots), (0,))
    with pytest.raises(UserError, match="2 samples came with 1 pad counts and 2 seeds"):
        Batch(tokens, pads[:1], slots, torch.zeros_like(slots), (0, 0))
    with pytest.raises(UserError, match=r"slots \[2, 2\] and states \[2, 1\]"):
        Batch(tokens, pads, slots, torch.zeros(2, 1), (0, 0))
    with pytest.raises(UserError, match=r"slots \[1, 2\] and states \[1, 2\]"):
        Batch(tokens, pads, slots[:1], torch.zeros(1, 2), (0, 0))
    three = torch.tensor([[2, 3, 4], [2, 3, 4]])
    with pytest.raises(UserError, match="no prompt"):
        Batch(tokens, pads, three, torch.zeros_like(three), (0, 0))


def test_a_batch_of_another_length_than_the_sampler_s_is_refused():
    slots = torch.tensor([[3, 4]])
    batch = Batch(torch.zeros(1, 5, dtype=torch.int64), torch.tensor([0]), slots, torch.zeros_like(slots), (0,))
    with pytest.raises(UserError, match="length=4, but the batch has 2 answer slots"):
        LLaDASampler(4, 4).decode(FormulaDenoiser(formula(0)), batch)


def steps_of(sampler, prompt, block=None):
    done = generate(FormulaDenoiser(formula(1), block=block), prompt, sampler)
    assert isinstance(done, Generation)
    return done.steps


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    steps=st.integers(1, 5),
    blocks=st.integers(1, 3),
    size=st.integers(1, 4),
    prompt=st.integers(1, 6),
    own=st.booleans(),
)
def test_the_bounds_of_a_fixed_schedule_are_the_steps_it_takes(steps, blocks, size, prompt, own):
    """Also with fewer slots than steps, and with blocks that the prompt's tail shares."""
    ids, block = list(range(1, prompt + 1)), size if own else None
    llada = LLaDASampler(steps * blocks, size * blocks, None if own else size)
    assert llada.step_bounds(prompt, block) == (steps_of(llada, ids, block),) * 2
    for alg in ("entropy", "maskgit_plus"):
        dream = DreamSampler(steps * blocks, size * blocks, alg)
        assert dream.step_bounds(prompt, None) == (steps_of(dream, ids),) * 2


@pytest.mark.parametrize("seed", range(4))
def test_the_bounds_of_samplers_that_may_end_early_hold(seed):
    for sampler, block in (
        (DreamSampler(9, 4, "origin", seed=seed), None),
        (ThresholdSampler(8, threshold=0.2 + seed / 5, block=4), None),
        (ThresholdSampler(8, threshold=0.2 + seed / 5), 4),
    ):
        fewest, most = sampler.step_bounds(3, block)
        assert fewest <= steps_of(sampler, [1, 2, 3], block) <= most
    assert ThresholdSampler(8, block=4).step_bounds(3, None) == (2, 8)
    assert ThresholdSampler(8).step_bounds(3, 4) == (3, 8)  # one slot, four, three
    assert make_sampler("autoregressive", length=5).step_bounds(3, None) == (1, 5)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(steps=st.integers(1, 300), length=st.integers(1, 40), eps=st.sampled_from([1e-3, 0.2, 1e-6]))
def test_the_bounds_of_dream_s_schedule_are_those_of_a_loop_over_its_steps(steps, length, eps):
    times, masked = torch.linspace(1, eps, steps + 1), length
    for index in range(steps):
        masked -= masked if index == steps - 1 else int(masked * (1 - times[index + 1] / times[index]))
        if masked == 0:
            break
    assert DreamSampler(steps, length, eps=eps).step_bounds(3, None) == (index + 1, index + 1)
    kept = DreamSampler(steps, length, eps=eps, mask_is_candidate=True).step_bounds(3, None)
    assert kept == (index + 1, steps)


def test_the_bounds_of_millions_of_steps_are_told_without_a_loop_over_them():
    """A step that reveals one of many slots comes late; the last reveals what is left."""
    began = time.process_time()
    fewest, most = DreamSampler(10**7, 32).step_bounds(3, None)
    assert fewest == most and 9 * 10**6 < fewest <= 10**7
    assert time.process_time() - began < 20  # a loop in Python takes minutes


@pytest.mark.parametrize(
    ("settings", "bounds"),
    [
        ({"steps": 5, "length": 16, "canvas": 8}, (2, 12)),
        ({"steps": 5, "length": 8}, (2, 6)),  # one canvas, as long as it is not fitted
        ({"length": 24, "canvas": 8}, (2, 6)),
    ],
)
def test_a_canvas_has_a_step_that_reads_and_as_many_that_denoise_as_are_asked_for(settings, bounds):
    assert make_sampler("entropy_bound", **settings).step_bounds(3, None) == bounds


def test_wishes_are_left_out_where_a_sampler_has_no_such_setting_and_yield_to_settings():
    assert make_sampler("threshold", {"steps": 4, "length": 8}) == ThresholdSampler(8)
    assert make_sampler("llada", {"steps": 4, "length": 8}, steps=2) == LLaDASampler(2, 8)
