"""Import of the npz files that go with arXiv 2601.07894's public code, as traces.

Two layouts are known: `layer_N_full_attention` (one forward over the finished sequence, written by the
extraction scripts) and steps of `layer_N_attention_avg` (read by the temporal heatmap), as plain arrays
`step_S_layer_N_attention_avg`. Both hold head-mean matrices, so an imported trace has one head. Numeric members alone
are read: an object array is a pickle, which is never opened. Measures are left to `floatscope.analysis`.
"""

import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.canvas import ANSWER, BOS, Region, document_label, group_labels, positions, regions_from_labels
from floatscope.errors import UserError
from floatscope.traces.trace import Kind, Trace

Matrix = NDArray[np.float32]
PROMPT = "prompt"
STEPS, STEP_LAYER = "step_attention_data", r"step_(\d+)_layer_\d+_attention_avg"
_DAMAGE = (OSError, EOFError, ValueError, LookupError, MemoryError, NotImplementedError, zlib.error, zipfile.BadZipFile)
"""What zipfile and numpy raise on bytes that are not what they claim to be."""


class Members(Mapping[str, Any]):
    """The members of an npz by name, each read on access with pickle off; 0-d arrays come as the value they hold."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise UserError(f"There is no npz file at {path}; check the path.")
        try:
            with np.load(path, allow_pickle=False) as file:
                self._names = tuple(file.files)
        except _DAMAGE as error:
            raise UserError(f"{path} is truncated or no npz ({error}); extract it again.") from error
        except AttributeError as error:  # a single array
            raise UserError(f"{path} is an npy and no npz; extract it again.") from error
        self._path = path

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        try:
            with np.load(self._path, allow_pickle=False) as file:
                value = file[name]
        except _DAMAGE as error:
            raise UserError(f"The member {name!r} of {self._path} cannot be opened: {error}") from error
        return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._names))

    def __len__(self) -> int:
        return len(self._names)


def import_reference(
    path: str | Path,
    model: str | None = None,
    regions: Sequence[Region] | None = None,
    texts: Sequence[str] | None = None,
    prompt_length: int | None = None,
    mask_id: int | None = None,
) -> Trace:
    """Read a reference npz into a Trace: received attention, region matrices and the matrices themselves.

    The files name neither their regions nor (those of steps) the prompt's length: what is not given is taken from
    `passage_ranges`, `input_length` and the slots that change between steps.
    """
    path = Path(path)
    members = Members(path)
    if STEPS in members:
        raise UserError(
            f"{path} holds {STEPS} as a pickle, which can run code and is never opened: if you trust the file, convert "
            "it as docs/traces.md shows."
        )
    if _numbered(members, STEP_LAYER):
        matrices, layers, canvases = _step_layout(members, path)
        final = _final_canvas(canvases, matrices.shape[-1])
        length = _prompt_length(members, prompt_length, canvases, len(final))
        commits = _commits(canvases, length, len(final), mask_id)
        kind: Kind = "mdm"
    else:
        matrices, layers = _full_layout(members, path)
        final, length = _full_canvas(members, matrices.shape[-1], prompt_length)
        kind = "arm" if _is_causal(matrices) and length < len(final) else "mdm"
        # The one forward saw the finished answer: no slot was masked in it.
        commits = np.arange(len(final) - length) if kind == "arm" else np.full(len(final) - length, -1)
    spans = tuple(regions) if regions is not None else _regions(members, length, len(final))
    arrays = _arrays(matrices, layers, kind, length, commits, spans)
    arrays |= _states(members, layers)
    causal = _is_causal(matrices)
    return Trace(
        model=model or path.stem,
        family="reference",
        kind=kind,
        visibility="causal" if causal else "bidirectional",
        logits="next" if kind == "arm" else "same",
        sampler={"name": "reference"},
        seed=0,
        canvas=final,
        slots=np.arange(length, len(final)),
        texts=None if texts is None else tuple(texts),
        regions=spans,
        marks={},
        commit_step=commits.astype(np.int64),
        confidence=np.full(len(commits), np.nan, np.float32),
        qk_steps=(),
        keep="matrices",
        arrays=arrays,
        metadata={"source": path.name, "layers": layers, "question": members.get("question")},
    ).validate()


def _full_layout(members: Members, path: Path) -> tuple[Matrix, list[int]]:
    """[1, layer, token, token] head means; per-head matrices are averaged where only they are there."""
    layers = _numbered(members, r"layer_(\d+)_full_attention(?:_heads)?")
    if not layers:
        raise UserError(
            f"{path} has neither layer_N_full_attention nor steps of layer_N_attention_avg; give an npz that the "
            "reference's extraction wrote."
        )
    found = []
    for layer in layers:
        name = f"layer_{layer}_full_attention"
        matrix = members[name] if name in members else np.asarray(members[f"{name}_heads"]).mean(axis=0)
        found.append(_square(matrix, name, path))
    return _stack([found], path), layers


def _step_layout(members: Members, path: Path) -> tuple[Matrix, list[int], list[NDArray[np.int64]]]:
    """[step, layer, token, token] and the canvas of each step that tells it."""
    steps = _numbered(members, STEP_LAYER)
    layers = _numbered(members, rf"step_{steps[0]}_layer_(\d+)_attention_avg")
    rows = []
    for step in steps:
        names = [f"step_{step}_layer_{layer}_attention_avg" for layer in layers]
        missing = [name for name in names if name not in members]
        if missing:
            raise UserError(f"{path} lacks {missing[0]}; extract it again.")
        rows.append([_square(members[name], name, path) for name in names])
    told = [name for name in (f"step_{step}_sequence" for step in steps) if name in members]
    canvases = [np.asarray(members[name], np.int64).reshape(-1) for name in told]
    return _stack(rows, path), layers, canvases if len(canvases) == len(steps) else canvases[:1]


def _numbered(members: Iterable[str], pattern: str) -> list[int]:
    found = (re.fullmatch(pattern, name) for name in members)
    return sorted({int(match.group(1)) for match in found if match})


def _square(matrix: Any, name: str, path: Path) -> Matrix:
    matrix = np.asarray(matrix, dtype=np.float32)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise UserError(f"{name} of {path} has shape {matrix.shape}, not tokens x tokens; extract again.")
    return matrix


def _stack(rows: list[list[Matrix]], path: Path) -> Matrix:
    sizes = {matrix.shape[0] for row in rows for matrix in row}
    if len(sizes) > 1:
        raise UserError(f"The matrices of {path} differ in size ({sorted(sizes)} tokens); extract again.")
    return np.stack([np.stack(row) for row in rows])


def _is_causal(matrices: Matrix) -> bool:
    return matrices.shape[-1] > 1 and not np.triu(matrices, 1).any()


def _final_canvas(canvases: list[NDArray[np.int64]], tokens: int) -> NDArray[np.int64]:
    """The last canvas told; -1 for tokens that the file does not name."""
    if canvases and len(canvases[-1]) == tokens:
        return canvases[-1]
    return np.full(tokens, -1, np.int64)


def _full_canvas(members: Members, tokens: int, given: int | None) -> tuple[NDArray[np.int64], int]:
    """The finished sequence (prompt ids are -1 where only the answer is told) and the prompt's length."""
    answer = np.asarray(members.get("answer_tokens", ()), np.int64).reshape(-1)
    length = given if given is not None else int(members.get("input_length", tokens - len(answer)))
    if not 0 <= length <= tokens:
        raise UserError(f"A prompt of {length} tokens does not fit a canvas of {tokens}; give prompt_length.")
    whole = np.asarray(members.get("full_sequence_ids", ()), np.int64).reshape(-1)
    if len(whole) == tokens:
        return whole, length
    canvas = np.full(tokens, -1, np.int64)
    canvas[length : length + len(answer)] = answer[: tokens - length]
    return canvas, length


def _prompt_length(members: Members, given: int | None, canvases: list[NDArray[np.int64]], tokens: int) -> int:
    if given is not None:
        return given
    if "input_length" in members:
        return int(members["input_length"])
    changed = [int(np.argmax(a != b)) for a, b in pairwise(canvases) if (a != b).any()]
    return min(changed, default=tokens)


def _commits(canvases: list[NDArray[np.int64]], length: int, tokens: int, mask_id: int | None) -> NDArray[np.int64]:
    """[answer] the step before a slot last changed; a slot that is still a mask at the end commits there."""
    commits = np.full(tokens - length, -1, np.int64)
    for step, (before, after) in enumerate(pairwise(canvases)):
        commits[before[length:] != after[length:]] = step
    if canvases and mask_id is not None:
        commits[canvases[-1][length:] == mask_id] = len(canvases) - 1
    return commits


def _regions(members: Members, length: int, tokens: int) -> tuple[Region, ...]:
    """bos, documents by `passage_ranges`, answer; everything else of the prompt under one label."""
    labels = [BOS] + [PROMPT] * (length - 1) if length else []
    ranges = np.asarray(members.get("passage_ranges", ()), np.int64).reshape(-1, 2)
    for number, (start, stop) in enumerate(ranges, 1):
        labels[start:stop] = [document_label(number)] * len(labels[start:stop])
    return regions_from_labels([*labels, *[ANSWER] * (tokens - length)])


def _arrays(
    matrices: Matrix,
    layers: list[int],
    kind: Kind,
    length: int,
    commits: NDArray[np.int64],
    spans: Sequence[Region],
) -> dict[str, NDArray[Any]]:
    """What follows from full matrices [step, layer, row, token]; an ARM's one matrix gives all its steps."""
    tokens = matrices.shape[-1]
    count = tokens - length if kind == "arm" else len(matrices)
    regions = tuple(dict.fromkeys(span.label for span in spans))
    groups = group_labels(regions)
    columns = np.stack([np.isin(np.arange(tokens), positions(spans, label)) for label in regions], axis=1)
    names = ("received", "received_answer", "received_masked", "region_attention", "group_rows")
    arrays: dict[str, list[Any]] = {name: [] for name in names}
    for step in range(count):
        rows = length + step if kind == "arm" else tokens
        attention = matrices[0 if kind == "arm" else step][:, :rows]  # [layer, row, token]
        answer = np.arange(rows) >= length
        masked = np.zeros(rows, bool)
        if kind != "arm":
            masked[length:] = commits >= step
        member = np.stack([_group_member(label, spans, masked) for label in groups])  # [group, row]
        arrays["received"].append(attention.mean(axis=1))
        arrays["received_answer"].append(_row_mean(attention, answer))
        arrays["received_masked"].append(_row_mean(attention, masked))
        sums = np.einsum("gi,lij,jc->lgc", member.astype(np.float32), attention, columns.astype(np.float32))
        counts = member.sum(axis=1)
        arrays["region_attention"].append((sums / np.maximum(counts, 1)[:, None])[:, None])  # one head
        arrays["group_rows"].append(counts.astype(np.int32))
    causal = kind == "arm" or _is_causal(matrices)
    seen = (length + count - 1 - np.arange(tokens)).clip(0) if kind == "arm" else tokens - np.arange(tokens)
    seen = seen if causal else np.full(tokens, tokens)
    return {name: np.stack(values) for name, values in arrays.items()} | {
        "seen_by": np.tile(seen, (matrices.shape[1], 1)).astype(np.int32),
        "matrix_steps": np.array([count - 1] if kind == "arm" else range(len(matrices)), np.int32),
        "matrix_layers": np.arange(len(layers), dtype=np.int32),
        "attention": matrices[:, :, None],
    }


def _row_mean(attention: Matrix, chosen: NDArray[np.bool_]) -> Matrix:
    if not chosen.any():
        return np.zeros((attention.shape[0], attention.shape[2]), np.float32)
    return attention[:, chosen].mean(axis=1)


def _group_member(label: str, spans: Sequence[Region], masked: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[row] whether the query row belongs to the group."""
    region, _, state = label.partition(":")
    inside = np.isin(np.arange(len(masked)), positions(spans, region))
    return inside if not state else inside & (masked if state == "masked" else ~masked)


def _states(members: Members, layers: list[int]) -> dict[str, NDArray[Any]]:
    """Query and key states where every layer has them (as the reference's decomposition script reads)."""
    names = {"queries": "layer_{}_query_states", "keys": "layer_{}_key_states"}
    if not all(pattern.format(layer) in members for pattern in names.values() for layer in layers):
        return {}
    return {
        name: np.stack([np.asarray(members[pattern.format(layer)], np.float32) for layer in layers])[None]
        for name, pattern in names.items()
    }
