"""Every layer of a model comes by the probe once; a model of which that is not true is refused, checked or not."""

import numpy as np
import pytest
import torch
import transformers

from floatscope.errors import UserError
from floatscope.models.families import FAMILIES
from floatscope.models.model import Model
from floatscope.tracing import trace
from tests.tiny_models import MASK, SIZES

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


def outside_of_the_interface() -> Model:
    config = transformers.GPTJConfig(vocab_size=96, n_embd=32, n_layer=2, n_head=4, rotary_dim=4, n_positions=64)
    return Model(transformers.GPTJForCausalLM(config), FAMILIES["causal"], name="gptj")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (hybrid, "1 times for 3 layers: one with other kinds of layers"),
        (outside_of_the_interface, "0 times for 2 .* not on"),
    ],
)
def test_a_model_with_layers_that_the_probe_does_not_hear_is_refused(make, told):
    with pytest.raises(UserError, match=told):
        trace(make(), [1, 5, 9], None)


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
