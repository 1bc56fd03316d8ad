"""Untrained controls of checkpoints that bring none: the same architecture, weights that no training touched."""

import pytest
import torch

from floatscope.models.loading import load, load_untrained, randomise
from tests.tiny_models import tiny_model


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma2", "bert"])
def test_random_weights_are_those_of_a_model_before_training(tmp_path, name):
    """As drawn by the class itself: matrices with the same spread, norms and biases with the same values."""
    tiny_model(name).backbone.save_pretrained(tmp_path)
    backbone = type(tiny_model(name).backbone).from_pretrained(tmp_path)
    trained = {key: tensor.clone() for key, tensor in backbone.state_dict().items()}
    before = torch.get_rng_state()
    randomise(backbone)
    assert torch.equal(before, torch.get_rng_state())
    untouched = type(backbone)(backbone.config).state_dict()
    for key, tensor in backbone.state_dict().items():
        if tensor.ndim == 2:
            assert not torch.allclose(tensor, trained[key])
            assert float(tensor.std()) == pytest.approx(float(untouched[key].std()), rel=0.25)
        else:
            assert torch.equal(tensor, untouched[key])
    drawn = {key: tensor.clone() for key, tensor in backbone.state_dict().items()}
    randomise(backbone)
    assert all(torch.equal(drawn[key], tensor) for key, tensor in backbone.state_dict().items())


@pytest.mark.slow
def test_a_checkpoint_gets_an_untrained_twin_that_sees_as_it_does(tmp_path):
    tiny = tiny_model("qwen2")
    tiny.backbone.save_pretrained(tmp_path / "checkpoint")
    source = str(tmp_path / "checkpoint")
    model, untrained = load(source), load_untrained(source)
    ids = torch.tensor([[1, 5, 9, 13, 17]])
    assert not torch.allclose(model.logits(ids), untrained.logits(ids), atol=1e-3)
    assert str(untrained.visibility) == str(model.visibility) == "causal"
    changed = ids.clone()
    changed[0, -1] = 40
    assert torch.allclose(untrained.logits(ids)[:, :-1], untrained.logits(changed)[:, :-1], atol=1e-6)
