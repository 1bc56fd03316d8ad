"""Trace files: damaged ones, and ones whose header was written by somebody who means harm."""

from __future__ import annotations

import json
import random
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from floatscope.analysis import ANALYSES, analyze
from floatscope.reports.page import Content, build_page
from floatscope.traces import Trace
from floatscope.traces.storage import FORMAT
from tests.fuzz.damage import change_a_value, damage
from tests.fuzz.outcomes import ACCEPTED, SCRIPT, SILENT, Attempt, attempt
from tests.fuzz.targets import Targets


def attempts(rng: random.Random, folder: Path, targets: Targets) -> Iterator[Attempt]:
    """Endless: damaged, or with a header or an array of other content."""
    trace = targets.trace
    whole, path = Trace.load(trace), folder / "trace.safetensors"
    while True:
        chance = rng.random()
        if chance < 0.4:
            shutil.copy(trace, path)
            done = damage(rng, path)
            yield attempt(
                f"trace: {done}", lambda: read(path), lambda found: ACCEPTED if same(found, whole) else SILENT
            )
        else:
            where = rewrite(rng, trace, path, change_header if chance < 0.8 else change_tensor)
            name = rng.choice(list(ANALYSES))
            yield attempt(f"{where}, {name}", lambda name=name: use(path, name), judge_page)


def read(path: Path) -> Trace:
    found = Trace.load(path)
    dict(found.arrays)
    return found.validate()


def same(found: Trace, whole: Trace) -> bool:
    """Everything that a reader of the trace sees."""
    kept = [{field.name: getattr(one, field.name) for field in fields(Trace)} for one in (found, whole)]
    try:
        np.testing.assert_equal(
            *({name: dict(v) if isinstance(v, Mapping) else v for name, v in one.items()} for one in kept)
        )
    except AssertionError:
        return False
    return True


Parts = tuple[dict[str, Any], dict[str, np.ndarray]]


def rewrite(rng: random.Random, trace: Path, path: Path, change: Callable[[random.Random, *Parts], str]) -> str:
    """A file that says something else, with checksums that fit it; what was changed."""
    with safe_open(trace, framework="numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no mapping
        envelope = json.loads(file.metadata()[FORMAT])
    header = json.loads(envelope["header"])
    where = ",".join(change(rng, header, tensors) for _ in range(rng.choice((1, 1, 2))))
    text = json.dumps(header)
    envelope |= {"header": text, "crc32": zlib.crc32(text.encode())}
    save_file(tensors, path, {FORMAT: json.dumps(envelope)})
    return where


def change_header(rng: random.Random, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> str:
    return f"header{change_a_value(rng, header)}"


def change_tensor(rng: random.Random, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> str:
    """Numbers that no probe writes, another type, or one entry less."""
    name = rng.choice(list(tensors))
    values = tensors[name].copy()
    match rng.randrange(4):
        case 0:
            values = values.astype(rng.choice((np.float32, np.float64, np.int32, np.int64, np.uint8)))
        case 1:
            values = values[:-1] if values.ndim else values
        case _ if values.size:
            extreme = (np.nan, np.inf, -1.0, 6e4) if values.dtype.kind == "f" else (-1, 0, 2**15, -(2**31))
            places = rng.choice((0, ..., slice(rng.randrange(values.size), None)))
            values.reshape(-1)[places] = np.array(rng.choice(extreme)).astype(values.dtype)
    values = np.ascontiguousarray(values)
    tensors[name] = values
    listed = {"dtype": str(values.dtype), "shape": list(values.shape), "crc32": zlib.crc32(values.data)}
    header["arrays"][name] |= listed
    return name


def use(path: Path, analysis: str) -> str:
    """Read it, analyse it and show it in a page."""
    found = read(path)
    result = analyze(analysis, [found])
    return build_page(Content(title="t", question="q", summary=(), traces=(found,), results={analysis: result}))


def judge_page(page: str) -> str:
    return SCRIPT if "<script>document.title='ran'" in page else ACCEPTED
