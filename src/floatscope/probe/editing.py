"""Editing a run: what each sample's edits select at every step and layer, and the attention that picks come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import torch
from torch import Tensor

from floatscope.canvas import ANSWER, SCAFFOLD, Prompt
from floatscope.errors import UserError
from floatscope.probe.attention import Geometry
from floatscope.probe.edits import OPS, Edit, LayerEdit, Selection, joined
from floatscope.probe.kernel import LayerStatistics, Visible, Workspace, attend
from floatscope.probe.layout import Layout
from floatscope.probe.selecting import STATES, Scene, numbers, token_selector
from floatscope.token_text import LEXICAL, STRUCTURAL


def token_sets(canvas: Prompt, classes: Sequence[str] = ()) -> dict[str, Tensor]:
    """What selectors may name on a canvas, bool [T] each; `classes`: the class of each token, where it is known."""
    labels = [(region.label, slice(region.start, region.stop)) for region in canvas.regions]
    labels += [(name, torch.from_numpy(places)) for name, places in canvas.marks.items()]
    labels += [(f"class {name}", place) for place, name in enumerate(classes)]
    sets: dict[str, Tensor] = {}
    for name, places in labels:
        sets.setdefault(name, torch.zeros(len(canvas.ids), dtype=torch.bool))[places] = True
    if classes:  # words of the template are structural whatever they are, and slots are neither
        none = torch.zeros(len(canvas.ids), dtype=torch.bool)
        scaffold, slots = sets.get(SCAFFOLD, none), sets.get(ANSWER, none)
        structural, lexical = (
            torch.tensor([name in kind for name in classes]) & ~slots for kind in (STRUCTURAL, LEXICAL)
        )
        sets |= {"class structural": structural | scaffold, "class lexical": lexical & ~scaffold}
    return sets


class Editor:
    """The edits of one sample over its run: `begin` a step, `compile` for each layer, `see` what the layer did.

    An MDM computes all rows at every step; the rows of an ARM are computed once, and an edit acts on those of its step.
    """

    def __init__(
        self, edits: Sequence[Edit], canvas: Prompt, layers: int, steps: int, seed: int, is_arm: bool,
        classes: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """`steps`: how many there may be; `seed`: the sample's own."""
        self.edits, self.layers, self.seed, self.is_arm = tuple(edits), layers, seed, is_arm
        self.sets = token_sets(canvas, classes) | {
            name: torch.zeros(len(canvas.ids), dtype=torch.bool) for name in STATES
        }
        self.slots = torch.as_tensor(canvas.slots)
        self.where = [(numbers(edit.layers, layers, "layer"), numbers(edit.steps, steps, "step")) for edit in edits]
        self.first_pass = False
        """Whether the pass that runs is the one without edits."""
        self.unedited_run = False
        """Whether the run that goes on is the one without edits, which picks may come from."""
        self.measures = False
        """Whether it is noted how much attention hidden keys held."""
        self.removed: list[float] = []
        """That share, of every edit, layer and step where it is known."""
        self._step = -1
        self._present = torch.zeros(0, dtype=torch.bool)
        self._first: dict[int, Tensor] = {}  # received [H, T] by layer: of the first pass, and of the last one
        self._last: dict[int, Tensor] = {}
        self._sums: dict[int, Tensor] = {}
        self._run: list[dict[int, Tensor]] = []  # received of the unedited run, by step
        self._held: dict[tuple[int, int, int], Tensor] = {}  # mass [H, R] of pinned keys, by edit, layer and step
        self._done: dict[int, list[tuple[Layout, LayerEdit | None]]] = {}
        self._static: dict[tuple[int, ...], LayerEdit | None] = {}

    @property
    def needs_pass(self) -> bool:
        """Whether a pass without edits comes before step 0."""
        return not self.unedited_run and (self.measures or any(edit.needs_pass for edit in self.edits))

    @property
    def needs_run(self) -> bool:
        """Whether a whole run without edits comes before."""
        return any(edit.needs_pass and edit.source == "unedited" for edit in self.edits)

    def end_unedited_run(self) -> None:
        """What was seen so far was that run."""
        self.unedited_run, self._sums, self._last = False, {}, {}

    @property
    def hides_only(self) -> bool:
        """Whether nothing is ever picked and nothing but a mask is changed."""
        return not self.measures and all(edit.is_static for edit in self.edits)

    def begin(self, step: int, tokens: int, masked: Tensor, open_rows: Tensor) -> None:
        """A new step over the first `tokens` tokens: which slots [A] are masked, and the rows that may fill one."""
        self._step = step
        self._present = torch.arange(len(self.sets[STATES[0]])) < tokens
        for name, places in zip(STATES, (self.slots[masked], self.slots[~masked], open_rows), strict=True):
            self.sets[name] = torch.zeros_like(self._present).index_fill_(0, places, True)
        if self.is_arm:
            self._static = {}  # of other rows

    def compile(self, layer: int, layout: Layout, heads: int, visible: Visible) -> LayerEdit | None:
        """All edits at this layer of the step as one; None where they select nothing."""
        if self.first_pass or self.unedited_run:
            return None
        active = tuple(
            number for number, (layers, steps) in enumerate(self.where) if layer in layers and self._step in steps
        )
        same = self.hides_only and all(self.edits[number].heads == "all" for number in active)
        place = (len(layout.keys), *active)  # a sliding layer has fewer keys
        if not same or place not in self._static:
            found = [self._compile(number, layer, layout, heads, visible) for number in active]
            self._static[place] = joined([one for one in found if one is not None])
        edit = self._static[place]
        if self.is_arm:
            self._done.setdefault(layer, []).append((layout, edit))
        return edit

    def _compile(self, number: int, layer: int, layout: Layout, heads: int, visible: Visible) -> LayerEdit | None:
        edit = self.edits[number]
        scene = self._scene(number, layer)
        chosen = edit.heads_at(layer, self.layers, heads, scene.seed)
        picked = token_selector(edit.keys)(scene)
        keys, rows = picked[:, layout.keys], token_selector(edit.rows)(scene)[0, layout.rows]
        if self.measures and scene.received is not None and edit.op in ("block", "zero", "keep"):
            held = float((scene.received * picked).sum(-1).mean())
            self.removed.append(1 - held if edit.op == "keep" else held)
        if not bool(keys.any()) and edit.op == "keep":
            raise UserError(f"Of keys={edit.keys!r} there is none at step {self._step}: nothing would be left to see.")
        if not (bool(keys.any()) and bool(rows.any()) and bool(chosen.any())):
            return None
        own = torch.searchsorted(layout.keys, layout.rows)
        held = self._held.get((number, layer, self._at(edit)))
        if held is not None and held.shape[1] != len(layout.rows):  # of a first pass, over the prompt's rows
            held = held[:, layout.rows.clamp(max=held.shape[1] - 1)]
        selection = Selection(keys, rows, chosen, lambda: visible.matrix(layout).cpu(), own, held)
        return OPS.named(edit.op).compile(edit, selection)

    def _scene(self, number: int, layer: int) -> Scene:
        edit = self.edits[number]
        known = {"first": self._first, "previous": self._last}
        received = (self._run[self._at(edit)] if edit.source == "unedited" else known[edit.source]).get(layer)
        if received is not None and not edit.by_head:
            received = received.mean(0, keepdim=True)
        step = 0 if edit.source == "first" else max(self._step, 0)
        seed = hash((self.seed, edit.seed, step, layer)) % 2**63  # of whole numbers: the same in every process
        return Scene(self.sets, received, seed, self._present)

    def _at(self, edit: Edit) -> int:
        """The step of the unedited run that this one is held to: the same, or its last where it was shorter."""
        return min(max(self._step, 0), len(self._run) - 1) if edit.source == "unedited" else 0

    def see(self, layer: int, statistics: LayerStatistics, geometry: Geometry) -> None:
        """Take in what the layer did: later picks are made by it."""
        layout = geometry.layout
        given = statistics.group_sums.sum(1).cpu()  # [H, K]
        sums = torch.zeros(len(given), len(self._present))
        sums[:, layout.keys.cpu()] = given
        rows = len(layout.rows)
        if self.is_arm and not self.first_pass:
            sums = self._sums[layer] = self._sums.get(layer, 0) + sums
            rows = int(layout.rows[-1]) + 1
        self._last[layer] = sums / rows
        if self.first_pass:
            self._first[layer] = self._last[layer]
        if self.unedited_run:
            self._run += [{}] * (self._step == len(self._run))
            self._run[self._step] = self._run[self._step] | {layer: self._last[layer]}
        for number, edit in enumerate(self.edits if self.first_pass or self.unedited_run else ()):
            if edit.op == "pin" and layer in self.where[number][0] and self.unedited_run == (edit.source == "unedited"):
                self._held[number, layer, self._at(edit)] = self._mass(number, layer, geometry)

    def _mass(self, number: int, layer: int, geometry: Geometry) -> Tensor:
        """The mass [H, R] of the keys that are pinned, of each row and head, in a pass without edits."""
        keys = token_selector(self.edits[number].keys)(self._scene(number, layer))[:, geometry.layout.keys]
        columns = keys.t().float().to(geometry.inputs.query.device)  # [K, 1 or H]
        _, found = attend(
            geometry.inputs, geometry.visible, geometry.layout, extra=columns, workspace=Workspace()
        )  # fmt: skip
        assert found.mixed is not None
        mixed = found.mixed.cpu()  # [H, R, 1 or H]
        return mixed[..., 0] if mixed.shape[-1] == 1 else torch.stack([one[:, head] for head, one in enumerate(mixed)])

    def recall(self) -> Recalled:
        """What was done to an ARM's rows, for a pass over all of them."""
        return Recalled(self._done)


class Recalled:
    """The edits of an ARM's whole run, each on the rows of its step."""

    hides_only = False

    def __init__(self, done: dict[int, list[tuple[Layout, LayerEdit | None]]]) -> None:
        self._done = done

    def compile(self, layer: int, layout: Layout, heads: int, visible: Visible) -> LayerEdit | None:
        """The rows of all steps as one edit [1 or H, R, K]."""
        kept = [(step, edit) for step, edit in self._done.get(layer, ()) if int(step.rows[-1]) < len(layout.rows)]
        done = [(step, edit) for step, edit in kept if edit is not None]  # a sample that ended early has fewer rows
        found: dict[str, Tensor] = {}
        for part in fields(LayerEdit):
            given = [(step, getattr(edit, part.name)) for step, edit in done if getattr(edit, part.name) is not None]
            if not given:
                continue
            rest = {"factor": 1.0, "heads": 1.0, "mass": torch.nan}.get(part.name, 0.0)
            most = max(len(tensor) for _, tensor in given)
            by_key = given[0][1].ndim == 3 and part.name in ("bias", "factor", "pinned")
            last = (len(layout.keys),) if by_key else (1,) if given[0][1].ndim == 3 else ()
            whole = found[part.name] = torch.full((most, len(layout.rows), *last), rest)
            for step, tensor in given:
                own = tensor.expand(most, len(step.rows), *tensor.shape[2:])
                if by_key:
                    whole[:, step.rows[:, None], step.keys] = own
                else:
                    whole[:, step.rows] = own
        if "mean" in found:
            passes = found["passes"] = torch.zeros(len(layout.rows), dtype=torch.long)
            for number, (step, _) in enumerate(kept):
                passes[step.rows] = number
        return LayerEdit(**found) if found else None


def plain_layout(rows: Tensor, keys: Tensor) -> Layout:
    """Rows over keys, all rows in one group and nothing else asked for."""
    none = torch.zeros(0, dtype=torch.long)
    return Layout(rows, keys, torch.zeros_like(rows), 1, torch.zeros(len(keys), 0), none, top=1)
