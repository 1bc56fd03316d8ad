"""LLaDA's sampler: blocks left to right, a quota of slots per step, the most confident or random ones first."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from floatscope.canvas import MASKED
from floatscope.decoding.blocks import answer_blocks, check_division, quotas, resolve_block
from floatscope.decoding.choosing import choose_tokens, first_slots, held_back, probability_of
from floatscope.decoding.denoising import Filling, MaskedSampler, Proposal, masked_slots
from floatscope.decoding.settings import Count, NotNegative
from floatscope.decoding.steps import Batch, Denoiser


@dataclass(frozen=True)
class LLaDASampler(MaskedSampler):
    """Fill blocks left to right; each step commits a quota of slots (arXiv 2502.09992, section 2.4).

    The confidence of a slot is the softmax of the un-noised logits at its token, or uniform noise for
    `random`.
    """

    name: ClassVar[str] = "llada"

    steps: Count = 32
    """Forward passes in all, shared equally among the blocks; steps left with nothing to fill are dropped."""
    length: Count = 32
    """Answer slots."""
    block: Count | None = None
    """Slots in a block; None: the family's block if it is block-causal, else the whole answer."""
    temperature: NotNegative = 0.0
    """Gumbel noise on the choice of tokens; 0 takes the likeliest."""
    remasking: Literal["low_confidence", "random"] = "low_confidence"
    """Which slots wait: those of low confidence, or random ones."""
    cfg: NotNegative = 0.0
    """Classifier-free guidance against the canvas with its prompt masked; 0 saves the second pass."""
    hold_eos: bool = False
    """Slots that would end the answer commit last in their block; their tokens and confidences stay."""
    mask_is_candidate: bool = False
    """Whether slots may take the mask token, as in the published code: one that does stays masked for another step and,
    at the last step, in the answer. By hand off; the family's own sampler has it on, to decode as published."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block is not None:
            check_division(type(self).__name__, self.length, self.block, None if self.tokens_per_step else self.steps)

    def step_bounds(self, first_slot: int, family_block: int | None) -> tuple[int, int]:
        """The schedule is fixed: both bounds are its length."""
        steps = len(self._schedule(first_slot, family_block, [True] * self.length))
        return steps, steps

    def filling(self, denoiser: Denoiser, batch: Batch, sample: int, stream: torch.Generator) -> Filling:
        """A schedule of blocks and quotas, by what is masked."""
        masked = (batch.state[sample] == MASKED).tolist()
        schedule = self._schedule(int(batch.positions[sample, 0]), denoiser.block, masked)
        return _LLaDAFilling(self, schedule, denoiser.eos_ids, stream)

    def score(self, denoiser: Denoiser, batch: Batch, columns: Tensor) -> Tensor:
        """With guidance: away from what the model says with its prompt masked."""
        given = denoiser.score(batch, columns)
        if self.cfg == 0:
            return given
        place = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
        prompt = (place >= batch.pads[:, None]).scatter(1, batch.slots, False)  # [B, T]
        bare = replace(batch, tokens=batch.tokens.masked_fill(prompt, denoiser.mask_id or 0))
        without = denoiser.score(bare, columns, conditional=False).float()
        return without + (self.cfg + 1) * (given.float() - without)

    def _schedule(self, first_slot: int, family_block: int | None, masked: list[bool]) -> list[tuple[range, int]]:
        """(block, quota) of each step of a sample; steps that would find their block full are dropped."""
        block = resolve_block(type(self).__name__, self.length, self.block, family_block)
        check_division(type(self).__name__, self.length, block, None if self.tokens_per_step else self.steps)
        steps = self.steps // (self.length // block)
        return [
            (slots, quota)
            for slots in answer_blocks(self.length, block, first_slot, family_block)
            for quota in quotas(sum(masked[slot] for slot in slots), steps, self.tokens_per_step)
        ]


@dataclass(frozen=True, eq=False)
class _LLaDAFilling(Filling):
    """One sample; step i follows `schedule[i]`."""

    sampler: LLaDASampler
    schedule: list[tuple[range, int]]
    eos_ids: tuple[int, ...]
    stream: torch.Generator

    def last(self, index: int) -> bool:
        return index == len(self.schedule) - 1

    def open_slots(self, index: int, state: Tensor) -> Tensor:
        masked = masked_slots(state)  # of this block, and of those before where a slot took the mask token
        return masked[masked < self.schedule[index][0].stop]

    def propose(self, index: int, logits: Tensor) -> Proposal:
        quota = self.schedule[index][1]
        tokens = choose_tokens(logits, self.sampler.temperature, self.stream)
        if self.sampler.remasking == "random":
            confidence = torch.rand(len(tokens), generator=self.stream).to(logits.device)
        else:
            confidence = probability_of(tokens, logits)
        held = held_back(tokens, self.eos_ids, self.sampler.hold_eos)
        return Proposal(tokens, confidence, first_slots(confidence, held, quota))
