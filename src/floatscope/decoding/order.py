"""The samplers of models with masks: what all of them can be told about which slots commit first, and their loop.

How tokens are chosen, and how many commit at a step, is left to each of them.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from floatscope.decoding.denoising import Filling, denoise
from floatscope.decoding.settings import Count
from floatscope.decoding.steps import Batch, Denoiser, Sampler, Step, random_stream, require_mdm
from floatscope.errors import UserError

ORDERS = ("confidence", "left-to-right", "right-to-left", "random")


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
