"""Three dialects of one model: with the parent's weights and causal visibility every twin gives the parent's logits."""

import pytest
import torch

import floatscope as fs
from floatscope.errors import UserError
from floatscope.twins.architecture import Shape, make_model, save_twin, write_untrained
from floatscope.twins.tokenizer import make_tokenizer

TINY = Shape(width=32, layers=2, heads=2, hidden=48)


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


def test_untrained_twins_follow_from_the_seed_and_share_their_weights(tmp_path):
    states = {}
    for name in ("twin-arm", "twin-dream"):
        model = fs.load(write_untrained(name, tmp_path / name))
        states[name] = {n: t for n, t in model.backbone.state_dict().items() if not n.endswith(".bias")}
    again = fs.load(write_untrained("twin-arm", tmp_path / "again")).backbone.state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in states["twin-arm"].items())
    assert all(torch.equal(tensor, states["twin-dream"][name]) for name, tensor in states["twin-arm"].items())
    with pytest.raises(UserError, match="no twin called"):
        write_untrained("twin-bert", tmp_path)
