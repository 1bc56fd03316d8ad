"""A tiny LLaDA2 checkpoint in the official names decodes as published, to the token, step by step."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import floatscope as fs
from floatscope.decoding import Step
from tests.decoding import plain_samplers
from tests.models.checkpoints import MASK, llada2_config, llada2_tensors, write_checkpoint
from tests.models.plain_transformer import Weights, blocks, plain_logits, random_weights
from tests.models.test_dialects import LLADA2

BLOCK = 8

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def weights() -> Weights:
    made = random_weights(LLADA2, qk_norm=True, seed=5)
    return Weights(made.embedding, made.norm, made.head * 2.5, made.layers)  # surer of itself: 0.2 to 1


@pytest.fixture(scope="module")
def folder(weights: Weights, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("llada2"), llada2_config(LLADA2), llada2_tensors(weights))


def prompt(length: int) -> list[int]:
    return np.random.default_rng(length).integers(0, 80, length).tolist()


def published(weights: Weights, ids: list[int], length: int, threshold: float, **settings: float) -> list[list[int]]:
    def logits(canvas: list[int], stop: int) -> np.ndarray:
        return plain_logits(weights, LLADA2, canvas[:stop], blocks(stop, BLOCK))

    return plain_samplers.llada2(logits, ids, length, threshold, BLOCK, mask=MASK, **settings)  # pyright: ignore


@pytest.mark.parametrize(("tokens", "length"), [(5, 16), (8, 8), (11, 7), (16, 13), (19, 3)])
@pytest.mark.parametrize("threshold", [0.5, 0.8])
def test_tokens_are_those_of_llada2_0(
    folder: Path, weights: Weights, tokens: int, length: int, threshold: float
) -> None:
    """Prompts that end inside a block and at its edge; canvases that are filled up; steps that commit several slots."""
    model = fs.load(folder, mask_id=MASK, block=BLOCK)
    assert model.family.name == "llada2" and str(model.visibility) == f"block_causal({BLOCK})"
    steps: list[Step] = []
    sampler = model.sampler(threshold=threshold, steps_per_block=4, length=length)
    generation = fs.generate(model, prompt(tokens), sampler, on_step=steps.append)
    expected = published(weights, prompt(tokens), length, threshold, steps=4, mask_is_candidate=True)
    assert [step.canvas[0].tolist() for step in steps] == expected
    assert len(generation.canvas) % BLOCK == 0 and len(generation.answer) >= length
    assert max(int(step.committed.sum()) for step in steps) > 1


@pytest.mark.parametrize(("tokens", "length"), [(5, 16), (11, 7)])
@pytest.mark.parametrize("steps", [4, 8, 11])
def test_slots_that_choose_the_mask_token_wait_as_published(
    tmp_path: Path, weights: Weights, tokens: int, length: int, steps: int
) -> None:
    """Some fill at a later step, some stay masked when the steps of their block are over."""
    head = weights.head.copy()
    head[MASK] = head[:80].max(axis=0)  # a mask token that is often the likeliest
    eager = Weights(weights.embedding, weights.norm, head, weights.layers)
    model = fs.load(write_checkpoint(tmp_path, llada2_config(LLADA2), llada2_tensors(eager)), mask_id=MASK, block=BLOCK)
    made: list[Step] = []
    sampler = model.sampler(threshold=0.8, steps_per_block=steps, length=length)
    trace = fs.trace(model, prompt(tokens), sampler, on_step=made.append)
    expected = published(eager, prompt(tokens), length, 0.8, steps=steps, mask_is_candidate=True)
    assert [step.canvas[0].tolist() for step in made] == expected
    assert MASK in trace.answer and set(trace.answer) != {MASK}
    fewest, most = sampler.fitted(model, tokens).step_bounds(tokens, BLOCK)
    assert fewest <= len(made) <= most


@pytest.mark.parametrize(("tokens", "length"), [(5, 16), (11, 7), (16, 13)])
@pytest.mark.parametrize(("threshold", "edit"), [(0.6, 0.4), (0.5, 0.0), (0.95, 0.9)])
def test_tokens_are_those_of_llada2_1_with_its_edits(
    folder: Path, weights: Weights, tokens: int, length: int, threshold: float, edit: float
) -> None:
    model = fs.load(folder, family="llada2.1", mask_id=MASK, block=BLOCK)
    steps: list[Step] = []
    sampler = model.sampler(threshold=threshold, edit_threshold=edit, length=length)
    found = fs.trace(model, prompt(tokens), sampler, on_step=steps.append)
    expected = published(weights, prompt(tokens), length, threshold, edit_threshold=edit)
    assert [step.canvas[0].tolist() for step in steps] == expected
    assert found.canvas.tolist() == expected[-1]
    before = [step.given.slot_tokens[0].tolist() for step in steps]
    assert found.arrays["tokens"].tolist() == before and len(found.received) == len(expected)
    if edit < 0.5:
        assert any(bool(step.revised.any()) for step in steps)


def test_prompts_of_several_lengths_have_canvases_of_their_own(folder: Path) -> None:
    """A list gives each what it gives alone, though the numbers of slots differ."""
    model = fs.load(folder, mask_id=MASK, block=BLOCK)
    sampler, prompts = model.sampler(threshold=0.5, length=6), [prompt(5), prompt(9), prompt(13)]
    together = fs.trace(model, prompts, sampler, metadata=[{"sample": str(n)} for n in range(3)])
    assert [len(trace.slots) for trace in together] == [11, 7, 11]
    for number, (ids, trace) in enumerate(zip(prompts, together, strict=True)):
        alone = fs.trace(model, ids, sampler)
        assert trace.canvas.tolist() == alone.canvas.tolist() and trace.metadata["sample"] == str(number)
        np.testing.assert_allclose(trace.received, alone.received, atol=1e-6)


def test_what_is_not_stated_is_asked_for(folder: Path) -> None:
    with pytest.raises(fs.UserError, match="mask id 156895 is outside its vocabulary of 96"):
        fs.load(folder)


@pytest.mark.parametrize("change", [{"use_bias": True}, {"score_function": "softmax"}, {"norm_topk_prob": False}])
def test_what_glm_cannot_compute_is_refused(tmp_path: Path, weights: Weights, change: dict[str, object]) -> None:
    folder = write_checkpoint(tmp_path, llada2_config(LLADA2, **change), llada2_tensors(weights))
    with pytest.raises(fs.UserError, match="family llada2 needs"):
        fs.load(folder, mask_id=MASK)


@pytest.mark.parametrize("field", ["num_experts_per_tok", "n_group", "topk_group", "routed_scaling_factor"])
def test_rules_of_experts_are_never_those_of_another_model(tmp_path: Path, weights: Weights, field: str) -> None:
    """No tensor tells them, so that a default would change the logits without a word."""
    folder = write_checkpoint(tmp_path, llada2_config(LLADA2, **{field: None}), llada2_tensors(weights))
    with pytest.raises(fs.UserError, match=f"config.json states no {field} in the words of family llada2"):
        fs.load(folder, mask_id=MASK)


@pytest.mark.parametrize("change", [{"num_experts_per_tok": 99}, {"n_group": 3}, {"partial_rotary_factor": 3.0}])
def test_rules_that_fit_no_tensor_are_a_sentence(tmp_path: Path, weights: Weights, change: dict[str, object]) -> None:
    folder = write_checkpoint(tmp_path, llada2_config(LLADA2, **change), llada2_tensors(weights))
    with pytest.raises(fs.UserError, match="could not be loaded"):
        fs.load(folder, mask_id=MASK)


@pytest.mark.parametrize(("kept", "what"), [(0, "is missing"), (3, "is of another shape than the first")])
def test_an_expert_that_is_not_whole_is_named(tmp_path: Path, weights: Weights, kept: int, what: str) -> None:
    tensors = llada2_tensors(weights)
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    whole = tensors.pop(name)
    folder = write_checkpoint(tmp_path, llada2_config(LLADA2), tensors | ({name: whole[:kept]} if kept else {}))
    with pytest.raises(fs.UserError, match=f"is damaged: tensor {name} {what}"):
        fs.load(folder, mask_id=MASK)


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"block": "8"}, "'8' is no block"),
        ({"block": 2.0}, "2.0 is no block"),
        ({"block": True}, "True is no block"),
        ({"block": 0}, "k >= 1"),
        ({"mask_id": True}, "mask id True"),
    ],
)
def test_what_is_told_wrongly_is_a_sentence(folder: Path, told: Any, sentence: str) -> None:
    with pytest.raises(fs.UserError, match=sentence):
        fs.load(folder, **{"mask_id": MASK, "block": BLOCK} | told)


def test_a_fused_tensor_that_does_not_split_is_refused(tmp_path: Path, weights: Weights) -> None:
    tensors = llada2_tensors(weights)
    name = "model.layers.1.attention.query_key_value.weight"
    tensors[name] = tensors[name][:-8]
    folder = write_checkpoint(tmp_path, llada2_config(LLADA2), tensors)
    with pytest.raises(
        fs.UserError,
        match=r"layers\.1\.attention\.query_key_value\.weight is .* does not split into \[32, 16, 16\] rows",
    ):
        fs.load(folder, mask_id=MASK)


def test_the_command_line_tells_what_the_checkpoint_does_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.test_cli import run

    code, shown, _ = run(monkeypatch, capsys, "check", folder, "--mask-id", MASK, "--block-size", BLOCK)
    assert code == 0 and f"family llada2, block_causal({BLOCK})" in shown
