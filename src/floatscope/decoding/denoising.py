"""The loop all samplers of masked models share: one forward for the batch, then each sample commits alone.

A sampler gives one `Filling` per sample, its algorithm unbatched; nothing here knows how that chooses. Since
every choice is made on the logits and randomness of one sample, a batch gives each sample what it gets alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import torch
from torch import Tensor

from floatscope.decoding.steps import Batch, Step, require_finite


@dataclass(frozen=True, eq=False)
class Proposal:
    """For each of a sample's n open slots: a token, the confidence in it, whether it commits now. All [n]."""

    tokens: Tensor
    confidence: Tensor
    commits: Tensor


class Filling(Protocol):
    """How the slots of one sample are filled."""

    def open_slots(self, index: int, masked: Tensor) -> Tensor:
        """Those of the masked slots (ascending, never none) that may commit at step `index`: at least one."""
        ...

    def propose(self, index: int, logits: Tensor) -> Proposal:
        """Decide on the open slots, given their logits float32 [n, V]; the mask token has -inf."""
        ...


def denoise(
    batch: Batch, mask_id: int, fillings: Sequence[Filling], score: Callable[[Tensor, Tensor], Tensor]
) -> Iterator[Step]:
    """Run all samples until nothing is left to fill. `score(canvas, positions)` gives logits [B, N, V].

    The mask token is no candidate: its logit becomes -inf before anything else. The published algorithms
    do not forbid it, but a slot that commits it stays masked for ever.
    """
    canvas = batch.tokens
    for index in count():
        masked = canvas[:, batch.prompt_width :] == mask_id  # [B, length]
        active = masked.any(dim=1)
        if not active.any():
            return
        open_slots = [
            filling.open_slots(index, row.nonzero().flatten()) if row.any() else row.nonzero().flatten()
            for filling, row in zip(fillings, masked, strict=True)
        ]
        logits = score(canvas, batch.prompt_width + _aligned(open_slots))  # [B, N, V]
        canvas = canvas.clone()
        committed = torch.zeros_like(masked)
        confidence = torch.full(masked.shape, torch.nan, device=canvas.device)
        for sample, slots in enumerate(open_slots):
            if not len(slots):
                continue
            own = logits[sample, : len(slots)].to(torch.float32, copy=True)  # [n, V]
            own[:, mask_id : mask_id + 1] = -torch.inf  # a slice, for LM heads without a row for the mask
            require_finite(own, index, sample)
            proposal = fillings[sample].propose(index, own)
            commits = proposal.commits.to(canvas.device)
            chosen = slots[commits]
            canvas[sample, batch.prompt_width + chosen] = proposal.tokens.to(canvas.device)[commits]
            committed[sample, chosen] = True
            confidence[sample, chosen] = proposal.confidence.to(canvas.device, torch.float32)[commits]
        yield Step(index, canvas, committed, confidence, active)


def _aligned(open_slots: Sequence[Tensor]) -> Tensor:
    """[B, N], N the longest: a shorter row repeats its first slot, an empty one names slot 0."""
    width = max(len(slots) for slots in open_slots)
    aligned = torch.stack([slots[0] if len(slots) else slots.new_zeros(()) for slots in open_slots])
    aligned = aligned[:, None].repeat(1, width)
    for row, slots in zip(aligned, open_slots, strict=True):
        row[: len(slots)] = slots
    return aligned
