"""Attention of one sample and its statistics from the same probabilities, block by block: never T x T at once.

The plain torch version, and the reference for any faster one. For a layer with probabilities A[h, i, j] and rows
grouped by g(i) it returns the attention output and
    M[h, g, j] = sum over rows i of group g of A[h, i, j]
together with the rows of interest, which are few: their top keys, mass per column set and entropy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from floatscope.probe.layout import Layout

# Floats of one block of scores, so that it stays in a core's cache from the scores to the group sums. A GPU wants
# few large blocks instead.
BLOCK_FLOATS, GPU_BLOCK_FLOATS = 200_000, 64_000_000
LEAST_ROWS, MOST_ROWS = 64, 256


@dataclass(frozen=True)
class Visible:
    """Who sees whom in one sample, pads cut off. Exactly one of: everything, causal, or a mask [T, T]."""

    causal: bool = False
    mask: Tensor | None = None
    """Bool (True: visible) or additive float."""

    def intervals(self, tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """For each column the half-open run of rows [first, last) that can see it, int64 [T] each."""
        column = torch.arange(tokens, device=device)
        everything = torch.full_like(column, tokens)
        if self.mask is None:
            return (column if self.causal else torch.zeros_like(column)), everything
        seen = self.mask if self.mask.dtype == torch.bool else self.mask > torch.finfo(self.mask.dtype).min / 2
        count = seen.sum(0)
        first = seen.to(torch.uint8).argmax(0)
        last = first + count
        if not bool(seen[(last - 1).clamp(min=0), column].logical_or(count == 0).all()):
            raise ValueError("a column is seen by rows that are not contiguous: the probe does not support this mask")
        return first, last

    def hide(self, scores: Tensor, start: int) -> None:
        """Put -inf on what the rows from `start` on may not see: scores [..., rows, keys], in place."""
        rows, keys = scores.shape[-2:]
        if self.mask is not None:
            mask = self.mask[start : start + rows, :keys]
            if mask.dtype == torch.bool:
                scores.masked_fill_(~mask, -torch.inf)
            else:
                scores.add_(mask)
        elif self.causal:
            later = torch.ones(rows, keys - start, dtype=torch.bool, device=scores.device).triu_(1)
            scores[..., start:].masked_fill_(later, -torch.inf)


@dataclass(frozen=True)
class LayerStatistics:
    """What one layer's attention did on one canvas. H heads, T keys, G groups, C column sets, N rows of interest."""

    group_sums: Tensor
    """M, float32 [H, G, T]; a view on a buffer that the next call overwrites."""
    row_keys: Tensor
    """Strongest keys of each row of interest, int64 [H, N, K]."""
    row_key_mass: Tensor
    """Their probabilities, float32 [H, N, K]."""
    row_mass: Tensor
    """Exact mass of each row of interest on each column set, float32 [H, N, C]."""
    row_entropy: Tensor
    """Entropy of each row of interest in nats, float32 [H, N]."""


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
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Visible,
    layout: Layout,
    workspace: Workspace,
    output: Tensor,
    *,
    scale: float,
    softcap: float | None = None,
) -> LayerStatistics:
    """Statistics of query [H, T, d], key [Hkv, T, d], value [Hkv, T, d_v]; the result goes into output [T, H, d_v].

    Query head h uses key-value head h // (H / Hkv). Scores and softmax are float32 whatever the inputs are.
    """
    heads, tokens, _ = query.shape
    share = heads // len(key)
    device = query.device
    query, value = query.float(), value.float()
    key_t = key.float().transpose(1, 2).contiguous()  # [Hkv, d, T]
    result = output if output.dtype == torch.float32 else workspace.take("result", tuple(output.shape), device)
    sums = workspace.take("sums", (heads, layout.group_count, tokens), device).zero_()
    interest = workspace.take("interest", (heads, len(layout.rows), tokens), device)
    if visible.causal:
        interest.zero_()  # keys after a block's last row are not computed
    blocks = layout.blocks(_rows_in_block(tokens, device))
    for head in range(heads):
        for block in blocks:
            rows, keys = block.stop - block.start, block.stop if visible.causal else tokens
            scores = workspace.take("scores", (rows, keys), device)
            own = query[head, block.start : block.stop]
            scores.addmm_(own, key_t[head // share, :, :keys], beta=0, alpha=scale)
            if softcap is not None:
                scores.div_(softcap).tanh_().mul_(softcap)
            visible.hide(scores, block.start)
            torch.softmax(scores, -1, out=scores)
            torch.mm(scores, value[head // share, :keys], out=result[block.start : block.stop, head])
            present, member = block.members
            if isinstance(present, slice):
                sums[head, present, :keys].addmm_(member, scores)
            else:
                sums[head, :, :keys].index_add_(0, present, member @ scores)
            if isinstance(block.local, slice) or len(block.local):
                interest[head, block.interest, :keys] = scores[block.local]
    if result is not output:
        output.copy_(result)
    return _statistics(sums, interest, layout, workspace)


def _rows_in_block(tokens: int, device: torch.device) -> int:
    if device.type != "cpu":
        return max(1, GPU_BLOCK_FLOATS // tokens)
    return min(MOST_ROWS, max(LEAST_ROWS, BLOCK_FLOATS // tokens))


def _statistics(sums: Tensor, interest: Tensor, layout: Layout, workspace: Workspace) -> LayerStatistics:
    top = interest.topk(min(layout.top, layout.tokens), dim=-1)
    logs = workspace.take("logs", tuple(interest.shape), interest.device)
    torch.clamp(interest, min=torch.finfo(torch.float32).tiny, out=logs).log_()
    return LayerStatistics(
        group_sums=sums,
        row_keys=top.indices,
        row_key_mass=top.values,
        row_mass=interest @ layout.columns,
        row_entropy=-logs.mul_(interest).sum(-1),
    )
