"""From a layer's statistics to the arrays a trace keeps: a recorder per sample, numpy buffers allocated once.

A denoising run has a forward per step. An ARM has one forward for all its steps, since a causal row never changes: its
steps follow by prefix sums over its answer rows. Names and axes of the arrays are those of `traces.ARRAYS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.canvas import ANSWER, Prompt, group_labels
from floatscope.probe.attention import Geometry
from floatscope.probe.kernel import LayerStatistics
from floatscope.probe.layout import Layout

Arrays = dict[str, NDArray[Any]]
TOP_KEYS = 8
MOST_FORESEEN = 256  # steps that arrays are made for at once


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
    matrix_steps: tuple[int, ...] | None = None
    """Steps whose full matrices are kept, where they are; None: all."""
    matrix_layers: tuple[int, ...] | None = None
    """Layers likewise."""

    @classmethod
    def of(
        cls,
        canvas: Prompt,
        keep: frozenset[str],
        matrix_steps: Sequence[int] | None = None,
        matrix_layers: Sequence[int] | None = None,
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
            matrix_steps=None if matrix_steps is None else tuple(matrix_steps),
            matrix_layers=None if matrix_layers is None else tuple(matrix_layers),
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
    def every_step(self) -> bool:
        """Whether the geometry of every step is kept: with all heads; else that of the first, middle and last."""
        return "head_attention" in self.keep


class Recorder:
    """What both kinds of run share: named arrays [step, layer, ...] and the reductions that fill them."""

    def __init__(self, plan: Plan, layers: int, steps: int) -> None:
        """`steps`: the most that there may be."""
        self.plan = plan
        self.layers = layers
        self._capacity = max(1, min(steps, MOST_FORESEEN))  # doubles where that is not enough
        self._steps = 0
        self._by_step: Arrays = {}
        self._fixed: Arrays = {}
        self._geometry: dict[int, Arrays] = {}
        self._matrices: dict[int, dict[int, Arrays]] = {}

    def finish(self) -> tuple[Arrays, tuple[int, ...]]:
        """The arrays, and the steps whose per-head geometry was kept."""
        qk_steps = tuple(sorted(self._geometry))
        arrays = {name: values[: self._steps] for name, values in self._by_step.items()} | self._fixed
        for name in self._geometry[qk_steps[0]] if qk_steps else ():
            arrays[name] = np.stack([self._geometry[step][name] for step in qk_steps])
        if self._matrices:
            steps, layers = sorted(self._matrices), sorted(next(iter(self._matrices.values())))
            arrays["matrix_steps"], arrays["matrix_layers"] = np.array(steps, np.int32), np.array(layers, np.int32)
            for name in ("attention", "queries", "keys"):
                arrays[name] = np.stack([[self._matrices[s][layer][name] for layer in layers] for s in steps])
        return arrays, qk_steps

    def latest(self, name: str) -> NDArray[Any]:
        """An array of the last step recorded so far, [layer, ...]."""
        return self._by_step[name][self._steps - 1].copy()

    def _keep_step(self, layer: int, step: int, kept: Mapping[str, Tensor], layout: Layout) -> None:
        """Arrays of one step and layer, [..., K] or [..., C]; tokens that are no keys stay 0."""
        for name, values in kept.items():
            if name not in self.plan.keep:
                continue
            by_set = name == "region_attention"
            last = values.shape[-1] if by_set else self.plan.tokens
            held = self._at_steps(name, step + 1, (self.layers, *values.shape[:-1], last))
            held[step, layer, ..., slice(None) if by_set else layout.key_places] = values.cpu()

    def _at_steps(self, name: str, steps: int, shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
        """The array of this name with room for `steps` steps."""
        self._steps = max(self._steps, steps)
        while self._capacity < steps:
            self._capacity *= 2
        held = self._by_step.setdefault(name, np.zeros((self._capacity, *shape), dtype))
        if len(held) < self._capacity:
            held = np.concatenate([held, np.zeros((self._capacity - len(held), *shape), dtype)])
            self._by_step[name] = held
        return held

    def _keep_geometry(self, layer: int, step: int, geometry: Geometry, rows: int | None = None) -> None:
        """Per-head sums over the first `rows` rows of the canvas."""
        sums = geometry.qk(rows)
        named = {"qk": sums.qk, "cos": sums.cos, "norm": sums.norm, "key_norm": sums.key_norm}
        named |= {"value_norm": geometry.value_norm}
        self._keep_tokens(self._geometry.setdefault(step, {}), layer, named, geometry.layout)
        self._keep_tokens(self._fixed, layer, {"seen_by": geometry.seen_by.int()}, geometry.layout)

    def _keep_matrices(self, layer: int, step: int, geometry: Geometry) -> None:
        """The full R x T matrices of a layer: for small canvases, and on request only."""
        plan, places = self.plan, geometry.layout.key_places
        if "attention" not in plan.keep or (plan.matrix_layers is not None and layer not in plan.matrix_layers):
            return
        query, key = geometry.inputs.query, geometry.inputs.key
        attention = np.zeros((*query.shape[:2], plan.tokens), np.float32)
        attention[..., places] = geometry.matrix().cpu()
        keys = np.zeros((len(key), plan.tokens, key.shape[-1]), np.float32)
        keys[:, places] = key.float().cpu()
        queries = query.float().cpu().numpy()
        self._matrices.setdefault(step, {})[layer] = {"attention": attention, "queries": queries, "keys": keys}

    def _keep_tokens(self, into: Arrays, layer: int, found: Mapping[str, Tensor], layout: Layout) -> None:
        """Arrays [..., K] into [layer, ..., T]; tokens that are no keys stay 0."""
        for name, values in found.items():
            if name in self.plan.keep:
                array = values.cpu().numpy()
                shape = (self.layers, *array.shape[:-1], self.plan.tokens)
                into.setdefault(name, np.zeros(shape, array.dtype))[layer, ..., layout.key_places] = array

    def _keep_rows(self, layer: int, slots: Any, found: Mapping[str, Tensor], rows: Any) -> None:
        """Open rows [H, N, ...] that predicted the answer slots, into [answer, layer, head, ...]."""
        for name, values in found.items():
            if name not in self.plan.keep:
                continue
            array = values.cpu().numpy()[:, rows].swapaxes(0, 1)
            dtype = np.int32 if name == "commit_keys" else np.float32
            shape = (self.plan.answer, self.layers, *array.shape[1:])
            self._fixed.setdefault(name, np.zeros(shape, dtype))[slots, layer] = array


class DenoisingRecorder(Recorder):
    """Records an MDM: `start` before a forward, `layer` for each layer, `commit` after the step."""

    def __init__(self, plan: Plan, layers: int, steps: int, fewest: int = 1) -> None:
        """`steps`, `fewest`: how many steps there may be, at most and at least."""
        super().__init__(plan, layers, steps)
        self._fewest, self._most = fewest, steps
        self._step = -1
        self._layout: Layout | None = None
        self._pending: list[dict[str, Tensor]] = []

    def start(self, masked: Tensor, open_rows: Tensor) -> Layout:
        """A new step over the whole canvas: which slots [A] are masked, and the rows that may fill one, ascending."""
        self._step += 1
        plan = self.plan
        groups = plan.groups.clone()
        groups[plan.slots[masked]] = plan.masked_group
        self._layout = Layout.whole(groups, plan.group_count, plan.columns, open_rows, TOP_KEYS)
        counts = self._at_steps("group_rows", self._step + 1, (plan.group_count,), np.int32)
        counts[self._step] = self._layout.group_rows.cpu()
        self._pending = []
        if not plan.every_step:
            # The first step, and those that may yet turn out to be the middle one, n // 2 of n steps.
            middle = range(max(self._fewest, self._step + 1) // 2, self._most // 2 + 1)
            self._geometry = {step: held for step, held in self._geometry.items() if step == 0 or step in middle}
        return self._layout

    def finish(self) -> tuple[Arrays, tuple[int, ...]]:
        """The arrays; geometry of the first, the middle and the last step, unless every step is kept."""
        if not self.plan.every_step:
            last = self._steps - 1
            self._geometry = {step: self._geometry[step] for step in sorted({0, self._steps // 2, last})}
        return super().finish()

    def layer(self, layer: int, statistics: LayerStatistics, geometry: Geometry) -> None:
        """Reduce one layer of the current step."""
        assert self._layout is not None
        self._keep_step(layer, self._step, self._reduced(statistics.group_sums, geometry), self._layout)
        self._keep_geometry(layer, self._step, geometry)
        self._pending.append(_row_arrays(statistics, geometry.layout))
        if self.plan.matrix_steps is None or self._step in self.plan.matrix_steps:
            self._keep_matrices(layer, self._step, geometry)

    def _reduced(self, groups: Tensor, geometry: Geometry) -> dict[str, Tensor]:
        """What a step keeps of M = groups [H, G, K]."""
        assert self._layout is not None
        plan, counts = self.plan, self._layout.group_rows
        answer_rows = int(counts[plan.masked_group] + counts[plan.committed_group])
        rows = counts.to(groups.device)[:, None].clamp(min=1)  # [G, 1]
        received = groups.sum(1) / len(self._layout.rows)  # [H, K]
        masked, committed = groups[:, plan.masked_group], groups[:, plan.committed_group]
        kept = {
            "received": received.mean(0),
            "received_answer": (masked + committed).mean(0) / max(answer_rows, 1),
            "received_masked": masked.mean(0) / rows[plan.masked_group],
            "received_value": (received * _per_head(geometry.value_norm, groups)).mean(0),
            "region_attention": groups @ self._layout.columns.to(groups.device) / rows,
            "head_attention": groups,
        }
        if "group_attention" in plan.keep:
            kept["group_attention"] = groups.mean(0)
        return kept

    def commit(self, slots: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        """Keep the rows [n] (positions) that predicted the committed slots [n]; the other open rows are dropped."""
        assert self._layout is not None
        where = np.searchsorted(self._layout.rows[self._layout.open_rows].cpu().numpy(), rows)
        for layer, found in enumerate(self._pending):
            self._keep_rows(layer, slots, found, where)


class CausalRecorder(Recorder):
    """Records an ARM from one forward over prompt + answer[:-1]: step t has the rows 0..P+t-1.

    Every answer row is a group of its own in the forward; a step is the sum of those before it.
    """

    def __init__(self, plan: Plan, layers: int) -> None:
        super().__init__(plan, layers, plan.answer)
        steps = plan.answer
        self._prompt = plan.tokens - steps  # the slots of an ARM follow its prompt
        rows = torch.bincount(plan.groups[: self._prompt], minlength=plan.group_count).repeat(steps, 1)
        rows[:, plan.committed_group] = torch.arange(steps)
        self._group_rows = rows  # [n, G]
        self._at_steps("group_rows", steps, (plan.group_count,), np.int32)[:] = rows
        self._qk_steps = range(steps) if plan.every_step else sorted({0, steps // 2, steps - 1})

    def layout(self) -> Layout:
        """Prompt groups, then a group for each answer row; the open rows predict the answer tokens."""
        plan, inputs = self.plan, self.plan.answer - 1
        groups = torch.cat([plan.groups[: self._prompt], plan.group_count + torch.arange(inputs)])
        rows = torch.arange(self._prompt - 1, self._prompt + inputs)
        return Layout.whole(groups, plan.group_count + inputs, plan.columns[: len(groups)], rows, TOP_KEYS)

    def layer(self, layer: int, statistics: LayerStatistics, geometry: Geometry) -> None:
        """Unroll one layer into all its steps."""
        plan = self.plan
        prompt = statistics.group_sums[:, : plan.group_count]  # [H, G, K]
        for step, kept in enumerate(self._unrolled(prompt, statistics.group_sums[:, plan.group_count :], geometry)):
            self._keep_step(layer, step, kept, geometry.layout)
        for step in self._qk_steps:
            self._keep_geometry(layer, step, geometry, self._prompt + step)
        self._keep_rows(layer, slice(None), _row_arrays(statistics, geometry.layout), slice(None))
        self._keep_matrices(layer, plan.answer - 1, geometry)  # the rows of an earlier step are its first rows

    def _unrolled(self, groups: Tensor, answer: Tensor, geometry: Geometry) -> Iterator[dict[str, Tensor]]:
        """What each step keeps. The prompt's part of M, groups [H, G, K], is reduced once; from step to step only
        the group of committed rows grows, by the rows answer [H, n - 1, K]."""
        plan, own = self.plan, self.plan.committed_group
        columns = plan.columns[: groups.shape[-1]].to(groups.device)
        value_norm = _per_head(geometry.value_norm, groups)
        groups = groups.clone()
        prompt = groups.sum(1)  # [H, K]
        regions = groups @ columns / self._group_rows[0, :, None].clamp(min=1).to(groups.device)  # [H, G, C]
        for step in range(plan.answer):
            if step:
                groups[:, own] += answer[:, step - 1]
                regions[:, own] = groups[:, own] @ columns / step
            received = (prompt + groups[:, own]) / (self._prompt + step)
            by_answer = groups[:, own].mean(0) / max(step, 1)
            kept = {
                "received": received.mean(0),
                "received_answer": by_answer,
                "received_masked": torch.zeros_like(by_answer),
                "received_value": (received * value_norm).mean(0),
                "region_attention": regions,
                "head_attention": groups,
            }
            if "group_attention" in plan.keep:
                kept["group_attention"] = groups.mean(0)
            yield kept


def _per_head(values: Tensor, groups: Tensor) -> Tensor:
    """Values of key-value heads [Hkv, K] for the query heads of groups [H, ...]."""
    return values.repeat_interleave(len(groups) // len(values), 0)


def _row_arrays(statistics: LayerStatistics, layout: Layout) -> dict[str, Tensor]:
    """Open rows [H, N, ...] under their names in a trace; keys as positions."""
    keys = statistics.row_keys
    return {
        "commit_keys": keys if layout.is_whole else layout.keys[keys],
        "commit_key_mass": statistics.row_key_mass,
        "commit_mass": statistics.row_mass,
        "commit_entropy": statistics.row_entropy,
    }
