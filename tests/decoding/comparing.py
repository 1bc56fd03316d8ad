"""Runs a sampler on a batch and holds each sample's steps against a plain transcription of it."""

from collections.abc import Sequence
from itertools import pairwise

import torch

from floatscope.decoding import Batch, Sampler, Step
from floatscope.decoding.generation import make_batch, read_prompts
from tests.decoding.decoding_models import FormulaDenoiser
from tests.decoding.plain_samplers import PlainStep


def run(
    denoiser: FormulaDenoiser, prompts: Sequence[Sequence[int]], sampler: Sampler, seeds: Sequence[int]
) -> tuple[Batch, list[Step]]:
    batch = make_batch(denoiser, read_prompts(list(prompts))[0], sampler, seeds)
    return batch, list(sampler.decode(denoiser, batch))


def assert_same_steps(batch: Batch, steps: Sequence[Step], sample: int, expected: Sequence[PlainStep]) -> None:
    """Same number of steps, and after each the same canvas, the same commits, the same confidences."""
    own = [step for step in steps if step.active[sample]]
    assert [step.index for step in own] == list(range(len(expected)))
    for step, plain in zip(own, expected, strict=True):
        assert step.canvas[sample, batch.pads[sample] :].tolist() == plain.canvas
        assert set(step.committed[sample].nonzero().flatten().tolist()) == set(plain.confidence)
        confidence = torch.full((batch.length,), torch.nan)
        for slot, value in plain.confidence.items():
            confidence[slot] = value
        torch.testing.assert_close(step.confidence[sample], confidence, rtol=1e-4, atol=1e-5, equal_nan=True)
    for step in steps[len(own) :]:
        assert not step.committed[sample].any()


def assert_same_canvases(batch: Batch, steps: Sequence[Step], sample: int, expected: Sequence[Sequence[int]]) -> None:
    """Same number of steps, and after each the same canvas."""
    own = [step.canvas[sample, batch.pads[sample] :].tolist() for step in steps if step.active[sample]]
    assert own == [list(canvas) for canvas in expected]


def assert_each_slot_once(steps: Sequence[Step]) -> None:
    """Every slot of every sample commits at exactly one step, and the steps' canvases agree with that."""
    assert (torch.stack([step.committed for step in steps]).sum(dim=0) == 1).all()
    for before, after in pairwise(steps):
        changed = before.canvas != after.canvas
        length = after.committed.shape[1]
        assert not changed[:, :-length].any()
        assert (changed[:, -length:] == after.committed).all()


def assert_asks_only(denoiser: FormulaDenoiser, batch: Batch, windows: Sequence[Sequence[Sequence[int]]]) -> None:
    """Call by call, sample by sample: the slots asked for are those in `windows` (empty: slot 0)."""
    assert len(denoiser.calls) == len(windows)
    for (_, positions, _), slots in zip(denoiser.calls, windows, strict=True):
        assert positions.shape[1] == max(len(own) for own in slots)
        for asked, own in zip(positions, slots, strict=True):
            assert sorted(set((asked - batch.slots[0, 0]).tolist())) == (sorted(own) or [0])
