"""The tap proves itself on a model: rows sum to one, the output is SDPA's, visibility and padding are what they say."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from floatscope.errors import UserError
from floatscope.models.model import Model
from floatscope.probe.attention import Geometry, Probe, probing
from floatscope.probe.kernel import LayerStatistics
from floatscope.probe.layout import Layout

LEAST_TOKENS = 12
NARROW = 3  # a sliding window that a dozen tokens reach beyond


@dataclass(frozen=True)
class Finding:
    """One thing that was checked, and what was found."""

    name: str
    passed: bool
    detail: str


def check(model: Model) -> list[Finding]:
    """A few small forwards that show whether what the probe reports is what the model does."""
    window = getattr(model.config, "sliding_window", None)
    tokens = max(LEAST_TOKENS, (model.block or 0) + LEAST_TOKENS // 2)
    # Beyond a sliding window not every visible pair has a layer that joins it.
    tokens = min(tokens, tokens if model.context is None else model.context, window or tokens)
    if tokens < 2:
        raise UserError(
            f"{model.name} sees {tokens} token at a time (context {model.context}, sliding window {window}): "
            "there is no attention to trace"
        )
    ids = _ids(model, tokens)
    no_pads = torch.zeros(1, dtype=torch.long)
    rows = torch.arange(tokens)[None]
    with torch.inference_mode():
        bare = model.forward(ids, no_pads, rows)
        matrices, probed = _probed(model, ids)
        changed = _changed(model, ids, bare)
        beyond = [_window_holds(model)] if model.window is not None else []
        return [
            _rows_sum_to_one(matrices),
            _output_is_sdpa(model, bare, probed),
            _attention_sees(model, matrices),
            _tokens_matter(model, changed),
            _pads_do_not(model, ids, bare),
            *beyond,
        ]


def require(model: Model) -> Model:
    """The model, if the tap proves itself on it; otherwise a sentence that says what failed."""
    failed = [finding for finding in check(model) if not finding.passed]
    if failed:
        told = "; ".join(f"{finding.name}: {finding.detail}" for finding in failed)
        raise UserError(f"{model.name} cannot be traced faithfully as family {model.family.name} ({told})")
    return model


def _ids(model: Model, tokens: int) -> Tensor:
    """Ordinary tokens: special ones tend to have the lowest or the highest ids."""
    low, high = model.vocabulary // 4, max(model.vocabulary // 2, model.vocabulary // 4 + 2)
    return torch.randint(low, high, (1, tokens), generator=torch.Generator().manual_seed(0))


def _probed(model: Model, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Every row a group of its own: M is then the attention matrix, [L, H, T, T]; and the logits."""
    tokens = ids.shape[1]
    layout = Layout.whole(torch.arange(tokens), tokens, torch.ones(tokens, 1), torch.zeros(0, dtype=torch.long))
    matrices: list[Tensor] = []

    def listen(layer: int, sample: int, statistics: LayerStatistics, geometry: Geometry) -> None:
        matrices.append(statistics.group_sums.cpu().clone())

    with probing(Probe([0], [layout], listen)):
        logits = model.forward(ids, torch.zeros(1, dtype=torch.long), torch.arange(tokens)[None])
    if len(matrices) != model.layers:
        raise UserError(
            f"{model.name} called its attention function {len(matrices)} times for {model.layers} layers: "
            "a model with other kinds of layers or with cross-attention cannot be traced"
        )
    return torch.stack(matrices), logits


def _rows_sum_to_one(matrices: Tensor) -> Finding:
    error = float((matrices.sum(-1) - 1).abs().max())
    return Finding("rows sum to 1", error < 1e-4, f"largest error {error:.1e} over {matrices.shape[0]} layers")


def _output_is_sdpa(model: Model, bare: Tensor, probed: Tensor) -> Finding:
    error = float((bare - probed).abs().max() / bare.abs().max().clamp(min=1e-6))
    return Finding("output equals SDPA", error < _tolerance(model), f"largest relative error of the logits {error:.1e}")


def _attention_sees(model: Model, matrices: Tensor) -> Finding:
    """No mass where nobody may look; some head of some layer looks everywhere else."""
    tokens = matrices.shape[-1]
    may = model.visibility.mask(tokens, torch.zeros(1, dtype=torch.long))[0, 0]
    leak = float(matrices[:, :, ~may].sum())
    blind = int((matrices[:, :, may].amax((0, 1)) == 0).sum())
    detail = f"{model.visibility}: mass outside {leak:.1e}, {blind} of {int(may.sum())} visible pairs without any"
    if window := getattr(model.config, "sliding_window", None):
        detail += f"; {tokens} tokens, all within the sliding window of {window}"
    return Finding("attention follows visibility", leak == 0 and blind == 0, detail)


def _window_holds(model: Model) -> Finding:
    """Layers with a sliding window look no further than it: seen with a window of a few tokens in its place."""
    tokens = min(LEAST_TOKENS, model.context or LEAST_TOKENS)
    window = model.config.sliding_window
    model.config.sliding_window = min(window, NARROW)
    try:
        matrices, _ = _probed(model, _ids(model, tokens))
    finally:
        model.config.sliding_window = window
    row, column = torch.arange(tokens)[:, None], torch.arange(tokens)
    far = (row - column).abs() > min(window, NARROW)  # classes differ by one in what a window holds
    outside = matrices[:, :, far & model.visibility.mask(tokens, torch.zeros(1, dtype=torch.long))[0, 0]].sum((1, 2))
    kinds = getattr(model.config, "layer_types", None) or ["sliding_attention"] * model.layers
    wrong = [layer for layer, kind in enumerate(kinds) if kind == "sliding_attention" and float(outside[layer]) > 0]
    detail = f"{kinds.count('sliding_attention')} layers with a window, {len(wrong)} of them look beyond it"
    return Finding("sliding windows hold", not wrong, detail)


def _changed(model: Model, ids: Tensor, bare: Tensor) -> Tensor:
    """Which rows' logits move when the token in the middle becomes another, bool [T]."""
    other = ids.clone()
    middle = ids.shape[1] // 2
    low, high = model.vocabulary // 4, max(model.vocabulary // 2, model.vocabulary // 4 + 2)
    other[0, middle] = low + (other[0, middle] - low + 1) % (high - low)
    logits = model.forward(other, torch.zeros(1, dtype=torch.long), torch.arange(ids.shape[1])[None])
    # More than the rounding of rows that experts (MoE) happen to compute together.
    return (logits - bare).abs().amax(-1)[0].cpu() > 1e-6 * float(bare.abs().max())


def _tokens_matter(model: Model, changed: Tensor) -> Finding:
    tokens = len(changed)
    may = model.visibility.mask(tokens, torch.zeros(1, dtype=torch.long))[0, 0, :, tokens // 2]
    wrong = int((changed != may).sum())
    detail = f"another token {tokens // 2} moves the logits of {int(changed.sum())} rows, {int(may.sum())} expected"
    return Finding("tokens act where they are visible", wrong == 0, detail)


def _pads_do_not(model: Model, ids: Tensor, bare: Tensor) -> Finding:
    pad = min(3, ids.shape[1] // 2)
    tokens = ids.shape[1] - pad  # a shorter canvas, so that it fits the context with its pads
    alone = model.forward(ids[:, :tokens], torch.zeros(1, dtype=torch.long), torch.arange(tokens)[None])
    padded = torch.cat([torch.zeros(1, pad, dtype=torch.long), ids[:, :tokens]], 1)
    logits = model.forward(padded, torch.tensor([pad]), pad + torch.arange(tokens)[None])
    error = float((logits - alone).abs().max() / bare.abs().max().clamp(min=1e-6))
    return Finding("left pads change nothing", error < _tolerance(model), f"largest relative error {error:.1e}")


def _tolerance(model: Model) -> float:
    """What two orders of summation may differ by; half-precision backbones round at every layer."""
    return 1e-3 if model.backbone.dtype == torch.float32 else 5e-2
