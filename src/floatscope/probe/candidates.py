"""What the logits say of every open slot at every step: the likeliest tokens, how sure, and how far it moved.

Kept by name in a trace; it listens to a model's readings and knows nothing of attention.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.canvas import MASKED

CANDIDATES = 5
NAMES = ("candidate_tokens", "candidate_probability", "candidate_margin", "candidate_entropy", "candidate_kl")
Scores = tuple[Tensor, Tensor]
"""Columns [B, N] of open slots, and the log-probabilities of their tokens [B, N, V]."""


class CandidateRecorder:
    """`hear` every reading of a run, `keep` after every step; `finish` gives the arrays of each sample."""

    def __init__(self, samples: int, names: frozenset[str]) -> None:
        self.names = [name for name in NAMES if name in names]
        self._held: list[list[dict[str, NDArray[Any]]]] = [[] for _ in range(samples)]
        self._now: Scores | None = None
        self._before: Scores | None = None

    def hear(self, reading: Any) -> None:
        """The logits of a pass; of several passes in a step the last counts."""
        self._now = reading.columns.cpu(), torch.log_softmax(reading.logits, -1)

    def keep(self, step: Any) -> None:
        """The numbers of the slots that were open in this step, for the samples that had it."""
        heard = self._now is not None  # a pass that only reads a prompt scores no slot
        columns, scores = self._now or (
            torch.full((len(self._held), 1), -1),
            torch.zeros(len(self._held), 1, CANDIDATES),
        )
        for sample in step.active.nonzero()[:, 0].tolist():
            slots, state = step.given.slots[sample].cpu(), step.given.state[sample].cpu()
            same = (columns[sample][None] == slots[:, None]) & (state == MASKED)[:, None]  # [A, N]
            which = same.any(1).nonzero()[:, 0]
            own = scores[sample, same[which].int().argmax(1).to(scores.device)]  # [n, V]
            found = self._numbers(own)
            if "candidate_kl" in self.names:
                found["candidate_kl"] = self._moved(sample, slots[which], own)
            self._held[sample].append({name: _by_slot(found[name], which, len(slots)) for name in self.names})
        self._before, self._now = self._now if heard else self._before, None

    def finish(self, sample: int, slots: int) -> dict[str, NDArray[Any]]:
        """[step, answer, ...] of a sample, of its first `slots` slots."""
        held = self._held[sample]
        return {name: np.stack([one[name][:slots] for one in held]) for name in self.names}

    def _numbers(self, scores: Tensor) -> dict[str, Tensor]:
        top = scores.topk(min(CANDIDATES, scores.shape[-1]), -1)
        sure = top.values.exp()  # [n, k], the likeliest first
        return {
            "candidate_tokens": top.indices.int(),
            "candidate_probability": sure,
            "candidate_margin": sure[:, 0] - sure[:, 1],
            "candidate_entropy": torch.special.entr(scores.exp()).sum(-1),
        }

    def _moved(self, sample: int, slots: Tensor, scores: Tensor) -> Tensor:
        """KL(now || before) in nats; -1 for a slot that the step before did not score."""
        moved = torch.full((len(slots),), -1.0)
        if self._before is None or not len(slots):
            return moved
        columns, before = self._before
        same = columns[sample][None] == slots[:, None]
        known = same.any(1)
        old = before[sample, same[known].int().argmax(1).to(before.device)]
        new = scores[known.to(scores.device)]
        apart = torch.where(new > -torch.inf, new.exp() * (new - old), 0.0).sum(-1)  # what cannot be adds nothing
        moved[known] = apart.clamp(min=0).cpu()  # rounding can make it a little less
        return moved


def _by_slot(values: Tensor, which: Tensor, slots: int) -> NDArray[Any]:
    """The numbers of some slots in their places, -1 for those that are not open."""
    whole = values.new_full((slots, *values.shape[1:]), -1)
    whole[which] = values
    return whole.cpu().numpy()
