"""Mean query-key geometry per key in O((R + K) d), for every visibility whose columns are seen by a run of rows.

For a key j seen by the rows i of [first_j, last_j):
    mean_i q_i.k_j      = (mean_i q_i) . k_j
    mean_i cos(q_i,k_j) = (mean_i q_i/|q_i|) . k_j/|k_j|
    mean_i |q_i||k_j|   = (mean_i |q_i|) |k_j|
and means over runs of rows are differences of prefix sums. q and k as the layer uses them: after RoPE and QK-norm.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class QKSums:
    """Per head and key; columns that no row sees are 0."""

    qk: Tensor
    """mean q.k, unscaled, float32 [H, K]."""
    cos: Tensor
    """mean cosine, float32 [H, K]."""
    norm: Tensor
    """mean |q||k|, float32 [H, K]."""
    key_norm: Tensor
    """|k_j|, float32 [Hkv, K]."""

    def __getitem__(self, sample: int) -> QKSums:
        """Those of one sample of a batch."""
        return QKSums(self.qk[sample], self.cos[sample], self.norm[sample], self.key_norm[sample])


def qk_sums(query: Tensor, key: Tensor, first: Tensor, last: Tensor) -> QKSums:
    """From query [H, R, d] and key [Hkv, K, d]; key j is seen by rows first[j] <= i < last[j]."""
    heads = len(query)
    share = heads // len(key)
    query, key = query.float(), key.float()
    query_norm, key_norm = query.norm(dim=-1), key.norm(dim=-1)  # [H, R], [Hkv, K]
    weights = torch.stack([torch.ones_like(query_norm), 1 / query_norm.clamp(min=TINY)], 1)  # [H, 2, R]
    dots = query.new_empty(heads, 2, key.shape[1])  # [H, 2, K]
    # Prefix sums are float64 [heads, R, d]: of one head on a CPU, of all where launches cost more than memory.
    whole = key.repeat_interleave(share, 0)
    size = 1 if query.device.type == "cpu" else heads
    for at in (slice(start, start + size) for start in range(0, heads, size)):
        for place in range(2):
            mean = _mean_over(query[at] * weights[at, place, :, None], first, last)
            dots[at, place] = (mean * whole[at]).sum(-1)
    norms = _mean_over(query_norm[..., None], first, last)[..., 0]
    key_norms = key_norm.repeat_interleave(share, 0)  # [H, K]
    return QKSums(dots[:, 0], dots[:, 1] / key_norms.clamp(min=TINY), norms * key_norms, key_norm)


def qk_sums_of_all(query: Tensor, key: Tensor, own: Tensor) -> QKSums:
    """Of a batch in which every key is seen by every row of its sample, which is cheaper: [B, ...] each.

    query [B, H, R, d], key [B, Hkv, K, d]; own [B, R]: 1 for a row of the sample, 0 for a pad.
    """
    query, key = query.float(), key.float()
    query_norm, key_norm = query.norm(dim=-1), key.norm(dim=-1)  # [B, H, R], [B, Hkv, K]
    ones = own[:, None].expand_as(query_norm)
    rows = ones.sum(-1, keepdim=True)  # [B, H, 1]
    weights = torch.stack([ones, ones / query_norm.clamp(min=TINY)], 2)  # [B, H, 2, R]
    means = weights @ query / rows[..., None]  # [B, H, 2, d]: of q and of q/|q|
    dots = (means.view(*key.shape[:2], -1, key.shape[-1]) @ key.transpose(2, 3)).view(*means.shape[:3], -1)
    key_norms = key_norm.repeat_interleave(query.shape[1] // key.shape[1], 1)  # [B, H, K]
    norms = (query_norm * ones).sum(-1, keepdim=True) / rows
    return QKSums(dots[:, :, 0], dots[:, :, 1] / key_norms.clamp(min=TINY), norms * key_norms, key_norm)


def _mean_over(rows: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Mean of rows [H, R, d] over [first_j, last_j) for each j, [H, K, d]; 0 for an empty run."""
    prefix = torch.zeros(len(rows), rows.shape[1] + 1, rows.shape[2], dtype=torch.float64, device=rows.device)
    torch.cumsum(rows.double(), 1, out=prefix[:, 1:])
    count = (last - first).clamp(min=1)[:, None]
    return ((prefix[:, last] - prefix[:, torch.minimum(first, last)]) / count).float()
