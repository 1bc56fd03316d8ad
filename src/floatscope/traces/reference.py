"""Import of the npz files that go with arXiv 2601.07894's public code, as traces.

Two layouts are known: `layer_N_full_attention` (one forward over the finished sequence, written by the
extraction scripts) and steps of `layer_N_attention_avg` (read by the temporal heatmap), as plain arrays
`step_S_layer_N_attention_avg`. Both hold head-mean matrices, so an imported trace has one head. Numeric members alone
are read: an object array is a pickle, which is never opened.
"""

import re
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from floatscope.canvas import ANSWER, BOS, Region, document_label, group_labels, positions, regions_from_labels
from floatscope.errors import UserError
from floatscope.traces.trace import Kind, Trace

Matrix = NDArray[np.float32]
Canvas = NDArray[np.int64]
PROMPT = "prompt"
STEPS, STEP_LAYER = "step_attention_data", r"step_(\d+)_layer_\d+_attention_avg"
_DAMAGE = (OSError, EOFError, ValueError, LookupError, MemoryError, NotImplementedError, zlib.error, zipfile.BadZipFile)
"""What zipfile and numpy raise on bytes that are not what they claim to be."""


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
    if not path.is_file():
        raise UserError(f"There is no npz file at {path}; check the path.")
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():  # which no checksum covers; they stand before each member, too
                    archive.open(name).close()
        opened = np.load(path, allow_pickle=False)
    except _DAMAGE as error:
        raise UserError(f"{path} is truncated or no npz ({error}); extract it again.") from error
    if not isinstance(opened, NpzFile):
        raise UserError(f"{path} is an npy and no npz; extract it again.")
    with opened as members:
        if STEPS in members:
            raise UserError(
                f"{path} holds {STEPS} as a pickle, which can run code and is never opened: if you trust the file, "
                "convert it as docs/traces.md shows."
            )
        names, layers, canvas_names, stepwise = _layout(members)
        if not layers:
            raise UserError(
                f"{path} has neither layer_N_full_attention nor steps of layer_N_attention_avg; give an npz that the "
                "reference's extraction wrote."
            )
        matrices, canvases = _matrices(members, names, path), [_ids(members, name) for name in canvas_names]
        final, length = _canvas(members, matrices.shape[-1], canvases, prompt_length, stepwise)
        spans = tuple(regions) if regions is not None else _regions(members, length, len(final))
        states, question = _states(members, layers), _member(members, "question")
    causal = matrices.shape[-1] > 1 and not np.triu(matrices, 1).any()
    kind: Kind = "arm" if causal and not stepwise and length < len(final) else "mdm"
    commits = np.arange(len(final) - length) if kind == "arm" else np.full(len(final) - length, -1)
    if stepwise:  # the one forward of the other layout saw the finished answer: no slot was masked in it
        for step, (before, after) in enumerate(pairwise(canvases)):
            commits[before[length:] != after[length:]] = step  # the step before the slot last changed
        if canvases and mask_id is not None:
            commits[canvases[-1][length:] == mask_id] = len(canvases) - 1
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
        arrays=_arrays(matrices, causal, kind, length, commits, spans) | states,
        metadata={"source": path.name, "layers": layers, "question": question},
    ).validate()


def _member(members: NpzFile, name: str, default: Any = None, dtype: Any = None) -> Any:
    """A numeric member where it is there, as `dtype` where one is given; else a 0-d array comes as its value."""
    if name not in members:
        return default
    try:
        value = members[name]
        if dtype is not None:
            return np.asarray(value, dtype)
        return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value
    except _DAMAGE as error:
        path = getattr(members.zip, "filename", "the npz")
        raise UserError(f"The member {name!r} of {path} cannot be opened: {error}") from error


def _layout(members: NpzFile) -> tuple[list[list[str]], list[int], list[str], bool]:
    """Names of the matrices, [step][layer], the layers, names of canvases, and whether the file is one of steps.

    The canvases of all steps, or of the first alone where one is not told; else the finished one.
    """
    if not (steps := _numbered(members, STEP_LAYER)):
        layers = _numbered(members, r"layer_(\d+)_full_attention(?:_heads)?")
        return [[f"layer_{layer}_full_attention" for layer in layers]], layers, ["full_sequence_ids"], False
    layers = _numbered(members, rf"step_{steps[0]}_layer_(\d+)_attention_avg")
    names = [[f"step_{step}_layer_{layer}_attention_avg" for layer in layers] for step in steps]
    told = [name for name in (f"step_{step}_sequence" for step in steps) if name in members]
    return names, layers, told if len(told) == len(steps) else told[:1], True


def _numbered(members: Iterable[str], pattern: str) -> list[int]:
    found = (re.fullmatch(pattern, name) for name in members)
    return sorted({int(match.group(1)) for match in found if match})


def _ids(members: NpzFile, name: str) -> Canvas:
    return _member(members, name, np.zeros(0, np.int64), np.int64).reshape(-1)


def _matrices(members: NpzFile, names: list[list[str]], path: Path) -> Matrix:
    """Head means [step, layer, token, token]; per-head matrices are averaged where only they are there."""
    found: dict[str, Matrix] = {}
    for name in chain.from_iterable(names):
        if name not in members and f"{name}_heads" not in members:
            raise UserError(f"{path} lacks {name}; extract it again.")
        matrix = _member(members, name, dtype=np.float32)
        if matrix is None:
            matrix = _member(members, f"{name}_heads", dtype=np.float32).mean(axis=0)
        found[name] = matrix
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise UserError(f"{name} of {path} has shape {matrix.shape}, not tokens x tokens; extract again.")
    if len(sizes := {len(matrix) for matrix in found.values()}) > 1:
        raise UserError(f"The matrices of {path} differ in size ({sorted(sizes)} tokens); extract again.")
    return np.stack([np.stack([found[name] for name in row]) for row in names])


def _canvas(
    members: NpzFile, tokens: int, canvases: list[Canvas], given: int | None, stepwise: bool
) -> tuple[Canvas, int]:
    """The finished sequence, -1 for tokens that the file does not name, and the prompt's length."""
    answer = _ids(members, "answer_tokens")[: 0 if stepwise else None]
    changed = [int(np.argmax(a != b)) for a, b in pairwise(canvases) if (a != b).any()]
    guess = min(changed, default=tokens - len(answer))
    length = given if given is not None else int(_member(members, "input_length", guess))
    if not 0 <= length <= tokens:
        raise UserError(f"A prompt of {length} tokens does not fit a canvas of {tokens}; give prompt_length.")
    if canvases and len(canvases[-1]) == tokens:
        return canvases[-1], length
    canvas = np.full(tokens, -1, np.int64)
    canvas[length : length + len(answer)] = answer[: tokens - length]
    return canvas, length


def _regions(members: NpzFile, length: int, tokens: int) -> tuple[Region, ...]:
    """bos, documents by `passage_ranges`, answer; everything else of the prompt under one label."""
    labels = [BOS] + [PROMPT] * (length - 1) if length else []
    ranges = _ids(members, "passage_ranges").reshape(-1, 2)
    for number, (start, stop) in enumerate(ranges, 1):
        labels[start:stop] = [document_label(number)] * len(labels[start:stop])
    return regions_from_labels([*labels, *[ANSWER] * (tokens - length)])


def _arrays(
    matrices: Matrix, causal: bool, kind: Kind, length: int, commits: Canvas, spans: Sequence[Region]
) -> dict[str, NDArray[Any]]:
    """What follows from full matrices [step, layer, row, token]; an ARM's one matrix gives all its steps."""
    layers, tokens = matrices.shape[1], matrices.shape[-1]
    count = tokens - length if kind == "arm" else len(matrices)
    regions = tuple(dict.fromkeys(span.label for span in spans))
    inside = {label: np.isin(np.arange(tokens), positions(spans, label)) for label in regions}  # each [token]
    columns = np.stack(list(inside.values()), axis=1).astype(np.float32)
    steps: list[dict[str, Any]] = []
    for step in range(count):
        rows = length + step if kind == "arm" else tokens
        attention = matrices[0 if kind == "arm" else step][:, :rows]  # [layer, row, token]
        masked = np.zeros(rows, bool)
        if kind != "arm":
            masked[length:] = commits >= step
        states = {"": True, "masked": masked, "committed": ~masked}
        parts = [label.partition(":") for label in group_labels(regions)]
        member = np.stack([inside[region][:rows] & states[state] for region, _, state in parts])  # [group, row]
        counts = member.sum(axis=1)
        sums = np.einsum("gi,lij,jc->lgc", member.astype(np.float32), attention, columns)
        steps.append({
            "received": attention.mean(axis=1),
            "received_answer": _row_mean(attention, np.arange(rows) >= length),
            "received_masked": _row_mean(attention, masked),
            "region_attention": (sums / np.maximum(counts, 1)[:, None])[:, None],  # one head
            "group_rows": counts.astype(np.int32),
        })  # fmt: skip
    seen = (length + count - 1 - np.arange(tokens)).clip(0) if kind == "arm" else tokens - np.arange(tokens)
    seen = seen if causal else np.full(tokens, tokens)
    return {name: np.stack([values[name] for values in steps]) for name in steps[0]} | {
        "seen_by": np.tile(seen, (layers, 1)).astype(np.int32),
        "matrix_steps": np.array([count - 1] if kind == "arm" else range(count), np.int32),
        "matrix_layers": np.arange(layers, dtype=np.int32),
        "attention": matrices[:, :, None],
    }


def _row_mean(attention: Matrix, chosen: NDArray[np.bool_]) -> Matrix:
    """[layer, token] mean over the chosen rows; 0 where there are none."""
    return attention[:, chosen].sum(axis=1) / max(1, int(chosen.sum()))


def _states(members: NpzFile, layers: list[int]) -> dict[str, NDArray[Any]]:
    """Query and key states where every layer has them (as the reference's decomposition script reads)."""
    names = {"queries": "layer_{}_query_states", "keys": "layer_{}_key_states"}
    if not all(pattern.format(layer) in members for pattern in names.values() for layer in layers):
        return {}
    return {
        name: np.stack([_member(members, pattern.format(layer), dtype=np.float32) for layer in layers])[None]
        for name, pattern in names.items()
    }
