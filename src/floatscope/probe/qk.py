"""Mean query-key geometry per key in O(T d), for every visibility whose columns are seen by a run of rows.

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


@dataclass(frozen=True)
class QKSums:
    """Per head and key; columns that no row sees are 0."""

    qk: Tensor
    """mean q.k, unscaled, float32 [H, T]."""
    cos: Tensor
    """mean cosine, float32 [H, T]."""
    norm: Tensor
    """mean |q||k|, float32 [H, T]."""
    key_norm: Tensor
    """|k_j|, float32 [Hkv, T]."""


def qk_sums(query: Tensor, key: Tensor, first: Tensor, last: Tensor) -> QKSums:
    """From query [H, T, d] and key [Hkv, T, d]; key j is seen by rows first[j] <= i < last[j]."""
    heads, tokens, _ = query.shape
    share = heads // len(key)
    query, key = query.float(), key.float()
    query_norm, key_norm = query.norm(dim=-1), key.norm(dim=-1)  # [H, T], [Hkv, T]
    unit_key = key / key_norm.clamp(min=torch.finfo(key.dtype).tiny)[..., None]
    unit_query = query / query_norm.clamp(min=torch.finfo(query.dtype).tiny)[..., None]
    out = torch.empty(3, heads, tokens, device=query.device)
    everyone = bool((first == 0).all() and (last == tokens).all())
    for h in range(heads):  # one head at a time: prefix sums are [T, d] in float64
        kv = h // share
        if everyone:
            out[0, h] = key[kv] @ query[h].mean(0)
            out[1, h] = unit_key[kv] @ unit_query[h].mean(0)
            out[2, h] = key_norm[kv] * query_norm[h].mean()
        else:
            out[0, h] = (_mean_over(query[h], first, last) * key[kv]).sum(-1)
            out[1, h] = (_mean_over(unit_query[h], first, last) * unit_key[kv]).sum(-1)
            out[2, h] = _mean_over(query_norm[h][:, None], first, last)[:, 0] * key_norm[kv]
    return QKSums(out[0], out[1], out[2], key_norm)


def _mean_over(rows: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Mean of rows [T, d] over [first_j, last_j) for each j; 0 for an empty run."""
    prefix = torch.zeros(len(rows) + 1, rows.shape[1], dtype=torch.float64, device=rows.device)
    torch.cumsum(rows.double(), 0, out=prefix[1:])
    count = (last - first).clamp(min=1)[:, None]
    return ((prefix[last] - prefix[torch.minimum(first, last)]) / count).float()
