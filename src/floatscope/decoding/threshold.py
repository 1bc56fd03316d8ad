"""The threshold sampler: each step commits every slot of the block that it is sure of, so fewer steps do."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from floatscope.decoding.blocks import answer_blocks, check_division, resolve_block
from floatscope.decoding.choosing import first_slots, held_back, probability_of
from floatscope.decoding.denoising import Filling, Proposal, denoise, masked_slots
from floatscope.decoding.settings import require_flag, require_number, require_whole
from floatscope.decoding.steps import Batch, Denoiser, Sampler, Step, require_mdm
from floatscope.errors import UserError


@dataclass(frozen=True)
class ThresholdSampler(Sampler):
    """Fill blocks left to right; each step commits all slots of the block above a confidence, and the surest.

    Greedy: the token is the likeliest, the confidence its softmax. The mask token is never a candidate.
    """

    name: ClassVar[str] = "threshold"

    length: int = 32
    """Answer slots."""
    threshold: float = 0.9
    """Slots of a higher confidence than this commit together."""
    block: int | None = None
    """Slots in a block; None: the family's block if it is block-causal, else the whole answer."""
    hold_eos: bool = False
    """Slots that would end the answer wait while their block has others; tokens and confidences stay."""
    small_block: int | None = None
    """Slots of a block that are filled together, one such part after the other; None: the whole block."""
    first_alone: bool = False
    """The first slot of a block commits before the others are looked at: what Fast-dLLM v2 takes from the pass over the
    block before."""

    def __post_init__(self) -> None:
        owner = type(self).__name__
        require_whole(owner, "length", self.length)
        require_number(owner, "threshold", self.threshold, "(0, 1]")
        require_flag(owner, "hold_eos", self.hold_eos)
        if self.block is not None:
            require_whole(owner, "block", self.block)
            check_division(owner, self.length, self.block)
        require_flag(owner, "first_alone", self.first_alone)
        if self.small_block is not None:
            require_whole(owner, "small_block", self.small_block)

    def step_bounds(self, first_slot: int, family_block: int | None) -> tuple[int, int]:
        """A block takes one step where all of it is sure, and one per slot where nothing is."""
        return len(self._blocks(first_slot, family_block)), self.length

    def decode(self, denoiser: Denoiser, batch: Batch) -> Iterator[Step]:
        """Fill the batch; each sample moves to its next block when it has filled the one before."""
        mask_id = require_mdm(self, denoiser, batch)
        fillings = [
            _ThresholdFilling(self, self._blocks(first, denoiser.block), denoiser.eos_ids)
            for first in batch.positions[:, 0].tolist()
        ]
        return denoise(batch, mask_id, fillings, denoiser.score)

    def _blocks(self, first_slot: int, family_block: int | None) -> list[range]:
        block = resolve_block(type(self).__name__, self.length, self.block, family_block)
        check_division(type(self).__name__, self.length, block)
        if self.small_block is not None and block % self.small_block:
            raise UserError(
                f"{type(self).__name__}: small_block={self.small_block} does not divide blocks of {block} slots: choose"
                " one that does."
            )
        parts = answer_blocks(self.length, self.small_block or block, first_slot, family_block)
        if not self.first_alone:
            return parts
        start = first_slot if family_block else 0  # blocks are counted from the canvas, or from the first slot
        begins = {part.start for part in parts if (start + part.start) % block == 0}
        alone = [
            (range(p.start, p.start + 1), range(p.start + 1, p.stop)) if p.start in begins else (p,) for p in parts
        ]
        return [part for pair in alone for part in pair if len(part)]


@dataclass(frozen=True, eq=False)
class _ThresholdFilling(Filling):
    """One sample; its current block is the one of its first masked slot."""

    sampler: ThresholdSampler
    blocks: list[range]
    eos_ids: tuple[int, ...]

    def open_slots(self, index: int, state: Tensor) -> Tensor:
        masked = masked_slots(state)
        current = next(block for block in self.blocks if int(masked[0]) in block)
        return masked[masked < current.stop]

    def propose(self, index: int, logits: Tensor) -> Proposal:
        tokens = logits.argmax(dim=-1)
        confidence = probability_of(tokens, logits)
        held = held_back(tokens, self.eos_ids, self.sampler.hold_eos)
        if held.all():
            held = torch.zeros_like(held)
        sure = (confidence > self.sampler.threshold) & ~held
        return Proposal(tokens, confidence, sure | first_slots(confidence, held, 1))
