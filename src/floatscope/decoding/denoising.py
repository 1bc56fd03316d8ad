"""The loop all samplers of masked models share: one forward for the batch, then each sample commits alone.

`MaskedSampler` is what they can be told of the order in which slots commit. Each gives one `Filling` per sample, its
algorithm unbatched; nothing here knows how that chooses. Since every choice is made on the logits and randomness of one
sample, a batch gives each sample what it gets alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import numpy as np
import torch
from torch import Tensor

from floatscope.canvas import COMMITTED, MASKED
from floatscope.decoding.choosing import first_slots, given_tokens, probability_of
from floatscope.decoding.settings import Count
from floatscope.decoding.steps import Batch, Denoiser, Sampler, Step, random_stream, require_finite, require_mdm
from floatscope.errors import UserError

ORDERS = ("confidence", "left-to-right", "right-to-left", "random")


@dataclass(frozen=True, eq=False)
class Proposal:
    """For each of a sample's n open slots: a token, the confidence in it, whether it commits now. All [n]."""

    tokens: Tensor
    confidence: Tensor
    commits: Tensor
    withdrawn: Tensor | None = None
    """Slots that become masked again, with `tokens` as what they hold meanwhile; None: none."""


class Filling(ABC):
    """How the slots of one sample are filled; `state` [A] says what each slot is: MASKED or COMMITTED."""

    def done(self, index: int, state: Tensor) -> bool:
        """Whether nothing is left to do at step `index`: as it stands, when no slot is masked."""
        return not bool((state == MASKED).any())

    def last(self, index: int) -> bool:
        """Whether step `index` is the last of its open slots, whatever is still masked after it.

        Asked where masks are candidates, once the step is proposed.
        """
        return False

    @abstractmethod
    def open_slots(self, index: int, state: Tensor) -> Tensor:
        """The slots (ascending, at least one) that may change at step `index`."""

    @abstractmethod
    def propose(self, index: int, logits: Tensor) -> Proposal:
        """Decide on the open slots, given their logits float32 [n, V]; a mask token that is no candidate has -inf."""


def masked_slots(state: Tensor) -> Tensor:
    """The slots that are still to be filled, ascending."""
    return (state == MASKED).nonzero().flatten()


def denoise(
    batch: Batch,
    mask_id: int | None,
    fillings: Sequence[Filling],
    score: Callable[[Batch, Tensor], Tensor],
    mask_is_candidate: bool = False,
    ranks: Tensor | None = None,
) -> Iterator[Step]:
    """Run all samples until each is done. `score(batch, columns)` gives logits [B, N, V].

    `ranks` [B, A]: an order of commits that was asked for; of the open slots the first commit, as many as are proposed.
    In a replay (`batch.answers`) slots take the given tokens, and the confidence in one is its probability.
    Unless `mask_is_candidate`, the logit of the mask token becomes -inf before anything else. Where it is one, as in
    the published algorithms, a slot that takes it stays masked, and one that does so at the last step ends as it.
    """
    mask_is_candidate = mask_is_candidate and batch.answers is None
    for index in count():
        going = [not filling.done(index, state) for filling, state in zip(fillings, batch.state, strict=True)]
        if not any(going):
            return
        active = torch.tensor(going, device=batch.tokens.device)
        batch = replace(batch, active=active)
        open_slots = [
            filling.open_slots(index, state) if goes else state.new_zeros(0, dtype=torch.int64)
            for filling, state, goes in zip(fillings, batch.state, going, strict=True)
        ]
        logits = score(batch, batch.slots.gather(1, _aligned(open_slots)))  # [B, N, V]
        tokens, state = batch.slot_tokens, batch.state.clone()
        confidence = torch.full(state.shape, torch.nan, device=tokens.device)
        for sample, slots in enumerate(open_slots):
            if not len(slots):
                continue
            own = logits[sample, : len(slots)].to(torch.float32, copy=True)  # [n, V]
            if mask_id is not None and not mask_is_candidate:
                own[:, mask_id : mask_id + 1] = -torch.inf  # a slice, for LM heads without a row for the mask
            require_finite(own, index, sample)
            proposal = fillings[sample].propose(index, own)
            commits = proposal.commits.to(tokens.device)
            if ranks is not None:
                commits = first_slots(-ranks[sample, slots], torch.zeros_like(commits), int(commits.sum()))
            if batch.answers is not None:
                answer = given_tokens(batch.answers[sample, slots], own)
                proposal = replace(proposal, tokens=answer, confidence=probability_of(answer, own))
            if mask_is_candidate and mask_id is not None:
                if fillings[sample].last(index):  # what is not chosen now stays a mask for good
                    proposal.tokens[~commits.to(proposal.tokens.device)] = mask_id
                    commits = torch.ones_like(commits)
                else:
                    commits = commits & (proposal.tokens != mask_id).to(tokens.device)
            moved = commits if proposal.withdrawn is None else commits | proposal.withdrawn.to(tokens.device)
            tokens[sample, slots[moved]] = proposal.tokens.to(tokens.device)[moved]
            state[sample, slots[moved]] = torch.where(commits[moved], COMMITTED, MASKED).to(state.dtype)
            confidence[sample, slots[commits]] = proposal.confidence.to(tokens.device, torch.float32)[commits]
        yield Step(index, batch, tokens, state, confidence, active)
        batch = batch.after(tokens, state)


def _aligned(open_slots: Sequence[Tensor]) -> Tensor:
    """[B, N], N the longest: a shorter row repeats its first slot, an empty one names slot 0."""
    width = max(len(slots) for slots in open_slots)
    aligned = torch.stack([slots[0] if len(slots) else slots.new_zeros(()) for slots in open_slots])
    aligned = aligned[:, None].repeat(1, width)
    for row, slots in zip(aligned, open_slots, strict=True):
        row[: len(slots)] = slots
    return aligned


@dataclass(frozen=True, kw_only=True)
class MaskedSampler(Sampler):
    """A sampler that fills masked slots, in an order of its own or in one that it is told."""

    order: str = "confidence"
    """Which slots of a block commit first: those of high confidence, as published; left-to-right, right-to-left,
    random; or slot numbers from 0 in the order that is wanted, as in 2,0,1. Any but confidence leaves hold_eos out."""
    tokens_per_step: Count | None = None
    """Slots that commit at every step; None: as many as the sampler's own schedule has."""
    seed: int = 0
    """Seed of every sample that is given none of its own."""

    mask_is_candidate = False  # a setting of those that can have it

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.order, str):  # slot numbers, from a list or an array
            object.__setattr__(self, "order", ",".join(map(str, np.ravel(self.order).tolist())))
        if self.order not in ORDERS and sorted(self.order.split(",")) != sorted(map(str, range(self.length))):
            raise UserError(
                f"{type(self).__name__}: order={self.order!r} should be one of {', '.join(ORDERS)}, or each of the"
                f" slots 0 to {self.length - 1} once, as in 2,0,1."
            )

    @abstractmethod
    def filling(self, denoiser: Denoiser, batch: Batch, sample: int, stream: torch.Generator) -> Filling:
        """How the slots of one sample of the batch are filled, with a stream of randomness of its own."""

    def score(self, denoiser: Denoiser, batch: Batch, columns: Tensor) -> Tensor:
        """The logits [B, N, V] that decide."""
        return denoiser.score(batch, columns)

    def decode(self, denoiser: Denoiser, batch: Batch) -> Iterator[Step]:
        """Fill the batch; each sample follows a schedule of its own and stops when it has nothing left to fill."""
        mask_id = require_mdm(self, denoiser, batch)
        streams = [random_stream(seed) for seed in batch.seeds]
        ranks = self.ranks(streams)
        fillings = [self.filling(denoiser, batch, sample, stream) for sample, stream in enumerate(streams)]
        return denoise(batch, mask_id, fillings, partial(self.score, denoiser), self.mask_is_candidate, ranks)

    def ranks(self, streams: Sequence[torch.Generator]) -> Tensor | None:
        """int64 [B, A]: the place of each slot in the order that is asked for; None: by confidence."""
        if self.order == "confidence":
            return None
        if self.order == "random":
            return torch.stack([torch.randperm(self.length, generator=stream) for stream in streams])
        slots = {"left-to-right": range(self.length), "right-to-left": range(self.length)[::-1]}.get(self.order)
        return torch.tensor(list(slots or map(int, self.order.split(",")))).argsort().expand(len(streams), -1)
