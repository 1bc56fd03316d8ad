"""`trace`: run a sampler with the probe in the model, and give one Trace a sample.

Joins models, decoding, probe and traces; each of them knows nothing of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.canvas import ANSWER, BOS, QUERY, Region, with_answer
from floatscope.decoding import AnySampler, Generation, Step, generate, make_batch, read_prompts
from floatscope.errors import UserError
from floatscope.models.model import Model
from floatscope.probe.attention import Geometry, Probe, probing
from floatscope.probe.kernel import LayerStatistics, Workspace
from floatscope.probe.layout import Layout
from floatscope.probe.recording import Arrays, CausalRecorder, DenoisingRecorder, Plan
from floatscope.qa.prompts import Prompt
from floatscope.traces.storage import plain_metadata
from floatscope.traces.trace import Keep, Trace, group_labels


def trace(
    model: Model,
    prompts: Any,
    sampler: AnySampler,
    *,
    seeds: Sequence[int] | None = None,
    keep: Keep = "compact",
    matrix_steps: Sequence[int] | None = None,
    matrix_layers: Sequence[int] | None = None,
    metadata: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    on_step: Callable[[Step], object] | None = None,
    on_received: Callable[[Step, list[NDArray[np.float32]]], object] | None = None,
) -> Trace | list[Trace]:
    """Denoise (or, for an ARM, generate) and capture attention at every step.

    prompts: a Prompt with regions, token ids [T] or [1, T]: one Trace; a list of them or ids [B, T]: a list in order.
    seeds: one a sample; default: the sampler's seed for each.
    keep: "compact", "groups" (attention by row group at token resolution), "heads" (every head), or "matrices"
    (full matrices of `matrix_steps` and `matrix_layers`, all by default: for small canvases; an ARM has those of its
    last step, whose first rows are the rows of the steps before).
    metadata: what the caller knows of the sample (`sample`, `task`, `condition`, ...), one for all or one a sample:
    texts, numbers, lists and tables.
    on_step: sees every Step as it is made.
    on_received: sees every Step of an MDM with the attention received at it, an array [layer, token] a sample (of its
    last step, for one that has ended); an ARM's attention is known after its last step only.
    """
    if keep not in get_args(Keep):
        raise UserError(f"keep={keep!r} should be one of {', '.join(get_args(Keep))}")
    wanted, single = _read(model, prompts)
    ids = [prompt.ids for prompt in wanted]
    known = _metadata(metadata, len(ids))
    used = make_batch(model, ids, sampler, seeds).seeds  # refuses what does not fit before anything is run
    bounds = [sampler.step_bounds(len(one), model.block) for one in ids]
    _check_matrices(keep, "matrix_steps", matrix_steps, max(most for _, most in bounds))
    _check_matrices(keep, "matrix_layers", matrix_layers, model.layers)
    if model.family.is_arm:
        generations = cast(list[Generation], generate(model, ids, sampler, seeds, on_step))
        records = _trace_arm(model, generations, wanted, keep, matrix_layers)
    else:
        plans = [_plan(prompt, sampler.length, keep, matrix_steps, matrix_layers) for prompt in wanted]
        tap = DenoisingTap(model, plans, bounds)

        def listen(step: Step) -> None:
            tap.commit(step)
            if on_step is not None:
                on_step(step)
            if on_received is not None:
                on_received(step, [recorder.latest("received") for recorder in tap.recorders])

        generations = cast(list[Generation], generate(tap, ids, sampler, seeds, listen))
        records = [recorder.finish() for recorder in tap.recorders]
    traces = [
        _trace(model, sampler, *parts, keep=keep)
        for parts in zip(wanted, generations, records, used, known, strict=True)
    ]
    return traces[0] if single else traces


class DenoisingTap:
    """A model as the samplers know it, with the probe in every conditional pass."""

    def __init__(self, model: Model, plans: Sequence[Plan], bounds: Sequence[tuple[int, int]]) -> None:
        """`bounds`: the fewest and the most steps of each sample."""
        self.model = model
        self.mask_id, self.eos_ids = model.mask_id, model.eos_ids
        self.block, self.context = model.block, model.context
        self.recorders = [
            DenoisingRecorder(plan, model.layers, most, fewest)
            for plan, (fewest, most) in zip(plans, bounds, strict=True)
        ]
        self._workspace = Workspace()
        self._pads: list[int] = []

    def score(self, tokens: Tensor, pads: Tensor, positions: Tensor, conditional: bool = True) -> Tensor:
        """Logits as the model gives them; the conditional pass is counted."""
        if not conditional:
            return self.model.score(tokens, pads, positions, conditional)
        rows = self.model.rows(positions, pads)
        self._pads = pads.tolist()
        layouts: list[Layout | None] = []
        for recorder, canvas, own, pad in zip(self.recorders, tokens, rows, self._pads, strict=True):
            masked = canvas[-recorder.plan.answer :] == self.mask_id
            layouts.append(recorder.start(masked, (own - pad).unique()) if bool(masked.any()) else None)

        def listen(layer: int, sample: int, statistics: LayerStatistics, geometry: Geometry) -> None:
            self.recorders[sample].layer(layer, statistics, geometry)

        with probing(Probe(self._pads, layouts, listen, self._workspace)):
            return self.model.score(tokens, pads, positions)

    def extend(self, tokens: Tensor, pads: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """An MDM is not extended; the samplers say so before they ask."""
        return self.model.extend(tokens, pads, cache)

    def commit(self, step: Step) -> None:
        """After a step: keep the rows whose slots became tokens."""
        start = step.canvas.shape[1] - step.committed.shape[1]
        pads = torch.tensor(self._pads)
        for sample, recorder in enumerate(self.recorders):
            slots = step.committed[sample].nonzero()[:, 0]
            if len(slots):
                rows = self.model.rows(slots[None] + start, pads[sample, None])[0] - self._pads[sample]
                recorder.commit(slots.numpy(), rows.numpy())


def _trace_arm(
    model: Model,
    generations: Sequence[Generation],
    prompts: Sequence[Prompt],
    keep: str,
    matrix_layers: Sequence[int] | None,
) -> list[tuple[Arrays, tuple[int, ...]]]:
    """One forward over prompt + answer[:-1] of each sample: causal rows never change."""
    recorders = [
        CausalRecorder(_plan(prompt, len(generation.answer), keep, None, matrix_layers), model.layers)
        for prompt, generation in zip(prompts, generations, strict=True)
    ]
    width = max(len(generation.canvas) for generation in generations) - 1
    pads = [width - len(generation.canvas) + 1 for generation in generations]
    tokens = torch.zeros(len(generations), width, dtype=torch.long)
    for row, pad, generation in zip(tokens, pads, generations, strict=True):
        row[pad:] = torch.from_numpy(generation.canvas[:-1])

    def listen(layer: int, sample: int, statistics: LayerStatistics, geometry: Geometry) -> None:
        recorders[sample].layer(layer, statistics, geometry)

    last = torch.full((len(tokens), 1), width - 1)
    with torch.inference_mode(), probing(Probe(pads, [recorder.layout() for recorder in recorders], listen)):
        model.forward(tokens, torch.tensor(pads), last)
    return [recorder.finish() for recorder in recorders]


def _read(model: Model, prompts: Any) -> tuple[list[Prompt], bool]:
    """Prompts with regions; bare ids become bos and query."""
    if isinstance(prompts, Prompt):
        return [_checked(prompts, 0)], True
    if isinstance(prompts, list | tuple) and any(isinstance(prompt, Prompt) for prompt in prompts):
        if not all(isinstance(prompt, Prompt) for prompt in prompts):
            raise UserError("the list mixes Prompts with other things: give Prompts only, or token ids only")
        return [_checked(prompt, number) for number, prompt in enumerate(prompts)], False
    ids, single = read_prompts(prompts)
    return [Prompt("", one, _bare_regions(model, one), {}) for one in ids], single


def _checked(prompt: Prompt, number: int) -> Prompt:
    """A Prompt that may be made by hand: its regions partition its ids and its marks lie inside."""
    [ids], _ = read_prompts([prompt.ids])
    stop = 0
    for region in prompt.regions:
        if region.start != stop or region.stop <= region.start:
            raise UserError(
                f"prompt {number}: region {region.label!r} is {region.start}..{region.stop} where one from {stop} on "
                "was expected: regions follow each other without gaps, and none is empty"
            )
        if not region.label or region.label == ANSWER or ":" in region.label:
            raise UserError(
                f"prompt {number}: a region of the prompt cannot be called {region.label!r}: {ANSWER!r} is what "
                "follows the prompt, and ':' divides its rows by state"
            )
        stop = region.stop
    if stop != len(ids):
        raise UserError(f"prompt {number}: its regions end at {stop}, and it has {len(ids)} tokens")
    marks = {name: np.unique(np.asarray(positions)) for name, positions in prompt.marks.items()}
    taken = {ANSWER, *(region.label for region in prompt.regions)}
    for name, positions in marks.items():
        if name in taken:
            raise UserError(f"prompt {number}: mark {name!r} has the name of a region: call it something else")
        if positions.size and (positions.dtype.kind not in "iu" or positions[0] < 0 or positions[-1] >= len(ids)):
            raise UserError(f"prompt {number}: mark {name!r} should hold token positions from 0 to {len(ids) - 1}")
    return Prompt(prompt.text, ids, tuple(prompt.regions), {name: p.astype(np.int64) for name, p in marks.items()})


def _check_matrices(keep: str, name: str, wanted: Sequence[int] | None, count: int) -> None:
    """Steps or layers whose matrices are asked for are there to be had."""
    if wanted is None:
        return
    if keep != "matrices":
        raise UserError(f"{name} says which matrices to keep: give it with keep='matrices'")
    outside = [one for one in wanted if not isinstance(one, int | np.integer) or not 0 <= one < count]
    if outside or not len(wanted):
        raise UserError(f"{name}={list(wanted)!r} should be whole numbers from 0 to {count - 1}")


def _metadata(given: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None, samples: int) -> list[dict[str, Any]]:
    """One table a sample, as it will come back from the trace's file."""
    known = [given or {}] * samples if given is None or isinstance(given, Mapping) else list(given)
    if len(known) != samples:
        raise UserError(f"metadata has {len(known)} entries for {samples} prompts: give one for all, or one a prompt")
    if not all(isinstance(one, Mapping) for one in known):
        raise UserError("metadata should be a table of names and values, or a list of them, one a prompt")
    return [plain_metadata(one) for one in known]


def _bare_regions(model: Model, ids: NDArray[np.int64]) -> tuple[Region, ...]:
    if len(ids) > 1 and ids[0] == getattr(model.config, "bos_token_id", None):
        return Region(BOS, 0, 1), Region(QUERY, 1, len(ids))
    return (Region(QUERY, 0, len(ids)),)


def _plan(
    prompt: Prompt,
    answer: int,
    keep: str,
    matrix_steps: Sequence[int] | None,
    matrix_layers: Sequence[int] | None,
) -> Plan:
    """Row groups and column sets of a canvas: regions by first appearance, then marks."""
    regions = with_answer(prompt.regions, answer)
    labels = tuple(dict.fromkeys(region.label for region in regions))
    groups = group_labels(labels)
    columns = torch.zeros(len(prompt.ids) + answer, len(labels) + len(prompt.marks))
    for region in regions:
        columns[region.start : region.stop, labels.index(region.label)] = 1
    for place, positions in enumerate(prompt.marks.values(), len(labels)):
        columns[torch.from_numpy(positions), place] = 1
    prompt_groups = torch.cat([torch.full((len(region),), groups.index(region.label)) for region in prompt.regions])
    return Plan(
        prompt_groups=prompt_groups,
        group_count=len(groups),
        masked_group=groups.index(f"{ANSWER}:masked"),
        committed_group=groups.index(f"{ANSWER}:committed"),
        columns=columns,
        keep=keep,
        matrix_steps=None if matrix_steps is None else tuple(matrix_steps),
        matrix_layers=None if matrix_layers is None else tuple(matrix_layers),
    )


def _trace(
    model: Model,
    sampler: AnySampler,
    prompt: Prompt,
    generation: Generation,
    record: tuple[Arrays, tuple[int, ...]],
    seed: int,
    metadata: Mapping[str, Any],
    *,
    keep: Keep,
) -> Trace:
    arrays, qk_steps = record
    return Trace(
        model=model.name,
        family=model.family.name,
        kind="arm" if model.family.is_arm else "mdm",
        visibility=str(model.visibility),
        logits=model.family.logits,
        sampler={"name": sampler.name} | asdict(sampler),
        seed=seed,
        canvas=generation.canvas,
        prompt_length=generation.prompt_length,
        texts=None if model.tokenizer is None else token_texts(model.tokenizer, generation.canvas),
        regions=with_answer(prompt.regions, len(generation.answer)),
        marks=prompt.marks,
        commit_step=generation.commit_step,
        confidence=generation.confidence,
        qk_steps=qk_steps,
        keep=keep,
        arrays=arrays,
        metadata=metadata,
    ).validate()


def token_texts(tokenizer: Any, ids: NDArray[np.int64] | Tensor) -> tuple[str, ...]:
    """The token of each id [T] as the tokenizer spells it; a model may know more ids than its tokenizer."""
    numbers = ids.tolist()
    named = zip(tokenizer.convert_ids_to_tokens(numbers), numbers, strict=True)
    return tuple(f"<{number}>" if text is None else text for text, number in named)
