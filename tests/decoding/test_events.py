"""Slots anywhere, states that are kept, and events: commit, revise, renoise as differences of two moments."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from floatscope.canvas import ANSWER, COMMITTED, MASKED, QUERY, Prompt, regions_from_labels
from floatscope.decoding import Batch, Denoiser, DreamSampler, LLaDASampler, Proposal, Sampler, Step, denoise, generate
from floatscope.decoding.denoising import Filling
from floatscope.errors import UserError
from tests.decoding.decoding_models import MASK, VOCABULARY, FormulaDenoiser, formula


def canvas(ids, slots) -> Prompt:
    """A canvas of these ids whose answer stands at these positions."""
    labels = [ANSWER if place in set(slots) else QUERY for place in range(len(ids))]
    return Prompt("", np.asarray(ids), regions_from_labels(labels), slots=np.asarray(sorted(slots)))


def plain_llada(logits, ids, slots):
    """One slot per step, the surest first, by a loop over one canvas: (canvas, order of slots)."""
    tokens, order = list(ids), []
    for slot in slots:
        tokens[slot] = MASK
    while len(order) < len(slots):
        rows = logits(tokens)
        rows[:, MASK] = -np.inf
        chances = np.exp(rows - rows.max(-1, keepdims=True))
        chances /= chances.sum(-1, keepdims=True)
        left = [slot for slot in slots if slot not in order]
        best = max(left, key=lambda slot: chances[slot].max())
        tokens[best] = int(rows[best].argmax())
        order.append(best)
    return tokens, order


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), samples=st.integers(1, 3), length=st.integers(1, 5))
def test_slots_at_random_places_are_filled_as_by_a_plain_loop(seed, samples, length):
    rng = np.random.default_rng(seed)
    logits = formula(seed % 7)
    given_ids, given_slots = [], []
    for _ in range(samples):
        width = int(rng.integers(length + 1, length + 6))
        given_ids.append(rng.integers(0, VOCABULARY - 1, width).tolist())
        given_slots.append(sorted(rng.choice(width, length, replace=False).tolist()))
    canvases = [canvas(ids, slots) for ids, slots in zip(given_ids, given_slots, strict=True)]
    done = generate(FormulaDenoiser(logits), canvases, LLaDASampler(steps=length, length=length))
    for generation, ids, slots in zip(done, given_ids, given_slots, strict=True):
        tokens, order = plain_llada(logits, ids, slots)
        assert generation.canvas.tolist() == tokens and generation.slots.tolist() == slots
        assert [slots[place] for place in np.argsort(generation.commit_step)] == order
        for step in range(generation.steps):
            committed = [slot in order[:step] for slot in slots]
            assert (generation.state[step] == COMMITTED).tolist() == committed
            shown = [tokens[slot] if was else MASK for slot, was in zip(slots, committed, strict=True)]
            assert generation.tokens[step].tolist() == shown


def test_a_mask_token_in_the_prompt_is_no_slot():
    """What a slot is follows from its state, never from the token that stands there."""
    ids = [3, MASK, 4, 0, 5]
    done = generate(FormulaDenoiser(formula(1)), [canvas(ids, [3])], DreamSampler(steps=1, length=1))
    assert done[0].canvas[[0, 1, 2, 4]].tolist() == [3, MASK, 4, 5] and done[0].canvas[3] != MASK


def test_numbers_of_slots_that_differ_are_told():
    with pytest.raises(UserError, match="The prompt has 1 answer slots and the sampler fills 2"):
        generate(FormulaDenoiser(formula(1)), [canvas([3, 4, 0], [2])], LLaDASampler(steps=2, length=2))


def test_an_autoregressive_model_refuses_slots_that_are_not_at_the_end():
    from floatscope.decoding import AutoregressiveSampler

    with pytest.raises(UserError, match="has its slots elsewhere: put them at the end"):
        generate(FormulaDenoiser(formula(1), mask_id=None), [canvas([3, 0, 4], [1])], AutoregressiveSampler(length=1))


@dataclass(frozen=True)
class Noisy(Sampler):
    """A toy without a mask token: slots hold noise; step 0 accepts all, step 1 withdraws the first, step 2 ends."""

    name: ClassVar[str] = "noisy"
    length: int = 3

    def decode(self, denoiser: Denoiser, batch: Batch) -> Iterator[Step]:
        return denoise(batch, None, [_Noise() for _ in batch.seeds], denoiser.score)


class _Noise(Filling):
    def done(self, index: int, state: Tensor) -> bool:
        return index == 4

    def open_slots(self, index: int, state: Tensor) -> Tensor:
        return torch.arange(len(state))

    def propose(self, index: int, logits: Tensor) -> Proposal:
        tokens = torch.full((len(logits),), index + 1)
        first = torch.arange(len(logits)) == 0
        commits = {0: ~first | first, 1: ~first, 2: first, 3: torch.zeros_like(first)}[index]
        return Proposal(tokens, torch.full((len(logits),), 0.5), commits, first if index == 1 else None)


def test_a_sampler_without_masks_commits_revises_and_renoises():
    steps: list[Step] = []
    denoiser = FormulaDenoiser(formula(2), mask_id=None)
    denoiser.is_arm = False
    generation = generate(denoiser, [5, 6], Noisy(), on_step=steps.append)
    events = [(s.committed[0].tolist(), s.revised[0].tolist(), s.renoised[0].tolist()) for s in steps]
    no, all_three = [False] * 3, [True] * 3
    assert events == [
        (all_three, no, no),
        (no, [False, True, True], [True, False, False]),
        ([True, False, False], no, no),
        (no, no, no),  # nothing is masked any more, and it is the sampler who says when it is done
    ]
    assert generation.canvas.tolist() == [5, 6, 3, 2, 2]
    assert generation.commit_step.tolist() == [2, 0, 0]
    assert generation.state.tolist() == [[MASKED] * 3, [COMMITTED] * 3, [MASKED, COMMITTED, COMMITTED], [COMMITTED] * 3]
    assert generation.tokens.tolist() == [[0, 0, 0], [1, 1, 1], [2, 2, 2], [3, 2, 2]]


def test_a_sample_with_fewer_open_slots_asks_for_its_first_again():
    class Some(Filling):
        def __init__(self, *slots):
            self.slots = torch.tensor(slots, dtype=torch.int64)

        def done(self, index, state):
            return index == 1 or not len(self.slots)

        def open_slots(self, index, state):
            return self.slots

        def propose(self, index, logits):
            tokens = torch.zeros(len(logits), dtype=torch.int64)
            return Proposal(tokens, torch.ones(len(logits)), torch.ones_like(tokens, dtype=torch.bool))

    denoiser = FormulaDenoiser(formula(1))
    slots = torch.arange(2, 8).repeat(3, 1)
    start = torch.full((3, 8), MASK)
    batch = Batch(start, torch.zeros(3, dtype=torch.int64), slots, torch.zeros(3, 6, dtype=torch.uint8), (0, 0, 0))
    list(denoise(batch, MASK, [Some(2, 4, 5), Some(1, 3), Some()], denoiser.score))
    asked = denoiser.calls[0][1] - 2
    assert asked.tolist() == [[2, 4, 5], [1, 3, 1], [0, 0, 0]]
