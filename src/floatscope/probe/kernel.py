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

from floatscope.probe.layout import Layout, RowBlock

# Floats of one block of scores: large enough for the matrix products, small enough to stay in cache between them.
BLOCK_FLOATS = 800_000
LEAST_ROWS = 32
MOST_RUNS = 24


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
    kv_heads = len(key)
    share = heads // kv_heads
    device = query.device
    query = query.unflatten(0, (kv_heads, share))  # [Hkv, share, T, d]
    key_t, value32 = key.float().transpose(1, 2), value.float()
    sums = workspace.take("sums", (heads, layout.group_count, tokens), device).zero_()
    interest = workspace.take("interest", (heads, len(layout.rows), tokens), device)
    if visible.causal:
        interest.zero_()  # keys after a block's last row are not computed
    size = max(LEAST_ROWS, BLOCK_FLOATS // (share * tokens))
    for block in layout.blocks(size):
        keys = block.stop if visible.causal else tokens  # a causal block needs no key after its last row
        rows = block.stop - block.start
        for h in range(kv_heads):
            scaled = workspace.take("scaled", (share, rows, query.shape[-1]), device)
            torch.mul(query[h, :, block.start : block.stop].float(), scale, out=scaled)
            scores = workspace.take("scores", (share * rows, keys), device)
            torch.mm(scaled.view(share * rows, -1), key_t[h, :, :keys], out=scores)
            per_head = scores.view(share, rows, keys)
            if softcap is not None:
                scores.div_(softcap).tanh_().mul_(softcap)
            visible.hide(per_head, block.start)
            torch.softmax(scores, -1, out=scores)
            mine = slice(h * share, (h + 1) * share)
            found = workspace.take("found", (share * rows, value.shape[-1]), device)
            torch.mm(scores, value32[h, :keys], out=found)
            output[block.start : block.stop, mine] = found.view(share, rows, -1).transpose(0, 1)
            _add_groups(sums[mine, :, :keys], per_head, block, workspace)
            if isinstance(block.local, slice) or len(block.local):
                interest[mine, block.interest, :keys] = per_head[:, block.local]
    return _statistics(sums, interest, layout, workspace)


def _add_groups(sums: Tensor, probabilities: Tensor, block: RowBlock, workspace: Workspace) -> None:
    """Add the block's column sums [share, rows, keys] to its groups [share, G, keys]."""
    if len(block.runs) <= MOST_RUNS:  # one pass over the probabilities, however many groups
        column = workspace.take("column", (len(sums), sums.shape[-1]), sums.device)
        for group, start, stop in block.runs:
            sums[:, group].add_(torch.sum(probabilities[:, start:stop], 1, out=column))
    else:  # as when every answer row of an ARM is a group of its own
        present, member = block.members
        sums.index_add_(1, present, torch.matmul(member, probabilities))


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
