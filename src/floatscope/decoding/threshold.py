"""The threshold sampler: each step commits every slot of the block that it is sure of, so fewer steps do."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from floatscope.decoding.blocks import answer_blocks, check_division, quotas, resolve_block
from floatscope.decoding.choosing import first_slots, held_back, probability_of
from floatscope.decoding.denoising import Filling, Proposal, masked_slots
from floatscope.decoding.order import MaskedSampler
from floatscope.decoding.settings import Count
from floatscope.decoding.steps import Batch, Denoiser
from floatscope.errors import UserError


@dataclass(frozen=True)
class ThresholdSampler(MaskedSampler):
    """Fill blocks left to right; each step commits all slots of the block above a confidence, and the surest.

    Greedy: the token is the likeliest, the confidence its softmax. The mask token is never a candidate.
    """

    name: ClassVar[str] = "threshold"

    length: Count = 32
    """Answer slots."""
    threshold: Annotated[float, "(0, 1]"] = 0.9
    """Slots of a higher confidence than this commit together."""
    block: Count | None = None
    """Slots in a block; None: the family's block if it is block-causal, else the whole answer."""
    hold_eos: bool = False
    """Slots that would end the answer wait while their block has others; tokens and confidences stay."""
    small_block: Count | None = None
    """Slots of a block that are filled together, one such part after the other; None: the whole block."""
    first_alone: bool = False
    """The first slot of a block commits before the others are looked at: what Fast-dLLM v2 takes from the pass over the
    block before."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block is not None:
            check_division(type(self).__name__, self.length, self.block)

    def step_bounds(self, first_slot: int, family_block: int | None) -> tuple[int, int]:
        """A block takes one step where all of it is sure, and one per slot where nothing is."""
        blocks = self._blocks(first_slot, family_block)
        most = sum(len(quotas(len(block), len(block), self.tokens_per_step)) for block in blocks)
        return most if self.tokens_per_step else len(blocks), most

    def filling(self, denoiser: Denoiser, batch: Batch, sample: int, stream: torch.Generator) -> Filling:
        """Moves to the next block when it has filled the one before."""
        blocks = self._blocks(int(batch.positions[sample, 0]), denoiser.block)
        return _ThresholdFilling(self, blocks, denoiser.eos_ids)

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
        edges = {edge for part in parts for edge in (part.start, part.stop)}
        edges |= {part.start + 1 for part in parts if (start + part.start) % block == 0}
        return [range(*pair) for pair in pairwise(sorted(edges))]


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
        if self.sampler.tokens_per_step:
            return Proposal(tokens, confidence, first_slots(confidence, held, self.sampler.tokens_per_step))
        if held.all():
            held = torch.zeros_like(held)
        sure = (confidence > self.sampler.threshold) & ~held
        return Proposal(tokens, confidence, sure | first_slots(confidence, held, 1))
