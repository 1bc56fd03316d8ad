"""The attention function that transformers calls: SDPA when nobody listens, the counting kernel inside `probing`.

Both an attention function and a mask function are registered under one name. Without the second, transformers 5
drops causal and padding masks silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from floatscope.errors import UserError
from floatscope.probe.edits import LayerEdit
from floatscope.probe.kernel import SCATTERED, Inputs, LayerStatistics, Visible, Workspace
from floatscope.probe.layout import Layout
from floatscope.probe.mixing import Layer, LayerSample, Stack, kernel_for
from floatscope.probe.query_key import QKSums, qk_sums, qk_sums_of_all

IMPLEMENTATION = "floatscope"

# What models hand over that changes nothing here: bookkeeping, or (sliding_window) already in the mask.
HARMLESS = frozenset(
    {
        "cache_position", "deterministic", "layer_idx", "num_items_in_batch", "output_attentions",
        "output_hidden_states", "output_router_logits", "position_ids", "return_dict", "sliding_window", "use_cache",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Geometry:
    """The queries, keys and values behind a layer's statistics, for sums over them. One sample, pads cut off."""

    inputs: Inputs
    visible: Visible
    layout: Layout
    first: Tensor
    """First row that sees each key, int64 [K]."""
    last: Tensor
    """One past the last row that sees each key, int64 [K]."""
    edit: LayerEdit | None = None

    @cached_property
    def value_norm(self) -> Tensor:
        """|v_j|, float32 [Hkv, K]."""
        return self.inputs.value.float().norm(dim=-1)

    @property
    def seen_by(self) -> Tensor:
        """How many rows can see each key, int64 [K]."""
        return self.last - self.first

    def qk(self, rows: int | None = None) -> QKSums:
        """Mean query-key geometry per key, over the first `rows` rows."""
        query, key = self.inputs.query, self.inputs.key
        if rows is None and self.visible.everything:
            return qk_sums_of_all(query[None], key[None], query.new_ones(1, query.shape[1], dtype=torch.float32))[0]
        last = self.last if rows is None else self.last.clamp(max=rows)
        return qk_sums(query, key, torch.minimum(self.first, last), last)

    def matrix(self) -> Tensor:
        """The attention matrix A [H, R, K] in full, as it was edited, float32."""
        query, key, softcap = self.inputs.query, self.inputs.key, self.inputs.softcap
        share = len(query) // len(key)
        scores = query.float() @ key.float().repeat_interleave(share, 0).transpose(1, 2) * self.inputs.scale
        if softcap is not None:
            scores = (scores / softcap).tanh() * softcap
        self.visible.hide(scores, 0, self.layout)
        if self.edit is None:
            return scores.softmax(-1)
        for head, own in enumerate(scores):
            self.edit.softmax(own, head, 0)
        return scores


Listener = Callable[[int, int, LayerStatistics, Geometry], None]
"""Called once per layer and sample: (layer, sample, statistics, geometry)."""


class Compiler(Protocol):
    """Whoever says how the attention of one sample is to be changed."""

    @property
    def hides_only(self) -> bool:
        """Whether it changes nothing but who sees whom."""
        ...

    def compile(self, layer: int, layout: Layout, heads: int, visible: Visible) -> LayerEdit | None:
        """The change at this layer of the pass; None where nothing is selected."""
        ...


@dataclass
class Probe:
    """What to count in the forward to come, what to change in it, and who is told."""

    pads: Sequence[int]
    """Left pads of each sample."""
    layouts: Sequence[Layout | None]
    """What to count in each sample; None: nothing."""
    listener: Listener | None
    """None: attention is changed and nothing counted."""
    layer_count: int
    """How many layers the model has: each must come by once."""
    workspace: Workspace = field(default_factory=Workspace)
    edits: Sequence[Compiler | None] = ()
    """What changes each sample; empty: nothing at all."""
    extra: list[Tensor | None] = field(default_factory=list)
    """Per sample the extra value columns [K, E] of the next layer, which the listener may replace; empty: none."""
    alpha: float | None = None
    """The weight of attention in a rollout of these columns, X <- alpha mean_h(A_h X) + (1 - alpha) X from layer to
    layer; None: they stay as they are."""
    donors: Mapping[int, int] = field(default_factory=dict)
    """For samples that are patched, the sample before them, of the same length, that they are patched from."""
    layers: list[int] = field(default_factory=list)
    """The layers that came by, in the order of their calls."""
    masks: dict[tuple[int, ...], tuple[Any, Tensor]] = field(default_factory=dict)
    """Masks with what edits hide, and what they were made of, so that its ids stay taken."""
    stacks: dict[tuple[Any, ...], Stack] = field(default_factory=dict)
    """Layouts of all samples in one, by rows and keys."""
    _seen: dict[tuple[Any, ...], tuple[Tensor | None, Visible, Tensor, Tensor]] = field(default_factory=dict)
    _windows: dict[tuple[int, ...], tuple[Layout, int]] = field(default_factory=dict)
    _scattered: list[Tensor] = field(default_factory=list)

    def forget(self) -> None:
        """What belongs to one forward."""
        for held in (self.layers, self.masks, self.stacks, self._seen, self._windows, self._scattered):
            held.clear()

    def window(self, sample: int, width: int, device: torch.device) -> tuple[Layout, int]:
        """A sample's layout in a layer with `width` columns, and how many of these are pads."""
        place = (sample, width)
        if place not in self._windows or self._windows[place][0].rows.device != device:
            whole = self.layouts[sample]
            assert whole is not None
            layout, pad = _in_window(whole, int(self.pads[sample]), width)
            self._windows[place] = layout.to(device), pad
        return self._windows[place]

    def sight(
        self, mask: Tensor | None, causal: bool, sample: int, layout: Layout, pad: int
    ) -> tuple[Visible, Tensor, Tensor]:
        """Visible and its intervals for one sample; masks are read once per forward, not once per layer.

        On another device they are not read at all, which would wait: what is wrong with one is told after the forward.
        """
        place = (id(mask), causal, sample, layout.keys.shape[0], layout.rows.device)
        if place not in self._seen:
            visible = Visible(causal=causal) if mask is None else _read_mask(mask, sample, pad, layout)
            first, last, scattered = visible.runs(layout)
            if scattered is not None:
                self._scattered.append(scattered)
            self._seen[place] = (mask, visible, first, last)
        return self._seen[place][1:]

    def refuse_scattered(self) -> None:
        """After a forward: a mask whose columns are not seen by runs of rows has no mean geometry."""
        if any(bool(one) for one in self._scattered):
            raise ValueError(SCATTERED)

    def edit(self, sample: int, layer: int, layout: Layout, heads: int, visible: Visible) -> LayerEdit | None:
        """The change of a sample's attention at this layer; None where there is none."""
        compiler = self.edits[sample] if self.edits else None
        found = None if compiler is None else compiler.compile(layer, layout.host, heads, visible)
        return None if found is None else found.to(layout.rows.device)

    @property
    def hides_only(self) -> bool:
        """Whether it does no more than a mask can."""
        return self.listener is None and all(one is None or one.hides_only for one in self.edits)


_listening: ContextVar[Probe | None] = ContextVar("floatscope_probe", default=None)


@contextmanager
def probing(probe: Probe) -> Iterator[None]:
    """Count attention in the one forward run inside; refuse a model whose layers did not all come by, each once."""
    probe.forget()
    token = _listening.set(probe)
    try:
        yield
    finally:
        _listening.reset(token)
    probe.refuse_scattered()
    if probe.layers != list(range(probe.layer_count)):
        raise UserError(
            f"the model called its attention function {len(probe.layers)} times for {probe.layer_count} layers: "
            + (
                "one with other kinds of layers or with cross-attention cannot be traced"
                if probe.layers
                else "its class is not on the attention interface of transformers, so it cannot be traced"
            )
        )


@contextmanager
def only_samples(samples: Sequence[int]) -> Iterator[None]:
    """For a forward over some samples of the batch, without pads: the probe counts them as what they are."""
    whole = _listening.get()
    if whole is None:
        yield
        return

    listener = whole.listener

    def listen(layer: int, sample: int, statistics: LayerStatistics, geometry: Geometry) -> None:
        if listener is not None:
            listener(layer, samples[sample], statistics, geometry)

    part = replace(
        whole,
        pads=[0] * len(samples),
        layouts=[whole.layouts[sample] for sample in samples],
        listener=None if listener is None else listen,
        masks={},
        stacks={},
        _seen={},
        _windows={},
        _scattered=[],
        edits=[whole.edits[sample] for sample in samples] if whole.edits else (),
        extra=[whole.extra[sample] for sample in samples] if whole.extra else [],
        donors={samples.index(one): samples.index(donor) for one, donor in whole.donors.items() if one in samples},
    )
    with probing(part):
        yield


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Query [B, H, T, d], key and value [B, Hkv, T, d] to output [B, T, H, d]."""
    _refuse(module, dropout, others)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    causal = attention_mask is None and (is_causal if is_causal is not None else getattr(module, "is_causal", True))
    probe = _listening.get()
    if probe is not None and probe.hides_only and softcap is None:
        hidden = _hidden(probe, module, query, key, attention_mask, causal)
        if hidden is not None:
            attention_mask, is_causal = hidden, False
    elif probe is not None:
        return _probed(probe, module, query, key, value, attention_mask, causal, scale, softcap), None
    if softcap is not None:
        return _softcapped(query, key, value, attention_mask, causal, scale, softcap), None
    return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scale, is_causal=is_causal)


def _probed(
    probe: Probe, module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor,
    mask: Tensor | None, causal: bool, scale: float, softcap: float | None,
) -> Tensor:  # fmt: skip
    layer = _layer_of(module, probe)
    known = [
        None if whole is None else _sample(probe, sample, layer, query, key, value, mask, causal, scale, softcap)
        for sample, whole in enumerate(probe.layouts[: len(query)])
    ]  # None: a finished sample, nobody reads its output
    samples = [None if one is None else one[0] for one in known]
    whole = Layer(Inputs(query, key, value, scale, softcap), mask, causal, samples, probe.workspace, probe.stacks)
    output = query.new_zeros(len(query), query.shape[2], query.shape[1], value.shape[-1])
    for sample, statistics in kernel_for(whole).run(whole, output):
        own = known[sample]
        assert own is not None
        if probe.alpha is not None and own[0].extra is not None and statistics.mixed is not None:
            if not own[0].layout.is_whole:
                raise UserError("a rollout needs all rows of the canvas: run it without a cache")
            rolled = torch.lerp(own[0].extra, statistics.mixed.mean(0), probe.alpha)
            probe.extra[sample] = rolled
            statistics = replace(statistics, rolled=rolled)
        if probe.listener is not None:
            probe.listener(layer, sample, statistics, own[1])
    probe.layers.append(layer)
    return output


def _sample(
    probe: Probe, sample: int, layer: int, query: Tensor, key: Tensor, value: Tensor,
    mask: Tensor | None, causal: bool, scale: float, softcap: float | None,
) -> tuple[LayerSample, Geometry]:  # fmt: skip
    """One sample of the layer without its pads."""
    layout, pad = probe.window(sample, key.shape[2], query.device)
    skip = max(0, pad - (key.shape[2] - query.shape[2]))  # pads among rows: none where these are a block over a cache
    donor = probe.donors.get(sample)
    inputs, theirs = (
        Inputs(query[one, :, skip:], key[one, :, pad:], value[one, :, pad:], scale, softcap)
        for one in (sample, sample if donor is None else donor)
    )
    if (layout.rows.shape[0], layout.keys.shape[0]) != (inputs.query.shape[1], inputs.key.shape[1]):
        raise UserError(
            f"the probe was told of {len(layout.rows)} rows over {len(layout.keys)} keys, and layer {layer} has "
            f"{inputs.query.shape[1]} over {inputs.key.shape[1]}: this model keeps a key-value cache of its own"
        )
    visible, first, last = probe.sight(mask, causal, sample, layout, pad)
    edit = probe.edit(sample, layer, layout, query.shape[1], visible)
    extra = probe.extra[sample] if probe.extra else None
    extra = None if extra is None else extra.to(query.device)
    own = LayerSample(inputs, visible, layout, edit, extra, skip, pad, None if donor is None else (donor, theirs))
    return own, Geometry(inputs, visible, layout, first, last, edit)


def _hidden(
    probe: Probe, module: torch.nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, causal: bool
) -> Tensor | None:
    """Who sees whom and what edits hide, as one additive mask [B, 1 or H, R, K], shared by like layers.

    None where no edit selects anything in this layer.
    """
    batch, heads, rows, _ = query.shape
    layer = _layer_of(module, probe)
    probe.layers.append(layer)
    found: list[tuple[int, Visible, Layout, LayerEdit | None]] = []
    for sample in range(batch):
        layout, pad = probe.window(sample, key.shape[2], query.device)
        visible, *_ = probe.sight(mask, causal, sample, layout, pad)
        found.append((sample, visible, layout, probe.edit(sample, layer, layout, heads, visible)))
    if all(edit is None for *_, edit in found):
        return None
    place = (id(mask), *(id(edit) for *_, edit in found))
    if place not in probe.masks:
        most = max((len(edit.bias) for *_, edit in found if edit is not None and edit.bias is not None), default=1)
        whole = torch.full((batch, most, rows, key.shape[2]), -torch.inf, device=query.device)
        for sample, visible, layout, edit in found:
            own = whole[sample, :, rows - layout.rows.shape[0] :, key.shape[2] - layout.keys.shape[0] :]
            own.zero_()
            visible.hide(own, 0, layout)
            if edit is not None and edit.bias is not None:
                own.add_(edit.bias)
        whole[..., 0].masked_fill_(whole.isinf().all(-1), 0.0)  # pad rows: nobody reads them, and none may be nan
        probe.masks[place] = (found, whole.to(query.dtype))
    return probe.masks[place][1]


def _in_window(layout: Layout, pad: int, width: int) -> tuple[Layout, int]:
    """The keys that a layer with a cache of `width` columns still has, and how many of these are pads.

    A sliding layer keeps the last ones only, so that its column j is not position j.
    """
    gone = pad + layout.keys.shape[0] - width
    if gone <= 0 or layout.rows.shape[0] == layout.keys.shape[0]:
        return layout, pad
    lost = max(0, gone - pad)
    return replace(layout, keys=layout.keys[lost:], columns=layout.columns[lost:]), max(0, pad - gone)


def _layer_of(module: torch.nn.Module, probe: Probe) -> int:
    """A class that shares one module over all layers gives it no number: count."""
    number = getattr(module, "layer_idx", None)
    return number if isinstance(number, int) else len(probe.layers)


def _softcapped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float, softcap: float
) -> Tensor:
    """SDPA cannot cap its scores: plain attention for the models that do."""
    share = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, share), repeat_kv(value, share)
    scores = (query @ key.transpose(2, 3)).float() * scale  # [B, H, T, K]
    scores = (scores / softcap).tanh() * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    elif causal:  # the rows are the last of the keys: those before are a cache
        rows, keys = scores.shape[-2:]
        later = torch.ones(rows, keys, dtype=torch.bool, device=scores.device).triu(1 + keys - rows)
        scores = scores.masked_fill(later, -torch.inf)
    # A pad row that sees nothing becomes 0, as in SDPA.
    return (scores.softmax(-1).nan_to_num(0.0).to(value.dtype) @ value).transpose(1, 2).contiguous()


def _read_mask(mask: Tensor, sample: int, pad: int, layout: Layout) -> Visible:
    """One sample's own mask [R, K] with pads cut off, in the cheapest form that says the same."""
    if mask.ndim != 4 or mask.shape[1] != 1:
        raise UserError(f"the probe does not support an attention mask of shape {tuple(mask.shape)}")
    own = mask[sample if len(mask) > 1 else 0, 0, -layout.rows.shape[0] :, pad:]
    if own.device.type != "cpu":
        return Visible(mask=own if own.dtype == torch.bool else own.float())
    if own.dtype != torch.bool:
        seen = own > torch.finfo(own.dtype).min / 2
        if not bool((own[seen] == 0).all()):
            return Visible(mask=own.float())  # an additive bias, not only a mask
        own = seen
    if bool(own.all()):
        return Visible()
    if bool((own == (layout.keys <= layout.rows[:, None])).all()):
        return Visible(causal=True)
    return Visible(mask=own)


def _refuse(module: torch.nn.Module, dropout: float, others: dict[str, Any]) -> None:
    """Whatever changes attention and is not computed here is refused by name, never ignored."""
    if dropout:
        raise UserError(f"{type(module).__name__} runs with dropout {dropout}: call .eval() on the model first")
    for name, given in others.items():
        if name not in HARMLESS and given is not None:
            raise UserError(
                f"{type(module).__name__} hands {name!r} to its attention function, which floatscope does not "
                "compute: this model cannot be traced faithfully"
            )


AttentionInterface.register(IMPLEMENTATION, attention)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
