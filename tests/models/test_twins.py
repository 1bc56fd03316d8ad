"""The twins' architecture: three dialects of one model, and untrained versions that follow from their seed."""

import json

import pytest
import torch
from safetensors.torch import load_file

import floatscope as fs
from floatscope.models.loading import locate
from floatscope.models.twins import TwinShape, make_model, save_twin
from floatscope.qa.world.vocabulary import make_tokenizer

TINY = TwinShape(width=32, layers=2, heads=2, hidden=48)


@pytest.mark.slow
@pytest.mark.parametrize(("twin", "family"), [("arm", "causal"), ("dream", "dream"), ("llada", "llada")])
def test_every_dialect_gives_the_logits_of_the_parent(twin, family, tmp_path):
    tokenizer = make_tokenizer()
    parent = make_model(tokenizer, 7, TINY).eval()
    parent.load_state_dict({name: tensor.half().float() for name, tensor in parent.state_dict().items()})
    save_twin(twin, parent, tokenizer, tmp_path / twin)
    model = fs.load(tmp_path / twin)
    assert model.family.name == family
    assert (model.mask_id is None) == (twin == "arm")
    backbone = model.backbone
    backbone.config.is_causal = True
    for layer in backbone.model.layers:
        layer.self_attn.is_causal = True
    ids = torch.randint(5, len(tokenizer), (2, 40))
    with torch.no_grad():
        assert torch.allclose(backbone(input_ids=ids).logits, parent(input_ids=ids).logits, atol=1e-5)


def test_qkv_biases_of_the_dream_dialect_are_zero(tmp_path):
    tokenizer = make_tokenizer()
    save_twin("dream", make_model(tokenizer, 7, TINY), tokenizer, tmp_path)
    biases = [tensor for name, tensor in fs.load(tmp_path).backbone.named_parameters() if name.endswith("_proj.bias")]
    assert len(biases) == 3 * TINY.layers and not any(bias.any() for bias in biases)


@pytest.mark.slow
def test_untrained_twins_follow_from_the_seed_and_share_their_weights(tmp_path, monkeypatch):
    def state(name):
        found = fs.load(f"twin-{name}-untrained").backbone.state_dict()
        return {key: tensor for key, tensor in found.items() if not key.endswith(".bias")}

    states = {name: state(name) for name in ("arm", "dream", "llada", "parent")}
    monkeypatch.setenv("FLOATSCOPE_CACHE", str(tmp_path))
    again = state("arm")  # made anew, in another cache
    for found in states.values():
        assert found.keys() == again.keys() and all(torch.equal(found[name], again[name]) for name in again)
    plain = make_model(make_tokenizer(), 0, head_start=False).state_dict()
    assert all(torch.equal(tensor.half().float(), again[name]) for name, tensor in plain.items())


def test_an_untrained_twin_is_a_checkpoint_like_any_other_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOATSCOPE_CACHE", str(tmp_path))
    trained, control = (locate(f"twin-dream{end}").weights for end in ("", "-untrained"))
    assert control.is_relative_to(tmp_path / "twins") and control.name == "twin-dream-untrained"
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (control / name).read_bytes() == (trained / name).read_bytes()
    known = load_file(trained / "model.safetensors"), load_file(control / "model.safetensors")
    assert known[0].keys() == known[1].keys() and all(tensor.dtype == torch.float16 for tensor in known[1].values())
    assert len(list(control.parent.iterdir())) == 1  # nothing half made is left beside it
    assert locate("twin-dream-untrained").weights == control


def test_a_saved_twin_states_what_its_family_reads(tmp_path):
    """Each dialect by hand: LLaDA's words for Llama's numbers, Dream's mask token; what a family requires is stated."""
    tokenizer = make_tokenizer()
    configs = {}
    for twin in ("arm", "dream", "llada"):
        save_twin(twin, make_model(tokenizer, 7, TINY), tokenizer, tmp_path / twin)
        configs[twin] = json.loads((tmp_path / twin / "config.json").read_text())
    llada, dream, arm = configs["llada"], configs["dream"], configs["arm"]
    assert (llada["d_model"], llada["n_layers"], llada["n_heads"], llada["mlp_hidden_size"]) == (32, 2, 2, 48)
    assert llada["embedding_size"] == llada["vocab_size"] == len(tokenizer) and llada["weight_tying"] is True
    assert (llada["model_type"], llada["architectures"], llada["rope_theta"]) == ("llada", ["LLaDAModelLM"], 100000.0)
    assert llada["max_sequence_length"] == 2048 and llada["block_type"] == "llama" and llada["include_bias"] is False
    assert (dream["model_type"], dream["architectures"], dream["mask_token_id"]) == ("Dream", ["DreamModel"], 3)
    assert (arm["model_type"], arm["architectures"], arm["hidden_size"]) == ("llama", ["LlamaForCausalLM"], 32)
    assert "mask_token_id" not in arm and llada["mask_token_id"] == 3


def test_a_text_ends_at_any_of_the_tokens_that_end_an_answer(monkeypatch):
    model = fs.load("twin-llada")
    words = model.tokenizer.convert_tokens_to_ids(["Ida", "Ritter", "Steel"])
    monkeypatch.setattr(model, "eos_ids", (model.eos_ids[0], words[2]))
    assert model.text([*words[:2], words[2], words[0]]) == "Ida Ritter"
    assert model.text([words[0], model.eos_ids[0], words[1]]) == "Ida"
