"""What passes between a model and a sampler: Batch, Step, what each of them must have, and a sample's own randomness.

How slots are filled is left to the samplers; what a model is made of is left to `models`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import Field, dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from floatscope.errors import UserError


@dataclass(frozen=True, eq=False)
class Batch:
    """Canvases to fill, left padded to one width: the answer slots are the last `length` columns."""

    tokens: Tensor
    """int64 [B, T]: prompt, then answer slots (masked for an MDM, of any content for an ARM)."""
    pads: Tensor
    """int64 [B]: columns on the left of each row that are no part of its canvas."""
    length: int
    """Answer slots of each sample."""
    seeds: tuple[int, ...]
    """One per sample."""

    def __post_init__(self) -> None:
        size, width = self.tokens.shape
        if self.pads.shape != (size,) or len(self.seeds) != size:
            raise UserError(
                f"A batch of {size} samples came with {self.pads.numel()} pad counts and {len(self.seeds)}"
                " seeds: give one of each to every sample."
            )
        if size == 0 or int(self.pads.max()) + self.length >= width:
            raise UserError("A sample of the batch has no prompt: give each at least one prompt token.")

    @property
    def prompt_width(self) -> int:
        """Columns before the answer slots, pads included."""
        return self.tokens.shape[1] - self.length

    @property
    def prompt_lengths(self) -> list[int]:
        """Prompt tokens of each sample, pads excluded."""
        return (self.prompt_width - self.pads).tolist()


@dataclass(frozen=True, eq=False)
class Step:
    """What one forward pass led to. The tensors belong to the step: no later step changes them."""

    index: int
    """0-based; a sample is active from step 0 to its last, so this also counts the sample's own steps."""
    canvas: Tensor
    """int64 [B, T] after the commits of this step."""
    committed: Tensor
    """bool [B, length]: slots that became tokens at this step."""
    confidence: Tensor
    """float32 [B, length]: the sampler's confidence in each of them, nan elsewhere."""
    active: Tensor
    """bool [B]: samples that had something to fill when the forward ran; only those have this step."""


class Denoiser(Protocol):
    """A model as the samplers know it.

    Tokens, pads and positions come on the batch's device (`generate`: the CPU); logits may lie on any other.
    """

    @property
    def mask_id(self) -> int | None:
        """The mask token of an MDM, None for an ARM."""
        ...

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer."""
        ...

    @property
    def block(self) -> int | None:
        """Block size of a block_causal family, else None."""
        ...

    @property
    def context(self) -> int | None:
        """The longest canvas it was made for, if known."""
        ...

    def sampler(self) -> Sampler:
        """Its own way to fill slots."""
        ...

    def score(self, tokens: Tensor, pads: Tensor, positions: Tensor, conditional: bool = True) -> Tensor:
        """Logits [B, N, V] FOR the token at each of `positions` [B, N]: the logit shift is already applied.

        Positions are columns of `tokens` [B, T], pads included. All samples ask for N of them: one with fewer
        open slots repeats its first, one with none names its first answer slot; those extra rows are never
        read. `conditional` is False for the second pass of classifier-free guidance.
        """
        ...

    def extend(self, tokens: Tensor, pads: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """ARMs only: logits [B, V] for the next token and the new cache.

        With `cache` None `tokens` are the whole prompts, left padded; afterwards they are the one new column.
        """
        ...


class Sampler(ABC):
    """A way to fill the answer slots of a batch, as a generator of steps.

    A frozen dataclass: its fields are its settings, and the text under a field is what the help says of it.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    name: ClassVar[str]
    """What it is called in `SAMPLERS`, on the command line and in traces."""
    length: int
    """Answer slots; a field of every sampler."""
    seed: int = 0
    """Seed of every sample that is given none of its own; a field of samplers that leave something to chance."""

    @abstractmethod
    def decode(self, denoiser: Denoiser, batch: Batch) -> Iterator[Step]:
        """Fill the batch, one forward pass per step. The caller turns gradients off."""

    def step_bounds(self, prompt_length: int, family_block: int | None) -> tuple[int, int]:
        """The fewest and the most steps it takes to fill the slots after a prompt of so many tokens.

        As it stands: of a sampler that commits at least one slot at every step.
        """
        return 1, self.length


def random_stream(seed: int) -> torch.Generator:
    """The randomness of one sample: by its seed alone, whatever its place in a batch or the device."""
    return torch.Generator("cpu").manual_seed(seed)


def require_mdm(sampler: Sampler, denoiser: Denoiser, batch: Batch) -> int:
    """The mask token, if the model is an MDM and the batch is made for this sampler."""
    _require_length(sampler, batch)
    if denoiser.mask_id is None:
        raise UserError(
            f"{type(sampler).__name__} fills masked slots, but this model is autoregressive (it has no mask"
            " token): leave the sampler out to use the model's own."
        )
    return denoiser.mask_id


def require_arm(sampler: Sampler, denoiser: Denoiser, batch: Batch) -> None:
    """The model is an ARM and the batch is made for this sampler."""
    _require_length(sampler, batch)
    if denoiser.mask_id is not None:
        raise UserError(
            f"{type(sampler).__name__} writes one token after another, but this model denoises masks (mask"
            f" token {denoiser.mask_id}): leave the sampler out to use the model's own."
        )


def require_finite(logits: Tensor, index: int, sample: int) -> None:
    """Logits [n, V] have a likeliest token: a model that overflows must not commit arbitrary ones."""
    if not logits.amax(dim=-1).isfinite().all():
        raise UserError(
            f"The model gave logits that are not finite at step {index} for sample {sample}: load it in"
            " float32 or bfloat16, and check its weights."
        )


def _require_length(sampler: Sampler, batch: Batch) -> None:
    if batch.length != sampler.length:
        raise UserError(
            f"{type(sampler).__name__} has length={sampler.length}, but the batch has {batch.length} answer"
            " slots: make them equal."
        )
