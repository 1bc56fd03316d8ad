"""Two Triton kernels over all heads and samples of a layer: attention with its logsumexp, and sums over groups of rows.

    M[b, h, g, j] = sum over rows i of group g of exp(scale q_i.k_j - lse_i)

Positions say who is a pad: a row of position -1 sees nothing, a key of position FAR is seen by none. Both kernels are
operators of torch, so that a run can be counted without a GPU (FakeTensorMode); with TRITON_INTERPRET=1 they run on a
CPU, slowly. Scores are float32, from products in the inputs' own type.
"""

# No `from __future__ import annotations`: torch reads an operator's signature from its annotations. And those of a
# kernel are Triton's, which a type checker does not know.
# pyright: reportArgumentType=false, reportOperatorIssue=false
import torch
import triton
import triton.language as tl
from torch import Tensor

from floatscope.probe.mixing import FAR

BLOCK = 64
"""Rows and keys of a tile; half as many where heads are wide or inputs are float32, so that tiles fit on the chip."""
MOST_GROUPS = 64
"""Groups that one program sums; more are shared out, and a tile without a row of them is skipped."""


@triton.jit
def _scores(
    q, k, row_place, key_place, i, j, b, h, mask, bias, scale, softcap, R, K,
    mask_b, mask_r, bias_b, bias_h, bias_r, bias_k,
    CAUSAL: tl.constexpr, SOFTCAP: tl.constexpr, MASK: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
    FAR: tl.constexpr,
):  # fmt: skip
    """Scores [rows, keys] of a tile, -inf where a row does not see a key."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    if SOFTCAP:  # tanh, from an exponential that cannot overflow
        power = tl.exp(-2 * tl.abs(scores) / softcap)
        size = softcap * (1 - power) / (1 + power)
        scores = tl.where(scores < 0, -size, size)
    inside = (i < R)[:, None] & (j < K)[None, :]
    seen = inside & (row_place >= 0)[:, None] & (key_place < FAR)[None, :]
    if CAUSAL:
        seen &= key_place[None, :] <= row_place[:, None]
    if MASK:
        seen &= tl.load(mask + b * mask_b + i[:, None].to(tl.int64) * mask_r + j[None, :], mask=inside, other=0) != 0
    if BIAS:
        place = b * bias_b + h * bias_h + i[:, None].to(tl.int64) * bias_r + j[None, :] * bias_k
        scores += tl.load(bias + place, mask=inside, other=0.0)
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def forward_kernel(
    query, key, value, row_places, key_places, mask, bias, output, logsumexp,
    scale, softcap, H, R, K, D, V, share,
    query_b, query_h, query_r, key_b, key_h, key_k, value_b, value_h, value_k,
    mask_b, mask_r, bias_b, bias_h, bias_r, bias_k,
    CAUSAL: tl.constexpr, SOFTCAP: tl.constexpr, MASK: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
    FAR: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """A program is a tile of rows of one head; it walks over tiles of keys with a running maximum and sum."""
    b = (tl.program_id(1) // H).to(tl.int64)
    h = (tl.program_id(1) % H).to(tl.int64)
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d, e = tl.arange(0, WIDTH), tl.arange(0, VALUES)
    row_place = tl.load(row_places + b * R + i, mask=i < R, other=-1)
    at = query + b * query_b + h * query_h + i[:, None].to(tl.int64) * query_r + d[None, :]
    q = tl.load(at, mask=(i < R)[:, None] & (d < D)[None, :], other=0.0)
    most = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, VALUES], tl.float32)
    last = tl.max(row_place)
    for start in range(0, K, KEYS):
        j = start + tl.arange(0, KEYS)
        key_place = tl.load(key_places + b * K + j, mask=j < K, other=FAR)
        first = tl.min(key_place)
        if first <= last if CAUSAL else first < FAR:
            at = key + b * key_b + (h // share) * key_h + j[:, None].to(tl.int64) * key_k + d[None, :]
            k = tl.load(at, mask=(j < K)[:, None] & (d < D)[None, :], other=0.0)
            scores = _scores(
                q, k, row_place, key_place, i, j, b, h, mask, bias, scale, softcap, R, K,
                mask_b, mask_r, bias_b, bias_h, bias_r, bias_k, CAUSAL, SOFTCAP, MASK, BIAS, PRECISION, FAR,
            )  # fmt: skip
            now = tl.maximum(most, tl.max(scores, 1))
            base = tl.where(now == float("-inf"), 0.0, now)  # a row that has seen nothing yet
            weights = tl.exp(scores - base[:, None])
            fade = tl.exp(most - base)
            at = value + b * value_b + (h // share) * value_h + j[:, None].to(tl.int64) * value_k + e[None, :]
            v = tl.load(at, mask=(j < K)[:, None] & (e < V)[None, :], other=0.0)
            total = total * fade + tl.sum(weights, 1)
            mixed = mixed * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
            most = now
    empty = total == 0
    mixed = mixed / tl.where(empty, 1.0, total)[:, None]
    found = tl.where(empty, float("-inf"), most + tl.log(tl.where(empty, 1.0, total)))
    tl.store(logsumexp + (b * H + h) * R + i, found, mask=i < R)
    at = output + ((b * R + i[:, None]) * H + h) * V + e[None, :]
    tl.store(at, mixed.to(output.dtype.element_ty), mask=(i < R)[:, None] & (e < V)[None, :])


@triton.jit
def group_sums_kernel(
    query, key, logsumexp, groups, row_places, key_places, mask, bias, sums,
    scale, softcap, H, R, K, D, G, share,
    query_b, query_h, query_r, key_b, key_h, key_k, mask_b, mask_r, bias_b, bias_h, bias_r, bias_k,
    CAUSAL: tl.constexpr, SOFTCAP: tl.constexpr, MASK: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
    FAR: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """A program is a tile of keys of one head and some of the groups; it walks over the tiles of rows in these."""
    b = (tl.program_id(2) // H).to(tl.int64)
    h = (tl.program_id(2) % H).to(tl.int64)
    j = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    g = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    d = tl.arange(0, WIDTH)
    key_place = tl.load(key_places + b * K + j, mask=j < K, other=FAR)
    first = tl.min(key_place)
    at = key + b * key_b + (h // share) * key_h + j[:, None].to(tl.int64) * key_k + d[None, :]
    k = tl.load(at, mask=(j < K)[:, None] & (d < D)[None, :], other=0.0)
    found = tl.zeros([GROUPS, KEYS], tl.float32)
    for start in range(0, R, ROWS):
        i = start + tl.arange(0, ROWS)
        group = tl.load(groups + b * R + i, mask=i < R, other=-1)
        own = (group >= tl.program_id(1) * GROUPS) & (group < (tl.program_id(1) + 1) * GROUPS)
        row_place = tl.load(row_places + b * R + i, mask=i < R, other=-1)
        last = tl.max(tl.where(own, row_place, -1))  # -1: none of the tile's rows is in a group of this program
        if (last >= first if CAUSAL else first < FAR) & (last >= 0):
            at = query + b * query_b + h * query_h + i[:, None].to(tl.int64) * query_r + d[None, :]
            q = tl.load(at, mask=(i < R)[:, None] & (d < D)[None, :], other=0.0)
            scores = _scores(
                q, k, row_place, key_place, i, j, b, h, mask, bias, scale, softcap, R, K,
                mask_b, mask_r, bias_b, bias_h, bias_r, bias_k, CAUSAL, SOFTCAP, MASK, BIAS, PRECISION, FAR,
            )  # fmt: skip
            lse = tl.load(logsumexp + (b * H + h) * R + i, mask=i < R, other=0.0)
            lse = tl.where(lse == float("-inf"), 0.0, lse)  # a row that sees nothing
            shares = tl.exp(scores - lse[:, None])
            member = group[None, :] == g[:, None]
            if PRECISION == "ieee":
                found += tl.dot(member.to(tl.float32), shares, input_precision="ieee")
            else:  # shares are at most 1: float16 keeps 11 bits of them, bfloat16 would keep 8
                found += tl.dot(member.to(tl.float16), shares.to(tl.float16))
    at = sums + ((b * H + h) * G + g[:, None]) * K + j[None, :]
    tl.store(at, found, mask=(g < G)[:, None] & (j < K)[None, :])


@torch.library.custom_op("floatscope::forward", mutates_args=())
def forward(
    query: Tensor, key: Tensor, value: Tensor, row_places: Tensor, key_places: Tensor, mask: Tensor | None,
    bias: Tensor | None, scale: float, softcap: float | None, causal: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output [B, R, H, d_v] in the inputs' type and logsumexp, float32 [B, H, R], -inf where a row sees nothing."""
    batch, heads, rows, _ = query.shape
    columns = value.shape[-1]
    output = query.new_empty(batch, rows, heads, columns)
    logsumexp = query.new_empty(batch, heads, rows, dtype=torch.float32)
    options = _options(query, key, mask, bias, softcap, causal)
    with torch.cuda.device_of(query):  # Triton launches on the current device
        forward_kernel[(triton.cdiv(rows, options["ROWS"]), batch * heads)](
            query, key, value, row_places, key_places, query if mask is None else mask, query if bias is None else bias,
            output, logsumexp, scale, softcap or 0.0, heads, rows, key.shape[2], query.shape[-1], columns,
            heads // key.shape[1], *query.stride()[:3], *key.stride()[:3], *value.stride()[:3],
            *_strides(mask, bias), VALUES=_power(columns), **options,
        )  # fmt: skip
    return output, logsumexp


@forward.register_fake
def _(query, key, value, row_places, key_places, mask, bias, scale, softcap, causal):
    batch, heads, rows, _ = query.shape
    return query.new_empty(batch, rows, heads, value.shape[-1]), query.new_empty(
        batch, heads, rows, dtype=torch.float32
    )


@torch.library.custom_op("floatscope::group_sums", mutates_args=())
def group_sums(
    query: Tensor, key: Tensor, logsumexp: Tensor, groups: Tensor, group_count: int, row_places: Tensor,
    key_places: Tensor, mask: Tensor | None, bias: Tensor | None, scale: float, softcap: float | None, causal: bool,
) -> Tensor:  # fmt: skip
    """M, float32 [B, H, G, K]; rows of group -1 are in none."""
    batch, heads, rows, width = query.shape
    keys = key.shape[2]
    sums = query.new_empty(batch, heads, group_count, keys, dtype=torch.float32)
    if group_count:
        options = _options(query, key, mask, bias, softcap, causal)
        options["GROUPS"] = min(MOST_GROUPS, _power(group_count))
        grid = (triton.cdiv(keys, options["KEYS"]), triton.cdiv(group_count, options["GROUPS"]), batch * heads)
        with torch.cuda.device_of(query):
            group_sums_kernel[grid](
                query, key, logsumexp, groups, row_places, key_places, query if mask is None else mask,
                query if bias is None else bias, sums, scale, softcap or 0.0, heads, rows, keys, width, group_count,
                heads // key.shape[1], *query.stride()[:3], *key.stride()[:3], *_strides(mask, bias), **options,
            )  # fmt: skip
    return sums


@group_sums.register_fake
def _(query, key, logsumexp, groups, group_count, row_places, key_places, mask, bias, scale, softcap, causal):
    return query.new_empty(*query.shape[:2], group_count, key.shape[2], dtype=torch.float32)


def _options(query: Tensor, key: Tensor, mask: Tensor | None, bias: Tensor | None, softcap: float | None, causal: bool):
    wide = query.dtype == torch.float32 or query.shape[-1] > 128
    block = BLOCK // 2 if wide else BLOCK
    return {
        "CAUSAL": causal, "SOFTCAP": softcap is not None, "MASK": mask is not None, "BIAS": bias is not None,
        "PRECISION": "ieee" if query.dtype == torch.float32 else "tf32", "FAR": FAR, "ROWS": block, "KEYS": block,
        "WIDTH": _power(query.shape[-1]),
    }  # fmt: skip


def _strides(mask: Tensor | None, bias: Tensor | None) -> list[int]:
    """How far apart samples and rows of the mask [B, R, K] are, and samples, heads, rows, keys of the bias."""
    found = [0, 0] if mask is None else [mask.stride(0), mask.stride(1)]
    return found + ([0] * 4 if bias is None else list(bias.stride()))


def _power(extent: int) -> int:
    """The width of a tile that holds this many: a power of two, at least the 16 that a matrix product wants."""
    return max(16, triton.next_power_of_2(extent))
