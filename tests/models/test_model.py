"""score, rows and the LM head: pads, shifts and asked rows, against one unpadded sample at a time."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import floatscope as fs
from tests.models.native_models import tiny

SAME, SHIFTED = fs.FAMILIES["llada"], fs.FAMILIES["dream"]
FAMILIES = {
    "llada": replace(SAME, mask_id=90),
    "dream": replace(SHIFTED, mask_id=90),
    "sdar": replace(fs.FAMILIES["sdar"], mask_id=90),
    "fast-dllm-v2": replace(fs.FAMILIES["fast-dllm-v2"], mask_id=90, visibility=fs.Visibility("block_causal", 8)),
    "bert": replace(fs.FAMILIES["bert"], mask_id=90),
    "causal": fs.FAMILIES["causal"],
}
BACKBONES = {
    "llada": "llama", "dream": "qwen2", "sdar": "qwen3", "fast-dllm-v2": "qwen2", "bert": "roberta", "causal": "gemma3",
}  # fmt: skip


def make(name: str) -> fs.Model:
    return fs.Model(tiny(BACKBONES[name]), FAMILIES[name])


def row_of(model: fs.Model, position: int) -> int:
    return position if model.family.logits == "same" else max(position - 1, 0)


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_of_a_padded_batch_are_those_of_each_sample_alone(name: str) -> None:
    model = make(name)
    ids = torch.randint(3, 80, (3, 17), generator=torch.Generator().manual_seed(5))
    pads = torch.tensor([5, 0, 2])  # by length the samples come in an order that is not its own inverse
    positions = torch.tensor([[5, 6, 16], [0, 9, 16], [2, 3, 4]])  # each sample's first position is among them
    with torch.inference_mode():
        scores = model.forward(ids, pads, model.rows(positions, pads))
    assert scores.shape == (3, 3, 96) and scores.dtype == torch.float32
    for sample, pad in enumerate(pads.tolist()):
        own = ids[sample, pad:]
        with torch.inference_mode():
            raw = model.forward(own[None], torch.zeros(1, dtype=torch.long), torch.arange(len(own))[None])[0]
        expected = torch.stack([raw[row_of(model, p - pad)] for p in positions[sample].tolist()])
        assert float((scores[sample] - expected).abs().max()) < 1e-4 * float(raw.abs().max())


@pytest.mark.parametrize("name", ["llada", "dream", "sdar"])
def test_logits_of_an_mdm_are_scores_of_every_position(name: str) -> None:
    model = make(name)
    ids = torch.randint(3, 80, (2, 9), generator=torch.Generator().manual_seed(6))
    with torch.inference_mode():
        pads = torch.zeros(2, dtype=torch.long)
        scores = model.forward(ids, pads, model.rows(torch.arange(9).expand(2, 9), pads))
    torch.testing.assert_close(model.logits(ids), scores)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_head_runs_on_the_asked_rows_only(name: str) -> None:
    model = make(name)
    seen: list[tuple[int, ...]] = []
    head = model.backbone.get_output_embeddings()
    handle = head.register_forward_hook(lambda _module, inputs, _output: seen.append(tuple(inputs[0].shape[:2])))
    ids = torch.randint(3, 80, (2, 17), generator=torch.Generator().manual_seed(7))
    with torch.inference_mode():
        model.forward(ids, torch.zeros(2, dtype=torch.long), torch.tensor([[1, 5, 7], [2, 3, 16]]))
    handle.remove()
    assert seen == [(2, 3)]
    assert model.logits(ids).shape == (2, 17, 96)  # and nothing of it stays


def test_rows_of_interest_follow_the_shift() -> None:
    positions, pads = torch.tensor([[0, 1, 6], [4, 5, 6]]), torch.tensor([0, 4])
    assert make("llada").rows(positions, pads).tolist() == positions.tolist()
    for name in ("dream", "causal"):
        assert make(name).rows(positions, pads).tolist() == [[0, 0, 5], [4, 4, 5]]


def test_tokens_the_checkpoint_states() -> None:
    model = fs.Model(tiny("llama"), replace(SHIFTED, mask_id=7, eos_ids=(5, 4096)))
    assert model.mask_id == 7
    assert model.eos_ids == (2, 5)  # the config's, the family's; not one that the vocabulary lacks
    assert fs.Model(tiny("llama"), SHIFTED, mask_id=8).mask_id == 8
    assert fs.Model(tiny("llama"), fs.FAMILIES["causal"]).mask_id is None


def test_what_ends_an_answer_is_stated_by_the_generation_config_too() -> None:
    """Chat models of Llama and Qwen name their end of turn there alone; it ends an answer like any other."""
    backbone = tiny("llama")
    backbone.generation_config.eos_token_id = [2, 9]
    model = fs.Model(backbone, fs.FAMILIES["causal"])
    assert model.eos_ids == (2, 9)
    canvas = fs.generate(model, [5, 6, 7], fs.AutoregressiveSampler(length=12)).canvas
    backbone.generation_config.eos_token_id = int(canvas[5])  # what it writes third
    shorter = fs.generate(fs.Model(backbone, model.family), [5, 6, 7], fs.AutoregressiveSampler(length=12))
    assert shorter.canvas.tolist() == canvas[: canvas[3:].tolist().index(canvas[5]) + 4].tolist()


def test_refusals_are_sentences() -> None:
    model = make("llada")
    for ids, sentence in (
        ([], "canvas is empty"),
        ([3, 96], "token id 96 is outside the vocabulary of 96"),
        ([-1, 3], "token id -1 is outside"),
        ([5] * 65, "65 tokens and model a context of 64"),
        ([[1, 2], [3]], "rows of equal length"),
        ([0.5, 1.0], "whole numbers"),
        ([[[1]]], "whole numbers"),
    ):
        with pytest.raises(fs.UserError, match=sentence):
            model.logits(ids)
    with pytest.raises(fs.UserError, match="mask id 126336 is outside its vocabulary of 96"):
        fs.Model(tiny("llama"), SAME)
    with pytest.raises(fs.UserError, match="neither config nor tokenizer states a mask token: give it"):
        fs.Model(tiny("bert"), fs.FAMILIES["bert"])


def test_training_mode_is_refused() -> None:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        attention_dropout=0.1,
    )  # fmt: skip
    model = fs.Model(transformers.LlamaForCausalLM(config), fs.FAMILIES["causal"])
    model.logits([1, 2, 3])
    model.backbone.train()
    with pytest.raises(fs.UserError, match=r"dropout 0\.1: call \.eval\(\)"):
        model.logits([1, 2, 3])


def test_the_sampler_of_a_model_is_its_family_s_with_settings_overridden():
    model = make("dream")
    assert model.sampler() == fs.DreamSampler(alg="entropy", top_k=50, mask_is_candidate=True)  # as published
    published = fs.DreamSampler(steps=4, length=8, top_k=50, mask_is_candidate=True)
    assert model.sampler(steps=4, length=8, alg=None) == published
    assert model.sampler(name="threshold", length=8) == fs.ThresholdSampler(length=8)
    own = replace(model.family, sampler={"name": "llada", "hold_eos": True, "steps": 16})
    assert own.make_sampler(length=16) == fs.LLaDASampler(16, 16, hold_eos=True)
    assert own.make_sampler(name="llada", hold_eos=False) == fs.LLaDASampler(16, hold_eos=False)
    assert own.make_sampler(name="dream") == fs.DreamSampler()  # what is llada's is not dream's


def test_wishes_are_for_samplers_that_have_them_and_overrides_come_first():
    family = replace(fs.FAMILIES["llada"], sampler={"name": "llada", "steps": 16})
    assert family.make_sampler({"steps": 4, "alg": "origin"}) == fs.LLaDASampler(steps=4)
    assert family.make_sampler({"steps": 4}, steps=8) == fs.LLaDASampler(steps=8)
    assert fs.FAMILIES["causal"].make_sampler({"steps": 4}, length=3) == fs.AutoregressiveSampler(length=3)


def test_a_setting_that_the_sampler_does_not_have_is_refused():
    model = make("causal")
    with pytest.raises(fs.UserError, match="The sampler 'autoregressive' has no setting 'steps': Known are length"):
        model.sampler(steps=4)
    with pytest.raises(fs.UserError, match=r"There is no sampler 'drem': did you mean 'dream'\?"):
        model.sampler(name="drem")
    wrong = replace(model.family, sampler={"name": "autoregressive", "temprature": 1.0})
    with pytest.raises(fs.UserError, match=r"no setting 'temprature': did you mean 'temperature'\?"):
        wrong.make_sampler()


def test_the_text_of_an_answer_ends_at_the_first_eos():
    model = fs.load("twin-llada", check=False)
    eos = model.eos_ids[0]
    words = model.tokenizer("Ida Ritter founded", add_special_tokens=False)["input_ids"]
    for ids in ([*words, eos, *words, eos], np.array([*words, eos, eos]), words):
        assert model.text(ids) == "Ida Ritter founded"
    assert model.text([eos, *words]) == ""
    with pytest.raises(fs.UserError, match="has no tokenizer beside its weights"):
        make("llada").text([5])


def test_rows_of_blocks_whose_first_token_comes_from_the_block_before():
    """The first slot of each block is scored by the row before it, all others by their own."""
    family = replace(fs.FAMILIES["nemotron-diffusion"], mask_id=90, visibility=fs.Visibility("active_block", 4))
    model = fs.Model(tiny("llama"), family)
    positions, pads = torch.tensor([[5, 6, 8, 9, 13], [7, 8, 9, 11, 15]]), torch.tensor([0, 7])
    assert model.rows(positions, pads).tolist() == positions.tolist()
    found = model.rows(positions, pads, torch.tensor([[5], [7]]))
    assert found.tolist() == [
        [4, 6, 8, 8, 12],
        [7, 8, 9, 10, 14],
    ]  # a first slot that begins its canvas has none before


def test_the_mask_token_is_the_one_that_is_given_then_the_config_s_the_tokenizer_s_and_the_family_s():
    backbone, found = tiny("llama"), []
    backbone.config.mask_token_id, backbone.generation_config.mask_token_id = 5, 7
    tokenizer = type("Tokenizer", (), {"mask_token_id": 6})()
    family = replace(SAME, mask_id=8)
    found.append(fs.Model(backbone, family, tokenizer, mask_id=4).mask_id)
    found.append(fs.Model(backbone, family, tokenizer).mask_id)
    backbone.config.mask_token_id = None
    found.append(fs.Model(backbone, family, tokenizer).mask_id)
    found.append(fs.Model(backbone, family).mask_id)
    backbone.generation_config.mask_token_id = None
    found.append(fs.Model(backbone, family, type("Tokenizer", (), {"mask_token_id": None})()).mask_id)
    assert found == [4, 5, 6, 7, 8]
    assert fs.Model(backbone, replace(SAME, mask_id=0)).mask_id == 0


@pytest.mark.parametrize(
    ("stated", "given", "expected"),
    [
        (None, None, "block_causal(4)"),
        (8, None, "block_causal(8)"),
        (8, 2, "block_causal(2)"),
        (None, 1, "block_causal(1)"),
    ],
)
def test_the_block_size_is_the_one_that_is_given_then_the_config_s_then_the_family_s(stated, given, expected):
    backbone = tiny("qwen3")
    if stated is not None:
        backbone.config.block_size = stated
    model = fs.Model(backbone, replace(fs.FAMILIES["sdar"], mask_id=90), block=given)
    assert str(model.visibility) == expected and str(model.block) in expected


@pytest.mark.parametrize("stated", [0, "4", True, 2.0])
def test_a_block_size_that_is_none_is_refused(stated):
    backbone = tiny("qwen3")
    backbone.config.block_size = stated
    with pytest.raises(fs.UserError, match=f"config field block_size is {stated!r}, not a block size"):
        fs.Model(backbone, replace(fs.FAMILIES["sdar"], mask_id=90))
    with pytest.raises(fs.UserError, match="'2' is no block size"):
        fs.Model(tiny("qwen3"), replace(fs.FAMILIES["sdar"], mask_id=90), block="2")


def test_a_bidirectional_model_that_is_given_a_block_sees_in_blocks():
    model = fs.Model(tiny("llama"), replace(SAME, mask_id=90), block=4)
    assert (str(model.visibility), model.block) == ("block_causal(4)", 4)
    ids = torch.arange(3, 14)
    other = ids.clone()
    other[8] += 1
    moved = (model.logits(ids) - model.logits(other)).abs().amax(-1)[0] > 1e-6
    assert moved.tolist() == [False] * 8 + [True] * 3


def test_positions_of_roberta_begin_after_its_pad_token():
    model = make("bert")
    pad = model.backbone.config.pad_token_id
    assert model.context == model.config.max_position_embeddings - pad - 1
    with pytest.raises(fs.UserError, match=f"a context of {model.context}"):
        model.logits([5] * (model.context + 1))
    assert model.logits([5] * model.context).shape[1] == model.context


def test_listeners_are_told_in_the_order_in_which_they_came_and_no_longer_than_they_listen():
    model, heard = make("llada"), []

    def run():
        fs.generate(model, [5, 6, 7], fs.LLaDASampler(steps=1, length=2))

    with model.listening(lambda reading: heard.append("first")):
        with pytest.raises(ZeroDivisionError), model.listening(lambda reading: heard.append("second")):
            run()
            raise ZeroDivisionError
        run()
    run()
    assert heard == ["first", "second", "first"]


def test_the_text_of_an_answer_keeps_its_blanks_where_they_are_asked_for():
    model = make("llada")
    model.tokenizer = type("Tokenizer", (), {"decode": lambda self, ids, skip_special_tokens: f" {ids} \n"})()
    assert model.text([7, 8], strip=False) == " [7, 8] \n" and model.text([7, 8]) == "[7, 8]"


def test_tokens_that_the_tokenizer_lacks_are_called_by_their_ids():
    model = fs.load("twin-llada", check=False)
    [word], size = model.tokenizer("Ritter", add_special_tokens=False)["input_ids"], len(model.tokenizer)
    assert model.token_texts(np.array([word, size + 3])) == ("Ritter", f"<{size + 3}>")
