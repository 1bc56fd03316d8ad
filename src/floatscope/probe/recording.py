"""From a layer's statistics to the arrays a trace keeps: a recorder per sample.

A denoising run has a forward per step. An ARM has one forward for all its steps, since a causal row never changes: its
steps follow by prefix sums over its answer rows. Names and axes of the arrays are those of `traces.ARRAYS`. What a step
of denoising gives stays on the model's device until the step is over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.canvas import ANSWER, Prompt, group_labels
from floatscope.probe.attention import Geometry
from floatscope.probe.kernel import LayerStatistics
from floatscope.probe.landing import Held, Landing
from floatscope.probe.layout import Layout
from floatscope.probe.mixing import Layer
from floatscope.probe.query_key import qk_sums_of_all

Arrays = dict[str, NDArray[Any]]
TOP_KEYS = 8
ROLLOUT = ("rollout", "commit_rollout")
GEOMETRY = ("qk", "cos", "norm", "key_norm", "value_norm")
ALPHA = 0.5
"""The weight of attention in the rollout that is kept, as in the paper."""


@dataclass(frozen=True)
class Plan:
    """What stays the same over a sample's run. T tokens of the canvas, A of them answer slots."""

    groups: Tensor
    """Group of each position as a row, int64 [T]; that of a slot is `committed_group`, whatever its state."""
    slots: Tensor
    """Positions of the answer slots, int64 [A]."""
    group_count: int
    """Number of groups, G."""
    masked_group: int
    """Group of answer rows that are still masked."""
    committed_group: int
    """Group of answer rows that are tokens."""
    columns: Tensor
    """Membership of the canvas in column sets, float32 [T, C]."""
    keep: frozenset[str]
    """Names of the arrays to keep."""
    matrix_steps: Collection[int] | None = None
    """Steps whose full matrices are kept, where they are; None: all."""
    matrix_layers: Collection[int] | None = None
    """Layers likewise."""

    @classmethod
    def of(
        cls,
        canvas: Prompt,
        keep: frozenset[str],
        matrix_steps: Collection[int] | None = None,
        matrix_layers: Collection[int] | None = None,
    ) -> Plan:
        """Row groups and column sets of a prompt with its slots: regions by first appearance, then marks."""
        labels = tuple(dict.fromkeys(region.label for region in canvas.regions))
        names = group_labels(labels)
        committed = names.index(f"{ANSWER}:committed")
        groups = torch.full((len(canvas.ids),), committed)
        columns = torch.zeros(len(canvas.ids), len(labels) + len(canvas.marks))
        for region in canvas.regions:
            columns[region.start : region.stop, labels.index(region.label)] = 1
            if region.label != ANSWER:
                groups[region.start : region.stop] = names.index(region.label)
        for place, positions in enumerate(canvas.marks.values(), len(labels)):
            columns[torch.from_numpy(positions), place] = 1
        return cls(
            groups=groups,
            slots=torch.as_tensor(canvas.slots),
            group_count=len(names),
            masked_group=names.index(f"{ANSWER}:masked"),
            committed_group=committed,
            columns=columns,
            keep=keep,
            matrix_steps=matrix_steps,
            matrix_layers=matrix_layers,
        )

    @property
    def tokens(self) -> int:
        """Number of tokens of the canvas, T."""
        return len(self.columns)

    @property
    def answer(self) -> int:
        """Number of answer slots, A."""
        return len(self.slots)

    @property
    def rolls(self) -> bool:
        """Whether attention is rolled out over the layers, to the column sets."""
        return not self.keep.isdisjoint(ROLLOUT)

    @property
    def every_step(self) -> bool:
        """Whether the geometry of every step is kept: with all heads; else that of the first, middle and last."""
        return "head_attention" in self.keep


class Recorder:
    """What both kinds of run share: the arrays of every step and layer, and the reductions that make them."""

    stays = False
    """Whether arrays stay on the model's device until they are sent: those of a step, but not of a whole run."""

    def __init__(self, plan: Plan, layers: int, inputs: int, landing: Landing | None = None) -> None:
        """`inputs`: tokens of the canvas that a forward may see, from the first on. `landing`: shared by samples."""
        self.plan = plan
        self.landing = Landing() if landing is None else landing
        self.layers = layers
        self._inputs = inputs
        self._group_rows: list[NDArray[np.int32]] = []
        self._computed: list[tuple[int, int]] = []
        # By step, each array [layer, ...] in one buffer: many small arrays would tear holes into the heap.
        self._by_step, self._seen, self._geometry, self._matrices = (defaultdict[int, Held](dict) for _ in range(4))
        self._by_kind = (self._by_step, self._seen, self._geometry, self._matrices)
        self._by_slot: list[tuple[Any, Held]] = []  # slots, and their arrays [slot, layer, ...]

    def finish(self) -> tuple[Arrays, tuple[int, ...]]:
        """The arrays, and the steps whose per-head geometry was kept; nothing is left in the recorder."""
        whole = [own for by_step in self._by_kind for own in by_step.values()]
        self.landing.send(whole + [own for _, own in self._by_slot])
        self.landing.land()
        qk_steps, matrix_steps = tuple(self._geometry), list(self._matrices)
        arrays = {"group_rows": np.stack(self._group_rows)} | _stacked(self._by_step)
        told = {"computed": np.array(self._computed, np.int32), "layer_index": np.arange(self.layers, dtype=np.int32)}
        arrays |= {name: values for name, values in told.items() if name in self.plan.keep}
        if (seen := _stacked(self._seen).get("seen_by")) is not None:
            arrays["seen_by"] = seen[-1]
            if (seen != seen[-1]).any():  # steps with other rows than the last one
                arrays["seen_by_step"] = seen
        arrays |= self._slot_arrays() | _stacked(self._geometry) | _stacked(self._matrices)
        if matrix_steps:
            arrays["matrix_steps"] = np.array(matrix_steps, np.int32)
            arrays["matrix_layers"] = np.array(self._matrix_layers, np.int32)
        return arrays, qk_steps

    def latest(self, name: str) -> NDArray[Any]:
        """An array of the last step recorded so far, [layer, ...]; zeros [layer, token] where there is none yet."""
        self.landing.land()
        last = self._by_step.get(len(self._by_step) - 1)
        return np.zeros((self.layers, self.plan.tokens), np.float32) if last is None else last[name].cpu().numpy()

    def held(self) -> list[Held]:
        """What the latest step left on a device, if it did."""
        latest = len(self._group_rows) - 1
        steps = [by_step.get(latest, {}) for by_step in self._by_kind]
        return steps + [own for _, own in self._by_slot[-1:]]

    def _slot_arrays(self) -> Arrays:
        """What the rows gave that predicted the slots, [answer, layer, ...]."""
        found: Arrays = {}
        for slots, own in self._by_slot:
            for name, values in own.items():
                shape, array = (self.plan.answer, *values.shape[1:]), values.numpy()
                found.setdefault(name, np.zeros(shape, array.dtype))[slots] = array
        return found

    @property
    def _matrix_layers(self) -> list[int]:
        """The layers whose full matrices are kept."""
        wanted = self.plan.matrix_layers
        return [layer for layer in range(self.layers) if wanted is None or layer in wanted]

    def _keep_step(
        self, layer: int, step: int, geometry: Geometry, groups: Tensor,
        received: Tensor, by_answer: Tensor, by_masked: Tensor, regions: Tensor,
    ) -> None:  # fmt: skip
        """What one step keeps of a layer: M = groups [H, G, K], received [H, K], head means [K], regions [H, G, C]."""
        value_norm = geometry.value_norm[:, None]  # [Hkv, 1, K]
        valued = (received.view(len(value_norm), -1, received.shape[-1]) * value_norm).flatten(0, 1)  # [H, K]
        found = {
            "received": received.mean(0),
            "received_answer": by_answer,
            "received_masked": by_masked,
            "received_value": valued.mean(0),
            "head_attention": groups,
        }
        if "group_attention" in self.plan.keep:
            found["group_attention"] = groups.mean(0)
        kept = self._kept(found, geometry.layout) | self._kept({"region_attention": regions})
        self._put(self._by_step[step], layer, kept)

    def _keep_geometry(self, layer: int, step: int, geometry: Geometry, rows: int | None = None) -> None:
        """Per-head sums over the first `rows` rows of the canvas; none of steps that surely keep none."""
        self._put(self._seen[step], layer, self._kept({"seen_by": geometry.seen_by.int()}, geometry.layout))
        if not self._may_keep_geometry(step):
            return
        sums = geometry.qk(rows)
        found = {"qk": sums.qk, "cos": sums.cos, "norm": sums.norm, "key_norm": sums.key_norm}
        found["value_norm"] = geometry.value_norm
        self._put(self._geometry[step], layer, self._kept(found, geometry.layout))

    def _may_keep_geometry(self, step: int) -> bool:
        """Whether the geometry of this step is kept."""
        steps = self.plan.answer
        return self.plan.every_step or step in (0, steps // 2, steps - 1)

    def _keep_matrices(self, layer: int, step: int, geometry: Geometry) -> None:
        """The full R x T matrices of a layer: for small canvases, and on request only."""
        plan, layout = self.plan, geometry.layout
        if "attention" in plan.keep and layer in self._matrix_layers:
            # Rows over a cache have their own positions, so that the matrices of all steps fit each other.
            matrix = _on_canvas(geometry.matrix(), layout.rows, self._inputs, 1)
            queries = _on_canvas(geometry.inputs.query.float(), layout.rows, self._inputs, 1)
            keys = _on_canvas(geometry.inputs.key.float(), layout.keys, plan.tokens, 1)
            found = self._kept({"attention": matrix}, layout) | self._kept({"queries": queries, "keys": keys})
            self._put(self._matrices[step], self._matrix_layers.index(layer), found, len(self._matrix_layers))

    def _kept(self, found: Mapping[str, Tensor], layout: Layout | None = None) -> Held:
        """What the plan keeps; with a layout, [..., K] as [..., T], 0 for tokens that are no key."""
        return {
            name: values if layout is None else _on_canvas(values, layout.keys, self.plan.tokens, -1)
            for name, values in found.items()
            if name in self.plan.keep
        }

    def _put(self, buffers: Held, layer: int, found: Held, layers: int | None = None) -> None:
        """Copy a layer's arrays into those of its step, [layer, ...]."""
        for name, values in found.items():
            if name not in buffers:
                home = values.device if self.stays else torch.device("cpu")
                buffers[name] = torch.empty((layers or self.layers, *values.shape), dtype=values.dtype, device=home)
            if buffers[name].shape[1:] != values.shape:
                buffers[name], values = _alike(buffers[name], values)
            buffers[name][layer] = values


class DenoisingRecorder(Recorder):
    """Records an MDM: `start` before a forward, `layer` for each layer, `commit` after the step."""

    stays = True

    def __init__(self, plan: Plan, layers: int, steps: int, fewest: int = 1, landing: Landing | None = None) -> None:
        """`steps`, `fewest`: how many steps there may be, at most and at least."""
        super().__init__(plan, layers, plan.tokens, landing)
        self._fewest, self._most = fewest, steps
        self._layout: Layout | None = None
        self._open: Held = {}

    def start(
        self, masked: Tensor, open_rows: Tensor, rows: Tensor | None = None, keys: Tensor | None = None
    ) -> Layout:
        """A new step: which slots [A] are masked, and the rows that may fill one.

        rows, keys: the computed rows and what they may look at, where that is not the whole canvas: a block over a
        cache. All are positions, ascending.
        """
        plan = self.plan
        groups = plan.groups.clone()
        groups[plan.slots[masked]] = plan.masked_group
        if rows is None or keys is None:
            self._layout = Layout.whole(groups, plan.group_count, plan.columns, open_rows, TOP_KEYS)
        else:
            places, columns = torch.searchsorted(rows, open_rows), plan.columns[keys]
            self._layout = Layout(rows, keys, groups[rows], plan.group_count, columns, places, TOP_KEYS)
        self._computed.append((int(self._layout.rows[0]), int(self._layout.rows[-1]) + 1))
        self._group_rows.append(self._layout.group_rows.int().numpy())
        self._open = {}
        # The first step, and those that may yet turn out to be the middle one, n // 2 of n steps.
        self._drop_geometry({0, *range(max(self._fewest, len(self._group_rows)) // 2, self._most // 2 + 1)})
        return self._layout

    def finish(self) -> tuple[Arrays, tuple[int, ...]]:
        """The arrays; geometry of the first, the middle and the last step, unless every step is kept."""
        steps = len(self._group_rows)
        self._drop_geometry({0, steps // 2, steps - 1})
        return super().finish()

    @property
    def keeps_geometry(self) -> bool:
        """Whether that of the current step may be kept."""
        return self._may_keep_geometry(len(self._group_rows) - 1)

    def _may_keep_geometry(self, step: int) -> bool:
        """Whether it may turn out to be the first, the middle (n // 2 of n steps) or the last step."""
        middle = self._fewest // 2 <= step <= self._most // 2
        return self.plan.every_step or step == 0 or middle or step + 1 >= self._fewest

    def _drop_geometry(self, but: set[int]) -> None:
        for step in () if self.plan.every_step else self._geometry.keys() - but:
            del self._geometry[step]

    def layer(self, layer: int, statistics: LayerStatistics, geometry: Geometry) -> None:
        """Reduce one layer of the current step."""
        assert self._layout is not None
        plan, step, groups = self.plan, len(self._group_rows) - 1, statistics.group_sums  # M, [H, G, K]
        layout, counts = geometry.layout, self._layout.group_rows
        rows = layout.group_rows[:, None].clamp(min=1)  # [G, 1]
        masked, committed = groups[:, plan.masked_group], groups[:, plan.committed_group]
        answer_rows = int(counts[plan.masked_group] + counts[plan.committed_group])
        self._keep_step(
            layer, step, geometry, groups,
            received=groups.sum(1) / len(self._layout.rows),
            by_answer=(masked + committed).mean(0) / max(answer_rows, 1),
            by_masked=masked.mean(0) / rows[plan.masked_group],
            regions=groups @ layout.columns / rows,  # a sliding layer has fewer keys
        )  # fmt: skip
        self._put(self._open, layer, self._kept(_row_arrays(statistics, layout, self._inputs)))
        if statistics.rolled is not None:
            sums = statistics.rolled.new_zeros(plan.group_count, statistics.rolled.shape[1])
            sums.index_add_(0, geometry.layout.groups, statistics.rolled)
            self._put(self._by_step[step], layer, self._kept({"rollout": sums / rows}))
        self.beside(layer, geometry)

    def beside(self, layer: int, geometry: Geometry, counted: bool = False) -> None:
        """What one layer of the current step shows beside its statistics; `counted`: its sums come with `take`."""
        step = len(self._group_rows) - 1
        if not counted:
            self._keep_geometry(layer, step, geometry)
        if self.plan.matrix_steps is None or step in self.plan.matrix_steps:
            self._keep_matrices(layer, step, geometry)

    def take(self, found: Held, counted: Sequence[int]) -> None:
        """The arrays of the current step, [layer, ...], out of those of a batch; geometry has those `counted` only."""
        step = len(self._group_rows) - 1
        of_geometry = self._geometry[step] if self.keeps_geometry else {}
        homes = {"seen_by": self._seen[step]} | dict.fromkeys(GEOMETRY, of_geometry)
        for name, values in self._kept(found).items():
            held = self._open if name.startswith("commit") else homes.get(name, self._by_step[step])
            if name not in homes or len(counted) == self.layers:
                held[name] = values.clone() if values.device.type == "cpu" else values  # of a device: sent anyway
            else:
                for layer in counted:
                    self._put(held, layer, {name: values[layer]})

    def commit(self, slots: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        """Keep the rows [n] (positions) that predicted the committed slots [n]; the other open rows are dropped."""
        assert self._layout is not None
        where = torch.searchsorted(self._layout.rows[self._layout.open_rows], torch.from_numpy(rows))
        chosen = {  # [layer, N, ...] to [slot, layer, ...]
            name: values.index_select(1, where.to(values.device, non_blocking=True)).transpose(0, 1)
            for name, values in self._open.items()
        }
        self._by_slot.append((slots, chosen))


class BatchRecorder:
    """The recorders of a batch: where a kernel counts all samples at once, they are reduced at once.

    A layer's arrays [B, ...], pads included, go into those of the step; `share` gives each sample its own.
    """

    def __init__(self, recorders: Sequence[DenoisingRecorder]) -> None:
        self._recorders = recorders
        self._known: dict[int, int] = {}  # the sample that each number of a layer is, as far as they came by
        self._heads: tuple[int, int] | None = None  # of the first layer; sums of layers with others are their own
        self._there: list[bool] = []  # for each sample of the layer whether its rows see everything
        self._counted = False  # whether the layer's query-key sums are taken at once
        # By these: layouts and pads of the samples, arrays [layer, B, ...], the layers whose geometry is among them.
        self._parts: dict[tuple[tuple[int, int], ...], tuple[dict[int, tuple[Layout, int]], Held, list[int]]] = {}

    def layer(self, layer: int, sample: int, statistics: LayerStatistics, geometry: Geometry) -> None:
        """One layer of one sample; the last of those that were counted together brings all."""
        own, together = self._recorders[sample], statistics.together
        if together is None or statistics.rolled is not None or geometry.layout.rows.shape[0] < own.plan.tokens:
            self.share()  # the arrays that layers of several shapes have are each sample's own
            return own.layer(layer, statistics, geometry)
        number, whole, part = together
        if not self._known:  # the first of its layer
            self._there = [one.visible.everything for one in part.samples if one is not None]
            heads = part.inputs.query.shape[1], part.inputs.key.shape[1]
            self._heads = self._heads or heads
            self._counted = heads == self._heads and all(self._there)
        self._known[number] = sample
        own.beside(layer, geometry, self._counted)
        if len(self._known) == len(self._there):
            self._reduce(layer, whole, part, self._counted)
            self._known = {}

    def _reduce(self, layer: int, whole: LayerStatistics, part: Layer, geometry: bool) -> None:
        """As `DenoisingRecorder.layer` does for one sample. G, N and C are the most that a sample has.

        `geometry`: all see everything, so that their query-key sums are taken at once too.
        """
        sums, samples = whole.group_sums, part.samples  # M, [B, H, G, K]
        some = next(iter(self._known.values()))  # in place of those that are finished
        recorders = [self._recorders[self._known.get(number, some)] for number in range(len(samples))]
        counts = sums.new_zeros(len(samples), sums.shape[2])
        for own, sample in zip(counts, samples, strict=True):
            if sample is not None:
                own[: sample.layout.group_count] = sample.layout.group_rows
        masked, committed = (
            torch.stack([own[:, getattr(one.plan, name)] for own, one in zip(sums, recorders, strict=True)])
            for name in ("masked_group", "committed_group")
        )  # [B, H, K]
        of_masked, of_committed = (
            torch.stack([own[getattr(one.plan, name)] for own, one in zip(counts, recorders, strict=True)])[:, None]
            for name in ("masked_group", "committed_group")
        )  # [B, 1]
        received = sums.sum(2) / counts.sum(1).clamp(min=1)[:, None, None]  # [B, H, K]
        value_norm = part.inputs.value.float().norm(dim=-1)  # [B, Hkv, K]
        valued = (received.unflatten(1, (value_norm.shape[1], -1)) * value_norm[:, :, None]).flatten(1, 2)
        pads = part.stack.pads
        found = {
            "received": received.mean(1),
            "received_answer": (masked + committed).mean(1) / (of_masked + of_committed).clamp(min=1),
            "received_masked": masked.mean(1) / of_masked.clamp(min=1),
            "received_value": valued.mean(1),
            "region_attention": (sums.flatten(1, 2) @ part.stack.columns).view(*sums.shape[:3], -1)
            / counts[:, None, :, None].clamp(min=1),
            "head_attention": sums,
            "group_attention": sums.mean(1),
            "commit_keys": (whole.row_keys.int() - pads).transpose(1, 2),
            "commit_key_mass": whole.row_key_mass.transpose(1, 2),
            "commit_mass": whole.row_mass.transpose(1, 2),
            "commit_entropy": whole.row_entropy.transpose(1, 2),
        }
        if geometry:
            own_rows = (part.stack.row_places >= 0).float()
            found["seen_by"] = own_rows.sum(1, keepdim=True).int().expand(-1, sums.shape[-1])
            if any(one.keeps_geometry for one in recorders):
                found |= vars(qk_sums_of_all(part.inputs.query, part.inputs.key, own_rows)) | {"value_norm": value_norm}
        keep = frozenset[str]().union(*(one.plan.keep for one in recorders))
        own = {number: (one.layout, one.pad) for number, one in enumerate(samples) if one is not None}
        _, held, counted = self._parts.setdefault(tuple(self._known.items()), (own, {}, []))
        counted += [layer] * geometry
        for name, values in found.items():
            if name not in keep:
                continue
            if name not in held:
                held[name] = sums.new_empty((recorders[0].layers, *values.shape), dtype=values.dtype)
            held[name][layer] = values

    def share(self) -> None:
        """To each sample what is its own, of the layers so far."""
        for known, (samples, held, counted) in self._parts.items():
            for number, place in known:
                layout, pad = samples[number]
                groups, columns = layout.group_count, layout.columns.shape[1]
                by_key, rows = slice(pad, None), slice(len(layout.open_rows))
                top = slice(min(layout.top, len(layout.keys)))
                cuts = {
                    "head_attention": (..., slice(groups), by_key),
                    "group_attention": (..., slice(groups), by_key),
                    "region_attention": (..., slice(groups), slice(columns)),
                    "commit_keys": (slice(None), rows, ..., top),
                    "commit_key_mass": (slice(None), rows, ..., top),
                    "commit_mass": (slice(None), rows, ..., slice(columns)),
                    "commit_entropy": (slice(None), rows),
                }
                own = {name: one[:, number][cuts.get(name, (..., by_key))] for name, one in held.items()}
                self._recorders[place].take(own, counted)
        self._parts = {}


class CausalRecorder(Recorder):
    """Records an ARM from one forward over prompt + answer[:-1]: step t has the rows 0..P+t-1.

    Every answer row is a group of its own in the forward; a step is the sum of those before it.
    """

    def __init__(self, plan: Plan, layers: int) -> None:
        super().__init__(plan, layers, plan.tokens - 1)
        self._open: Held = {}
        self._prompt = plan.tokens - plan.answer  # the slots of an ARM follow its prompt
        rows = torch.bincount(plan.groups[: self._prompt], minlength=plan.group_count)
        for step in range(plan.answer):
            rows[plan.committed_group] = step
            self._group_rows.append(rows.numpy().astype(np.int32))
            self._computed.append((0, self._prompt + step))

    def finish(self) -> tuple[Arrays, tuple[int, ...]]:
        """The arrays; every answer slot has its row."""
        self._by_slot.append((slice(None), {name: values.transpose(0, 1) for name, values in self._open.items()}))
        return super().finish()

    def layout(self) -> Layout:
        """Prompt groups, then a group for each answer row; the open rows predict the answer tokens."""
        plan, inputs = self.plan, self.plan.answer - 1
        groups = torch.cat([plan.groups[: self._prompt], plan.group_count + torch.arange(inputs)])
        rows = torch.arange(self._prompt - 1, self._prompt + inputs)
        return Layout.whole(groups, plan.group_count + inputs, plan.columns[: len(groups)], rows, TOP_KEYS)

    def layer(self, layer: int, statistics: LayerStatistics, geometry: Geometry) -> None:
        """Unroll one layer into all its steps. The prompt's part of M is reduced once; from step to step only the
        group of committed rows grows, by an answer row."""
        plan, own, steps = self.plan, self.plan.committed_group, self.plan.answer
        groups = statistics.group_sums[:, : plan.group_count].clone()  # [H, G, K]
        answer = statistics.group_sums[:, plan.group_count :]  # [H, n - 1, K]
        columns, counts = geometry.layout.columns, torch.from_numpy(self._group_rows[0]).to(groups.device)
        prompt = groups.sum(1)  # [H, K]
        regions = groups @ columns / counts[:, None].clamp(min=1)  # [H, G, C]
        rolled, whole = None, statistics.rolled
        if whole is not None:
            rolled = whole.new_zeros(plan.group_count, whole.shape[1])
            rolled.index_add_(0, plan.groups[: self._prompt].to(whole.device), whole[: self._prompt])
            rolled /= counts[:, None].clamp(min=1)  # [G, C]
        for step in range(steps):
            if step:
                groups[:, own] += answer[:, step - 1]
                regions[:, own] = groups[:, own] @ columns / step
            if step and rolled is not None and whole is not None:
                rolled[own] = rolled[own].lerp(whole[self._prompt + step - 1], 1 / step)
            by_answer = groups[:, own].mean(0) / max(step, 1)
            received = (prompt + groups[:, own]) / (self._prompt + step)
            none = torch.zeros_like(by_answer)  # an ARM has no masked rows
            self._keep_step(layer, step, geometry, groups, received, by_answer, none, regions)
            if rolled is not None:
                self._put(self._by_step[step], layer, self._kept({"rollout": rolled}))
            if self._may_keep_geometry(step):
                self._keep_geometry(layer, step, geometry, self._prompt + step)
        found = self._kept(_row_arrays(statistics, geometry.layout, self._inputs))
        self._put(self._open, layer, found)
        self._keep_matrices(layer, steps - 1, geometry)  # the rows of an earlier step are its first rows


def _row_arrays(statistics: LayerStatistics, layout: Layout, inputs: int) -> dict[str, Tensor]:
    """Open rows [N, H, ...] under their names in a trace; keys as positions. A rollout is one for all heads, [N, ...].

    Where rows over a cache have fewer keys than ranks, tokens that are none follow: their mass is 0.
    """
    keys, mass = layout.keys[statistics.row_keys], statistics.row_key_mass
    if (lacking := min(layout.top, inputs) - keys.shape[-1]) > 0:
        places = torch.arange(inputs, device=keys.device)
        others = places[~torch.isin(places, layout.keys)][:lacking]
        keys = torch.cat([keys, others.expand(*keys.shape[:-1], -1)], -1)
        mass = torch.nn.functional.pad(mass, (0, lacking))
    found = {
        "commit_keys": keys.int().transpose(0, 1),
        "commit_key_mass": mass.transpose(0, 1),
        "commit_mass": statistics.row_mass.transpose(0, 1),
        "commit_entropy": statistics.row_entropy.transpose(0, 1),
    }
    if statistics.rolled is not None:
        found["commit_rollout"] = statistics.rolled[layout.open_rows]
    return found


def _on_canvas(values: Tensor, places: Tensor, tokens: int, axis: int) -> Tensor:
    """Values of some positions along an axis as those of all tokens, 0 for the others."""
    if places.shape[0] == tokens:
        return values
    shape = list(values.shape)
    shape[axis] = tokens
    return values.new_zeros(shape).index_copy_(axis, places, values)


def _alike(buffer: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Layers [layer, head, ...] and one more of another shape: fewer key-value heads are each there several times, and
    after smaller ones follow zeros."""
    heads, width = max(buffer.shape[1], len(values)), max(buffer.shape[-1], values.shape[-1])
    whole = buffer.repeat_interleave(heads // buffer.shape[1], 1), values.repeat_interleave(heads // len(values), 0)
    wider = [torch.nn.functional.pad(one, (0, width - one.shape[-1])) for one in whole]
    return wider[0], wider[1]


def _stacked(held: dict[int, Held]) -> Arrays:
    """The arrays of steps as [step, layer, ...]; each is let go when it is copied: none is there twice."""
    first = next(iter(held.values()), {})
    made = {name: np.empty((len(held), *values.shape), values.numpy().dtype) for name, values in first.items()}
    for place, found in enumerate(held.values()):
        for name, values in made.items():
            values[place] = found.pop(name).numpy()
    return made
