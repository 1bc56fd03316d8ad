"""The autoregressive sampler against transformers' own generate, and its noise, ends and refusals."""

import numpy as np
import pytest
import torch

from floatscope.decoding import AutoregressiveSampler, Generation, generate
from floatscope.errors import UserError
from tests.decoding.decoding_models import FormulaDenoiser, LlamaDenoiser, formula

PROMPTS = [[1, 5, 9], [1, 7], [1, 4, 20, 33, 2, 8], [1, 30, 31, 32]]


def several(*arguments, **options) -> list[Generation]:
    done = generate(*arguments, **options)
    assert isinstance(done, list)
    return done


def by_transformers(denoiser: LlamaDenoiser, length: int) -> list[list[int]]:
    """Greedy, left padded, cut after the first eos."""
    width = max(map(len, PROMPTS))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in PROMPTS])
    seen = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in PROMPTS])
    out = denoiser.model.generate(  # pyright: ignore[reportAttributeAccessIssue]
        ids,
        attention_mask=seen,
        max_new_tokens=length,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=list(denoiser.eos_ids) or None,
    )
    assert isinstance(out, torch.Tensor)
    answers = []
    for row in out[:, width:].tolist():
        ends = [place for place, token in enumerate(row) if token in denoiser.eos_ids]
        answers.append(row[: ends[0] + 1] if ends else row)
    return answers


def test_greedy_is_what_transformers_generates_up_to_each_sample_s_eos():
    free = by_transformers(LlamaDenoiser("causal"), 12)
    assert [generation.answer.tolist() for generation in
            several(LlamaDenoiser("causal"), PROMPTS, AutoregressiveSampler(12))] == free  # fmt: skip
    eos_ids = (free[0][4], free[2][7])
    expected = by_transformers(LlamaDenoiser("causal", eos_ids=eos_ids), 12)
    assert len({len(answer) for answer in expected}) > 1  # some end before others
    steps = []
    done = several(LlamaDenoiser("causal", eos_ids=eos_ids), PROMPTS, AutoregressiveSampler(12), on_step=steps.append)
    assert [generation.answer.tolist() for generation in done] == expected
    assert len(steps) == max(map(len, expected))
    for sample, (generation, answer) in enumerate(zip(done, expected, strict=True)):
        assert generation.canvas.tolist() == PROMPTS[sample] + answer
        assert generation.steps == len(answer)
        assert generation.commit_step.tolist() == list(range(len(answer)))
        assert [bool(step.active[sample]) for step in steps] == [t < len(answer) for t in range(len(steps))]


def test_confidence_is_the_softmax_of_the_raw_logits_and_noise_comes_from_the_sample_s_stream():
    logits, temperature = formula(2), 0.8
    done = several(
        FormulaDenoiser(logits, mask_id=None),
        [[1, 2], [3]],
        AutoregressiveSampler(6, temperature),
        seeds=[4, 5],
    )
    for generation, prompt, seed in zip(done, [[1, 2], [3]], [4, 5], strict=True):
        stream, canvas = torch.Generator().manual_seed(seed), list(prompt)
        for confidence in generation.confidence:
            row = logits(canvas)[-1].astype(np.float64)
            noise = torch.rand(1, len(row), generator=stream, dtype=torch.float64).numpy()[0]
            token = int(np.argmax(np.exp(row) / (-np.log(noise)) ** temperature))
            assert confidence == pytest.approx(np.exp(row[token]) / np.exp(row).sum(), rel=1e-4)
            canvas.append(token)
        assert generation.canvas.tolist() == canvas


def test_a_sample_gets_the_same_tokens_alone_and_anywhere_in_a_batch():
    denoiser = LlamaDenoiser("causal", eos_ids=(6,))
    sampler = AutoregressiveSampler(10, temperature=1.0)
    seeds = [3, 1, 4, 1]
    together = several(denoiser, PROMPTS, sampler, seeds=seeds)
    for prompt, seed, generation in zip(PROMPTS, seeds, together, strict=True):
        alone = generate(denoiser, prompt, sampler, seeds=[seed])
        assert isinstance(alone, Generation)
        assert alone.canvas.tolist() == generation.canvas.tolist()
        np.testing.assert_allclose(alone.confidence, generation.confidence, rtol=1e-4)


def test_a_masked_model_is_refused():
    with pytest.raises(UserError, match=r"mask token 12\): leave the sampler out"):
        generate(FormulaDenoiser(formula(0)), [1], AutoregressiveSampler())


def test_logits_that_are_not_finite_stop_the_run():
    broken = FormulaDenoiser(lambda canvas: np.full((len(canvas), 5), np.nan, np.float32), mask_id=None)
    with pytest.raises(UserError, match="not finite at step 0 for sample 0"):
        generate(broken, [1], AutoregressiveSampler())
