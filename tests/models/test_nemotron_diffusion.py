"""A tiny Nemotron-Labs-Diffusion checkpoint: causal before, an active block that sees itself whole, as published."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import floatscope as fs
from floatscope.canvas import Region
from floatscope.decoding import Step
from tests.decoding.plain_samplers import softmax
from tests.models.checkpoints import MASK, llama_config, qwen_tensors, write_checkpoint
from tests.models.plain_transformer import Weights, blocks, plain_logits, random_weights
from tests.models.test_dialects import QWEN, some_ids

BLOCK = 4
CONFIG = {
    "architectures": ["NemotronLabsDiffusionModel"],
    "auto_map": {"AutoModel": "modeling_nemotron_labs_diffusion.NemotronLabsDiffusionModel"},
    "block_size": BLOCK,
    "mask_token_id": MASK,
    "model_type": "nemotron_labs_diffusion",
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": QWEN.theta,
        "llama_4_scaling_beta": 0.1,
        "original_max_position_embeddings": 16384,
    },
}


@pytest.fixture(scope="module")
def weights() -> Weights:
    made = random_weights(QWEN, seed=2)
    return Weights(made.embedding, made.norm, made.head * 2, made.layers)


@pytest.fixture(scope="module")
def model(weights: Weights, tmp_path_factory: pytest.TempPathFactory) -> fs.Model:
    config = llama_config(QWEN, **CONFIG)
    del config["rope_theta"]
    names = {"model.": "encoder.", "lm_head.": "diffusion_head."}
    tensors = {
        next(new + name.removeprefix(old) for old, new in names.items() if name.startswith(old)): value
        for name, value in qwen_tensors(weights).items()
    }
    return fs.load(write_checkpoint(tmp_path_factory.mktemp("nemotron"), config, tensors))


def seen(start: int, stop: int) -> NDArray[np.bool_]:
    """Causal up to `start`, everything from there on."""
    visible = blocks(stop, 1)
    visible[start:] = True
    return visible


def published(weights: Weights, prompt: list[int], length: int, threshold: float) -> list[list[int]]:
    """The first token of a block comes from the causal pass before it; the others from passes over the block."""
    canvas, done = list(prompt), []
    whole = len(prompt) + length
    for start in range(len(prompt), whole, BLOCK):
        rows = plain_logits(weights, QWEN, canvas, blocks(len(canvas), 1))
        rows[:, MASK] = -np.inf
        canvas += [int(rows[-1].argmax()), *[MASK] * (BLOCK - 1)]
        done.append(canvas + [MASK] * (whole - len(canvas)))
        while MASK in canvas[start:]:
            rows = plain_logits(weights, QWEN, canvas, seen(start, len(canvas)))
            rows[:, MASK] = -np.inf
            masked = [place for place in range(start, len(canvas)) if canvas[place] == MASK]
            sure = {place: softmax(rows[place]).max() for place in masked}
            for place in masked:
                if sure[place] > threshold or place == max(masked, key=lambda p: (sure[p], -p)):
                    canvas[place] = int(rows[place].argmax())
            done.append(canvas + [MASK] * (whole - len(canvas)))
    return done


def test_logits_without_an_active_block_are_causal(model: fs.Model, weights: Weights) -> None:
    assert model.family.name == "nemotron-diffusion" and str(model.visibility) == f"active_block({BLOCK})"
    ids = some_ids()
    expected = plain_logits(weights, QWEN, ids, blocks(len(ids), 1))
    assert float(np.abs(model.logits(ids)[0].numpy() - expected).max()) < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [5, 8])
@pytest.mark.parametrize("threshold", [0.3, 0.6, 0.9])
def test_tokens_are_the_published_ones_step_by_step(
    model: fs.Model, weights: Weights, tokens: int, threshold: float
) -> None:
    prompt = np.random.default_rng(tokens).integers(0, 80, tokens).tolist()
    steps: list[Step] = []
    sampler = model.sampler(threshold=threshold, length=10)
    fs.generate(model, [prompt, prompt[:3]], sampler, on_step=steps.append)  # the shorter one has pads
    own = [step for step in steps if step.active[0]]
    assert [step.canvas[0].tolist() for step in own] == published(weights, prompt, 12, threshold)


def test_received_attention_is_that_of_the_mask(model: fs.Model, weights: Weights) -> None:
    """Rows of the prompt look back only; those of the active block, and of later ones, see their block whole."""
    trace = fs.trace(model, some_ids()[:5], model.sampler(length=8), keep="matrices")
    computed = trace.arrays["attention"]  # [step, layer, head, row, token]
    for step, slots in enumerate(trace.masked):
        active = 5 + int(np.flatnonzero(slots)[0]) // BLOCK * BLOCK
        visible = blocks(13, 1)
        for start in range(active, 13, BLOCK):
            visible[start : start + BLOCK, start : start + BLOCK] = True
        assert (computed[step].max((0, 1)) > 0).tolist() == visible.tolist()
        np.testing.assert_allclose(computed[step].sum(-1), 1, atol=1e-5)


def test_a_block_of_another_size_is_refused(model: fs.Model) -> None:
    with pytest.raises(fs.UserError, match="fills a block of 4 slots at a time: give the sampler block=4"):
        fs.generate(model, [3], model.sampler(length=16, block=8))


def test_slots_inside_a_text_are_refused(model: fs.Model) -> None:
    """The text after them would be invisible to them."""
    regions = (Region("query", 0, 3), Region("answer", 3, 7), Region("rest", 7, 9))
    prompt = fs.Prompt(text="", ids=np.arange(9), regions=regions, slots=np.arange(3, 7))
    with pytest.raises(fs.UserError, match="sees no text after the block that it fills"):
        fs.generate(model, prompt, model.sampler(length=4))


def test_its_mask_is_a_plain_statement() -> None:
    mask = fs.Visibility.parse("active_block(2)").mask(6, torch.tensor([1]), (torch.tensor([3]), torch.tensor([3])))
    assert mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],  # a pad
        [0, 1, 0, 0, 0, 0],
        [0, 1, 1, 0, 0, 0],
        [0, 1, 1, 1, 1, 0],
        [0, 1, 1, 1, 1, 0],
        [0, 1, 1, 1, 1, 1],
    ]
