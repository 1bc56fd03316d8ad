"""Mean query-key geometry per key in O(T d), for every visibility whose columns are seen by a run of rows.

For a key j seen by the rows i of [first_j, last_j):
    mean_i q_i.k_j      = (mean_i q_i) . k_j
    mean_i cos(q_i,k_j) = (mean_i q_i/|q_i|) . k_j/|k_j|
    mean_i |q_i||k_j|   = (mean_i |q_i|) |k_j|
and means over runs of rows are differences of prefix sums. q and k as the layer uses them: after RoPE and QK-norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

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
    tokens = query.shape[1]
    query = query.float().unflatten(0, (len(key), -1))  # [Hkv, share, T, d]
    key = key.float()
    tiny = torch.finfo(torch.float32).tiny
    query_norm, key_norm = query.norm(dim=-1), key.norm(dim=-1)  # [Hkv, share, T], [Hkv, T]
    weights = torch.stack([torch.ones_like(query_norm), 1 / query_norm.clamp(min=tiny)], 2)  # [Hkv, share, 2, T]
    if bool((first == 0).all() and (last == tokens).all()):
        means = weights / tokens @ query  # [Hkv, share, 2, d]: of q and of q/|q|
        dots = means @ key.transpose(1, 2)[:, None]  # [Hkv, share, 2, T]
        norms = query_norm.mean(-1, keepdim=True)
    else:
        dots = torch.empty_like(weights)
        for kv, head in product(range(len(key)), range(query.shape[1])):  # prefix sums of one head: [T, d] in float64
            for place, weight in enumerate(weights[kv, head]):
                mean = _mean_over(query[kv, head] * weight[:, None], first, last)
                dots[kv, head, place] = (mean * key[kv]).sum(-1)
        norms = _mean_over(query_norm.flatten(0, 1).T, first, last).T.view_as(query_norm)
    cos = dots[:, :, 1] / key_norm.clamp(min=tiny)[:, None]
    norm = norms * key_norm[:, None]
    return QKSums(dots[:, :, 0].flatten(0, 1), cos.flatten(0, 1), norm.flatten(0, 1), key_norm)


def _mean_over(rows: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Mean of rows [T, d] over [first_j, last_j) for each j; 0 for an empty run."""
    prefix = torch.zeros(len(rows) + 1, rows.shape[1], dtype=torch.float64, device=rows.device)
    torch.cumsum(rows.double(), 0, out=prefix[1:])
    count = (last - first).clamp(min=1)[:, None]
    return ((prefix[last] - prefix[torch.minimum(first, last)]) / count).float()
