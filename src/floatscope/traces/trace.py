"""`Trace`: all that was captured for one sample under one model, with named axes.

It computes nothing that needs a model; its file is left to `storage`, measures to `floatscope.analysis`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

import numpy as np
from numpy.typing import NDArray

from floatscope.canvas import MASKED, Region, group_labels
from floatscope.errors import UserError
from floatscope.files import replacing
from floatscope.registry import ELSEWHERE, did_you_mean, load_object
from floatscope.traces.arrays import ARRAYS, LazyArrays
from floatscope.traces.storage import plain_json, read, write

if TYPE_CHECKING:
    import polars
    import xarray

_FIXED = {"canvas": np.int64, "slots": np.int64, "commit_step": np.int64, "confidence": np.float32}
_TOLD = (
    "model", "family", "kind", "visibility", "logits", "sampler", "seed", "texts", "regions", "marks", "qk_steps",
    "keep", "edits", "mixers", "metadata",
)  # fmt: skip
"""What the file of a trace holds as they are, and what its header tells."""
Kind = Literal["mdm", "arm"]
Logits = Literal["same", "shifted", "block_next", "next"]


@dataclass(frozen=True, repr=False, eq=False)
class Trace:
    """One sample under one model; the token axis is the sample's own canvas, without pads.

    A slot that commits at step s is still masked in the forward of step s and a token from s+1 on; `commit_step` is
    its last commit, and -1 means that it was a token before the first step kept. At step t an ARM with P prompt tokens
    has the rows 0..P+t-1.
    """

    model: str
    family: str
    kind: Kind
    visibility: str
    logits: Logits
    sampler: Mapping[str, Any]
    seed: int
    canvas: NDArray[np.int64]
    slots: NDArray[np.int64]
    """Positions of the answer on the canvas, ascending."""
    texts: tuple[str, ...] | None
    regions: tuple[Region, ...]
    marks: Mapping[str, NDArray[np.int64]]
    commit_step: NDArray[np.int64]
    confidence: NDArray[np.float32]
    qk_steps: tuple[int, ...]
    keep: str
    arrays: Mapping[str, NDArray[Any]]
    edits: tuple[Mapping[str, Any], ...] = ()
    """The edits of attention that it ran under, as plain data."""
    mixers: tuple[str, ...] = ()
    """The kind of mixer of each layer; empty: softmax attention everywhere."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What the caller knows of the sample: `sample`, `task`, `condition`; copied, never interpreted. Beside it
    `passing_texts`: the texts, by id, of tokens that slots held and did not keep."""

    def __getattr__(self, name: str) -> NDArray[Any]:
        if name.startswith("__") or name not in ARRAYS:
            near = [] if name.startswith("_") else get_close_matches(name, [*dir(type(self)), *ARRAYS], n=1)
            raise AttributeError(f"a Trace has no {name!r}" + (f": did you mean {near[0]!r}?" if near else ""))
        if name not in self.arrays:
            keep = ARRAYS[name].keep
            with_keep = "" if keep == "compact" else f" with keep={keep!r}"
            raise UserError(f"{name!r} of the trace of {self.model!r} was not kept; trace again{with_keep}.")
        return self.arrays[name]

    def __repr__(self) -> str:
        return (
            f"Trace({self.model!r}, {self.kind}, {self.visibility}: {self.steps} steps x {self.layers} "
            f"layers x {len(self.canvas)} tokens ({len(self.commit_step)} answer), keep={self.keep!r}, "
            f"arrays: {', '.join(self.arrays)})"
        )

    def _repr_html_(self) -> str:
        """For notebooks: the player of the report."""
        return load_object(ELSEWHERE["player"])(self)

    def heatmap(self, step: int = -1, layer: int = -1, head: int | None = None) -> Any:
        """One head from token to token as a figure (without a head: their mean); needs keep="matrices"."""
        return load_object(ELSEWHERE["heatmap"])(self, step, layer, head)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.arrays})

    def _size(self, axis: str) -> int:
        for name in self.arrays:
            if axis in ARRAYS[name].axes:
                return array_shape(self.arrays, name)[ARRAYS[name].axes.index(axis)]
        raise UserError(f"No array of the trace of {self.model!r} has the axis {axis!r}; trace it again.")

    @property
    def steps(self) -> int:
        """How many forward passes were captured."""
        return self._size("step")

    @property
    def layers(self) -> int:
        """How many layers were captured."""
        return self._size("layer")

    @property
    def heads(self) -> int:
        """How many query heads a layer has."""
        return self._size("head")

    @property
    def answer(self) -> NDArray[np.int64]:
        """The tokens of the slots at the end."""
        return self.canvas[self.slots]

    @property
    def prediction(self) -> str | None:
        """What these tokens say up to the end of the answer; None where no tokenizer was at hand."""
        return self.metadata.get("prediction")

    @property
    def texts_or_ids(self) -> tuple[str, ...]:
        """The token texts, or the ids as text where no tokenizer was at hand."""
        return self.texts if self.texts is not None else tuple(str(token) for token in self.canvas)

    @property
    def region_labels(self) -> tuple[str, ...]:
        """Region labels in order of first appearance."""
        return tuple(dict.fromkeys(region.label for region in self.regions))

    @property
    def group_labels(self) -> tuple[str, ...]:
        """Query groups: the regions, with the answer split by the state of the querying slot."""
        return group_labels(self.region_labels)

    @property
    def column_labels(self) -> tuple[str, ...]:
        """Key sets: the regions, which partition the canvas, then the marks, which overlap them."""
        return (*self.region_labels, *self.marks)

    @property
    def masked(self) -> NDArray[np.bool_]:
        """[step, answer] whether the slot is not yet a token in the forward of the step."""
        if "state" in self.arrays:
            return self.arrays["state"] == MASKED
        return self.commit_step[None, :] >= np.arange(self.steps)[:, None]

    @property
    def events(self) -> list[list[tuple[int, str, int]]]:
        """Per step, what happened to slots: (slot, event, token), of which the token is the new one, or the withdrawn.

        An event is commit, revise or renoise.
        """
        before = self.arrays["tokens"]
        after = np.concatenate([before[1:], self.canvas[self.slots][None]])
        was = ~self.masked
        became = np.concatenate([was[1:], np.ones_like(was[:1])])
        names = np.select(
            [~was & became, was & ~became, was & (after != before)], ["commit", "renoise", "revise"], ""
        )  # [step, answer]
        held = np.where(names == "renoise", before, after)
        return [
            [(slot, str(name), int(held[step, slot])) for slot, name in enumerate(row) if name]
            for step, row in enumerate(names)
        ]

    @property
    def rows(self) -> NDArray[np.int64]:
        """[step] how many query rows each forward has: the whole canvas, an ARM's text so far, a block over a cache."""
        if "group_rows" not in self.arrays:
            grown = len(self.canvas) - len(self.slots) + np.arange(self.steps)
            return grown if self.kind == "arm" else np.full(self.steps, len(self.canvas))
        rows = self.group_rows.astype(np.int64).sum(axis=1)
        if ((rows < 1) | (rows > len(self.canvas))).any():
            raise UserError(f"The trace of {self.model!r} has steps of no rows or too many; trace it again.")
        return rows

    @property
    def visible(self) -> NDArray[np.int64]:
        """[step, layer, token] V_j: how many rows can see column j at each step."""
        by_step = "seen_by_step" in self.arrays
        seen = (self.seen_by_step if by_step else self.seen_by[None]).astype(np.int64)  # [.., layer, token]
        if (seen < 0).any() or not seen.any(axis=-1).all():
            raise UserError(f"The trace of {self.model!r} has layers in which no row sees a column; trace it again.")
        if by_step or self.kind != "arm":
            return np.broadcast_to(seen, (self.steps, *seen.shape[1:]))
        left = self.rows[:, None] - np.arange(len(self.canvas))  # [step, token]
        return np.clip(np.minimum(seen, left[:, None, :]), 0, None)

    @property
    def received_visible(self) -> NDArray[np.float32]:
        """[step, layer, token] C_j / V_j; 0 where no row can see the column."""
        visible = self.visible
        sums = self.received * self.rows[:, None, None]  # [step, layer, token] column sums C_j
        return np.divide(sums, visible, out=np.zeros(sums.shape), where=visible > 0).astype(np.float32)

    def region_matrix(self, head_mean: bool = False) -> NDArray[np.float32]:
        """[step, layer, head, region, region] mean row of each region, answer states merged; or the mean over heads."""
        attention = self.region_attention[..., : len(self.region_labels)]
        return self._merged(attention.mean(axis=2) if head_mean else attention)

    def region_rollout(self) -> NDArray[np.float32]:
        """[step, layer, region, region] token rollout through the layers up to each one, mean row of each region."""
        return self._merged(self.rollout[..., : len(self.region_labels)])

    def _merged(self, attention: NDArray[Any]) -> NDArray[np.float32]:
        """[step, layer, ..., group, column] with the states of answer rows merged."""
        regions = self.region_labels
        of_group = [regions.index(label.partition(":")[0]) for label in self.group_labels]
        rows = self.group_rows.astype(np.float64)  # [step, group]
        member = np.eye(len(regions))[of_group]  # [group, region]
        total = rows @ member  # [step, region]
        share = rows[:, :, None] * member / np.maximum(total, 1)[:, None, :]  # [step, group, region]
        return np.einsum("sl...gc,sgr->sl...rc", attention, share, optimize=True).astype(np.float32)

    def validate(self) -> "Trace":
        """Refuse a trace whose parts do not fit together, with a sentence; return it otherwise."""
        for problem in _problems(self):
            raise UserError(f"The trace of {self.model!r} does not fit together: {problem}; trace it again.")
        return self

    def save(self, path: str | Path, exact: bool = False) -> Path:
        """Write one safetensors file, atomically; float arrays as float16 unless `exact`."""
        arrays = {name: np.ascontiguousarray(values) for name, values in self.arrays.items()}
        for name, values in arrays.items():
            if not exact and values.dtype.kind == "f":
                largest = np.nanmax(np.abs(values), initial=0.0, where=np.isfinite(values))
                if largest <= np.finfo(np.float16).max:  # a larger one (q.k of some checkpoints) stays as it is
                    arrays[name] = values.astype(np.float16)
        return write(path, self._header(), arrays | self._fixed())

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        """Open a saved trace; its arrays come as float32 and are read when they are first used."""
        header, arrays = read(Path(path), _TYPES)
        try:
            told = {name: header[name] for name in _TOLD}
            told["regions"] = tuple(Region(*one) for one in header["regions"])
            told["marks"] = {name: arrays.read(f"mark.{name}") for name in header["marks"]}
            told |= {name: arrays.read(f"fixed.{name}") for name in _FIXED}
            return cls(**told, arrays=arrays).validate()
        except (KeyError, TypeError, IndexError) as error:
            raise UserError(f"The trace {path} lacks a part ({error}); trace the sample again.") from error

    def to_npz(self, path: str | Path) -> Path:
        """Write a plain npz that `numpy.load` opens without pickle; what is no array is JSON in `header`."""
        members = dict(self.arrays) | {name.partition(".")[2]: values for name, values in self._fixed().items()}
        members["header"] = np.array(plain_json(self._header()))
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **members)  # pyright: ignore[reportArgumentType]
        return Path(path)

    def _header(self) -> dict[str, Any]:
        """Everything that is no array, as its file says it."""
        regions = [[region.label, region.start, region.stop] for region in self.regions]
        return {name: getattr(self, name) for name in _TOLD} | {"regions": regions, "marks": list(self.marks)}

    def _fixed(self) -> dict[str, NDArray[Any]]:
        """Canvas, commits and marks: stored as they are; the dot in the name keeps them apart from the arrays."""
        fixed = {f"fixed.{name}": np.ascontiguousarray(getattr(self, name), dtype) for name, dtype in _FIXED.items()}
        return fixed | {f"mark.{name}": np.ascontiguousarray(found, np.int64) for name, found in self.marks.items()}

    def _names(self, axis: str) -> list[Any]:
        """What the entries along an axis are called: labels, numbers of steps and layers, or plain places."""
        named = {"group": self.group_labels, "column": self.column_labels, "qk_step": self.qk_steps}
        kept = {"layer": "layer_index", "matrix_step": "matrix_steps", "matrix_layer": "matrix_layers"}
        if axis in named:
            return list(named[axis])
        return self.arrays[kept[axis]].tolist() if kept.get(axis) in self.arrays else list(range(self._size(axis)))

    @property
    def _regions_of_tokens(self) -> list[str]:
        return [region.label for region in self.regions for _ in range(len(region))]

    def frame(self, *names: str) -> "polars.DataFrame":
        """Arrays with the same axes as one long polars frame (default: received), with a row per entry.

        Beside a token stand its text and region, beside an answer's slot its token and text. `.to_pandas()` is the same
        for pandas.
        """
        import polars as pl

        names = names or ("received",)
        arrays = {name: getattr(self, name) for name in names if name in ARRAYS}
        if unknown := [name for name in names if name not in ARRAYS]:
            raise UserError(f"There is no array {unknown[0]!r}: {did_you_mean(unknown[0], self.arrays)}.")
        axes = ARRAYS[names[0]].axes
        for name in names:
            if ARRAYS[name].axes != axes:
                raise UserError(
                    f"{name!r} has the axes {', '.join(ARRAYS[name].axes)} and {names[0]!r} {', '.join(axes)}: ask for "
                    "frames of their own."
                )
        places = np.indices(arrays[names[0]].shape).reshape(len(axes), -1)
        columns: dict[str, Any] = {}
        for axis, place in zip(axes, places, strict=True):
            columns[axis] = np.array(self._names(axis))[place]
            if axis in ("token", "answer"):
                token = place if axis == "token" else self.slots[place]
                columns |= {"token": token, "text": np.array(self.texts_or_ids, object)[token].tolist()}
                columns["region"] = np.array(self._regions_of_tokens, object)[token].tolist()
        return pl.DataFrame(columns | {name: values.ravel() for name, values in arrays.items()})

    def to_xarray(self) -> "xarray.Dataset":
        """The arrays as one xarray Dataset with named axes; every axis that has names or numbers has coordinates."""
        try:
            import xarray
        except ImportError as error:
            raise UserError("to_xarray needs xarray: pip install 'floatscope[xarray]'.") from error
        coordinates = {
            "token_text": ("token", list(self.texts_or_ids)),
            "token_id": ("token", self.canvas),
            "region": ("token", self._regions_of_tokens),
            "position": ("answer", self.slots),
            "commit_step": ("answer", self.commit_step),
            "confidence": ("answer", self.confidence),
        }
        variables = {name: (ARRAYS[name].axes, values) for name, values in self.arrays.items()}
        coordinates |= {
            axis: self._names(axis) for axis in dict.fromkeys(a for axes, _ in variables.values() for a in axes)
        }
        attributes = {name: getattr(self, name) for name in ("model", "family", "kind", "visibility")}
        return xarray.Dataset(variables, coordinates, attributes)


_TYPES = {name: get_type_hints(Trace)[name] for name in _TOLD} | {
    "regions": tuple[tuple[str, int, int], ...],
    "marks": tuple[str, ...],
    "arrays": dict[str, dict[str, Any]],
}
"""What the header of a file may say, with the types that its JSON must have."""


def array_shape(arrays: Mapping[str, NDArray[Any]], name: str) -> tuple[int, ...]:
    """The shape of an array without reading a lazily loaded one."""
    return arrays.shapes[name] if isinstance(arrays, LazyArrays) else arrays[name].shape


def _problems(trace: Trace) -> Iterator[str]:
    """Sentences about parts that do not fit, most basic first."""
    tokens, answer = len(trace.canvas), len(trace.slots)
    if trace.kind not in ("mdm", "arm"):
        yield f"its kind is {trace.kind!r}, neither 'mdm' nor 'arm'"
    if answer and (trace.slots[0] < 0 or trace.slots[-1] >= tokens or (np.diff(trace.slots) <= 0).any()):
        yield f"its slots are not ascending positions on a canvas of {tokens} tokens"
    for name, values in (("commit_step", trace.commit_step), ("confidence", trace.confidence)):
        if values.shape != (answer,):
            yield f"{name} has shape {values.shape} for {answer} answer tokens"
    if trace.texts is not None and len(trace.texts) != tokens:
        yield f"there are {len(trace.texts)} token texts for {tokens} tokens"
    stop = 0
    for region in trace.regions:
        if region.start != stop or region.stop < region.start:
            yield f"region {region.label!r} starts at {region.start} where {stop} was expected"
        stop = region.stop
    if trace.regions and stop != tokens:
        yield f"its regions end at {stop} but the canvas has {tokens} tokens"
    for name, positions in trace.marks.items():
        if positions.size and (positions.min() < 0 or positions.max() >= tokens):
            yield f"mark {name!r} points outside the canvas of {tokens} tokens"
    labels = {"group": trace.group_labels, "column": trace.column_labels, "qk_step": trace.qk_steps}
    sizes = {"token": tokens, "answer": answer, "bound": 2} | {axis: len(names) for axis, names in labels.items()}
    if trace.mixers:
        sizes["layer"] = len(trace.mixers)
    for name in trace.arrays:
        if name not in ARRAYS:
            yield f"the array {name!r} is not one a trace may hold"
            continue
        shape, axes = array_shape(trace.arrays, name), ARRAYS[name].axes
        if len(shape) != len(axes):
            yield f"{name} has {len(shape)} axes where {', '.join(axes)} were expected"
            continue
        for axis, size in zip(axes, shape, strict=True):
            if sizes.setdefault(axis, size) != size:
                yield f"{name} has {size} entries along {axis!r} where {sizes[axis]} were expected"
    if not all(0 <= step < sizes.get("step", step + 1) for step in trace.qk_steps):
        yield f"its qk_steps are not among its {sizes['step']} steps"
