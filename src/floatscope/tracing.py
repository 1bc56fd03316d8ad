"""`trace`: run a sampler with the probe in the model, and give one Trace per sample.

Only joins: prompts come from `canvas`, steps from `decoding`, logits from `models`, statistics and the arrays made of
them from `probe`, the Trace and its file from `traces`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.canvas import COMMITTED, MASKED, Prompt, token_ids
from floatscope.decoding import Batch, Generation, Sampler, Step
from floatscope.decoding.generation import fill, fitted, in_parts, make_batch, one_or_many, sampler_for
from floatscope.errors import UserError
from floatscope.models.edited import EditedModel, Edits, make_editors
from floatscope.models.model import Model
from floatscope.probe.attention import Geometry, Listener, Probe, probing
from floatscope.probe.candidates import CandidateRecorder
from floatscope.probe.editing import Editor, Recalled
from floatscope.probe.kernel import LayerStatistics
from floatscope.probe.landing import Landing
from floatscope.probe.layout import Layout
from floatscope.probe.recording import ALPHA, Arrays, BatchRecorder, CausalRecorder, DenoisingRecorder, Plan
from floatscope.traces.arrays import ARRAYS, check_matrices, check_memory, kept_arrays, short_form
from floatscope.traces.storage import metadata_of_samples
from floatscope.traces.trace import Trace

Metadata = Mapping[str, Any] | Sequence[Mapping[str, Any]]
StepListener = Callable[[Step], object]
ReceivedListener = Callable[[Step, list[NDArray[np.float32]]], object]


@one_or_many
def trace(
    model: Model,
    prompts: list[Prompt],
    sampler: Sampler | None = None,
    *,
    seeds: Sequence[int] | None = None,
    keep: str | Iterable[str] = "compact",
    matrix_steps: Sequence[int] | None = None,
    matrix_layers: Sequence[int] | None = None,
    metadata: Metadata | None = None,
    on_step: StepListener | None = None,
    on_received: ReceivedListener | None = None,
    replay: bool = False,
    edits: Edits = (),
) -> list[Trace]:
    """Denoise (or, for an ARM, generate) and capture attention at every step.

    model: a loaded model, or its name.
    prompts: a Prompt with regions, a text as it stands, or token ids (a list, or an array [T] or [1, T]): one Trace; a
    list of them: a list in order.
    sampler: default: the model's own, `model.sampler()`.
    seeds: one per sample; default: the sampler's seed for each.
    keep: "compact", "groups" (attention by row group at token resolution), "heads" (every head), or "matrices"
    (full matrices of `matrix_steps` and `matrix_layers`, all by default: for small canvases; an ARM has those of its
    last step, whose first rows are the rows of the steps before).
    metadata: what the caller knows of the sample (`sample`, `task`, `condition`, ...), one for all or one per sample:
    texts, numbers, lists and tables.
    on_step: sees every Step as it is made.
    on_received: sees every Step of an MDM with the attention received at it, an array [layer, token] per sample (of its
    last step, for one that has ended); an ARM's attention is known after its last step only.
    replay: as `floatscope.replay` does, with the answers of the prompts.
    edits: changes of attention meanwhile, a list of `fs.Edit` for all prompts, or a list of such lists; the arrays show
    attention as it was changed.
    """
    sampler = sampler_for(model, sampler)
    known = metadata_of_samples({} if metadata is None else metadata, len(prompts))
    listed = {"seeds": seeds, "metadata": known, "edits": edits}
    same = {"keep": keep, "matrix_steps": matrix_steps, "matrix_layers": matrix_layers, "replay": replay}
    apart = in_parts(trace, model, prompts, sampler, listed, on_step=on_step, on_received=on_received, **same)
    if apart is not None:
        return apart
    sampler = fitted(model, prompts[0], sampler) if prompts else sampler
    batch = make_batch(model, prompts, sampler, seeds, replay)
    names, canvases = kept_arrays(keep), [prompt.with_slots(sampler.length) for prompt in prompts]
    bounds = [sampler.step_bounds(first, model.block) for first in batch.positions[:, 0].tolist()]
    step_count = max(most for _, most in bounds)
    check_matrices(names, matrix_steps, step_count, matrix_layers, model.layers)
    if "attention" in names:
        steps = 1 if model.is_arm else len(matrix_steps or range(step_count))
        matrices = len(prompts) * steps * len(matrix_layers or range(model.layers))
        check_memory(matrices, model.config.num_attention_heads, max(len(canvas.ids) for canvas in canvases))
    editors = make_editors(model, canvases, edits, sampler, batch) if edits else []
    candidates = CandidateRecorder(len(prompts), names)
    if model.is_arm:

        def listen(step: Step) -> None:
            candidates.keep(step)
            if on_step is not None:
                on_step(step)

        with model.listening(candidates.hear):
            generations = fill(EditedModel(model, editors) if editors else model, batch, sampler, listen)
        canvases = [
            canvas.without_slots(sampler.length - len(generation.slots))
            for canvas, generation in zip(canvases, generations, strict=True)
        ]
        plans = [Plan.of(canvas, names, matrix_layers=matrix_layers) for canvas in canvases]
        records = record_finished(model, generations, plans, [editor.recall() for editor in editors])
    else:
        plans = [Plan.of(canvas, names, matrix_steps, matrix_layers) for canvas in canvases]
        tap = DenoisingTap(model, plans, bounds, editors)

        def listen(step: Step) -> None:
            tap.commit(step)
            candidates.keep(step)
            if on_step is not None:
                on_step(step)
            if on_received is not None:
                on_received(step, [recorder.latest("received") for recorder in tap.recorders])

        with model.listening(candidates.hear):
            generations = fill(tap, batch, sampler, listen)
        for generation, (fewest, most) in zip(generations, bounds, strict=True):
            if not fewest <= generation.steps <= most:
                raise UserError(
                    f"The sampler {sampler.name!r} took {generation.steps} steps, and its step_bounds said {fewest} to "
                    f"{most}: correct them."
                )
        records = [recorder.finish() for recorder in tap.recorders]
        for place, (canvas, generation) in enumerate(zip(canvases, generations, strict=True)):
            if unfilled := sampler.length - len(generation.slots):  # an eos ended it before its last canvas
                canvases[place] = canvas.without_slots(unfilled)
                records[place] = (
                    cut(records[place][0], len(generation.canvas), len(generation.slots)),
                    records[place][1],
                )
    applied = [editor.edits for editor in editors] or [()] * len(prompts)
    return [
        Trace(
            model=model.name,
            family=model.family.name,
            kind="arm" if model.is_arm else "mdm",
            visibility=str(model.visibility),
            logits=model.family.logits,
            sampler={"name": sampler.name} | asdict(sampler) | ({"replay": True} if replay else {}),
            seed=seed,
            canvas=generation.canvas,
            slots=generation.slots,
            texts=None if model.tokenizer is None else model.token_texts(generation.canvas),
            regions=canvas.regions,
            marks=canvas.marks,
            commit_step=generation.commit_step,
            confidence=generation.confidence,
            qk_steps=qk_steps,
            keep=short_form(names),
            arrays=arrays
            | {name: getattr(generation, name) for name in ("tokens", "state") if name in names}
            | considered,
            metadata=_texts(model, generation, considered) | table,
            edits=tuple(asdict(edit) for edit in own),
        ).validate()
        for sample, (canvas, generation, (arrays, qk_steps), seed, table, own) in enumerate(
            zip(canvases, generations, records, batch.seeds, known, applied, strict=True)
        )
        for considered in [candidates.finish(sample, len(generation.slots))]
    ]


def _texts(model: Model, generation: Generation, considered: Arrays) -> dict[str, Any]:
    """What the answer says, and by id the tokens that slots held and did not keep, or might have taken."""
    if model.tokenizer is None:
        return {}
    told: dict[str, Any] = {"prediction": model.text(generation.answer)}
    held = {*generation.tokens[generation.state == COMMITTED].tolist()}
    held |= {*considered.get("candidate_tokens", np.zeros(0)).ravel().tolist()}
    held -= {-1, *generation.canvas.tolist()}
    if held:
        told["passing_texts"] = dict(zip(map(str, held), model.token_texts(np.array([*held])), strict=True))
    return told


def cut(arrays: Arrays, tokens: int, slots: int) -> Arrays:
    """The arrays of a canvas without its last slots, which no pass has seen."""
    sizes = {"token": tokens, "row": tokens, "answer": slots}
    return {
        name: values[tuple(slice(sizes.get(axis)) for axis in ARRAYS[name].axes)] for name, values in arrays.items()
    }


@one_or_many
def replay(
    model: Model,
    prompts: list[Prompt],
    tokens: Any = None,
    *,
    order: str | Sequence[int] = "left-to-right",
    tokens_per_step: int = 1,
    **options: Any,
) -> list[Trace]:
    """Fill the slots with given tokens (teacher-forced), so that models are compared on the same text.

    prompts: a canvas, as from `build_canvas`: one Trace; a list of them, with as many slots each: a list in order.
    tokens: what the slots take, for each canvas; default: the canvas's own `answer`. Where a prompt has no slots they
    follow it.
    order: left-to-right, right-to-left, random, slot numbers in the order that is wanted, or confidence: where the
    model's own sampler would commit first, by what it would choose and not by what it is given.
    tokens_per_step: how many slots commit at a step.
    options: those of `trace`.

    The confidence that is kept of a slot is the probability of its given token when it commits, so that bits per token
    are the mean of -log2(confidence). An ARM reads its text from left to right, a token per step, whatever the order.
    """
    if tokens is not None:
        own = [tokens] if len(prompts) == 1 and np.ndim(tokens[0]) == 0 else list(tokens)
        if len(own) != len(prompts):
            raise UserError(f"There are tokens for {len(own)} canvases and {len(prompts)} of these: make them equal.")
        pairs = zip(prompts, map(token_ids, own), strict=True)
        prompts = [replace(prompt.with_slots(len(answer)), answer=answer) for prompt, answer in pairs]
    lengths = sorted({0 if prompt.slots is None else len(prompt.slots) for prompt in prompts})
    if len(lengths) > 1:
        raise UserError(f"The canvases have {lengths[0]} to {lengths[-1]} slots: replay those of one number together.")
    sampler = model.sampler({"order": order, "tokens_per_step": tokens_per_step}, length=max(lengths[0], 1))
    return trace(model, prompts, sampler, replay=True, **options)


class DenoisingTap(EditedModel):
    """A model as the samplers know it, with the probe in every conditional pass."""

    def __init__(
        self, model: Model, plans: Sequence[Plan], bounds: Sequence[tuple[int, int]], editors: Sequence[Editor] = ()
    ) -> None:
        """`bounds`: the fewest and the most steps of each sample. `editors`: one per sample; empty: nothing changes."""
        super().__init__(model, editors)
        self._landing = Landing()
        self.rolls = any(plan.rolls for plan in plans)
        self.recorders = [
            DenoisingRecorder(plan, model.layers, most, fewest, self._landing)
            for plan, (fewest, most) in zip(plans, bounds, strict=True)
        ]
        self._batch = BatchRecorder(self.recorders)

    def layouts(self, batch: Batch, rows: Tensor) -> list[Layout | None]:
        """A new step of every sample that has one."""
        masked = batch.state == MASKED  # [B, A]
        active = masked.any(1) if batch.active is None else batch.active
        return [
            recorder.start(own, open_rows.unique()) if goes else None
            for recorder, own, open_rows, goes in zip(self.recorders, masked, rows, active.tolist(), strict=True)
        ]

    @contextmanager
    def watching(self, batch: Batch, sample: int, rows: range, keys: range, open_rows: bool) -> Iterator[None]:
        """A new step of one sample, whose pass has these rows and keys."""
        with super().watching(batch, sample, rows, keys, open_rows):
            recorder, places = self.recorders[sample], torch.arange(rows.start, rows.stop)
            opened = places if open_rows else places[:0]
            layout = recorder.start(batch.state[sample] == MASKED, opened, places, torch.arange(keys.stop))

            def listen(layer: int, _sample: int, statistics: LayerStatistics, geometry: Geometry) -> None:
                recorder.layer(layer, statistics, geometry)

            with probing(Probe([0], [layout], listen, self.model.layers, self._workspace)):
                yield

    def listener(self) -> Listener:
        """The recorders are told in any case."""
        return self.see

    def probe(self, pads: Tensor, layouts: Sequence[Layout | None]) -> Probe:
        """Where a rollout is kept, the column sets go through the layers beside the values."""
        made = super().probe(pads, layouts)
        if self.rolls:
            made.extra, made.alpha = [None if one is None else one.columns for one in layouts], ALPHA
        return made

    def see(self, layer: int, sample: int, statistics: LayerStatistics, geometry: Geometry) -> None:
        """One layer of one sample came by: recorded, unless the pass is only looked at by editors."""
        if self.editors:
            super().see(layer, sample, statistics, geometry)
        if not self.editors or not self.editors[sample].first_pass:
            self._batch.layer(layer, sample, statistics, geometry)

    def commit(self, step: Step) -> None:
        """After a step: keep the rows whose slots became tokens."""
        self._batch.share()
        batch = step.given
        rows = self.model.rows(batch.slots, batch.pads, batch.slots[:, :1]) - batch.pads[:, None]  # [B, A]
        for recorder, own, committed in zip(self.recorders, rows, step.committed, strict=True):
            slots = committed.nonzero()[:, 0]
            if len(slots):
                recorder.commit(slots.numpy(), own[slots].numpy())
        self._landing.send(held for recorder in self.recorders for held in recorder.held())


def record_finished(
    model: Model, generations: Sequence[Generation], plans: Sequence[Plan], edits: Sequence[Recalled] = ()
) -> list[tuple[Arrays, tuple[int, ...]]]:
    """What an ARM did, from one forward over prompt + answer[:-1] of each sample: causal rows never change."""
    recorders = [CausalRecorder(plan, model.layers) for plan in plans]
    width = max(len(generation.canvas) for generation in generations) - 1
    pads = [width - len(generation.canvas) + 1 for generation in generations]
    tokens = torch.zeros(len(generations), width, dtype=torch.long)
    for row, pad, generation in zip(tokens, pads, generations, strict=True):
        row[pad:] = torch.from_numpy(generation.canvas[:-1])

    def listen(layer: int, sample: int, statistics: LayerStatistics, geometry: Geometry) -> None:
        recorders[sample].layer(layer, statistics, geometry)

    last = torch.full((len(tokens), 1), width - 1)
    layouts = [recorder.layout() for recorder in recorders]
    probe = Probe(pads, layouts, listen, model.layers, edits=edits)
    if any(plan.rolls for plan in plans):
        probe.extra, probe.alpha = [layout.columns for layout in layouts], ALPHA
    with torch.inference_mode(), probing(probe):
        model.forward(tokens, torch.tensor(pads), last)
    return [recorder.finish() for recorder in recorders]
