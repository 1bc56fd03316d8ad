"""An answer to explain: the canvas it was written on, the tokens that count, and passes over it with parts hidden.

Knows models and edits; which passes are made of it, and what scores follow, is left to the methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, takewhile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.canvas import MASKED, QUERY, Ids, Prompt, Region, positions
from floatscope.decoding import Batch, Generation, Sampler, Step, generate
from floatscope.errors import UserError
from floatscope.models.edited import EditedModel
from floatscope.models.model import Model, Reading
from floatscope.probe.attention import Geometry, Probe, probing
from floatscope.probe.editing import Editor
from floatscope.probe.edits import Edit
from floatscope.probe.kernel import LayerStatistics
from floatscope.probe.layout import Layout
from floatscope.probe.recording import ALPHA

Array = NDArray[np.float64]
Moments = Mapping[int, Ids]
"""Steps whose canvases are looked at, each with the slots (places among the A of the answer) that are read there."""
AT_ONCE = 16
"""Sequences of one batch at most."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows that fill some slots at one step: L layers, H heads, N slots, T tokens."""

    step: int
    slots: Ids
    attention: Array
    """[L, H, N, T]"""
    value_norm: Array
    """|v_j|, [L, H, T]"""
    rolled: Array
    """Rollout through all layers, summed by document and by sentence, [N, D + S]."""


@dataclass(frozen=True, eq=False)
class Case:
    """One prompt with its answer. A slots, n of them text; D documents, S sentences."""

    model: Model
    prompt: Prompt
    canvas: Prompt
    """With the slots that were filled."""
    generation: Generation
    sampler: Sampler
    seed: int
    run: list[int] = field(default_factory=list)
    """How many sequences each pass had, beside the answer's own."""
    _known: dict[tuple[str, bytes], tuple[Array, Array]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Model, prompt: Prompt, sampler: Sampler, generation: Generation, seed: int) -> Case:
        """A case from an answer that was given; refused without documents."""
        unfilled = sampler.length - len(generation.slots)
        case = cls(model, prompt, prompt.with_slots(sampler.length).without_slots(unfilled), generation, sampler, seed)
        if not case.documents:
            raise UserError(
                "The prompt has no documents to attribute its answer to: build it with some (build_prompt)."
            )
        return case

    @cached_property
    def documents(self) -> dict[str, Ids]:
        """The tokens of each document by its label, in the order of the prompt."""
        labels = dict.fromkeys(region.label for region in self.canvas.regions if region.label.startswith("doc "))
        return {label: positions(self.canvas.regions, label) for label in labels}

    @property
    def sentences(self) -> tuple[Region, ...]:
        """The sentences of the documents; where the prompt knows none, each document is one."""
        whole = tuple(region for region in self.canvas.regions if region.label in self.documents)
        return self.canvas.sentences or whole

    @cached_property
    def spans(self) -> list[Ids]:
        """The tokens of every document, then of every sentence."""
        return [*self.documents.values(), *(np.arange(one.start, one.stop) for one in self.sentences)]

    @cached_property
    def slots(self) -> Ids:
        """The slots [n] that hold the answer's text: those before the first end of text, or the first alone."""
        kept = list(takewhile(lambda token: token not in self.model.eos_ids, self.generation.answer.tolist()))
        return np.arange(max(1, len(kept)))

    @property
    def commits(self) -> Moments:
        """Each token at its own commit. An ARM's rows are those of one forward over its text."""
        if self.model.is_arm:
            return {0: self.slots}
        steps = self.generation.commit_step[self.slots]
        return {int(step): self.slots[steps == step] for step in np.unique(steps)}

    @property
    def first(self) -> Moments:
        """All tokens where the first of them commits: one canvas for the whole answer."""
        return {min(self.commits): self.slots}

    @property
    def until(self) -> Moments:
        """Each token at every step up to its commit."""
        if self.model.is_arm:
            return {0: self.slots}
        last = self.generation.commit_step[self.slots]
        masked = self.generation.state[:, self.slots] == MASKED  # [step, n]
        steps = {step: self.slots[own & (last >= step)] for step, own in enumerate(masked)}
        return {step: own for step, own in steps.items() if len(own)}

    def tokens_at(self, step: int) -> Tensor:
        """The canvas as the forward of a step saw it, int64 [T]; an ARM's is its whole text."""
        tokens = torch.from_numpy(self.generation.canvas.copy())
        if not self.model.is_arm:
            tokens[torch.from_numpy(self.generation.slots)] = torch.from_numpy(self.generation.tokens[step])
        return tokens

    def batch(self, steps: Sequence[int]) -> Batch:
        """The canvases of some steps."""
        tokens = torch.stack([self.tokens_at(step) for step in steps])
        slots = torch.from_numpy(self.generation.slots).expand(len(steps), -1)
        state = [self.generation.state[0 if self.model.is_arm else step] for step in steps]
        pads = torch.zeros(len(steps), dtype=torch.long)
        return Batch(tokens, pads, slots, torch.from_numpy(np.stack(state)), (self.seed,) * len(steps))

    def hiding(self, tokens: Ids) -> list[Edit]:
        """The edit that hides tokens at their positions from all rows; none for no tokens."""
        runs = groupby(enumerate(tokens.tolist()), key=lambda pair: pair[1] - pair[0])
        ends = [(own[0][1], own[-1][1]) for own in (list(run) for _, run in runs)]
        keys = " or ".join(f"{first}-{last}" for first, last in ends)
        return [Edit("block", keys=keys)] if ends else []

    def log_probabilities(self, hidden: Sequence[Ids], moments: str = "first") -> Array:
        """log p of the answer's tokens [len(hidden), n] with these tokens hidden, on canvases as they were.

        moments: "first" (one canvas for all tokens) or "commits" (each token at its own). What was asked before is
        remembered, so that methods share it.
        """
        return np.stack([one for one, _ in self._passes(hidden, moments)])

    def entropy(self) -> float:
        """Mean entropy in nats of what the model would write at the commits of the answer's tokens."""
        return float(self._passes([np.zeros(0, np.int64)], "commits")[0][1].mean())

    def _passes(self, hidden: Sequence[Ids], moments: str) -> list[tuple[Array, Array]]:
        wanted: Moments = getattr(self, moments)
        names = [(moments, np.asarray(one, np.int64).tobytes()) for one in hidden]
        new = {name: one for name, one in zip(names, hidden, strict=True) if name not in self._known}
        runs = [(name, step) for name in new for step in wanted]
        for name in new:
            self._known[name] = np.zeros(len(self.slots)), np.zeros(len(self.slots))
        for start in range(0, len(runs), AT_ONCE):
            part = runs[start : start + AT_ONCE]
            logs = self._score([new[name] for name, _ in part], [step for _, step in part])  # [B, n, V]
            chosen = torch.from_numpy(self.generation.answer[self.slots]).expand(len(part), -1)[..., None]
            found = logs.gather(2, chosen)[..., 0].double().numpy()
            spread = -(logs.exp() * logs.clamp(min=-1e4)).sum(-1).double().numpy()
            for (name, step), own, entropy in zip(part, found, spread, strict=True):
                for values, told in zip(self._known[name], (own, entropy), strict=True):
                    values[wanted[step]] = told[wanted[step]]
        return [self._known[name] for name in names]

    def _score(self, hidden: Sequence[Ids], steps: Sequence[int]) -> Tensor:
        """log p over the vocabulary for the text slots, [B, n, V], in one batch."""
        model, batch = self.model, self.batch(steps)
        editors = [Editor(self.hiding(one), self.canvas, model.layers, 1, self.seed, model.is_arm) for one in hidden]
        with torch.no_grad():
            logits = EditedModel(model, editors).score(batch, batch.slots[:, torch.from_numpy(self.slots)])
        self.run.append(len(steps))
        return log_softmax(model, logits)

    def rerun(self, hidden: Sequence[Ids]) -> Array:
        """log p of the answer's tokens [len(hidden), n] when all steps run anew with these tokens hidden.

        A token counts where its slot commits in the new run, whatever commits there; a slot that an ARM does not reach
        counts as chance, log 1/V.
        """
        model, answer = self.model, self.generation.answer
        found = np.full((len(hidden), len(self.slots)), -np.log(model.vocabulary))
        readings: list[Reading] = []

        def read(step: Step) -> None:
            reading = readings[-1]
            readings.clear()
            for sample, slot in step.committed[:, : len(self.slots)].nonzero().tolist():
                where = int((reading.columns[sample] == step.given.slots[sample, slot]).nonzero()[0])
                logs = log_softmax(model, reading.logits[sample, where])
                found[sample, slot] = float(logs[int(answer[slot])])
            self.run.append(int(step.active.sum()))

        edits = [self.hiding(one) for one in hidden]
        with model.listening(readings.append):
            generate(model, [self.prompt] * len(hidden), self.sampler, [self.seed] * len(hidden), read, edits=edits)
        return found

    @cached_property
    def committing(self) -> list[Rows]:
        """The rows that filled the answer's slots, at their commits."""
        return self.rows(self.commits)

    def rows(self, moments: Moments) -> list[Rows]:
        """Attention of the rows that predict slots, one sequence per moment."""
        found = []
        for start in range(0, len(moments), AT_ONCE):
            found += self._rows(dict(list(moments.items())[start : start + AT_ONCE]))
        return found

    def _rows(self, moments: Moments) -> list[Rows]:
        model, batch, tokens = self.model, self.batch(list(moments)), len(self.canvas.ids)
        members = torch.zeros(tokens, len(self.spans))
        for place, span in enumerate(self.spans):
            members[torch.from_numpy(span), place] = 1
        columns = [batch.slots[:1, torch.from_numpy(slots)] for slots in moments.values()]
        rows = [model.rows(own, torch.zeros(1, dtype=torch.long))[0] for own in columns]  # ascending
        layouts = [
            Layout.whole(torch.zeros(tokens, dtype=torch.long), 1, torch.eye(tokens), own, top=1) for own in rows
        ]
        attention, norms = ([list[Array]() for _ in rows] for _ in range(2))
        rolled: dict[int, Array] = {}

        def listen(layer: int, sample: int, statistics: LayerStatistics, geometry: Geometry) -> None:
            share = len(geometry.inputs.query) // len(geometry.inputs.key)
            assert statistics.rolled is not None
            attention[sample].append(statistics.row_mass.double().cpu().numpy())
            norms[sample].append(geometry.value_norm.repeat_interleave(share, 0).double().cpu().numpy())
            rolled[sample] = statistics.rolled[geometry.layout.open_rows].double().cpu().numpy()

        extra: list[Tensor | None] = [members] * len(rows)
        probe = Probe([0] * len(rows), layouts, listen, model.layers, extra=extra, alpha=ALPHA)
        with torch.no_grad(), probing(probe):
            model.forward(batch.tokens, batch.pads, torch.stack([own[:1] for own in rows]))
        self.run.append(len(rows))
        return [
            Rows(step, slots, np.stack(attention[place]), np.stack(norms[place]), rolled[place])
            for place, (step, slots) in enumerate(moments.items())
        ]

    @property
    def question(self) -> Ids:
        """Token ids of the question."""
        return self.canvas.ids[positions(self.canvas.regions, QUERY)]


def log_softmax(model: Model, logits: Tensor) -> Tensor:
    """log p over the vocabulary; the mask token is no text."""
    own = logits.float().cpu().clone()
    if model.mask_id is not None:
        own[..., model.mask_id : model.mask_id + 1] = -torch.inf
    return own.log_softmax(-1)
