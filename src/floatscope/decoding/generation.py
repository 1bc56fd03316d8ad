"""Generate: prompts become a batch, a sampler fills it, each sample comes back as a Generation.

What attention did meanwhile is left to whoever listens to the steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from floatscope.decoding.settings import require_seed
from floatscope.decoding.steps import Batch, Denoiser, Sampler, Step
from floatscope.errors import UserError

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Generation:
    """One sample, filled: its own canvas without pads. An ARM's canvas ends with its eos, which is kept."""

    canvas: Ids
    """[T]: prompt, then answer."""
    prompt_length: int
    """Tokens of the prompt."""
    commit_step: Ids
    """[A]: the step at which each answer slot became a token."""
    confidence: NDArray[np.float32]
    """[A]: the sampler's confidence in it at that step."""
    steps: int
    """Forward passes of this sample, those without commits included."""

    @property
    def answer(self) -> Ids:
        """The tokens after the prompt."""
        return self.canvas[self.prompt_length :]


def generate(
    denoiser: Denoiser,
    prompt_ids: Any,
    sampler: Sampler,
    seeds: Sequence[int] | None = None,
    on_step: Callable[[Step], object] | None = None,
) -> Generation | list[Generation]:
    """Fill the answer slots after each prompt.

    `prompt_ids`: token ids as lists, numpy or torch. One prompt, [T] or an array [1, T], gives one
    Generation; a list of prompts or an array [B, T] gives a list in order, each sample as it would be alone.
    `seeds`: one a sample; without them all have the sampler's, so that a sample's place does not matter.
    `on_step` sees each Step as it is made. Mask tokens inside a prompt are context: only slots are filled.
    """
    prompts, single = read_prompts(prompt_ids)
    batch = make_batch(denoiser, prompts, sampler, seeds)
    commit_step = torch.full((len(prompts), batch.length), -1)
    confidence = torch.full(commit_step.shape, torch.nan)
    steps = torch.zeros(len(prompts), dtype=torch.int64)
    canvas = batch.tokens
    with torch.no_grad():
        for step in sampler.decode(denoiser, batch):
            canvas = step.canvas
            commit_step[step.committed] = step.index
            confidence[step.committed] = step.confidence[step.committed]
            steps += step.active
            if on_step is not None:
                on_step(step)
    generations = []
    for sample, prompt in enumerate(prompts):
        filled = commit_step[sample] >= 0  # all slots of an MDM; those up to the eos of an ARM
        answer = canvas[sample, batch.prompt_width :][filled]
        generations.append(
            Generation(
                canvas=np.concatenate([prompt, answer.numpy()]),
                prompt_length=len(prompt),
                commit_step=commit_step[sample][filled].numpy(),
                confidence=confidence[sample][filled].numpy(),
                steps=int(steps[sample]),
            )
        )
    return generations[0] if single else generations


def read_prompts(prompt_ids: Any) -> tuple[list[Ids], bool]:
    """Prompts as int64 arrays [T], and whether there was one only: [T] or an array [1, T]."""
    if isinstance(prompt_ids, np.ndarray | torch.Tensor):
        single = prompt_ids.ndim < 2 or prompt_ids.shape[0] == 1
        rows = list(prompt_ids) if prompt_ids.ndim == 2 else [prompt_ids]
    elif isinstance(prompt_ids, list | tuple):
        single = not any(isinstance(entry, list | tuple | np.ndarray | torch.Tensor) for entry in prompt_ids)
        rows = [prompt_ids] if single else list(prompt_ids)
    else:
        raise UserError(
            "A prompt must be token ids (a list, numpy array or torch tensor), got"
            f" {type(prompt_ids).__name__}: tokenize text first, and pass the input_ids alone."
        )
    if not rows:
        raise UserError("There are no prompts in an array without rows: give at least one.")
    return [_read_prompt(row, number) for number, row in enumerate(rows)], single


def _read_prompt(ids: Any, number: int) -> Ids:
    try:
        array = ids.detach().cpu().numpy() if isinstance(ids, torch.Tensor) else np.asarray(ids)
    except ValueError as error:  # a ragged list
        raise UserError(f"Prompt {number} is not one sequence of token ids: give each prompt its own list.") from error
    if array.ndim == 2 and array.shape[0] == 1:
        array = array[0]
    if array.size == 0:
        raise UserError(f"Prompt {number} is empty: give at least one token, such as the bos token.")
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.min() < 0:
        raise UserError(
            f"Prompt {number} must be one sequence of token ids, whole numbers from 0 up, got"
            f" {array.dtype} of shape {list(array.shape)}: tokenize text first."
        )
    return array.astype(np.int64)


def make_batch(
    denoiser: Denoiser, prompts: Sequence[Ids], sampler: Sampler, seeds: Sequence[int] | None = None
) -> Batch:
    """Left pad the prompts with 0 to one width and add the answer slots: masks, or 0 for an ARM."""
    _require_room(denoiser, prompts, sampler.length)
    if seeds is None:
        seeds = [getattr(sampler, "seed", 0)] * len(prompts)  # a sampler without chance has no seed
    elif not isinstance(seeds, Sequence | np.ndarray) or isinstance(seeds, str) or len(seeds) != len(prompts):
        raise UserError(f"seeds={seeds!r} must be a list of {len(prompts)} whole numbers, one a prompt.")
    seeds = [seed.item() if isinstance(seed, np.integer) else seed for seed in seeds]
    for seed in seeds:
        require_seed("generate", seed)
    width = max(len(prompt) for prompt in prompts)
    blank = 0 if denoiser.mask_id is None else denoiser.mask_id
    tokens = torch.full((len(prompts), width + sampler.length), blank)
    pads = torch.tensor([width - len(prompt) for prompt in prompts])
    for row, pad, prompt in zip(tokens, pads.tolist(), prompts, strict=True):
        row[:pad] = 0
        row[pad:width] = torch.from_numpy(prompt)
    return Batch(tokens, pads, sampler.length, tuple(seeds))


def _require_room(denoiser: Denoiser, prompts: Sequence[Ids], length: int) -> None:
    """Every prompt and its answer fit the model's context, whatever the others of the batch need."""
    longest = max(len(prompt) for prompt in prompts)
    if denoiser.context is not None and longest + length > denoiser.context:
        raise UserError(
            f"A prompt of {longest} tokens and {length} answer slots do not fit the model's context of"
            f" {denoiser.context} tokens: shorten the prompt or ask for fewer slots."
        )
