"""Candidates of open slots against softmax over the logits of a plain forward of the very canvas of each step."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import floatscope as fs
from floatscope.probe.candidates import CANDIDATES, NAMES, CandidateRecorder
from floatscope.traces.arrays import ARRAYS
from tests.tiny_models import tiny_model


@pytest.mark.slow
@pytest.mark.parametrize(("family", "own"), [("llada", {}), ("llada", {"cfg": 1.5}), ("dream", {}), ("llama", {})])
def test_they_are_what_the_logits_of_each_step_say(family, own):
    """Under guidance those of the pass that sees the prompt."""
    model = tiny_model(family)
    prompts = [np.array([1, 5, 6, 7, 8]), np.array([1, 9, 4])]  # unequal lengths: the second is padded
    for trace in fs.trace(model, prompts, model.sampler({"steps": 4} | own, length=4)):
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


def recorded(*readings, columns=(2, 3)):
    """What is kept of one sample with slots at 2 and 3, both masked; a reading of None: a pass that scores none."""
    recorder, slots = CandidateRecorder(1, frozenset(NAMES)), torch.tensor([[2, 3]])
    step = SimpleNamespace(
        active=torch.tensor([True]), given=SimpleNamespace(slots=slots, state=torch.zeros(1, 2, dtype=torch.uint8))
    )
    for logits in readings:
        if logits is not None:
            recorder.hear(SimpleNamespace(columns=torch.tensor([columns]), logits=logits))
        recorder.keep(step)
    return recorder.finish(0, 2)


def test_a_vocabulary_of_three_has_three_candidates_and_each_slot_its_own():
    logits = torch.tensor([[[0.0, 1.0, 3.0], [2.0, 1.0, 0.0]]])
    found = recorded(logits, columns=(3, 2))  # asked for in the other order
    assert found["candidate_tokens"][0].tolist() == [[0, 1, 2], [2, 1, 0]]
    chance = np.exp([2.0, 1.0, 0.0]) / np.exp([2.0, 1.0, 0.0]).sum()
    np.testing.assert_allclose(found["candidate_probability"][0, 0], chance, rtol=1e-6)


def test_a_pass_that_reads_a_prompt_scores_nothing_and_is_no_step_before():
    first = torch.arange(6.0).expand(1, 2, 6)
    second = first.flip(-1)
    found = recorded(None, first, None, second)
    assert (found["candidate_kl"][:3] == -1).all() and (found["candidate_probability"][[0, 2]] == -1).all()
    now, before = (torch.softmax(one[0, 0].double(), -1).numpy() for one in (second, first))
    np.testing.assert_allclose(found["candidate_kl"][3], (now * np.log(now / before)).sum(), rtol=1e-5)


def test_what_hardly_moves_has_moved_by_no_less_than_nothing():
    """Rounding can make such a divergence negative, and -1 would mean that the slot was not scored."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 2, 3000, generator=generator)
    steps = [logits + 1e-6 * torch.randn(logits.shape, generator=generator) for _ in range(40)]
    moved = recorded(*steps)["candidate_kl"][1:]
    assert (moved >= 0).all() and moved.max() < 1e-5
