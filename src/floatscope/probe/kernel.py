"""Attention of one sample and its statistics from the same probabilities, block by block: never T x T at once.

The plain torch version, and the reference for any faster one. For a layer with probabilities A[h, i, j] and rows
grouped by g(i) it returns the attention output and
    M[h, g, j] = sum over rows i of group g of A[h, i, j]
together with the open rows, which are few: their top keys, mass per column set and entropy. `attend` has the signature
that every mixer has: (inputs, who sees whom, layout, edit, extra value columns) -> (output, statistics).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from floatscope.probe.edits import LayerEdit
from floatscope.probe.layout import Layout

if TYPE_CHECKING:
    from floatscope.probe.mixing import Layer

# Floats of one block of scores, so that it stays in a core's cache from the scores to the group sums. A GPU wants
# few large blocks instead.
BLOCK_FLOATS, GPU_BLOCK_FLOATS = 200_000, 64_000_000
LEAST_ROWS, MOST_ROWS = 64, 256
SCATTERED = "a column is seen by rows that are not contiguous: the probe does not support this mask"


@dataclass(frozen=True)
class Inputs:
    """What softmax attention mixes, one sample, pads cut off. Query head h uses key-value head h // (H / Hkv)."""

    query: Tensor
    """[H, R, d], after RoPE and QK-norm."""
    key: Tensor
    """[Hkv, K, d]."""
    value: Tensor
    """[Hkv, K, d_v]."""
    scale: float
    softcap: float | None = None


@dataclass(frozen=True)
class Visible:
    """Who sees whom in one sample, pads cut off. Exactly one of: everything, causal, or a mask [R, K]."""

    causal: bool = False
    """A row sees the keys at or before its own position."""
    mask: Tensor | None = None
    """Bool (True: visible) or additive float."""

    @property
    def everything(self) -> bool:
        """Whether every row surely sees every key."""
        return self.mask is None and not self.causal

    def intervals(self, layout: Layout) -> tuple[Tensor, Tensor]:
        """For each key the half-open run of rows [first, last) that can see it, int64 [K] each."""
        first, last, scattered = self.runs(layout)
        if scattered is not None and bool(scattered):
            raise ValueError(SCATTERED)
        return first, last

    def runs(self, layout: Layout) -> tuple[Tensor, Tensor, Tensor | None]:
        """The same, and whether a key is seen by rows that are no run, bool []; None: surely not. Waits for nothing."""
        keys = layout.keys
        if self.mask is None:
            everything = torch.full_like(keys, len(layout.rows))
            first = torch.searchsorted(layout.rows, keys) if self.causal else torch.zeros_like(keys)
            return first, everything, None
        seen = self.mask if self.mask.dtype == torch.bool else self.mask > torch.finfo(self.mask.dtype).min / 2
        count = seen.sum(0)
        first = seen.to(torch.uint8).argmax(0)
        last = first + count
        place = torch.arange(len(keys), device=keys.device)
        return first, last, ~seen[(last - 1).clamp(min=0), place].logical_or(count == 0).all()

    def matrix(self, layout: Layout) -> Tensor:
        """Bool [R, K]: who sees whom."""
        if self.mask is None and not self.causal:
            return torch.ones(len(layout.rows), len(layout.keys), dtype=torch.bool, device=layout.rows.device)
        device = layout.rows.device if self.mask is None else self.mask.device
        scores = torch.zeros(len(layout.rows), len(layout.keys), device=device)
        self.hide(scores, 0, layout)
        return scores > torch.finfo(torch.float32).min / 2

    def hide(self, scores: Tensor, start: int, layout: Layout) -> None:
        """Put -inf on what the rows from `start` on may not see: scores [..., rows, keys], in place."""
        rows, keys = scores.shape[-2:]
        if self.mask is not None:
            mask = self.mask[start : start + rows, :keys]
            if mask.dtype == torch.bool:
                scores.masked_fill_(~mask, -torch.inf)
            else:
                scores.add_(mask)
        elif self.causal and layout.is_whole:
            later = torch.ones(rows, keys - start, dtype=torch.bool, device=scores.device).triu_(1)
            scores[..., start:].masked_fill_(later, -torch.inf)
        elif self.causal:
            later = layout.keys[None, :keys] > layout.rows[start : start + rows, None]
            scores.masked_fill_(later, -torch.inf)


@dataclass(frozen=True)
class LayerStatistics:
    """What one layer's attention did on one canvas. H heads, R rows, K keys, G groups, C column sets, N open rows."""

    group_sums: Tensor
    """M, float32 [H, G, K]; a view on a buffer that the next call overwrites."""
    row_keys: Tensor
    """Strongest keys of each open row, as places among the K keys, int64 [H, N, top]."""
    row_key_mass: Tensor
    """Their probabilities, float32 [H, N, top]."""
    row_mass: Tensor
    """Exact mass of each open row on each column set, float32 [H, N, C]."""
    row_entropy: Tensor
    """Entropy of each open row in nats, float32 [H, N]."""
    mixed: Tensor | None = None
    """The extra value columns after attention, float32 [H, R, E]; None where none were given."""
    rolled: Tensor | None = None
    """The same as a rollout through this layer, float32 [K, E]; None where there is none."""
    together: tuple[int, LayerStatistics, Layer] | None = None
    """The sample's number in a layer, and what was counted of all: [B, ...] each, with pads; None: it was alone."""


class Workspace:
    """Buffers that grow to the largest need and are used again by every layer and step."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """A float32 tensor of this shape with old contents."""
        count = 1
        for extent in shape:
            count *= extent
        held = self._buffers.get(name)
        if held is None or held.numel() < count or held.device != device:
            held = self._buffers[name] = torch.empty(count, device=device)
        return held[:count].view(shape)


def attend(
    inputs: Inputs,
    visible: Visible,
    layout: Layout,
    edit: LayerEdit | None = None,
    extra: Tensor | None = None,
    donor: Inputs | None = None,
    *,
    workspace: Workspace,
    output: Tensor | None = None,
) -> tuple[Tensor, LayerStatistics]:
    """Attention [R, H, d_v] (written into `output` where it is given) and its statistics.

    extra: [K, E] columns that are mixed as values are, by every head. donor: what another sample mixes, for edits that
    patch from it. Scores and softmax are float32 whatever the inputs are.
    """
    heads, rows, _ = inputs.query.shape
    keys, share, device = len(layout.keys), heads // len(inputs.key), inputs.query.device
    query, value = inputs.query.float(), inputs.value.float()
    key_t = inputs.key.float().transpose(1, 2).contiguous()  # [Hkv, d, K]
    if output is None:
        output = inputs.query.new_empty(rows, heads, value.shape[-1])
    result = output if output.dtype == torch.float32 else workspace.take("result", tuple(output.shape), device)
    sums = workspace.take("sums", (heads, layout.group_count, keys), device).zero_()
    opened = workspace.take("open rows", (heads, len(layout.open_rows), keys), device)
    if visible.causal:
        opened.zero_()  # keys after a block's last row are not computed
    mixed = None if extra is None else torch.empty(heads, rows, extra.shape[1], device=device)
    blocks = layout.blocks(_rows_in_block(keys, device))
    for head in range(heads):
        for block in blocks:
            seen = block.keys if visible.causal else keys
            own = slice(block.start, block.stop)
            scores = workspace.take("scores", (block.stop - block.start, seen), device)
            scores.addmm_(query[head, own], key_t[head // share, :, :seen], beta=0, alpha=inputs.scale)
            if edit is not None and donor is not None:
                asked, known = donor.query[head, own].float(), donor.key[head // share, :seen].float()
                edit.take_scores(scores, head, block.start, partial(_scores, asked, known, inputs.scale))
            if inputs.softcap is not None:
                scores.div_(inputs.softcap).tanh_().mul_(inputs.softcap)
            visible.hide(scores, block.start, layout)
            if edit is None:
                torch.softmax(scores, -1, out=scores)
            else:
                edit.softmax(scores, head, block.start)
            torch.mm(scores, value[head // share, :seen], out=result[own, head])
            if mixed is not None and extra is not None:
                torch.mm(scores, extra[:seen], out=mixed[head, own])
            present, member = block.members
            if isinstance(present, slice):
                sums[head, present, :seen].addmm_(member, scores)
            else:
                sums[head, :, :seen].index_add_(0, present, member @ scores)
            if isinstance(block.local, slice) or len(block.local):
                opened[head, block.open_rows, :seen] = scores[block.local]
    if edit is not None:
        edit.change_heads(result)
    if result is not output:
        output.copy_(result)
    return output, _statistics(sums, opened, layout, workspace, mixed)


def _scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    return query @ key.t() * scale


def _rows_in_block(keys: int, device: torch.device) -> int:
    if device.type != "cpu":
        return max(1, GPU_BLOCK_FLOATS // keys)
    return min(MOST_ROWS, max(LEAST_ROWS, BLOCK_FLOATS // keys))


def _statistics(
    sums: Tensor, opened: Tensor, layout: Layout, workspace: Workspace, mixed: Tensor | None
) -> LayerStatistics:
    top = opened.topk(min(layout.top, len(layout.keys)), dim=-1)
    logs = workspace.take("logs", tuple(opened.shape), opened.device)
    torch.clamp(opened, min=torch.finfo(torch.float32).tiny, out=logs).log_()
    return LayerStatistics(
        group_sums=sums,
        row_keys=top.indices,
        row_key_mass=top.values,
        row_mass=opened @ layout.columns,
        row_entropy=-logs.mul_(opened).sum(-1),
        mixed=mixed,
    )
