"""LLaDA's sampler: blocks left to right, a quota of slots per step, the most confident or random ones first."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from floatscope.canvas import MASKED
from floatscope.decoding.blocks import answer_blocks, check_division, quotas, resolve_block
from floatscope.decoding.choosing import choose_tokens, first_slots, held_back, probability_of
from floatscope.decoding.denoising import Filling, Proposal, denoise, masked_slots
from floatscope.decoding.settings import (
    require_choice,
    require_flag,
    require_number,
    require_seed,
    require_whole,
)
from floatscope.decoding.steps import Batch, Denoiser, Sampler, Step, random_stream, require_mdm

Remasking = Literal["low_confidence", "random"]


@dataclass(frozen=True)
class LLaDASampler(Sampler):
    """Fill blocks left to right; each step commits a quota of slots (arXiv 2502.09992, section 2.4).

    The confidence of a slot is the softmax of the un-noised logits at its token, or uniform noise for
    `random`.
    """

    name: ClassVar[str] = "llada"

    steps: int = 32
    """Forward passes in all, shared equally among the blocks; steps left with nothing to fill are dropped."""
    length: int = 32
    """Answer slots."""
    block: int | None = None
    """Slots in a block; None: the family's block if it is block-causal, else the whole answer."""
    temperature: float = 0.0
    """Gumbel noise on the choice of tokens; 0 takes the likeliest."""
    remasking: Remasking = "low_confidence"
    """Which slots wait: those of low confidence, or random ones."""
    cfg: float = 0.0
    """Classifier-free guidance against the canvas with its prompt masked; 0 saves the second pass."""
    hold_eos: bool = False
    """Slots that would end the answer commit last in their block; their tokens and confidences stay."""
    mask_is_candidate: bool = False
    """Whether slots may take the mask token, as in the published code: one that does stays masked for another step and,
    at the last step, in the answer. By hand off; the family's own sampler has it on, to decode as published."""
    seed: int = 0
    """Seed of every sample that is given none of its own."""

    def __post_init__(self) -> None:
        owner = type(self).__name__
        require_whole(owner, "steps", self.steps)
        require_whole(owner, "length", self.length)
        require_number(owner, "temperature", self.temperature, "[0, inf)")
        require_choice(owner, "remasking", self.remasking, get_args(Remasking))
        require_number(owner, "cfg", self.cfg, "[0, inf)")
        require_flag(owner, "hold_eos", self.hold_eos)
        require_flag(owner, "mask_is_candidate", self.mask_is_candidate)
        require_seed(owner, self.seed)
        if self.block is not None:
            require_whole(owner, "block", self.block)
            check_division(owner, self.length, self.block, self.steps)

    def step_bounds(self, first_slot: int, family_block: int | None) -> tuple[int, int]:
        """The schedule is fixed: both bounds are its length."""
        steps = len(self._schedule(first_slot, family_block, [True] * self.length))
        return steps, steps

    def decode(self, denoiser: Denoiser, batch: Batch) -> Iterator[Step]:
        """Fill the batch; each sample follows its own schedule of blocks and quotas."""
        mask_id = require_mdm(self, denoiser, batch)
        place = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
        prompt = (place >= batch.pads[:, None]).scatter(1, batch.slots, False)  # [B, T]

        def score(now: Batch, columns: Tensor) -> Tensor:
            given = denoiser.score(now, columns)
            if self.cfg == 0:
                return given
            bare = replace(now, tokens=now.tokens.masked_fill(prompt, mask_id))
            without = denoiser.score(bare, columns, conditional=False).float()
            return without + (self.cfg + 1) * (given.float() - without)

        firsts, masked = batch.positions[:, 0].tolist(), (batch.state == MASKED).tolist()
        fillings = [
            _LLaDAFilling(
                self,
                self._schedule(first, denoiser.block, row),
                denoiser.eos_ids,
                random_stream(seed),
            )
            for first, row, seed in zip(firsts, masked, batch.seeds, strict=True)
        ]
        return denoise(batch, mask_id, fillings, score, self.mask_is_candidate)

    def _schedule(self, first_slot: int, family_block: int | None, masked: list[bool]) -> list[tuple[range, int]]:
        """(block, quota) of each step of a sample; steps that would find their block full are dropped."""
        block = resolve_block(type(self).__name__, self.length, self.block, family_block)
        check_division(type(self).__name__, self.length, block, self.steps)
        steps = self.steps // (self.length // block)
        return [
            (slots, quota)
            for slots in answer_blocks(self.length, block, first_slot, family_block)
            for quota in quotas(sum(masked[slot] for slot in slots), steps)
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
