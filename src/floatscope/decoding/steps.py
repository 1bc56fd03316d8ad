"""What passes between a model and a sampler: Batch, Step, what each of them must have, and a sample's own randomness.

How slots are filled is left to the samplers; what a model is made of is left to `models`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import Field, dataclass, replace
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from floatscope.canvas import COMMITTED, MASKED, Prompt
from floatscope.decoding.settings import check_settings
from floatscope.errors import UserError


@dataclass(frozen=True, eq=False)
class Batch:
    """Canvases of several samples at one moment of their run, left padded to one width."""

    tokens: Tensor
    """int64 [B, T]: prompt and answer slots, which may stand anywhere."""
    pads: Tensor
    """int64 [B]: columns on the left of each row that are no part of its canvas."""
    slots: Tensor
    """int64 [B, A]: columns of the answer slots, pads included, ascending."""
    state: Tensor
    """uint8 [B, A]: MASKED or COMMITTED; what a slot is, whatever token it holds."""
    seeds: tuple[int, ...]
    """One per sample."""
    active: Tensor | None = None
    """bool [B]: samples that still have something to do; None: those with a masked slot."""
    answers: Tensor | None = None
    """int64 [B, A]: the tokens that the slots take, whatever the model would choose (a replay); None: it chooses."""

    def __post_init__(self) -> None:
        size, width = self.tokens.shape
        if self.pads.shape != (size,) or len(self.seeds) != size:
            raise UserError(
                f"A batch of {size} samples came with {self.pads.numel()} pad counts and {len(self.seeds)}"
                " seeds: give one of each to every sample."
            )
        if self.slots.shape != self.state.shape or len(self.slots) != size:
            raise UserError(
                f"A batch of {size} samples came with slots {list(self.slots.shape)} and states"
                f" {list(self.state.shape)}: give both [samples, slots]."
            )
        if size == 0 or int((self.pads + self.slots.shape[1]).max()) >= width:
            raise UserError("A sample of the batch has no prompt: give each at least one prompt token.")

    @property
    def length(self) -> int:
        """Number of answer slots per sample."""
        return self.slots.shape[1]

    @property
    def slot_tokens(self) -> Tensor:
        """int64 [B, A]: the token that each slot holds."""
        return self.tokens.gather(1, self.slots)

    @property
    def positions(self) -> Tensor:
        """int64 [B, A]: the slots counted from each sample's own first token."""
        return self.slots - self.pads[:, None]

    def after(self, tokens: Tensor, state: Tensor) -> Batch:
        """The same canvases with other contents of their slots, both [B, A]."""
        return replace(self, tokens=self.tokens.scatter(1, self.slots, tokens), state=state)


@dataclass(frozen=True, eq=False)
class Step:
    """What one forward pass led to. The tensors belong to the step: no later step changes them."""

    index: int
    """0-based; a sample is active from step 0 to its last, so this also counts the sample's own steps."""
    given: Batch
    """The canvases as the forward saw them."""
    tokens: Tensor
    """int64 [B, A]: the token of each slot afterwards."""
    state: Tensor
    """uint8 [B, A]: its state afterwards."""
    confidence: Tensor
    """float32 [B, A]: the sampler's confidence in the slots that became tokens or changed, nan elsewhere."""
    active: Tensor
    """bool [B]: samples that had something to do when the forward ran; only those have this step."""
    kind: Literal["denoise", "prefill"] = "denoise"
    """Which pass it was: over the slots, or over a prompt that is only read."""

    @property
    def canvas(self) -> Tensor:
        """int64 [B, T] after this step."""
        return self.given.after(self.tokens, self.state).tokens

    @property
    def committed(self) -> Tensor:
        """bool [B, A]: masked slots that became tokens (the event `commit`)."""
        return (self.given.state == MASKED) & (self.state == COMMITTED)

    @property
    def revised(self) -> Tensor:
        """bool [B, A]: tokens that became other tokens (the event `revise`)."""
        kept = (self.given.state == COMMITTED) & (self.state == COMMITTED)
        return kept & (self.given.slot_tokens != self.tokens)

    @property
    def renoised(self) -> Tensor:
        """bool [B, A]: tokens that were withdrawn (the event `renoise`)."""
        return (self.given.state == COMMITTED) & (self.state == MASKED)


class Denoiser(Protocol):
    """A model as the samplers know it.

    Tokens, pads and positions come on the batch's device (`generate`: the CPU); logits may lie on any other.
    """

    @property
    def mask_id(self) -> int | None:
        """The token that a masked slot holds, if there is one."""
        ...

    @property
    def is_arm(self) -> bool:
        """Whether it writes one token after the other instead of filling slots."""
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

    def edited(self, canvases: Sequence[Prompt], edits: Sequence[Any], sampler: Sampler, batch: Batch) -> Denoiser:
        """The same model with its attention changed, for these canvases, which the batch was made of."""
        ...

    def score(self, batch: Batch, columns: Tensor, conditional: bool = True) -> Tensor:
        """Logits [B, N, V] FOR the token at each of `columns` [B, N]: the logit shift is already applied.

        Columns are those of `batch.tokens`, pads included. All samples ask for N of them: one with fewer open slots
        repeats its first, one with none names its first answer slot; those extra rows are never read. `conditional` is
        False for the second pass of classifier-free guidance.
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

    def __post_init__(self) -> None:
        check_settings(self)

    @abstractmethod
    def decode(self, denoiser: Denoiser, batch: Batch) -> Iterator[Step]:
        """Fill the batch, one forward pass per step, until nothing is left to do. The caller turns gradients off."""

    def fitted(self, denoiser: Denoiser, first_slot: int) -> Sampler:
        """The same for a prompt that ends before this position: one that fills whole blocks has more slots."""
        return self

    def step_bounds(self, first_slot: int, family_block: int | None) -> tuple[int, int]:
        """The fewest and the most steps it takes to fill slots of which the first stands at this position.

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
        why = "is autoregressive" if denoiser.is_arm else "has no mask token"
        raise UserError(
            f"{type(sampler).__name__} fills masked slots, but this model {why}: leave the sampler out to use the"
            " model's own."
        )
    if denoiser.block is not None:
        require_at_end(batch, f"This model is block-causal (blocks of {denoiser.block}) and sees no text after a block")
    return denoiser.mask_id


def require_arm(sampler: Sampler, denoiser: Denoiser, batch: Batch) -> None:
    """The model is an ARM and the batch is made for this sampler."""
    _require_length(sampler, batch)
    if not denoiser.is_arm:
        raise UserError(
            f"{type(sampler).__name__} writes one token after another, but this model denoises masks (mask"
            f" token {denoiser.mask_id}): leave the sampler out to use the model's own."
        )
    require_at_end(batch, f"{type(sampler).__name__} writes its answer after the prompt")


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


def require_at_end(batch: Batch, why: str) -> None:
    """No text follows the slots, for the reason given."""
    at_end = torch.arange(batch.tokens.shape[1] - batch.length, batch.tokens.shape[1], device=batch.slots.device)
    if not bool((batch.slots == at_end).all()):
        raise UserError(
            f"{why}, but a canvas of the batch has its slots elsewhere: put them at the end, or use a model that"
            " denoises and sees in both directions."
        )
