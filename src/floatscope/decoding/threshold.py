"""The threshold sampler: each step commits every slot of the block that it is sure of, so fewer steps do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from floatscope.canvas import MASKED
from floatscope.decoding.blocks import answer_blocks, check_division, quotas, resolve_block
from floatscope.decoding.choosing import first_slots, held_back, probability_of
from floatscope.decoding.denoising import Filling, MaskedSampler, Proposal
from floatscope.decoding.settings import Count
from floatscope.decoding.steps import Batch, Denoiser
from floatscope.errors import UserError


@dataclass(frozen=True)
class ThresholdSampler(MaskedSampler):
    """Fill blocks left to right; each step commits all slots of the block above a confidence, and the surest.

    Greedy: the token is the likeliest, the confidence its softmax.
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
    steps_per_block: Count | None = None
    """A full block takes at most so many steps: where fewer slots are sure, as many commit as an even share; None: the
    surest alone."""
    whole_blocks: bool = False
    """The canvas goes on to the end of its last block, as LLaDA2's does: slots beyond the length are filled too."""
    edit_threshold: Annotated[float, "[0, 1]"] | None = None
    """Tokens of the block become others of a higher confidence than this, as in LLaDA2.1; None: tokens stay. An order
    or a number of tokens per step that is asked for leaves this out."""
    edit_steps: Annotated[int, "[0, inf)"] = 16
    """Steps at most that only edit, once a block is full; the first of them that changes nothing ends it."""
    mask_is_candidate: bool = False
    """Whether slots may take the mask token, as in LLaDA2's published code: one that does stays masked for another step
    and, at the last step of its block, in the answer. Left out where tokens are edited, which could go on for ever."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.edit_threshold is not None:
            object.__setattr__(self, "mask_is_candidate", False)
        if self.block is not None and not self.whole_blocks:
            check_division(type(self).__name__, self.length, self.block)

    def fitted(self, denoiser: Denoiser, first_slot: int) -> ThresholdSampler:
        """With whole blocks: as many slots as fill the last one, and steps that are shared by the asked length."""
        if not self.whole_blocks:
            return self
        block = resolve_block(type(self).__name__, self.length, self.block, denoiser.block)
        surplus = -((first_slot if denoiser.block else 0) + self.length) % block
        steps = self.steps_per_block and min(self.steps_per_block, self.length)
        return replace(self, length=self.length + surplus, steps_per_block=steps)

    def step_bounds(self, first_slot: int, family_block: int | None) -> tuple[int, int]:
        """A block takes one step where all of it is sure, and one per slot where nothing is; edits take their own."""
        blocks = self._blocks(first_slot, family_block)
        block = resolve_block(type(self).__name__, self.length, self.block, family_block)
        most = sum(self._longest(len(part), block) for part in blocks)
        if self.tokens_per_step:
            return most, most
        edits = self.edit_steps if self._edits else 0
        return len(blocks) * (1 + min(edits, 1)), most + len(blocks) * edits

    def _longest(self, slots: int, block: int) -> int:
        """Steps that fill so many slots of a block if no more commit than must; those there are if some may wait."""
        if self.tokens_per_step or self.steps_per_block is None:
            return len(quotas(slots, slots, self.tokens_per_step))
        if self.mask_is_candidate:
            return self.steps_per_block
        shares = list(accumulate(quotas(block, self.steps_per_block)))
        return next(step for step, filled in enumerate(shares, 1) if filled >= slots)

    @property
    def _edits(self) -> bool:
        return self.edit_threshold is not None and self.order == "confidence" and self.tokens_per_step is None

    def filling(self, denoiser: Denoiser, batch: Batch, sample: int, stream: torch.Generator) -> Filling:
        """Moves to the next block when it has filled the one before, and edited it where it does."""
        blocks = self._blocks(int(batch.positions[sample, 0]), denoiser.block)
        block = resolve_block(type(self).__name__, self.length, self.block, denoiser.block)
        shares = quotas(block, self.steps_per_block or block)
        edits = self.edit_steps if self._edits and batch.answers is None else None
        most = [self._longest(len(part), block) for part in blocks]
        return _ThresholdFilling(self, blocks, most, denoiser.eos_ids, shares, edits)

    def _blocks(self, first_slot: int, family_block: int | None) -> list[range]:
        block = resolve_block(type(self).__name__, self.length, self.block, family_block)
        if not self.whole_blocks:
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


@dataclass(eq=False)
class _ThresholdFilling(Filling):
    """One sample; its current block is the first that is not finished."""

    sampler: ThresholdSampler
    blocks: list[range]
    most: list[int]
    """Steps of each block, after which slots that took the mask token keep it."""
    eos_ids: tuple[int, ...]
    shares: list[int]
    """Slots of a block that commit at least at each of its steps, by its number in the block."""
    edits: int | None
    """Steps that may only edit; None: tokens stay."""
    _current: int = 0
    _steps: int = 0
    _only_edited: int = 0
    _editing: bool = False
    _masked: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    _held: dict[int, int] = field(default_factory=dict)

    def done(self, index: int, state: Tensor) -> bool:
        masked = (state == MASKED).tolist()
        while self._current < len(self.blocks) and not self._editing:
            if any(masked[slot] for slot in self.blocks[self._current]):
                break
            self._current, self._steps, self._only_edited, self._held = self._current + 1, 0, 0, {}
        return self._current == len(self.blocks)

    def last(self, index: int) -> bool:
        return self._steps == self.most[self._current]

    def open_slots(self, index: int, state: Tensor) -> Tensor:
        block = self.blocks[self._current]
        slots = torch.arange(block.start, block.stop, device=state.device)
        self._masked = state[slots] == MASKED
        if self.edits is None:
            slots, self._masked = slots[self._masked], self._masked[self._masked]
        return slots

    def propose(self, index: int, logits: Tensor) -> Proposal:
        tokens = logits.argmax(dim=-1)
        confidence = probability_of(tokens, logits)
        masked = self._masked.to(tokens.device)
        commits = torch.zeros_like(masked)
        commits[masked] = self._committed(tokens[masked], confidence[masked])
        edited = torch.zeros_like(masked)
        if self.edits is not None and self.sampler.edit_threshold is not None:
            held = tokens.new_tensor([self._held.get(slot, -1) for slot in range(len(tokens))])
            edited = ~masked & (confidence > self.sampler.edit_threshold) & (tokens != held)
            changed = (commits | edited).nonzero().flatten().tolist()
            self._held |= {slot: int(tokens[slot]) for slot in changed}
        self._steps += 1
        self._only_edited += not masked.any()
        rests = not masked.any() and not edited.any()  # the first step that only edits, and edits nothing
        left = self.edits is not None and self._only_edited < self.edits and not rests
        self._editing = left and not bool((masked & ~commits).any())
        return Proposal(tokens, confidence, commits | edited)

    def _committed(self, tokens: Tensor, confidence: Tensor) -> Tensor:
        """bool [n]: which of the masked slots of the block commit."""
        held = held_back(tokens, self.eos_ids, self.sampler.hold_eos)
        if self.sampler.tokens_per_step:
            return first_slots(confidence, held, self.sampler.tokens_per_step)
        if held.all():
            held = torch.zeros_like(held)
        least = self.shares[self._steps] if self._steps < len(self.shares) else 0
        return ((confidence > self.sampler.threshold) & ~held) | first_slots(confidence, held, least)
