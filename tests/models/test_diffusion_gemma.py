"""A tiny DiffusionGemma: the tokens of transformers' `generate`, and the attention of its eager implementation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.models.diffusion_gemma import modeling_diffusion_gemma as modelling

import floatscope as fs
from floatscope.analysis import analyze
from floatscope.canvas import Region
from floatscope.decoding import Step

CANVAS, WINDOW = 8, 6
TEXT: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 16, "num_global_key_value_heads": 1,
    "sliding_window": WINDOW, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16, "max_position_embeddings": 128,
    "initializer_range": 0.1, "pad_token_id": 0, "eos_token_id": None, "bos_token_id": 2,
}  # fmt: skip
VISION: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 8, "patch_size": 4, "position_embedding_size": 16,
}  # fmt: skip
EARLY = {"stability_threshold": 0, "confidence_threshold": 100.0}
NEVER = {"stability_threshold": 5, "confidence_threshold": 1e-6}
WAYS = {
    "to the last step": (8, {"steps": 6, **NEVER}),
    "stops early": (16, {"steps": 5, "t_min": 0.5, "t_max": 0.9, **EARLY}),
    "two canvases": (11, {"steps": 4, "entropy_bound": 2.5, **NEVER}),
    "as the checkpoint says": (16, {"steps": 5}),
}

pytestmark = pytest.mark.slow


def tiny() -> Any:
    torch.manual_seed(0)
    config = transformers.DiffusionGemmaConfig(
        text_config=TEXT, vision_config=VISION, canvas_length=CANVAS, image_token_id=60, boi_token_id=61,
        eoi_token_id=62, initializer_range=0.1,
    )  # fmt: skip
    return transformers.DiffusionGemmaForBlockDiffusion(config).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("diffusion-gemma")
    tiny().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> fs.Model:
    return fs.load(folder)


EDIT = fs.Edit("block", "query")
IDS = torch.randint(3, 60, (1, 11), generator=torch.Generator().manual_seed(1))


def generated(backbone: Any, seed: int, length: int, settings: dict[str, Any]) -> list[int]:
    """What transformers itself gives, in its own words."""
    words = dict(settings)
    bound = words.pop("entropy_bound", None)
    if bound is not None:
        words["sampler_config"] = transformers.models.diffusion_gemma.EntropyBoundSamplerConfig(entropy_bound=bound)
    torch.manual_seed(seed)
    found = backbone.generate(IDS, max_new_tokens=length, max_denoising_steps=words.pop("steps"), **words)
    return found.sequences[0].tolist()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_tokens_are_those_of_generate(model: fs.Model, way: str, seed: int) -> None:
    length, settings = WAYS[way]
    expected = generated(tiny(), seed, length, settings)
    state = torch.get_rng_state()
    steps: list[Step] = []
    sampler = model.sampler(length=length, seed=seed, **settings)
    generation = fs.generate(model, IDS, sampler, on_step=steps.append)
    assert torch.equal(torch.get_rng_state(), state)
    assert generation.canvas.tolist() == expected
    assert fs.trace(model, IDS, sampler).canvas.tolist() == expected
    canvases = -(-length // CANVAS)
    assert sum(step.kind == "prefill" for step in steps) == canvases
    most = canvases * (1 + settings["steps"])
    assert len(steps) < most if way == "stops early" else len(steps) == most
    assert any(bool(step.renoised.any()) for step in steps) or way == "stops early"
    assert bool((steps[-1].state == 1).all())


def test_samples_of_a_batch_are_those_alone(model: fs.Model) -> None:
    sampler = model.sampler(length=8, steps=3)
    prompts = [IDS[0].tolist(), IDS[0, :4].tolist()]
    seen: list[list[bool]] = []
    together = fs.trace(
        model,
        prompts,
        sampler,
        seeds=[3, 9],
        on_received=lambda _, received: seen.append([one.any() for one in received]),
    )
    assert seen == [[True, False]] * 4 + [[True, True]] * 4  # one after the other
    for trace, ids, seed in zip(together, prompts, [3, 9], strict=True):
        alone = fs.trace(model, ids, sampler, seeds=[seed])
        assert trace.canvas.tolist() == alone.canvas.tolist()
        np.testing.assert_array_equal(trace.received, alone.received)
        np.testing.assert_array_equal(trace.arrays["state"], alone.arrays["state"])


class Eager:
    """transformers' eager attention, with the column means of every call kept at their positions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.means: list[tuple[int, np.ndarray]] = []
        plain = modelling.eager_attention_forward

        def attention(module: Any, *inputs: Any, **others: Any) -> Any:
            output, weights = plain(module, *inputs, **others)
            self.means.append((module.layer_idx, weights[0].float().mean((0, 1)).numpy()))
            return output, weights

        monkeypatch.setattr(modelling, "eager_attention_forward", attention)

    def received(self, tokens: int, totals: list[int]) -> np.ndarray:
        """[step, layer, token]: a layer's keys are the last of the tokens there were, as many as its cache holds."""
        layers = TEXT["num_hidden_layers"]
        whole = np.zeros((len(self.means) // layers, layers, tokens))
        for number, (layer, means) in enumerate(self.means):
            total = totals[number // layers]
            whole[number // layers, layer, total - len(means) : total] = means
        return whole


@pytest.mark.parametrize("way", ["to the last step", "two canvases"])
def test_received_attention_is_that_of_eager_attention(
    model: fs.Model, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over cache and canvas, the encoder's passes and sliding layers included."""
    length, settings = WAYS[way]
    eager, backbone = Eager(monkeypatch), tiny()
    backbone.set_attn_implementation("eager")
    expected = generated(backbone, 3, length, settings)
    trace = fs.trace(model, IDS, model.sampler(length=length, seed=3, **settings))
    assert trace.canvas.tolist() == expected
    totals = trace.arrays["computed"][:, 1].tolist()  # one past the last row of each pass, and so its last key
    np.testing.assert_allclose(trace.received, eager.received(len(expected), totals), atol=1e-5)
    read, written = (0, 11), (11, 19)
    assert [tuple(rows) for rows in trace.arrays["computed"][:2].tolist()] == [read, written]
    narrow = np.flatnonzero(trace.arrays["received"][1, 0])  # a sliding layer at the first denoising step
    assert narrow.tolist() == list(range(11 - (WINDOW - 1), 19))


def test_an_end_of_turn_ends_the_run_and_the_canvas(model: fs.Model) -> None:
    sampler = model.sampler(length=16, steps=4, seed=3)
    whole = fs.trace(model, IDS, sampler)
    end = int(whole.canvas[13])
    model.backbone.generation_config.eos_token_id = [end]
    try:
        torch.manual_seed(3)
        expected = model.backbone.generate(IDS, max_new_tokens=16, max_denoising_steps=4).sequences[0].tolist()
        trace = fs.trace(model, IDS, sampler, keep="matrices")
    finally:
        model.backbone.generation_config.eos_token_id = None
    assert trace.canvas.tolist() == expected and len(expected) == 11 + CANVAS
    assert trace.received.shape == (5, 3, 19) and trace.arrays["attention"].shape[-2:] == (19, 19)
    np.testing.assert_array_equal(trace.received, whole.received[:5, :, :19])


def test_the_tap_proves_itself(model: fs.Model) -> None:
    findings = fs.check(model)
    assert all(finding.passed for finding in findings) and len(findings) >= 3


def with_slots(tokens: int, start: int, stop: int) -> fs.Prompt:
    """The first ids, with slots among them."""
    parts = [("query", 0, start), ("answer", start, stop), ("rest", stop, tokens)]
    regions = tuple(Region(*part) for part in parts if part[1] < part[2])
    ids = np.resize(IDS[0].numpy(), tokens)
    return fs.Prompt(text="", ids=ids, regions=regions, slots=np.arange(start, stop))


def test_slots_of_a_prompt_are_filled_as_those_after_it(model: fs.Model) -> None:
    """The settings that are left to the checkpoint are its own here too."""
    model.backbone.generation_config.max_denoising_steps = 3
    try:
        given = fs.trace(model, with_slots(19, 11, 19), model.sampler(length=8, seed=3))
        after = fs.trace(model, IDS, model.sampler(length=8, seed=3))
    finally:
        model.backbone.generation_config.max_denoising_steps = None
    assert len(given.received) == 4 and given.canvas.tolist() == after.canvas.tolist()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda model: model.logits([1, 2]), "has no logits of a whole text"),
        (lambda model: fs.generate(model, [3], model.sampler(canvas=4)), "canvases of 8 slots"),
        (lambda model: fs.generate(model, [3], fs.LLaDASampler(steps=4, length=4)), "has no mask token"),
        (
            lambda model: fs.generate(model, [3], model.sampler(length=8), edits=[fs.Edit("block", "query")]),
            "cannot be edited",
        ),
        (lambda model: fs.replay(model, [3], [4, 5]), "takes no given tokens"),
        (lambda model: fs.generate(model, [3], model.sampler(t_min=0.5, t_max=0.5)), "t_max must be above t_min"),
        (lambda model: fs.generate(model, with_slots(17, 12, 17), model.sampler(length=5)), "canvases of 8 slots"),
        (lambda model: fs.generate(model, with_slots(17, 4, 12), model.sampler(length=8)), "put them at the end"),
    ],
)
def test_what_it_cannot_do_is_a_sentence(model: fs.Model, call: Any, sentence: str) -> None:
    with pytest.raises(fs.UserError, match=sentence):
        call(model)


def test_the_sampler_is_for_canvases_only() -> None:
    from floatscope.decoding import EntropyBoundSampler

    with pytest.raises(fs.UserError, match="this model has none"):
        fs.generate(fs.load("twin-llada"), [3], EntropyBoundSampler(length=4))


def test_analyses_take_its_traces_and_say_which_control_is_missing(model: fs.Model):
    regions = (Region("bos", 0, 1), Region("doc 1", 1, 5), Region("doc 2", 5, 9), Region("query", 9, 11))
    prompt = fs.Prompt(text="", ids=IDS[0].numpy(), regions=regions, marks={"evidence": np.arange(2, 4)})
    trace = fs.trace(model, prompt, model.sampler(steps=4, length=8, seed=3, **NEVER))
    assert set(trace.canvas[2:4]) & set(trace.answer)  # a token of the evidence that may have been copied
    for name in ("drift", "absorption", "anchors", "dispersion", "query_state", "retrieval_heads", "flow", "compat"):
        found = analyze(name, [trace])
        assert found.table["uniform"].null_count() == found.table.height > 0
        assert any("'uniform' is null for traces whose steps" in note for note in found.notes)
    first = analyze("absorption", [trace]).table.filter(set="bos", rows="all")["value"].to_numpy()
    np.testing.assert_allclose(first, 100 * trace.received[:, :, 0].mean(axis=0), rtol=1e-5)
