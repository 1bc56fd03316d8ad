"""Trace files: damaged ones, and ones whose header was written by somebody who means harm."""

from __future__ import annotations

import json
import random
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from floatscope.analysis import ANALYSES, analyze
from floatscope.report.page import Content, build_page
from floatscope.traces import Trace
from floatscope.traces.storage import FORMAT
from tests.fuzz.damage import change_a_value, damage
from tests.fuzz.outcomes import ACCEPTED, SCRIPT, SILENT, Attempt, attempt


def attempts(rng: random.Random, folder: Path, trace: Path) -> Iterator[Attempt]:
    """Endless, half of each kind."""
    whole, path = Trace.load(trace), folder / "trace.safetensors"
    while True:
        if rng.random() < 0.5:
            shutil.copy(trace, path)
            done = damage(rng, path)
            yield attempt(
                f"trace: {done}", lambda: read(path), lambda found: ACCEPTED if same(found, whole) else SILENT
            )
        else:
            where = rewrite_header(rng, trace, path)
            name = rng.choice(list(ANALYSES))
            yield attempt(f"header{where}, {name}", lambda name=name: use(path, name), judge_page)


def read(path: Path) -> Trace:
    found = Trace.load(path)
    dict(found.arrays)
    return found.validate()


def same(found: Trace, whole: Trace) -> bool:
    """Everything that a reader of the trace sees."""
    kept = (
        "model",
        "family",
        "kind",
        "visibility",
        "logits",
        "sampler",
        "seed",
        "texts",
        "regions",
        "metadata",
        "keep",
    )
    arrays = all(np.array_equal(found.arrays[name], whole.arrays[name], equal_nan=True) for name in whole.arrays)
    fixed = ("canvas", "slots", "commit_step", "confidence")
    return (
        arrays
        and set(found.arrays) == set(whole.arrays)
        and all(getattr(found, name) == getattr(whole, name) for name in kept)
        and all(np.array_equal(getattr(found, name), getattr(whole, name)) for name in fixed)
    )


def rewrite_header(rng: random.Random, trace: Path, path: Path) -> str:
    """A header that says something else, with a checksum that fits it."""
    with safe_open(trace, framework="numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no mapping
        envelope = json.loads(file.metadata()[FORMAT])
    header = json.loads(envelope["header"])
    where = ",".join(change_a_value(rng, header) for _ in range(rng.choice((1, 1, 2))))
    text = json.dumps(header)
    envelope |= {"header": text, "crc32": zlib.crc32(text.encode())}
    save_file(tensors, path, {FORMAT: json.dumps(envelope)})
    return where


def use(path: Path, analysis: str) -> str:
    """Read it, analyse it and show it in a page."""
    found = read(path)
    result = analyze(analysis, [found])
    return build_page(Content(title="t", question="q", summary=(), traces=(found,), results={analysis: result}))


def judge_page(page: str) -> str:
    return SCRIPT if "<script>document.title='ran'" in page else ACCEPTED
