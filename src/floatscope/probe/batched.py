"""All heads and samples of a layer at once: output and logsumexp from one call, then sums over groups of rows.

Nothing here reads a value on the host. `attend_triton` counts with a kernel of our own. `attend_swapped` does without:
    M[g, j] = sum over i of [i in g] exp(s_ij - lse_i)
is attention in which keys ask and rows answer, with bias -lse_i and the one-hot groups as values. It divides by a sum
over all rows; one more row of score 0 and a column for it say by what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from operator import add

import torch
from torch import Tensor
from torch.nn.functional import pad as padded
from torch.nn.functional import scaled_dot_product_attention

from floatscope.errors import UserError
from floatscope.probe.kernel import LayerStatistics
from floatscope.probe.mixing import FAR, Layer, Stack

GroupSums = Callable[[Tensor, int], Tensor]
"""Groups of the rows, int32 [B, R], and their number to M, float32 [B, H, G, K]."""


def attend_triton(layer: Layer, output: Tensor) -> Iterator[tuple[int, LayerStatistics]]:
    """By Triton kernels; output and logsumexp from torch's own attention where it computes the same."""
    return in_parts(layer, output, _triton)


def attend_swapped(layer: Layer, output: Tensor) -> Iterator[tuple[int, LayerStatistics]]:
    """By torch's own attention alone, in float32, with rows and keys swapped for the sums."""
    return in_parts(layer, output, _swapped)


def in_parts(
    layer: Layer, output: Tensor, mix: Callable[[Layer], tuple[Tensor, GroupSums]]
) -> Iterator[tuple[int, LayerStatistics]]:
    for start, part in layer.parts():
        mixed, group_sums = mix(part)
        output[start : start + len(mixed)] = mixed
        for number, sample in enumerate(part.samples):
            if sample is not None and sample.edit is not None:
                changed = mixed[number, sample.skip :].float()
                sample.edit.change_heads(changed)
                output[start + number, sample.skip :] = changed
        for number, found in _statistics(part, group_sums):
            yield start + number, found


def _triton(layer: Layer) -> tuple[Tensor, GroupSums]:
    from floatscope.probe import triton_kernels

    given, stack = layer.inputs, layer.stack
    mask, bias = _mask(layer), _bias(layer)
    query, key, value = (
        one if one.stride(-1) == 1 else one.contiguous() for one in (given.query, given.key, given.value)
    )
    places = (stack.row_places, stack.key_places, mask, bias, given.scale, given.softcap, layer.causal)
    if stack.plain and mask is None and bias is None and given.softcap is None and _flash(query, value):
        output, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, 0.0, layer.causal, False, scale=given.scale
        )[:2]
        output, logsumexp = output.transpose(1, 2), logsumexp.contiguous()
    else:
        output, logsumexp = triton_kernels.forward(query, key, value, *places)

    def group_sums(groups: Tensor, count: int) -> Tensor:
        return triton_kernels.group_sums(query, key, logsumexp, groups, count, *places)

    return output, group_sums


def _swapped(layer: Layer) -> tuple[Tensor, GroupSums]:
    given, stack = layer.inputs, layer.stack
    share = given.query.shape[1] // given.key.shape[1]
    key, value = (one.repeat_interleave(share, 1) for one in (given.key, given.value))
    scores = _all_scores_bias(layer)  # float32 [B, 1 or H, R, K]
    output, logsumexp = _with_logsumexp(given.query, key, value, scores, given.scale)
    empty = (stack.row_places < 0)[:, None]  # [B, 1, R]
    logsumexp = logsumexp.masked_fill(empty, 0.0)
    # -lse_i as one more product, so that the bias is the same for all heads; then zeros up to whole eights, which the
    # fused kernels want, and a last row of zeros, whose score is 0 for every key.
    more = -(given.query.shape[-1] + 1) % 8
    asked = torch.cat([given.query.float(), (-logsumexp / given.scale)[..., None]], -1)
    asked, asking = padded(asked, (0, more, 0, 1)), padded(padded(key.float(), (0, 1), value=1.0), (0, more))
    bias = padded(scores.masked_fill(empty[..., None], -torch.inf).transpose(2, 3), (0, 1))  # [B, 1 or H, K, R + 1]

    def group_sums(groups: Tensor, count: int) -> Tensor:
        width = -(-(count + 1) // 8) * 8
        member = (groups[..., None] == torch.arange(width, device=groups.device)).float()  # [B, R, W]
        member = padded(member, (0, 0, 0, 1))
        member[:, -1, width - 1] = 1
        values = member[:, None].expand(-1, asked.shape[1], -1, -1)
        found = scaled_dot_product_attention(asking, asked, values, attn_mask=bias, scale=given.scale)
        return (found[..., :count] / found[..., width - 1 :]).transpose(2, 3)

    return output.transpose(1, 2), group_sums


def _flash(query: Tensor, value: Tensor) -> bool:
    """Whether torch's flash attention takes these."""
    width = query.shape[-1]
    half = query.dtype in (torch.float16, torch.bfloat16)
    return query.is_cuda and half and width == value.shape[-1] and width % 8 == 0 and width <= 256


def _with_logsumexp(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Output [B, H, R, d] and logsumexp, float32 [B, H, R]; all heads have keys."""
    heads, rows, keys = query.shape[1], query.shape[2], key.shape[2]
    if query.is_cuda:  # its bias wants rows that begin at whole sixteens
        whole = padded(bias, (0, -keys % 16)).to(query.dtype)[..., :keys].expand(-1, heads, -1, -1)
        output, logsumexp = torch.ops.aten._scaled_dot_product_efficient_attention(
            query, key, value, whole, True, 0.0, False, scale=scale
        )[:2]
        return output, logsumexp[..., :rows]
    whole = bias.to(query.dtype).expand(-1, heads, -1, -1)
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, attn_mask=whole, scale=scale
    )  # fmt: skip


def _mask(layer: Layer) -> Tensor | None:
    """A mask of who sees whom, bool [B, R, K]."""
    if layer.mask is None or layer.mask.dtype != torch.bool:
        return None
    _check_shape(layer.mask)
    mask = layer.mask[:, 0]
    return (mask if mask.stride(-1) == 1 else mask.contiguous()).expand(len(layer.samples), -1, -1)


def _bias(layer: Layer) -> Tensor | None:
    """What is added to scores, by an additive mask and by edits: float32 [B, 1 or H, 1 or R, K], or None."""
    parts = []
    if layer.mask is not None and layer.mask.dtype != torch.bool:
        _check_shape(layer.mask)
        parts.append(layer.mask.float())
    biases = [None if sample is None or sample.edit is None else sample.edit.bias for sample in layer.samples]
    if any(one is not None for one in biases):
        batch, _, rows, _ = layer.inputs.query.shape
        heads = max(len(one) for one in biases if one is not None)
        whole = layer.inputs.query.new_zeros(batch, heads, rows, layer.inputs.key.shape[2], dtype=torch.float32)
        for own, one, sample in zip(whole, biases, layer.samples, strict=True):
            if one is not None and sample is not None:
                own[:, sample.skip :, sample.pad :] = one
        parts.append(whole)
    if not parts:
        return None
    query = layer.inputs.query
    return reduce(add, parts).expand(len(query), query.shape[1], -1, -1)


def _all_scores_bias(layer: Layer) -> Tensor:
    """Everything that stands between rows and keys as one bias, float32 [B, 1 or H, R, K]; never all -inf in a row."""
    stack: Stack = layer.stack
    rows, keys = stack.row_places[:, None, :, None], stack.key_places[:, None, None]  # [B, 1, R, 1], [B, 1, 1, K]
    seen = (rows >= 0) & ((keys <= rows) if layer.causal else (keys < FAR))
    if (mask := _mask(layer)) is not None:
        seen = seen & mask[:, None]
    whole = torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, -torch.inf)
    if (bias := _bias(layer)) is not None:
        whole = whole + bias
    return whole.masked_fill((rows < 0).expand_as(whole[:, :1]), 0.0)


def _check_shape(mask: Tensor) -> None:
    if mask.ndim != 4 or mask.shape[1] != 1:
        raise UserError(f"the probe does not support an attention mask of shape {tuple(mask.shape)}")


def _statistics(layer: Layer, group_sums: GroupSums) -> Iterator[tuple[int, LayerStatistics]]:
    """The statistics of each sample, as views of those of all."""
    stack = layer.stack
    sums = group_sums(stack.groups, stack.group_count)  # [B, H, G, K]
    opened = group_sums(stack.opened, stack.open_count)  # [B, H, N, K]
    # Keys without mass come in their order, pads last: so that a batch gives what a sample gets alone.
    ranked = torch.where(opened > 0, opened, (stack.key_places / -FAR)[:, None, None])
    top = ranked.topk(min(stack.top, opened.shape[-1]), dim=-1)
    strongest = top.values.clamp(min=0)
    mass = opened @ stack.columns[:, None]  # [B, H, N, C]
    entropy = -torch.special.xlogy(opened, opened).sum(-1)
    whole = LayerStatistics(sums, top.indices, strongest, mass, entropy)
    for number, sample in enumerate(layer.samples):
        if sample is None:
            continue
        layout, rows = sample.layout, sample.layout.open_rows.shape[0]
        most = min(layout.top, layout.keys.shape[0])
        yield (
            number,
            LayerStatistics(
                group_sums=sums[number, :, : layout.group_count, sample.pad :],
                row_keys=top.indices[number, :, :rows, :most] - sample.pad,
                row_key_mass=strongest[number, :, :rows, :most],
                row_mass=mass[number, :, :rows, : layout.columns.shape[1]],
                row_entropy=entropy[number, :, :rows],
                together=(number, whole, layer),
            ),
        )
