"""What aggregation costs: every analysis over 200 compact traces of 1,000 tokens x 32 steps x 32 layers, streamed.

    python benchmarks/analysis.py                          # all analyses
    python benchmarks/analysis.py --analyses drift,flow --traces 50

Traces are made here: 20 different files, each under ten names (hard links), since 200 different ones would take 9 GB of
disk; every name is opened, read and analysed on its own. Each analysis runs in a process of its own, on one thread; its
seconds of processor time, its seconds by the clock and its peak memory are printed, imports included.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from floatscope.analysis import ANALYSES
from floatscope.canvas import regions_from_labels
from floatscope.traces import Trace
from floatscope.traces.trace import group_labels

TOKENS, STEPS, LAYERS, HEADS, KV_HEADS, SLOTS, DOCUMENTS = 1000, 32, 32, 32, 8, 32, 10
DIFFERENT = 20
WORDS = ("the", " of", " Paris", ".", "\n", " 1987", " king", ":", "Document", " Ann")


def make_trace(number: int) -> Trace:
    """A compact trace with the shapes and dtypes of a captured one, and attention that peaks here and there."""
    rng = np.random.default_rng(number)
    labels = ["bos", *["scaffold"] * 20]
    each = (TOKENS - SLOTS - len(labels) - 40) // DOCUMENTS
    for document in range(1, DOCUMENTS + 1):
        labels += [f"doc {document}"] * each
    labels += ["query"] * (TOKENS - SLOTS - len(labels)) + ["answer"] * SLOTS
    regions = regions_from_labels(labels)
    columns = [*dict.fromkeys(labels), "evidence", "gold_answer"]
    groups = group_labels(tuple(dict.fromkeys(labels)))
    gold = np.flatnonzero(np.array(labels) == f"doc {number % DOCUMENTS + 1}")
    commit = rng.permutation(SLOTS)
    masked = (commit[None] >= np.arange(STEPS)[:, None]).sum(axis=1)
    rows = np.array([[labels.count(name) for name in groups]] * STEPS)
    rows[:, groups.index("answer:masked")] = masked
    rows[:, groups.index("answer:committed")] = SLOTS - masked

    def shares(*shape: int) -> np.ndarray:
        values = rng.standard_exponential(shape, np.float32) ** 3
        return (values / values.sum(axis=-1, keepdims=True)).astype(np.float16)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32).astype(np.float16)

    regional = shares(STEPS, LAYERS, HEADS, len(groups), len(columns) - 2)
    canvas = rng.integers(0, 5000, TOKENS)
    arrays = {
        **{name: shares(STEPS, LAYERS, TOKENS) for name in ("received", "received_answer", "received_masked")},
        "received_value": shares(STEPS, LAYERS, TOKENS),
        "seen_by": np.full((LAYERS, TOKENS), TOKENS, np.int32),
        "region_attention": np.concatenate([regional, regional[..., 2:4]], axis=-1),
        "group_rows": rows.astype(np.int32),
        **{name: normal(3, LAYERS, HEADS, TOKENS) for name in ("qk", "cos")},
        "norm": np.abs(normal(3, LAYERS, HEADS, TOKENS)),
        **{name: np.abs(normal(3, LAYERS, KV_HEADS, TOKENS)) for name in ("key_norm", "value_norm")},
        "commit_keys": rng.integers(0, TOKENS, (SLOTS, LAYERS, HEADS, 8)).astype(np.int32),
        "commit_key_mass": shares(SLOTS, LAYERS, HEADS, 8),
        "commit_mass": shares(SLOTS, LAYERS, HEADS, len(columns)),
        "commit_entropy": normal(SLOTS, LAYERS, HEADS),
    }
    canvas[-4:] = canvas[gold[:4]]
    return Trace(
        model="made", family="llada", kind="mdm", visibility="bidirectional", logits="same", sampler={"name": "llada"},
        seed=0, canvas=canvas, slots=np.arange(TOKENS - SLOTS, TOKENS), texts=tuple(rng.choice(WORDS, TOKENS)),
        regions=regions,
        marks={"evidence": gold, "gold_answer": gold[:4]}, commit_step=commit,
        confidence=np.ones(SLOTS, np.float32), qk_steps=(0, 16, 31), keep="compact", arrays=arrays,
        metadata={"task": "ab"[number % 2]},
    ).validate()  # fmt: skip


def write_traces(folder: Path, count: int) -> None:
    """Different traces first, then further names of the same files."""
    for number in range(count):
        path = folder / f"{number:03}.safetensors"
        if number < DIFFERENT:
            make_trace(number).save(path)
        else:
            os.link(folder / f"{number % DIFFERENT:03}.safetensors", path)


def run_one(name: str, folder: Path) -> None:
    """The child: one analysis over the folder, and its peak memory."""
    from floatscope.analysis import analyze
    from floatscope.analysis.reading import find_traces

    result = analyze(name, find_traces(folder))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    rows = sum(table.height for table in result.tables.values())
    print(f"{usage.ru_utime + usage.ru_stime:.1f} {usage.ru_maxrss / 1024:.0f} {rows}")


def main() -> None:
    """Make the traces, run every analysis in its own process, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=int, default=200)
    parser.add_argument("--analyses", default=",".join(ANALYSES))
    parser.add_argument("--child", nargs=2, metavar=("ANALYSIS", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_one(arguments.child[0], Path(arguments.child[1]))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if shutil.disk_usage(folder).free < 4e9:
            raise SystemExit(f"{folder} has less than 4 GB of room; set TMPDIR to a larger disk.")
        write_traces(folder, arguments.traces)
        size = (folder / "000.safetensors").stat().st_size / 1e6
        print(f"{arguments.traces} traces of {size:.0f} MB; one thread")
        print("| analysis | processor, s | clock, s | peak memory, MB | rows of tables |\n|---|---|---|---|---|")
        for name in arguments.analyses.split(","):
            start = time.perf_counter()
            command = [sys.executable, __file__, "--child", name, scratch]
            single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
            done = subprocess.run(command, env=os.environ | single, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{name} failed:\n{done.stderr}")
            seconds, memory, rows = done.stdout.split()
            print(f"| {name} | {seconds} | {time.perf_counter() - start:.1f} | {memory} | {rows} |", flush=True)


if __name__ == "__main__":
    main()
