"""What a listener hears of open slots: the logits that the sampler decides on."""

import pytest
import torch

from floatscope.decoding import generate
from floatscope.tracing import trace
from tests.tiny_models import MODELS, tiny_model

PROMPTS = [[1, 5, 9, 12], [1, 7], [1, 30, 31, 32, 33, 34]]


def canvas_logits(model, canvas: torch.Tensor) -> torch.Tensor:
    """The logits [T, V] of one canvas alone, by the plain model of transformers."""
    inputs = {"input_ids": canvas[None]}
    if model.block:
        inputs["attention_mask"] = model.visibility.mask(len(canvas), torch.zeros(1, dtype=torch.long))
    with torch.no_grad():
        return model.backbone(**inputs).logits[0].float()


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_reading_is_what_the_model_says_at_the_open_slots(name):
    model = tiny_model(name)
    sampler = model.sampler(length=32 if name == "fast-dllm-v2" else 4)  # its blocks have 32 tokens
    heard, steps = [], []
    with model.listening(heard.append):
        generate(model, PROMPTS, sampler, on_step=steps.append)
    assert len(heard) == len(steps)
    for reading, step in zip(heard, steps, strict=True):
        for sample in step.active.nonzero()[:, 0].tolist():
            pad = int(step.given.pads[sample])
            until = int(reading.columns[sample, 0]) if model.is_arm else None
            wanted = canvas_logits(model, step.given.tokens[sample, pad:until])
            for place, column in enumerate(reading.columns[sample].tolist()):
                row = column if model.family.logits == "same" else column - 1
                torch.testing.assert_close(reading.logits[sample, place], wanted[row - pad], atol=1e-4, rtol=1e-4)


def test_confidence_is_the_probability_that_the_listener_hears():
    model = tiny_model("llada")
    heard, steps = [], []
    with model.listening(heard.append):
        trace(model, PROMPTS, model.sampler(length=4, steps=4, mask_is_candidate=False), on_step=steps.append)
    for reading, step in zip(heard, steps, strict=True):
        for sample, slot in step.committed.nonzero().tolist():
            logits = reading.logits[sample, reading.columns[sample] == step.given.slots[sample, slot]][0].clone()
            logits[model.mask_id] = -torch.inf
            probability = logits.softmax(-1)[step.tokens[sample, slot]]
            assert float(step.confidence[sample, slot]) == pytest.approx(float(probability), abs=1e-6)


def test_nobody_listens_afterwards_and_the_answer_is_the_same():
    model = tiny_model("dream")
    sampler, heard = model.sampler(length=4, steps=4), []
    plain = generate(model, PROMPTS, sampler)
    with model.listening(heard.append):
        listened = generate(model, PROMPTS, sampler)
    count = len(heard)
    again = generate(model, PROMPTS, sampler)
    assert len(heard) == count > 0
    for one, other, third in zip(plain, listened, again, strict=True):
        assert one.canvas.tolist() == other.canvas.tolist() == third.canvas.tolist()
