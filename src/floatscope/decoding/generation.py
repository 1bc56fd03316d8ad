"""Generate: prompts become a batch, a sampler fills it, each sample comes back as a Generation.

What attention did meanwhile is left to whoever listens to the steps.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.canvas import MASKED, Ids, Prompt
from floatscope.decoding.settings import require_seed
from floatscope.decoding.steps import Batch, Denoiser, Sampler, Step
from floatscope.errors import UserError
from floatscope.registry import ELSEWHERE, load_object

P = ParamSpec("P")
D = TypeVar("D", contravariant=True)
R = TypeVar("R")
AnyPrompt = Prompt | str | Sequence[int] | NDArray[Any] | Tensor
"""A Prompt, a text as it stands, or token ids: a list, or an array [T] or [1, T]."""


@dataclass(frozen=True, eq=False)
class Generation:
    """One sample, filled: its own canvas without pads. An ARM's canvas ends with its eos, which is kept."""

    canvas: Ids
    """[T]: prompt and answer."""
    slots: Ids
    """[A]: where the answer stands on it."""
    commit_step: Ids
    """[A]: the last step at which each answer slot became a token."""
    confidence: NDArray[np.float32]
    """[A]: the sampler's confidence in it at that step."""
    tokens: Ids
    """[step, A]: the token of each slot as the forward of the step saw it."""
    state: NDArray[np.uint8]
    """[step, A]: its state there, MASKED or COMMITTED."""

    @property
    def steps(self) -> int:
        """Forward passes of this sample, those without commits included."""
        return len(self.tokens)

    @property
    def answer(self) -> Ids:
        """The tokens of the slots."""
        return self.canvas[self.slots]


class OneOrMany(Protocol[D, P, R]):
    """A function of prompts: one Prompt, a text or token ids give one result; a list of them gives a list in order.

    `model` may be its name, as `fs.load` takes it: it is loaded for this call.
    """

    @overload
    def __call__(self, model: D | str, prompts: AnyPrompt, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(self, model: D | str, prompts: Sequence[AnyPrompt], *args: P.args, **kwargs: P.kwargs) -> list[R]: ...


def one_or_many(run: Callable[Concatenate[D, list[Prompt], P], list[R]]) -> OneOrMany[D, P, R]:
    """Let a function of a list of prompts take one prompt too, texts and token ids for them, and a model's name."""

    @wraps(run)
    def call(model: D | str, prompts: Any, *args: P.args, **kwargs: P.kwargs) -> R | list[R]:
        loaded: Any = load_object(ELSEWHERE["load"])(model) if isinstance(model, str) else model
        read, single = read_prompts(prompts, loaded)
        results = run(loaded, read, *args, **kwargs)
        return results[0] if single else results

    return cast(OneOrMany[D, P, R], call)


@one_or_many
def generate(
    denoiser: Denoiser,
    prompts: list[Prompt],
    sampler: Sampler | None = None,
    seeds: Sequence[int] | None = None,
    on_step: Callable[[Step], object] | None = None,
    replay: bool = False,
    edits: Sequence[Any] = (),
) -> list[Generation]:
    """Fill the answer slots of each prompt, which follow it or stand where it says.

    `denoiser`: a loaded model, or its name.
    `prompts`: one Prompt, a text as it stands, or token ids (a list, or an array [T] or [1, T]), gives one Generation;
    a list of them gives a list in order, each sample as it would be alone.
    `sampler`: default: the model's own.
    `seeds`: one per sample; without them all have the sampler's, so that a sample's place does not matter.
    `on_step` sees each Step as it is made. Mask tokens inside a prompt are context: only slots are filled.
    `replay`: the slots take the answers of the prompts, and the confidence in a token is its probability.
    `edits`: changes of attention meanwhile, a list of `fs.Edit` for all prompts, or a list of such lists.
    """
    sampler = sampler_for(denoiser, sampler)
    apart = in_parts(
        generate, denoiser, prompts, sampler, {"seeds": seeds, "edits": edits}, on_step=on_step, replay=replay
    )
    if apart is not None:
        return apart
    sampler = fitted(denoiser, prompts[0], sampler) if prompts else sampler
    batch = make_batch(denoiser, prompts, sampler, seeds, replay)
    if edits:
        canvases = [prompt.with_slots(sampler.length) for prompt in prompts]
        denoiser = denoiser.edited(canvases, edits, sampler, batch)
    return fill(denoiser, batch, sampler, on_step)


def sampler_for(denoiser: Any, sampler: Any) -> Sampler:
    """The sampler that was given, or the model's own; a name in its place is refused."""
    if isinstance(sampler, str):
        raise UserError(f"{sampler!r} is the name of a sampler, not a sampler: give model.sampler(name={sampler!r}).")
    return denoiser.sampler() if sampler is None else sampler


def fitted(denoiser: Denoiser, prompt: Prompt, sampler: Sampler) -> Sampler:
    """The sampler with as many slots as the canvas of the prompt has; slots that a prompt has already stay as many."""
    if prompt.slots is None:
        return sampler.fitted(denoiser, len(prompt.ids))
    whole = sampler.fitted(denoiser, int(prompt.slots[0]))
    return whole if whole.length == len(prompt.slots) else sampler


def in_parts(
    run: Any, denoiser: Denoiser, prompts: list[Prompt], sampler: Sampler, listed: Mapping[str, Any], **same: Any
) -> list[Any] | None:
    """What `run` gives, where canvases have other numbers of slots and so run apart; None where all have as many.

    listed: options that have an entry per prompt, if they are lists of such.
    """
    parts: dict[int, list[int]] = {}
    for place, prompt in enumerate(prompts):
        parts.setdefault(fitted(denoiser, prompt, sampler).length, []).append(place)
    if len(parts) < 2:
        return None
    kinds = int | np.integer | Mapping | list | tuple  # of a seed, a table of metadata, a list of edits
    found: dict[int, Any] = {}
    for places in parts.values():
        own = dict(listed)
        for name, values in listed.items():
            many = isinstance(values, list | tuple | np.ndarray) and len(values) == len(prompts)
            if many and isinstance(values[0], kinds):
                own[name] = [values[place] for place in places]
        found |= zip(places, run(denoiser, [prompts[place] for place in places], sampler, **own, **same), strict=True)
    return [found[place] for place in range(len(prompts))]


def fill(
    denoiser: Denoiser, batch: Batch, sampler: Sampler, on_step: Callable[[Step], object] | None = None
) -> list[Generation]:
    """Run the sampler over a batch that was made for it."""
    commit_step = torch.full((len(batch.seeds), batch.length), -1)
    confidence = torch.full(commit_step.shape, torch.nan)
    given: list[tuple[Tensor, Tensor, list[bool]]] = []
    with torch.no_grad():
        for step in sampler.decode(denoiser, batch):
            batch = step.given.after(step.tokens, step.state)
            commit_step[step.committed] = step.index
            confidence[step.committed] = step.confidence[step.committed]
            given.append((step.given.slot_tokens, step.given.state, step.active.tolist()))
            if on_step is not None:
                on_step(step)
    generations = []
    for sample, pad in enumerate(batch.pads.tolist()):
        filled = commit_step[sample] >= 0  # all slots of an MDM; those up to the eos of an ARM
        kept = torch.ones_like(batch.tokens[sample], dtype=torch.bool).scatter(0, batch.slots[sample], filled)
        generations.append(
            Generation(
                canvas=batch.tokens[sample, kept][pad:].numpy(),
                slots=batch.positions[sample, filled].numpy(),
                commit_step=commit_step[sample][filled].numpy(),
                confidence=confidence[sample][filled].numpy(),
                tokens=torch.stack([tokens[sample, filled] for tokens, _, active in given if active[sample]]).numpy(),
                state=torch.stack([state[sample, filled] for _, state, active in given if active[sample]]).numpy(),
            )
        )
    return generations


def read_prompts(prompts: Any, model: Any = None) -> tuple[list[Prompt], bool]:
    """Prompts as such, and whether one was given rather than a list; the model knows its bos, and reads texts."""
    kinds = (Prompt, str, list, tuple, np.ndarray, Tensor)
    bos_id = getattr(getattr(model, "config", None), "bos_token_id", None)
    listed = isinstance(prompts, list | tuple) and any(isinstance(entry, kinds) for entry in prompts)
    read = []
    for number, given in enumerate(prompts if listed else [prompts]):
        if not isinstance(given, kinds):
            raise UserError(
                "A prompt must be a Prompt, a text, or token ids (a list, numpy array or torch tensor), got"
                f" {type(given).__name__}: of what a tokenizer gives, pass the input_ids alone."
            )
        if isinstance(given, np.ndarray | Tensor) and given.ndim == 2 and len(given) > 1:
            raise UserError(f"An array of {len(given)} prompts is no list of them: give list(array).")
        try:
            if isinstance(given, str):
                given = load_object(ELSEWHERE["prompt"])(model, given)
            read.append(given if isinstance(given, Prompt) else Prompt.bare(given, bos_id))
        except UserError as error:
            raise UserError(f"Prompt {number}: {error}.") from error
    return read, not listed


def make_batch(
    denoiser: Denoiser,
    prompts: Sequence[Prompt],
    sampler: Sampler,
    seeds: Sequence[int] | None = None,
    replay: bool = False,
) -> Batch:
    """The canvases of the prompts, left padded with 0 to one width; slots hold the mask token, or 0 without one."""
    width = max(len(prompt.ids) + (sampler.length if prompt.slots is None else 0) for prompt in prompts)
    if denoiser.context is not None and width > denoiser.context:
        raise UserError(
            f"A prompt of {width - sampler.length} tokens and {sampler.length} answer slots do not fit the model's"
            f" context of {denoiser.context} tokens: shorten the prompt or ask for fewer slots."
        )
    if seeds is None:
        seeds = [sampler.seed] * len(prompts)
    elif not isinstance(seeds, Sequence | np.ndarray) or isinstance(seeds, str) or len(seeds) != len(prompts):
        raise UserError(f"seeds={seeds!r} must be a list of {len(prompts)} whole numbers, one per prompt.")
    seeds = [seed.item() if isinstance(seed, np.integer) else seed for seed in seeds]
    for seed in seeds:
        require_seed("generate", seed)
    canvases = [prompt.with_slots(sampler.length) for prompt in prompts]
    answers = [torch.as_tensor(canvas.answer) for canvas in canvases if replay and canvas.answer is not None]
    if replay and len(answers) < len(canvases):
        raise UserError("A prompt to be replayed has no answer: give tokens, or a text as the slots of build_canvas.")
    if any(denoiser.mask_id in answer.tolist() for answer in answers):
        raise UserError(f"An answer to be replayed holds the mask token {denoiser.mask_id}, which no text has.")
    tokens = torch.zeros(len(canvases), width, dtype=torch.int64)
    pads = torch.tensor([width - len(canvas.ids) for canvas in canvases])
    slots = torch.stack([torch.as_tensor(canvas.slots) for canvas in canvases]) + pads[:, None]
    for row, canvas in zip(tokens, canvases, strict=True):
        row[width - len(canvas.ids) :] = torch.from_numpy(canvas.ids)
    blank = 0 if denoiser.mask_id is None else denoiser.mask_id
    tokens.scatter_(1, slots, blank)
    state = torch.full(slots.shape, MASKED, dtype=torch.uint8)
    return Batch(tokens, pads, slots, state, tuple(seeds), answers=torch.stack(answers) if replay else None)
