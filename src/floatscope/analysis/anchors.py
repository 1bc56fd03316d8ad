"""Anchors: positions whose received attention stands out, by named detectors, and how many there are.

A detector turns received attention into weights per position: 0 or 1, or in between for a soft one. How
anchors move, what they absorb and what they are made of is left to the other analyses.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from floatscope.analysis.cells import Array, cell_columns, ratio
from floatscope.analysis.drawing import lines
from floatscope.analysis.figure import Figure, finding, result_figure
from floatscope.analysis.results import Controls, Options, Panel, Result, analyse, group_of, sample_name
from floatscope.analysis.uniform import on_uniform
from floatscope.errors import UserError
from floatscope.registry import Registry
from floatscope.traces import Trace

_FLAT = 1e-6
"""A spread below this share of the mean is rounding: nothing stands out."""


@dataclass(frozen=True)
class Field:
    """Received attention over the columns that exist: scores and presence are [..., token]."""

    scores: Array
    """The normalisation asked for."""
    visible: Array
    """C_j / V_j, whatever the normalisation asked for."""
    present: NDArray[np.bool_]
    """Columns that some row can see; for an ARM, tokens that are there at this step."""
    rows: Array
    """[..., 1] query rows."""

    @cached_property
    def moments(self) -> tuple[Array, Array]:
        """Mean and population standard deviation over the columns that exist, [..., 1]."""
        count = np.maximum(self.present.sum(axis=-1, keepdims=True), 1)
        scores = self.scores if self.present.all() else np.where(self.present, self.scores, 0)
        mean = scores.sum(axis=-1, keepdims=True, dtype=np.float64) / count
        apart = np.where(self.present, scores - mean.astype(scores.dtype), 0)
        return mean, np.sqrt(np.einsum("...t,...t->...", apart, apart)[..., None] / count)


@dataclass(frozen=True)
class Detector:
    """A rule that finds anchors."""

    parameters: tuple[float | str, ...]
    """Its parameters by default; one that is a word takes that word or a number."""
    description: str
    """What it says, for the help."""
    rule: Callable[..., Array]
    """From a Field and the parameters to bool [..., token], or to weights from 0 to 1."""


def _zscore(field: Field, k: float) -> Array:
    mean, deviation = field.moments
    return field.present & (field.scores > mean + k * deviation) & (deviation > _FLAT * mean)


def _top1(field: Field) -> Array:
    scores = np.where(field.present, field.scores, -np.inf)
    best = scores.argmax(axis=-1)[..., None]
    return field.present & (np.arange(scores.shape[-1]) == best)


def _rulli(field: Field, epsilon: float, scale: float | str) -> Array:
    factor = field.rows if scale == "rows" else float(scale)
    scores = np.where(field.present, field.scores, 0) * factor
    others = np.maximum(field.present.sum(axis=-1, keepdims=True) - 1, 1)
    rest = (scores.sum(axis=-1, keepdims=True) - scores) / others
    return field.present & (scores > rest + epsilon)


def _gu(field: Field, epsilon: float) -> Array:
    return field.present & (field.visible > epsilon)


def _soft(field: Field, k: float, slope: float) -> Array:
    mean, deviation = field.moments
    flat = deviation <= _FLAT * mean
    scale = np.where(flat, 1, deviation)
    z = (field.scores - mean.astype(np.float32)) / scale.astype(np.float32)
    return np.where(field.present, 1 / (1 + np.exp(np.clip(slope * (k - z), -60, 60))), 0) * ~flat


DETECTORS = Registry(
    "detector",
    {
        "zscore": Detector((3.0,), "received > mean + k population standard deviations", _zscore),
        "top1": Detector((), "the one position that receives most", _top1),
        "rulli": Detector((3.0, "rows"), "received x scale > mean of the others + epsilon", _rulli),
        "gu": Detector((0.3,), "visible-normalised received > epsilon", _gu),
        "soft": Detector((2.0, 5.0), "sigmoid(slope (z - k)) with z in standard deviations", _soft),
    },
)


def every_detector() -> dict[str, Detector]:
    """The detectors as they are written with their parameters by default: "zscore(3)", "top1", "rulli(3,rows)"."""
    written = {}
    for name, row in DETECTORS.items():
        parameters = ",".join(value if isinstance(value, str) else f"{value:g}" for value in row.parameters)
        written[f"{name}({parameters})" if parameters else name] = row
    return written


def parse_detector(text: str) -> Callable[[Field], Array]:
    """The rule that a text such as `zscore(3)` or `top1` names; parameters may be left out."""
    match = re.fullmatch(r"\s*(\w+)\s*(?:\(([^()]*)\))?\s*", text)
    name = match.group(1) if match else text
    detector = DETECTORS.named(name)
    given = [part.strip() for part in (match.group(2) or "" if match else "").split(",") if part.strip()]
    if len(given) > len(detector.parameters):
        raise UserError(f"The detector {text!r} has too many parameters: {name} takes {len(detector.parameters)}.")
    try:
        own = [part if part == usual else float(part) for part, usual in zip(given, detector.parameters, strict=False)]
    except ValueError as error:
        raise UserError(f"The parameters of the detector {text!r} are not numbers.") from error
    if not all(math.isfinite(value) for value in own if isinstance(value, float)):
        raise UserError(f"The parameters of the detector {text!r} are not finite.")
    values = (*own, *detector.parameters[len(own) :])
    return lambda field: detector.rule(field, *values)


def field_of(trace: Trace, normalisation: str = "rows") -> Field:
    """[step, layer, token] received attention, mean over heads."""
    return make_field(trace.received, trace.rows[:, None, None], trace.visible, normalisation)


def make_field(received: Array, rows: Array, seen: Array, normalisation: str) -> Field:
    """Received attention [..., token] of so many rows, of which `seen` see a column."""
    Options(normalisation=normalisation)  # refuses one that is not known
    visible = ratio(received * rows.astype(np.float32), seen, 0).astype(np.float32)
    scores = {"rows": received, "visible": visible}[normalisation]
    return Field(scores, visible, np.broadcast_to(seen > 0, received.shape), rows)


def detect(trace: Trace, detector: str = "zscore(3)", normalisation: str = "rows") -> Array:
    """[step, layer, token] which positions are anchors (bool), or how much so (float, for a soft detector)."""
    return parse_detector(detector)(field_of(trace, normalisation))


def random_like(weights: Array, present: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.bool_]:
    """As many random positions as there are anchors, among the columns that exist; per step and layer."""
    count = np.round(weights.sum(axis=-1)).astype(np.int64)
    chosen = np.zeros(weights.shape, bool)
    present = np.broadcast_to(present, weights.shape)
    for place in zip(*np.nonzero(count), strict=True):
        candidates = np.flatnonzero(present[place])
        chosen[place][rng.choice(candidates, min(count[place], len(candidates)), replace=False)] = True
    return chosen


def shuffled(received: Array, anchors: Array, present: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """received, anchors [step, layer, token] with the columns that exist shuffled at every step and layer."""
    order = np.argsort(np.where(present, rng.random(present.shape, np.float32), 2), axis=-1)  # absent ones last
    places = np.argsort(~present, axis=-1, kind="stable") if not present.all() else np.arange(present.shape[-1])
    drawn = np.zeros_like(received), np.zeros_like(anchors)
    for found, values in zip(drawn, (received, anchors), strict=True):
        taken = np.take_along_axis(values, order, axis=-1)
        np.put_along_axis(found, np.broadcast_to(places, present.shape), taken, axis=-1)
    return drawn


def anchors(traces: Iterable[Trace], options: Options, controls: Controls) -> Result:
    """Anchors per step by detector, normalisation and layer: how many, and the attention they receive.

    The second table lists the anchors of `options.detector`: sample, layer, position, and for how many steps.
    """
    names = tuple(every_detector())
    keys = ("detector", "normalisation", "measure", "layer")

    def measure(trace: Trace, rng: np.random.Generator, panel: Panel) -> dict[str, Any]:
        panel.note("The column 'random' is null: random positions are as many as the anchors.")
        panel.listed.append(anchor_list(trace, options, len(panel.frames)))
        flat = on_uniform(trace, lambda even: _counts(even, names))
        return cell_columns(keys, value=_counts(trace, names), uniform=flat)

    return analyse(
        "anchors", traces, keys, measure, options, controls, anchors_list=lambda panel, _: pl.concat(panel.listed)
    )[0]


def _counts(trace: Trace, detectors: tuple[str, ...]) -> dict[tuple[str, str, str], Array]:
    """Mean over steps of number and mass of anchors, [layer], by detector, normalisation and measure."""
    counts: dict[tuple[str, str, str], Array] = {}
    for normalisation in ("rows", "visible"):
        field = field_of(trace, normalisation)
        for detector in detectors:
            weights = parse_detector(detector)(field).astype(np.float32)
            counts[detector, normalisation, "count"] = weights.sum(axis=-1).mean(axis=0)
            mass = np.einsum("slt,slt->sl", weights, trace.received)
            counts[detector, normalisation, "mass"] = mass.mean(axis=0)
    return counts


def anchor_list(trace: Trace, options: Options, number: int) -> pl.DataFrame:
    """One row per layer and position that was ever an anchor."""
    weights = detect(trace, options.detector, options.normalisation) > 0.5
    layer, position = np.nonzero(weights.any(axis=0))
    regions = [region.label for region in trace.regions for _ in range(len(region))] or [""] * len(trace.canvas)
    labels = {"model": trace.model, **group_of(trace), "sample": sample_name(trace, number)}
    found = pl.DataFrame(
        {
            "layer": layer,
            "position": position,
            "text": pl.Series(trace.texts_or_ids)[position],
            "region": pl.Series(regions)[position],
            "steps": weights.sum(axis=0)[layer, position],
            "first_step": weights.argmax(axis=0)[layer, position],
            "received": trace.received.mean(axis=0)[layer, position].astype(float),
        }
    )
    return found.select(*(pl.lit(value).alias(name) for name, value in labels.items()), pl.all())


def figure(result: Result, models: Sequence[str]) -> Figure:
    """Number of anchors per layer by detector."""
    table = result.table.filter(measure="count", normalisation="rows")
    names = table["detector"].unique(maintain_order=True).to_list()
    panels = [lines(table, name, {"detector": name}, models, y="anchors per step") for name in names]
    what, first = f"Anchors per step by {names[0]}, mean over layers", table.filter(detector=names[0])
    return result_figure(
        result,
        "How many tokens stand out",
        panels,
        "Anchors per step by detector: how many there are depends on the rule, so no finding should rest on one rule "
        "alone. Thin lines are controls: even attention under the same visibility, the untrained model.",
        finding(what, first, models, ("uniform", "untrained")),
        table,
    )
