"""The tap proves itself on a model: rows sum to one, the output is SDPA's, visibility and padding are what they say."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

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
    if model.canvas is not None:
        return _check_canvases(model)
    window = getattr(model.config, model.window_field, None)
    tokens = max(LEAST_TOKENS, (model.block or 0) + LEAST_TOKENS // 2)
    # Beyond a sliding window not every visible pair has a layer that joins it.
    tokens = min(tokens, tokens if model.context is None else model.context, window or tokens)
    if tokens < 2:
        raise UserError(
            f"{model.name} sees {tokens} token at a time (context {model.context}, sliding window {window}): "
            "there is no attention to trace"
        )
    # Ordinary tokens: special ones tend to have the lowest or the highest ids.
    low, high = model.vocabulary // 4, max(model.vocabulary // 2, model.vocabulary // 4 + 2)
    ids = torch.randint(low, high, (1, max(tokens, LEAST_TOKENS)), generator=torch.Generator().manual_seed(0))
    narrow, ids = ids[:, : min(LEAST_TOKENS, model.context or LEAST_TOKENS)], ids[:, :tokens]
    middle, pad = tokens // 2, min(3, tokens // 2)
    other = ids.clone()
    other[0, middle] = low + (other[0, middle] - low + 1) % (high - low)
    shorter = ids[:, : tokens - pad]  # so that it fits the context with its pads
    may = _may(model, tokens)
    with torch.inference_mode():
        bare = _logits(model, ids)
        matrices, probed = _probed(model, ids)
        # More than the rounding of rows that experts (MoE) happen to compute together.
        changed = (_logits(model, other) - bare).abs().amax(-1)[0].cpu() > 1e-6 * float(bare.abs().max())
        padded = _logits(model, torch.cat([torch.zeros(1, pad, dtype=torch.long), shorter], 1), pad)
        alone = _logits(model, shorter)
        beyond = [_window_holds(model, narrow)] if model.window is not None else []
    scale = bare.abs().max().clamp(min=1e-6)
    # What two orders of summation may differ by; half-precision backbones round at every layer.
    tolerance = 1e-3 if model.backbone.dtype == torch.float32 else 5e-2
    sums = float((matrices.sum(-1) - 1).abs().max())
    sdpa, pads = (float((one - two).abs().max() / scale) for one, two in ((bare, probed), (padded, alone)))
    leak = float(matrices[:, :, ~may].sum())  # mass where nobody may look
    blind = int((matrices[:, :, may].amax((0, 1)) == 0).sum())  # pairs that no head of any layer joins
    seen = f"{model.visibility}: mass outside {leak:.1e}, {blind} of {int(may.sum())} visible pairs without any"
    if window:
        seen += f"; {tokens} tokens, all within the sliding window of {window}"
    rows = may[:, middle]
    moved = f"another token {middle} moves the logits of {int(changed.sum())} rows, {int(rows.sum())} expected"
    return [
        Finding("rows sum to 1", sums < 1e-4, f"largest error {sums:.1e} over {matrices.shape[0]} layers"),
        Finding("output equals SDPA", sdpa < tolerance, f"largest relative error of the logits {sdpa:.1e}"),
        Finding("attention follows visibility", leak == 0 and blind == 0, seen),
        Finding("tokens act where they are visible", bool((changed == rows).all()), moved),
        Finding("left pads change nothing", pads < tolerance, f"largest relative error {pads:.1e}"),
        *beyond,
    ]


def _check_canvases(model: Model) -> list[Finding]:
    """Two steps over one canvas, with the probe and without: of a model that is denoised over a cache."""
    settings = {"steps": 2, "length": model.canvas}
    low, high = model.vocabulary // 4, model.vocabulary // 2
    ids = torch.randint(low, high, (LEAST_TOKENS,), generator=torch.Generator().manual_seed(0))
    sums: list[Tensor] = []
    outside: list[Tensor] = []

    @contextmanager
    def probed(rows: range, keys: range, open_rows: bool) -> Iterator[None]:
        places, seen = torch.arange(rows.start, rows.stop), torch.arange(keys.stop)
        columns, none = torch.ones(len(seen), 1), torch.zeros(0, dtype=torch.long)
        layout = Layout(places, seen, torch.arange(len(places)), len(places), columns, none)

        def listen(layer: int, sample: int, statistics: LayerStatistics, geometry: Geometry) -> None:
            matrix = statistics.group_sums.cpu()  # [H, R, K]: every row is a group of its own
            later = geometry.layout.keys[None].cpu() > places[:, None]
            sums.append(matrix.sum(-1).flatten())
            outside.append(matrix[:, later & (not open_rows)].sum()[None])

        with probing(Probe([0], [layout], listen, model.layers)):
            yield

    def run(watched: Callable[[range, range, bool], Any]) -> Tensor:
        canvases = model.canvases(settings, ids, seed=0)
        canvases.read(watched)
        logits = []
        for left in (2, 1):
            canvases.denoise(left, watched)
            logits.append(canvases.logits)
        return torch.cat(logits)

    with torch.inference_mode():
        bare, seen = run(lambda *_: nullcontext()), run(probed)
    tolerance = 1e-3 if model.backbone.dtype == torch.float32 else 5e-2
    error = float((torch.cat(sums) - 1).abs().max())
    apart = float((bare - seen).abs().max() / bare.abs().max())
    leak = float(torch.cat(outside).sum())
    return [
        Finding("rows sum to 1", error < 1e-4, f"largest error {error:.1e} over {len(sums)} layers of three passes"),
        Finding("output equals SDPA", apart < tolerance, f"largest relative error of the logits {apart:.1e}"),
        Finding(
            "attention follows visibility", leak == 0, f"{model.visibility}: mass after a row that reads {leak:.1e}"
        ),
    ]


def require(model: Model) -> Model:
    """The model, if the tap proves itself on it; otherwise a sentence that says what failed."""
    failed = [finding for finding in check(model) if not finding.passed]
    if failed:
        told = "; ".join(f"{finding.name}: {finding.detail}" for finding in failed)
        raise UserError(f"{model.name} cannot be traced faithfully as family {model.family.name} ({told})")
    return model


def _may(model: Model, tokens: int) -> Tensor:
    """Bool [T, T], who may see whom."""
    return model.visibility.mask(tokens, torch.zeros(1, dtype=torch.long))[0, 0]


def _logits(model: Model, ids: Tensor, pad: int = 0) -> Tensor:
    """[1, T, V] of all rows after the pads."""
    return model.forward(ids, torch.tensor([pad]), torch.arange(pad, ids.shape[1])[None])


def _probed(model: Model, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Every row a group of its own: M is then the attention matrix, [L, H, T, T]; and the logits."""
    tokens = ids.shape[1]
    layout = Layout.whole(torch.arange(tokens), tokens, torch.ones(tokens, 1), torch.zeros(0, dtype=torch.long))
    matrices: list[Tensor] = []

    def listen(layer: int, sample: int, statistics: LayerStatistics, geometry: Geometry) -> None:
        matrices.append(statistics.group_sums.cpu().clone())

    with probing(Probe([0], [layout], listen, model.layers)):
        logits = _logits(model, ids)
    return torch.stack(matrices), logits


def _window_holds(model: Model, ids: Tensor) -> Finding:
    """Layers with a sliding window look no further than it: seen with a window of a few tokens in its place."""
    tokens, field = ids.shape[1], model.window_field
    window = getattr(model.config, field)
    setattr(model.config, field, min(window, NARROW))
    try:
        matrices, _ = _probed(model, ids)
    finally:
        setattr(model.config, field, window)
    row, column = torch.arange(tokens)[:, None], torch.arange(tokens)
    far = (row - column).abs() > min(window, NARROW)  # classes differ by one in what a window holds
    outside = matrices[:, :, far & _may(model, tokens)].sum((1, 2))
    kinds = getattr(model.config, "layer_types", None) or ["sliding_attention"] * model.layers
    narrow = [layer for layer, kind in enumerate(kinds) if kind in ("sliding_attention", "chunked_attention")]
    wrong = [layer for layer in narrow if float(outside[layer]) > 0]
    detail = f"{len(narrow)} layers with a window, {len(wrong)} of them look beyond it"
    return Finding("sliding windows hold", not wrong, detail)
