"""Every layer of a model comes by the probe once; a model of which that is not true is refused, checked or not."""

import numpy as np
import pytest
import torch
import transformers

from floatscope.errors import UserError
from floatscope.models.families import FAMILIES
from floatscope.models.model import Model
from floatscope.tracing import trace
from tests.tiny_models import MASK, SIZES, tiny_model

SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def hybrid() -> Model:
    """Of three layers the middle one alone has attention."""
    config = transformers.BambaConfig(
        **SIZES,
        **SPECIAL,
        num_key_value_heads=2,
        attn_layer_indices=[1],
        attn_rotary_emb=8,
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_d_state=8,
        mamba_n_groups=1,
        mamba_chunk_size=8,
    )
    return Model(transformers.BambaForCausalLM(config), FAMILIES["causal"], name="hybrid")


@pytest.mark.slow
def test_a_model_with_layers_that_the_probe_does_not_hear_is_refused():
    with pytest.raises(UserError, match="1 times for 3 layers: one with other kinds of layers"):
        trace(hybrid(), [1, 5, 9])


def test_layers_that_come_by_in_another_order_than_their_numbers_are_refused():
    model = tiny_model("llama")
    first, second = (layer.self_attn for layer in model.backbone.model.layers[:2])
    first.layer_idx, second.layer_idx = second.layer_idx, first.layer_idx
    with pytest.raises(UserError, match="3 times for 3 layers: one with other kinds"):
        trace(model, [1, 5, 9])


OUTSIDE = {
    "GPTJ": dict(n_embd=32, n_layer=2, n_head=4, rotary_dim=4, n_positions=64),
    "GPTNeo": dict(hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]]),
    "Bloom": dict(hidden_size=32, n_layer=2, n_head=4),
    "Falcon": dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
    "DebertaV2": dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OUTSIDE)
def test_a_class_that_is_not_on_the_attention_interface_is_told_so(name):
    config = getattr(transformers, f"{name}Config")(vocab_size=96, **OUTSIDE[name], **SPECIAL)
    kind, family = ("MaskedLM", "bert") if name == "DebertaV2" else ("CausalLM", "causal")
    model = Model(getattr(transformers, f"{name}For{kind}")(config), FAMILIES[family], name=name, mask_id=MASK)
    with pytest.raises(UserError, match="0 times for 2 layers: its class is not on the attention interface"):
        trace(model, [1, 5, 9], model.sampler(length=4))


def test_a_model_without_keys_and_values_is_a_sentence():
    config = transformers.MambaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2, state_size=4)
    model = Model(transformers.MambaForCausalLM(config), FAMILIES["causal"], name="mamba")
    with pytest.raises(UserError, match="mamba: MambaForCausalLM keeps no keys and values"):
        trace(model, [1, 5, 9])


def llama4(**changes) -> Model:
    """Its class names no body; three layers look at their own chunk of four tokens, the fourth at all."""
    sizes = SIZES | SPECIAL | {"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 8} | changes
    experts = {"intermediate_size_mlp": 48, "num_local_experts": 2, "num_experts_per_tok": 1, "attention_chunk_size": 4}
    torch.manual_seed(0)
    config = transformers.Llama4TextConfig(**sizes, **experts)
    return Model(transformers.Llama4ForCausalLM(config), FAMILIES["causal"], name="llama4")


def test_llama_4():
    """Attention and logits are those of its own eager code."""
    model = llama4()
    canvas = trace(model, [1, 5, 9, 7, 3, 8], model.sampler(length=4)).canvas
    found = trace(model, canvas.tolist(), model.sampler(length=1), keep="matrices")
    eager = transformers.Llama4ForCausalLM._from_config(model.backbone.config, attn_implementation="eager").eval()
    eager.load_state_dict(model.backbone.state_dict())
    with torch.no_grad():
        wanted = eager(torch.tensor(canvas)[None], output_attentions=True)
    np.testing.assert_allclose(found.attention[0, :, :, :, :-1], torch.stack(wanted.attentions)[:, 0], atol=1e-5)
    np.testing.assert_allclose(model.logits(canvas), wanted.logits, atol=1e-4)


def test_a_module_that_is_shared_by_all_layers_is_counted_by_its_calls():
    config = transformers.AlbertConfig(**SIZES, embedding_size=16, attn_implementation="eager")
    torch.manual_seed(0)
    backbone = transformers.AlbertForMaskedLM(config).eval()
    canvas = torch.tensor([[1, 5, 9, MASK]])
    with torch.no_grad():
        wanted = [layer[0].mean((0, 1)) for layer in backbone(canvas, output_attentions=True).attentions]
    model = Model(backbone, FAMILIES["bert"], name="albert", mask_id=MASK)
    found = trace(model, [1, 5, 9], model.sampler(length=1))
    np.testing.assert_allclose(found.received[0], torch.stack(wanted), atol=1e-6)
