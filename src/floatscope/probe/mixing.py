"""One layer's attention of a whole batch by a kernel that goes by name: `torch`, `native`, `triton`, `swap`.

`torch`, the reference, runs `attend` sample by sample and head by head, which suits a core's cache; `native` does so in
C. Those of a GPU take all heads and samples at once and never wait for the host: output and logsumexp from one
attention call, then the sums over groups. Open rows are groups of one row each, so that they come from the same kernel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from floatscope.probe.edits import LayerEdit
from floatscope.probe.kernel import Inputs, LayerStatistics, Visible, Workspace, attend
from floatscope.probe.layout import Layout
from floatscope.registry import Registry, load_object

VARIABLE = "FLOATSCOPE_KERNEL"
"""Variable of the environment: the kernel's name, where it is not to be chosen by the device."""
MOST_FLOATS = 2**28
"""Floats of group sums at once: more samples than fit into that are taken in turns."""
FAR = 2**30
"""Position of a key that is a pad; that of such a row is -1."""


@dataclass(frozen=True)
class LayerSample:
    """One sample of a layer, pads cut off."""

    inputs: Inputs
    visible: Visible
    layout: Layout
    edit: LayerEdit | None
    extra: Tensor | None
    skip: int
    """Rows that are pads."""
    pad: int
    """Keys that are pads."""
    donor: tuple[int, Inputs] | None = None
    """The sample, by number, that edits patch from, and what it mixes."""


@dataclass(frozen=True)
class Layer:
    """What one layer's attention mixes: a batch of B samples with left pads."""

    inputs: Inputs
    """[B, ...] each: query [B, H, R, d]."""
    mask: Tensor | None
    """Bool or additive float [B or 1, 1, R, K]."""
    causal: bool
    """A row sees the keys at or before its own position; False where there is a mask."""
    samples: Sequence[LayerSample | None]
    """None: a finished sample, whose output nobody reads."""
    workspace: Workspace
    held: dict[tuple[Any, ...], Stack] = field(default_factory=dict)
    """What was stacked for another layer of the same forward."""

    @property
    def stack(self) -> Stack:
        """The layouts of all samples in one; layers of equal rows and keys share it."""
        query = self.inputs.query
        place = (query.shape[2], self.inputs.key.shape[2], query.device)
        if place not in self.held:
            self.held[place] = Stack.of(self)
        return self.held[place]

    def parts(self) -> Iterator[tuple[int, Layer]]:
        """As many samples at once as the group sums of which fit into MOST_FLOATS, with the number of the first."""
        batch, heads, _, _ = self.inputs.query.shape
        counts = self.stack.group_count + self.stack.open_count
        most = MOST_FLOATS // (16 if self.inputs.query.device.type == "cpu" else 1)
        size = max(1, most // (heads * counts * self.inputs.key.shape[2] + 1))
        for start in range(0, batch, size):
            yield start, self if size >= batch else self._part(start, min(start + size, batch))

    def _part(self, start: int, stop: int) -> Layer:
        query, key, value = (given[start:stop] for given in (self.inputs.query, self.inputs.key, self.inputs.value))
        mask = self.mask if self.mask is None or len(self.mask) == 1 else self.mask[start:stop]
        inputs = replace(self.inputs, query=query, key=key, value=value)
        held = {place: stack.part(start, stop) for place, stack in self.held.items()}
        return replace(self, inputs=inputs, mask=mask, samples=self.samples[start:stop], held=held)


@dataclass(frozen=True)
class Stack:
    """The layouts of B samples as tensors over R rows and K keys, pads included. G groups, N open rows, C column sets,
    each the most that a sample has."""

    row_places: Tensor
    """Position of each row, int32 [B, R]; -1 for a pad."""
    key_places: Tensor
    """Position of each key, int32 [B, K]; FAR for a pad."""
    groups: Tensor
    """Group of each row, int32 [B, R]; -1 for none."""
    opened: Tensor
    """Number of each row among its sample's open rows, int32 [B, R]; -1 for others."""
    columns: Tensor
    """float32 [B, K, C]."""
    pads: Tensor
    """Keys that are pads, int32 [B, 1, 1, 1]."""
    group_count: int
    open_count: int
    top: int
    plain: bool
    """Whether there are no pads and rows are keys, so that torch's own causal attention says the same."""

    @classmethod
    def of(cls, layer: Layer) -> Stack:
        """Made on the host and sent; layouts are small."""
        batch, _, rows, _ = layer.inputs.query.shape
        keys, device = layer.inputs.key.shape[2], layer.inputs.query.device
        known = [(number, sample) for number, sample in enumerate(layer.samples) if sample is not None]
        row_places, groups, opened = (torch.full((batch, rows), -1, dtype=torch.int32) for _ in range(3))
        key_places = torch.full((batch, keys), FAR, dtype=torch.int32)
        columns = torch.zeros(batch, keys, max((s.layout.columns.shape[1] for _, s in known), default=0))
        pads = torch.zeros(batch, 1, 1, 1, dtype=torch.int32)
        for number, sample in known:
            layout, pads[number] = sample.layout.host, sample.pad
            row_places[number, sample.skip :] = layout.rows.int()
            key_places[number, sample.pad :] = layout.keys.int()
            groups[number, sample.skip :] = layout.groups.int()
            opened[number, sample.skip + layout.open_rows] = torch.arange(len(layout.open_rows), dtype=torch.int32)
            columns[number, sample.pad :, : layout.columns.shape[1]] = layout.columns
        return cls(
            *(one.to(device, non_blocking=True) for one in (row_places, key_places, groups, opened, columns, pads)),
            group_count=max((s.layout.group_count for _, s in known), default=0),
            open_count=max((len(s.layout.open_rows) for _, s in known), default=0),
            top=max((s.layout.top for _, s in known), default=1),
            plain=all(s.skip == s.pad == 0 and s.layout.is_whole for _, s in known),
        )

    def part(self, start: int, stop: int) -> Stack:
        """Of some of the samples."""
        names = ("row_places", "key_places", "groups", "opened", "columns", "pads")
        return replace(self, **{name: getattr(self, name)[start:stop] for name in names})


Mixer = Callable[[Layer, Tensor], Iterator[tuple[int, LayerStatistics]]]
"""Writes a layer's attention into the output [B, R, H, d_v] and gives each sample's number and statistics; these may be
views on buffers that the next one overwrites."""


@dataclass(frozen=True)
class Kernel:
    """How the attention of a layer is computed and counted."""

    summary: str
    mix: str
    """Its Mixer, as "module:object"."""

    @cached_property
    def run(self) -> Mixer:
        """The function."""
        return load_object(self.mix)


KERNELS = Registry(
    "kernel",
    {
        "torch": Kernel("block by block in float32: the reference", f"{__name__}:attend_each"),
        "native": Kernel("the same in C, on a CPU with a C compiler", "floatscope.probe.native:attend_native"),
        "triton": Kernel("all heads and samples at once, on a GPU", "floatscope.probe.batched:attend_triton"),
        "swap": Kernel("the same without Triton, by attention alone", "floatscope.probe.batched:attend_swapped"),
    },
)


def kernel_for(layer: Layer) -> Kernel:
    """The kernel that FLOATSCOPE_KERNEL names, else the one for the device; `torch` for what only that one computes."""
    name = os.environ.get(VARIABLE) or _fastest(layer.inputs.query.device.type)
    simple = all(_simple(sample, name) for sample in layer.samples if sample is not None)
    return KERNELS.named(name if simple else "torch")


@cache
def _fastest(device: str) -> str:
    if device == "cuda":
        return "triton" if find_spec("triton") else "swap"
    return "native" if device == "cpu" and load_object("floatscope.probe.native:library")() else "torch"


def _simple(sample: LayerSample, name: str) -> bool:
    """Whether kernels for whole batches compute it: edits add to scores or change heads, and nothing else is mixed."""
    parts = [] if sample.edit is None else fields(sample.edit)
    changed = {part.name for part in parts if getattr(sample.edit, part.name) is not None}
    capped = name != "triton" and sample.inputs.softcap is not None  # the others cap no scores
    return sample.extra is None and changed <= {"bias", "heads", "mean", "passes"} and not capped


def attend_each(layer: Layer, output: Tensor) -> Iterator[tuple[int, LayerStatistics]]:
    """The reference, sample by sample."""
    for number, sample in enumerate(layer.samples):
        if sample is not None:
            donor, theirs = (None, None) if sample.donor is None else sample.donor
            given = (sample.inputs, sample.visible, sample.layout, sample.edit, sample.extra, theirs)
            own, found = attend(*given, workspace=layer.workspace, output=output[number, sample.skip :])
            if sample.edit is not None and donor is not None:
                sample.edit.take_output(own, output[donor, sample.skip :])
            yield number, found
