"""The sampler of models without masks: canvases of random tokens, of which the surest are accepted at each step.

The model itself knows how its canvases are denoised (`Denoiser.canvases`); here its passes become steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from floatscope.canvas import COMMITTED, MASKED
from floatscope.decoding.settings import Count, NotNegative
from floatscope.decoding.steps import Batch, Sampler, Step, require_at_end
from floatscope.errors import UserError


@dataclass(frozen=True)
class EntropyBoundSampler(Sampler):
    """Denoise canvas after canvas as transformers does: at each step the surest tokens are accepted, as many as keep
    their joint entropy in bounds, and all others become random again. The last step takes the likeliest token
    everywhere. What is None is the checkpoint's own.
    """

    name: ClassVar[str] = "entropy_bound"

    steps: Count | None = None
    """Denoising steps of a canvas at most."""
    length: Count = 256
    """Answer slots, filled up to whole canvases."""
    entropy_bound: Annotated[float, "(0, inf)"] | None = None
    """Entropy in nats that the tokens accepted at a step may share."""
    t_min: NotNegative | None = None
    """Temperature at the last step."""
    t_max: NotNegative | None = None
    """Temperature at the first step."""
    stability_threshold: Annotated[int, "[0, inf)"] | None = None
    """A canvas is done when its likeliest tokens stayed the same for so many steps ..."""
    confidence_threshold: Annotated[float, "(0, inf)"] | None = None
    """... and its mean entropy is below this."""
    seed: int = 0
    """Seed of every sample that is given none of its own."""
    canvas: Count | None = None
    """Slots of a canvas; no other than the model's own is accepted."""

    def fitted(self, denoiser: Any, first_slot: int) -> EntropyBoundSampler:
        """Whole canvases, and the settings that the checkpoint states."""
        width = denoiser.canvas
        if width is None or self.canvas not in (None, width):
            has = "none" if width is None else f"canvases of {width} slots"
            raise UserError(
                f"{type(self).__name__} denoises canvases, and this model has {has}: leave the sampler out to use the "
                "model's own, and the canvas too."
            )
        own = denoiser.canvas_settings(asdict(self))
        return replace(self, **own | {"canvas": width, "length": -(-self.length // width) * width})

    def step_bounds(self, first_slot: int, family_block: int | None) -> tuple[int, int]:
        """A canvas has a step that reads what is before it, and at least one of denoising; an eos ends all."""
        return 2, self.length // (self.canvas or self.length) * (1 + (self.steps or 1))

    def decode(self, denoiser: Any, batch: Batch) -> Iterator[Step]:
        """The samples one by one, each with randomness of its own; steps of the others pass it by."""
        if batch.answers is not None:
            raise UserError("A model that denoises canvases takes no given tokens: generate or trace instead.")
        require_at_end(batch, "This model denoises canvases after the prompt")
        if self.canvas is None:  # not fitted, since the prompt has slots of another number
            raise UserError(
                f"This model denoises whole canvases of {denoiser.canvas} slots, and a prompt has {batch.length}: give"
                " it a multiple, or no slots."
            )
        for sample, seed in enumerate(batch.seeds):
            for step in self._one(denoiser, batch, sample, seed):
                yield step
                batch = step.given.after(step.tokens, step.state)

    def _one(self, denoiser: Any, batch: Batch, sample: int, seed: int) -> Iterator[Step]:
        pad, first = int(batch.pads[sample]), int(batch.slots[sample, 0])
        run = denoiser.canvases(asdict(self), batch.tokens[sample, pad:first], seed)
        batch = replace(batch, active=torch.arange(len(batch.seeds)) == sample)
        index = 0

        def watched(rows: range, keys: range, open_rows: bool) -> Any:
            return denoiser.watching(batch, sample, rows, keys, open_rows)

        for start in range(0, self.length, run.width):
            own = slice(start, start + run.width)
            run.read(watched)
            step = _step(index, batch, sample, own, run.canvas[0], torch.zeros(run.width, dtype=torch.bool), "prefill")
            yield step
            for left in range(self.steps or 1, 0, -1):
                index += 1
                batch = step.given.after(step.tokens, step.state)
                canvas, accepted = run.denoise(left, watched)
                step = _step(index, batch, sample, own, canvas, accepted, logits=run.logits[0])
                yield step
                if not run.is_open:
                    break
            index += 1
            batch = step.given.after(step.tokens, step.state)
            if bool(run.finished):
                return


def _step(
    index: int, batch: Batch, sample: int, own: slice, canvas: Tensor, accepted: Tensor, kind: Any = "denoise",
    logits: Tensor | None = None,
) -> Step:  # fmt: skip
    """What a pass over one sample led to: its canvas [C], and which of its slots are accepted."""
    tokens, state = batch.slot_tokens, batch.state.clone()
    confidence = torch.full(state.shape, torch.nan)
    tokens[sample, own] = canvas.cpu()
    state[sample, own] = torch.where(accepted.cpu(), COMMITTED, MASKED).to(state.dtype)
    if logits is not None:
        chance = logits.float().softmax(-1).gather(-1, canvas[:, None])[:, 0].cpu()
        confidence[sample, own] = torch.where(accepted.cpu(), chance, torch.nan)
    assert batch.active is not None
    return Step(index, batch, tokens, state, confidence, batch.active, kind)
