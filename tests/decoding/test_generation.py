"""generate(): forms of prompts, batches against single samples on a real transformer, seeds, refusals."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope.canvas import Prompt
from floatscope.decoding import (
    AutoregressiveSampler,
    DreamSampler,
    Generation,
    LLaDASampler,
    ThresholdSampler,
    generate,
)
from floatscope.errors import UserError
from tests.decoding.decoding_models import MASK, FormulaDenoiser, LlamaDenoiser, formula

LLAMAS = {shifted: LlamaDenoiser("bidirectional", shifted, eos_ids=(3,)) for shifted in (False, True)}
PROMPT_LISTS = st.lists(st.lists(st.integers(0, 38), min_size=1, max_size=9), min_size=2, max_size=4)


@st.composite
def samplers(draw):
    block, blocks = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    length, temperature = block * blocks, draw(st.sampled_from([0.0, 0.8]))
    return draw(
        st.sampled_from(
            [
                LLaDASampler(blocks * draw(st.integers(1, 4)), length, block, temperature, hold_eos=True),
                LLaDASampler(blocks, length, block, temperature, "random", cfg=draw(st.sampled_from([0.0, 1.0]))),
                DreamSampler(draw(st.integers(1, 8)), length, "origin", temperature=temperature),
                DreamSampler(draw(st.integers(1, 8)), length, "entropy", temperature=temperature, top_p=0.9),
                DreamSampler(draw(st.integers(1, 8)), length, "topk_margin", alg_temp=0.5),
                ThresholdSampler(length, 0.5, block),
            ]
        )
    )


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(prompts=PROMPT_LISTS, sampler=samplers(), shifted=st.booleans(), seed=st.integers(0, 2**32))
def test_a_batch_of_unequal_prompts_gives_each_sample_what_it_gets_alone(prompts, sampler, shifted, seed):
    seeds = [seed + number // 2 for number in range(len(prompts))]
    together = generate(LLAMAS[shifted], prompts, sampler, seeds=seeds)
    assert isinstance(together, list)
    for prompt, own_seed, generation in zip(prompts, seeds, together, strict=True):
        alone = generate(LLAMAS[shifted], prompt, sampler, seeds=[own_seed])
        assert isinstance(alone, Generation)
        assert alone.canvas.tolist() == generation.canvas.tolist()
        assert alone.commit_step.tolist() == generation.commit_step.tolist()
        assert alone.steps == generation.steps
        np.testing.assert_allclose(alone.confidence, generation.confidence, rtol=1e-3, atol=1e-5)


def test_the_transformer_of_these_tests_sees_in_both_directions_and_no_pads():
    tokens = torch.tensor([[0, 0, 5, 6, 7]])
    for denoiser in LLAMAS.values():
        pads, first = torch.tensor([2]), torch.tensor([[3]])
        rows = denoiser.logits_at(tokens, pads, first)
        later, pad = tokens.clone(), tokens.clone()
        later[0, 4], pad[0, 0] = 9, 9
        assert not torch.allclose(denoiser.logits_at(later, pads, first), rows, atol=1e-3)
        torch.testing.assert_close(denoiser.logits_at(pad, pads, first), rows)


def test_the_generation_is_what_the_steps_say():
    steps = []
    sampler = DreamSampler(steps=5, length=6)
    done = generate(FormulaDenoiser(formula(1)), [[4, 5, 6], [7]], sampler, on_step=steps.append)
    assert isinstance(done, list) and len(steps) == 5
    for sample, (generation, prompt) in enumerate(zip(done, [[4, 5, 6], [7]], strict=True)):
        assert generation.slots[0] == len(prompt)
        assert generation.canvas.tolist()[: len(prompt)] == prompt
        assert generation.answer.tolist() == steps[-1].canvas[sample, -6:].tolist()
        assert MASK not in generation.answer
        for slot, (when, confidence) in enumerate(zip(generation.commit_step, generation.confidence, strict=True)):
            assert steps[when].committed[sample, slot]
            assert steps[when].confidence[sample, slot].item() == confidence
        assert (generation.canvas.dtype, generation.commit_step.dtype) == (np.int64, np.int64)
        assert (generation.confidence.dtype, generation.steps) == (np.float32, 5)


def test_forms_of_prompts():
    denoiser, sampler = FormulaDenoiser(formula(1)), LLaDASampler(2, 4)
    expected = generate(denoiser, [1, 2, 3], sampler)
    assert isinstance(expected, Generation)
    singles = [
        (1, 2, 3),
        Prompt.bare([1, 2, 3]),
        np.array([1, 2, 3], np.int32),
        np.array([[1, 2, 3]]),
        torch.tensor([1, 2, 3]),
        torch.tensor([[1, 2, 3]]),
    ]
    for prompt in singles:
        one = generate(denoiser, prompt, sampler)
        assert isinstance(one, Generation)
        assert one.canvas.tolist() == expected.canvas.tolist()
    lists = [
        [[1, 2, 3]],
        [np.array([1, 2, 3])],
        [torch.tensor([[1, 2, 3]]), [4]],
        [Prompt.bare([1, 2, 3]), np.array([4, 5, 6])],
        list(torch.tensor([[1, 2, 3], [4, 5, 6]])),
    ]
    for prompts in lists:
        several = generate(denoiser, prompts, sampler)
        assert isinstance(several, list) and len(several) == len(prompts)
        assert several[0].canvas.tolist() == expected.canvas.tolist()


def test_by_default_every_sample_has_the_sampler_s_seed_and_seeds_override_it():
    denoiser = FormulaDenoiser(formula(1))
    sampler = LLaDASampler(4, 12, temperature=2.0, seed=8)
    same = generate(denoiser, [[1], [1], [1]], sampler)
    other = generate(denoiser, [[1], [1], [1]], sampler, seeds=np.array([8, 9, 10]))  # pyright: ignore[reportArgumentType]
    assert isinstance(same, list) and isinstance(other, list)
    assert len({str(generation.canvas) for generation in same}) == 1
    assert other[0].canvas.tolist() == same[0].canvas.tolist()
    assert len({str(generation.canvas) for generation in other}) == 3


def test_logits_in_half_precision_are_scored_in_float32_and_left_as_they_were():
    class Half(FormulaDenoiser):
        kept: list[torch.Tensor] = []  # noqa: RUF012

        def score(self, *arguments, **options):
            self.kept.append(super().score(*arguments, **options).bfloat16())
            return self.kept[-1]

    done = generate(Half(formula(1)), [1, 2], LLaDASampler(1, 3))
    assert isinstance(done, Generation)
    rows = Half.kept[0][0].float()
    assert rows.isfinite().all()
    rows[:, MASK] = -torch.inf
    np.testing.assert_allclose(done.confidence, torch.softmax(rows, -1).amax(-1), rtol=1e-5)


def test_no_gradients_are_kept():
    grown = []

    class Learned(FormulaDenoiser):
        def score(self, *arguments, **options):
            grown.append((torch.ones(1, requires_grad=True) * 2).requires_grad)
            return super().score(*arguments, **options)

    generate(Learned(formula(1)), [1], LLaDASampler(1, 2))
    assert grown == [False]


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        ([], "Prompt 0: the prompt is empty: give at least one token"),
        ([[1], []], "Prompt 1: the prompt is empty"),
        (np.zeros((0, 3), int), "the prompt is empty"),
        (torch.zeros((2, 3), dtype=torch.int64), r"array of 2 prompts is no list of them: give list\(array\)"),
        ([1.5, 2.0], "whole numbers from 0 up, got float64"),
        ([True, False], "got bool"),
        ([1, -2], "whole numbers from 0 up"),
        (["a", "b"], "gives no character offsets"),
        ([[[1, 2], [3]]], "not one sequence"),
        (np.zeros((2, 2, 2), int), "of shape \\[2, 2, 2\\]"),
        (b"text", "got bytes: of what a tokenizer gives"),
        ({"input_ids": [1]}, "got dict"),
        (7, "got int"),
    ],
)
def test_what_is_no_prompt_is_refused(prompt, sentence):
    with pytest.raises(UserError, match=sentence):
        generate(FormulaDenoiser(formula(0)), prompt, LLaDASampler())


@pytest.mark.parametrize("seeds", [3, [1], [1, 2, 3], "12", [1, -1], [1, 2**64], [0, 1.5]])
def test_what_are_no_seeds_is_refused(seeds):
    with pytest.raises(UserError, match="whole number"):
        generate(FormulaDenoiser(formula(0)), [[1], [2]], LLaDASampler(), seeds=seeds)


@pytest.mark.parametrize("sampler", [LLaDASampler(), DreamSampler(), ThresholdSampler()])
def test_an_autoregressive_model_is_refused_by_samplers_of_masks(sampler):
    with pytest.raises(UserError, match="is autoregressive: leave the sampler out"):
        generate(FormulaDenoiser(formula(0), mask_id=None), [1], sampler)


@pytest.mark.parametrize(("mask_id", "sampler"), [(MASK, LLaDASampler(4, 4)), (None, AutoregressiveSampler(4))])
def test_prompt_and_answer_must_fit_the_context_before_anything_runs_and_pads_do_not_count(mask_id, sampler):
    denoiser = FormulaDenoiser(formula(0), mask_id=mask_id, context=9)
    done = generate(denoiser, [[1, 2, 3, 4, 5], [1]], sampler)
    assert isinstance(done, list) and [len(generation.canvas) for generation in done] == [9, 5]
    denoiser.extend = denoiser.score = None  # pyright: ignore[reportAttributeAccessIssue]
    for prompts in ([1, 2, 3, 4, 5, 6], [[1], [1, 2, 3, 4, 5, 6]]):
        with pytest.raises(UserError, match=r"prompt of 6 tokens and 4 answer slots do not fit .* context of 9"):
            generate(denoiser, prompts, sampler)


def test_the_name_of_a_sampler_in_place_of_one_is_told():
    with pytest.raises(UserError, match=r"'llada' is the name of a sampler.*give model\.sampler\(name='llada'\)"):
        generate(FormulaDenoiser(formula), [[1, 2]], "llada")  # pyright: ignore[reportArgumentType, reportCallIssue]
