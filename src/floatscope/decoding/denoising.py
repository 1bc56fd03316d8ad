"""The loop all samplers of masked models share: one forward for the batch, then each sample commits alone.

A sampler gives one `Filling` per sample, its algorithm unbatched; nothing here knows how that chooses. Since
every choice is made on the logits and randomness of one sample, a batch gives each sample what it gets alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

import torch
from torch import Tensor

from floatscope.canvas import COMMITTED, MASKED
from floatscope.decoding.choosing import first_slots, given_tokens, probability_of
from floatscope.decoding.steps import Batch, Step, require_finite


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
