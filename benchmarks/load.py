"""What a run costs by its size: units, lines of a task file, traces in an analysis, samples in a report.

    python benchmarks/load.py                  # up to 100,000 units, 5,000 traces, 1,000 samples: minutes
    python benchmarks/load.py --largest 0.1    # a tenth of that

Each row is one process: its processor seconds, its peak memory, and the files it left. The exponent is the slope of
log seconds over log size between a row and the one before it: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from floatscope.qa.world import World

MODELS = ("twin-parent", "twin-arm", "twin-dream", "twin-llada", "twin-llada-untrained")
SHORT = ("--length", "2", "--steps", "1", "--batch", "64")
LOADS = {"units": (1_000, 10_000, 100_000), "traces": (50, 500, 5_000), "report": (10, 100, 1_000)}


def run(*words: str) -> tuple[float, float]:
    """Processor seconds and peak memory in MB of one call of the command line."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen([sys.executable, "-m", "floatscope.cli", *words], stdout=said, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            sys.exit(said.read().decode()[-2000:])
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def task_file(folder: Path, lines: int) -> Path:
    """Questions of the world without documents, one per line."""
    path = folder / f"{lines}.jsonl"
    with path.open("w") as file:
        for sample in World(0).samples("closed-stable", lines, "test", 0, 0):
            file.write(json.dumps({"id": sample.id, "question": sample.question, "answers": sample.answers}) + "\n")
    return path


def measure(load: str, size: int, folder: Path) -> tuple[float, float, Path]:
    """Seconds and memory of the call that the load is about, and the folder it wrote."""
    out = folder / f"{load}-{size}"
    if load == "units":
        task = task_file(folder, math.ceil(size / len(MODELS)))
        models = [word for name in MODELS for word in ("--model", name)]
        words = ("evaluate", *models, "--task", f"questions={task}", "--documents", "0", "--limit", str(size), *SHORT)
        return *run(*words, "--out", str(out)), out
    task = task_file(folder, size)
    words = ("evaluate", "--model", "twin-llada", "--task", f"questions={task}", "--documents", "0", *SHORT)
    run(*words, "--limit", str(size), "--trace", str(size), "--out", str(out))
    if load == "traces":
        return *run("analyze", "drift", str(out), "--out", f"{out}-drift"), out
    return *run("report", str(out)), out / "report.html"


def main() -> None:
    """Parse, measure, print a row for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", choices=LOADS, action="append", help="default: all of them")
    parser.add_argument("--largest", type=float, default=1.0, help="fraction of the sizes")
    arguments = parser.parse_args()
    print(
        "| load | size | processor s | exponent | peak memory, MB | written, MB |\n|---|---|---|---|---|---|",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as scratch:
        for load in arguments.load or LOADS:
            before = None
            for full in LOADS[load]:
                size = math.ceil(full * arguments.largest)
                seconds, memory, out = measure(load, size, Path(scratch))
                files = out.rglob("*") if out.is_dir() else [out]
                written = sum(path.stat().st_size for path in files if path.is_file()) / 1e6
                slope = f"{math.log(seconds / before[1]) / math.log(size / before[0]):.2f}" if before else ""
                print(f"| {load} | {size:,} | {seconds:.1f} | {slope} | {memory:.0f} | {written:.1f} |", flush=True)
                before = size, seconds


if __name__ == "__main__":
    main()
