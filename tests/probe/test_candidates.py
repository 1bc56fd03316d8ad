"""Candidates of open slots against softmax over the logits of a plain forward of the very canvas of each step."""

import numpy as np
import pytest
import torch

import floatscope as fs
from floatscope.probe.candidates import CANDIDATES, NAMES
from floatscope.traces.arrays import ARRAYS
from tests.tiny_models import tiny_model


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llada", "dream", "llama"])
def test_they_are_what_the_logits_of_each_step_say(family):
    model = tiny_model(family)
    prompts = [np.array([1, 5, 6, 7, 8]), np.array([1, 9, 4])]  # unequal lengths: the second is padded
    for trace in fs.trace(model, prompts, model.sampler({"steps": 4}, length=4)):
        before = None
        for step in range(trace.steps):
            open_slots = np.flatnonzero(trace.masked[step])
            canvas = trace.canvas.copy()
            canvas[trace.slots] = trace.tokens[step]
            if model.is_arm:  # row i of an ARM scores the token after it
                canvas, open_slots = canvas[: trace.slots[step]], np.array([step])
            with torch.inference_mode():
                logits = model.logits(canvas)[0].double()
            rows = [len(canvas) - 1] if model.is_arm else trace.slots[open_slots]
            p = torch.softmax(logits[rows], -1).numpy()
            best = np.sort(p, -1)[:, ::-1]
            close = {"rtol": 1e-4, "atol": 1e-6}
            np.testing.assert_allclose(trace.candidate_probability[step, open_slots], best[:, :CANDIDATES], **close)
            np.testing.assert_array_equal(trace.candidate_tokens[step, open_slots][:, 0], p.argmax(-1))
            np.testing.assert_allclose(trace.candidate_margin[step, open_slots], best[:, 0] - best[:, 1], **close)
            entropy = -(p * np.log(p)).sum(-1)
            np.testing.assert_allclose(trace.candidate_entropy[step, open_slots], entropy, **close)
            for slot, now in zip(open_slots, p, strict=True):
                if before is not None and slot in before:
                    apart = (now * np.log(now / before[slot])).sum()
                    np.testing.assert_allclose(trace.candidate_kl[step, slot], apart, rtol=1e-3, atol=1e-5)
                else:
                    assert trace.candidate_kl[step, slot] == -1
            before = dict(zip(open_slots, p, strict=True))
            closed = np.setdiff1d(np.arange(len(trace.slots)), open_slots)
            assert (trace.candidate_tokens[step, closed] == -1).all()
            assert (trace.candidate_kl[step, closed] == -1).all()


def test_whoever_listened_before_still_hears():
    model, heard = tiny_model("llada"), []
    with model.listening(heard.append):
        trace = fs.trace(model, np.array([1, 5, 6]), model.sampler({"steps": 3}, length=3))
    assert len(heard) == trace.steps == 3


def test_they_can_be_left_out():
    model = tiny_model("llada")
    trace = fs.trace(
        model, np.array([1, 5, 6]), model.sampler({"steps": 2}, length=2), keep=["received", "candidate_kl"]
    )
    assert set(trace.arrays) & set(NAMES) == {"candidate_kl"} and set(NAMES) <= set(ARRAYS)
