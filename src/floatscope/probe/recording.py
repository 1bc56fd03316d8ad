"""From a layer's statistics to the arrays a trace keeps: one recorder per sample, numpy buffers allocated once.

A denoising run has a forward per step. An ARM has one forward for all its steps, since a causal row never changes: its
steps follow by prefix sums over its answer rows. Array names and axes are those of `traces.AXES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.canvas import ANSWER, Prompt, group_labels, with_answer
from floatscope.probe.attention import Geometry
from floatscope.probe.kernel import LayerStatistics
from floatscope.probe.layout import Layout

Arrays = dict[str, NDArray[Any]]
TOP_KEYS = 8
MOST_FORESEEN = 256  # steps that arrays are made for at once


@dataclass(frozen=True)
class Plan:
    """What stays the same over a sample's run. P prompt tokens, A answer tokens, T = P + A."""

    prompt_groups: Tensor
    """Group of each prompt row, int64 [P]."""
    group_count: int
    """Number of groups, G."""
    masked_group: int
    """Group of answer rows that are still masked."""
    committed_group: int
    """Group of answer rows that are tokens."""
    columns: Tensor
    """Membership of the canvas in column sets, float32 [T, C]."""
    keep: str
    """compact, groups, heads or matrices."""
    matrix_steps: tuple[int, ...] | None = None
    """Steps whose full matrices are kept under "matrices"; None: all."""
    matrix_layers: tuple[int, ...] | None = None
    """Layers likewise."""

    @classmethod
    def of(
        cls,
        prompt: Prompt,
        answer: int,
        keep: str,
        matrix_steps: Sequence[int] | None = None,
        matrix_layers: Sequence[int] | None = None,
    ) -> Plan:
        """Row groups and column sets of a prompt and its answer: regions by first appearance, then marks."""
        regions = with_answer(prompt.regions, answer)
        labels = tuple(dict.fromkeys(region.label for region in regions))
        groups = group_labels(labels)
        columns = torch.zeros(len(prompt.ids) + answer, len(labels) + len(prompt.marks))
        for region in regions:
            columns[region.start : region.stop, labels.index(region.label)] = 1
        for place, positions in enumerate(prompt.marks.values(), len(labels)):
            columns[torch.from_numpy(positions), place] = 1
        return cls(
            prompt_groups=torch.cat([torch.full((len(r),), groups.index(r.label)) for r in prompt.regions]),
            group_count=len(groups),
            masked_group=groups.index(f"{ANSWER}:masked"),
            committed_group=groups.index(f"{ANSWER}:committed"),
            columns=columns,
            keep=keep,
            matrix_steps=None if matrix_steps is None else tuple(matrix_steps),
            matrix_layers=None if matrix_layers is None else tuple(matrix_layers),
        )

    @property
    def prompt(self) -> int:
        """Number of prompt tokens, P."""
        return len(self.prompt_groups)

    @property
    def tokens(self) -> int:
        """Number of tokens, T."""
        return len(self.columns)

    @property
    def answer(self) -> int:
        """Number of answer tokens, A."""
        return self.tokens - self.prompt

    @property
    def every_step(self) -> bool:
        """Whether per-head arrays are kept at every step."""
        return self.keep in ("heads", "matrices")


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
        for name in self._geometry[qk_steps[0]]:
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

    def _keep_step(self, layer: int, step: int, kept: Mapping[str, Tensor]) -> None:
        """Arrays of one step and layer, [..., T'] or [..., C]; tokens that are no keys stay 0."""
        for name, values in kept.items():
            last = values.shape[-1] if name == "region_attention" else self.plan.tokens
            held = self._at_steps(name, step + 1, (self.layers, *values.shape[:-1], last))
            held[step, layer, ..., : values.shape[-1]] = values.cpu()

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
        self._keep_tokens(self._geometry.setdefault(step, {}), layer, named | {"value_norm": geometry.value_norm})
        self._keep_tokens(self._fixed, layer, {"seen_by": geometry.seen_by.int()})

    def _keep_matrices(self, layer: int, step: int, geometry: Geometry) -> None:
        """The full T' x T matrices of a layer: for small canvases, and on request only."""
        plan = self.plan
        if plan.keep != "matrices" or (plan.matrix_layers is not None and layer not in plan.matrix_layers):
            return
        beyond = plan.tokens - geometry.query.shape[1]  # tokens that are no keys
        self._matrices.setdefault(step, {})[layer] = {
            "attention": _with_zeros(geometry.matrix(), (0, beyond)),
            "queries": _with_zeros(geometry.query, (0, 0)),
            "keys": _with_zeros(geometry.key, (0, 0, 0, beyond)),
        }

    def _keep_tokens(self, into: Arrays, layer: int, found: Mapping[str, Tensor]) -> None:
        """Arrays [..., T'] into [layer, ..., T]; tokens that are no keys stay 0."""
        for name, values in found.items():
            array = values.cpu().numpy()
            shape = (self.layers, *array.shape[:-1], self.plan.tokens)
            into.setdefault(name, np.zeros(shape, array.dtype))[layer, ..., : array.shape[-1]] = array

    def _keep_rows(self, layer: int, slots: Any, found: Mapping[str, Tensor], rows: Any) -> None:
        """Rows of interest [H, N, ...] that predicted the answer slots, into [answer, layer, head, ...]."""
        for name, values in found.items():
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

    def start(self, masked: Tensor, rows: Tensor) -> Layout:
        """A new step: which answer slots [A] are masked, and the rows that may commit, ascending."""
        self._step += 1
        plan = self.plan
        answer = torch.where(masked, plan.masked_group, plan.committed_group)
        groups = torch.cat([plan.prompt_groups, answer])
        self._layout = Layout(groups, plan.group_count, plan.columns, rows, TOP_KEYS)
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
        self._keep_step(layer, self._step, self._reduced(statistics.group_sums, geometry))
        self._keep_geometry(layer, self._step, geometry)
        self._pending.append(_row_arrays(statistics))
        if self.plan.matrix_steps is None or self._step in self.plan.matrix_steps:
            self._keep_matrices(layer, self._step, geometry)

    def _reduced(self, groups: Tensor, geometry: Geometry) -> dict[str, Tensor]:
        """What a step keeps of M = groups [H, G, T]."""
        assert self._layout is not None
        plan = self.plan
        group_rows = self._layout.group_rows.to(groups.device)
        rows = group_rows[:, None].clamp(min=1)  # [G, 1]
        received = groups.sum(1) / self._layout.tokens  # [H, T]
        masked, committed = groups[:, plan.masked_group], groups[:, plan.committed_group]
        kept = {
            "received": received.mean(0),
            "received_answer": (masked + committed).mean(0) / plan.answer,
            "received_masked": masked.mean(0) / rows[plan.masked_group],
            "received_value": (received * _per_head(geometry.value_norm, groups)).mean(0),
            "region_attention": groups @ plan.columns.to(groups.device) / rows,
        }
        if plan.keep == "groups":
            kept["group_attention"] = groups.mean(0)
        if plan.every_step:
            kept["head_attention"] = groups
        return kept

    def commit(self, slots: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        """Keep the rows [n] that predicted the committed slots [n]; the other rows of interest are dropped."""
        assert self._layout is not None
        where = np.searchsorted(self._layout.rows.cpu().numpy(), rows)
        for layer, found in enumerate(self._pending):
            self._keep_rows(layer, slots, found, where)


class CausalRecorder(Recorder):
    """Records an ARM from one forward over prompt + answer[:-1]: step t has the rows 0..P+t-1.

    Every answer row is a group of its own in the forward; a step is the sum of those before it.
    """

    def __init__(self, plan: Plan, layers: int) -> None:
        super().__init__(plan, layers, plan.answer)
        steps = plan.answer
        rows = torch.bincount(plan.prompt_groups, minlength=plan.group_count).repeat(steps, 1)
        rows[:, plan.committed_group] = torch.arange(steps)
        self._group_rows = rows  # [n, G]
        self._at_steps("group_rows", steps, (plan.group_count,), np.int32)[:] = rows
        self._qk_steps = range(steps) if plan.every_step else sorted({0, steps // 2, steps - 1})

    def layout(self) -> Layout:
        """Prompt groups, then a group for each answer row; the rows of interest predict the answer tokens."""
        plan, inputs = self.plan, self.plan.answer - 1
        groups = torch.cat([plan.prompt_groups, plan.group_count + torch.arange(inputs)])
        rows = torch.arange(plan.prompt - 1, plan.prompt + inputs)
        return Layout(groups, plan.group_count + inputs, plan.columns[: len(groups)], rows, TOP_KEYS)

    def layer(self, layer: int, statistics: LayerStatistics, geometry: Geometry) -> None:
        """Unroll one layer into all its steps."""
        plan = self.plan
        prompt = statistics.group_sums[:, : plan.group_count]  # [H, G, T']
        for step, kept in enumerate(self._unrolled(prompt, statistics.group_sums[:, plan.group_count :], geometry)):
            self._keep_step(layer, step, kept)
        for step in self._qk_steps:
            self._keep_geometry(layer, step, geometry, plan.prompt + step)
        self._keep_rows(layer, slice(None), _row_arrays(statistics), slice(None))
        self._keep_matrices(layer, plan.answer - 1, geometry)  # the rows of an earlier step are its first rows

    def _unrolled(self, groups: Tensor, answer: Tensor, geometry: Geometry) -> Iterator[dict[str, Tensor]]:
        """What each step keeps. The prompt's part of M, groups [H, G, T'], is reduced once; from step to step only
        the group of committed rows grows, by the rows answer [H, n - 1, T']."""
        plan, own = self.plan, self.plan.committed_group
        columns = plan.columns[: groups.shape[-1]].to(groups.device)
        value_norm = _per_head(geometry.value_norm, groups)
        groups = groups.clone()
        prompt = groups.sum(1)  # [H, T']
        regions = groups @ columns / self._group_rows[0, :, None].clamp(min=1).to(groups.device)  # [H, G, C]
        for step in range(plan.answer):
            if step:
                groups[:, own] += answer[:, step - 1]
                regions[:, own] = groups[:, own] @ columns / step
            received = (prompt + groups[:, own]) / (plan.prompt + step)
            by_answer = groups[:, own].mean(0) / max(step, 1)
            kept = {
                "received": received.mean(0),
                "received_answer": by_answer,
                "received_masked": torch.zeros_like(by_answer),
                "received_value": (received * value_norm).mean(0),
                "region_attention": regions,
            }
            if plan.keep == "groups":
                kept["group_attention"] = groups.mean(0)
            if plan.every_step:
                kept["head_attention"] = groups
            yield kept


def _per_head(values: Tensor, groups: Tensor) -> Tensor:
    """Values of key-value heads [Hkv, T'] for the query heads of groups [H, ...]."""
    return values.repeat_interleave(len(groups) // len(values), 0)


def _row_arrays(statistics: LayerStatistics) -> dict[str, Tensor]:
    """Rows of interest [H, N, ...] under their names in a trace."""
    return {
        "commit_keys": statistics.row_keys,
        "commit_key_mass": statistics.row_key_mass,
        "commit_mass": statistics.row_mass,
        "commit_entropy": statistics.row_entropy,
    }


def _with_zeros(values: Tensor, padding: tuple[int, ...]) -> NDArray[np.float32]:
    return torch.nn.functional.pad(values.float(), padding).cpu().numpy()
