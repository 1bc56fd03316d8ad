"""`make fuzz`: hostile attempts of every kind, counted; exit code 1 where one was not refused, redone or harmless."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from tests.fuzz import checkpoints, cli_calls, http_requests, pages, run_files, traces
from tests.fuzz.outcomes import Attempt, Counts, sandbox
from tests.fuzz.targets import Targets

KINDS: dict[str, Callable[[random.Random, Path, Targets], Iterator[Attempt]]] = {
    "calls of the command line": lambda rng, folder, at: cli_calls.attempts(rng, folder, at.trace, at.run, at.study),
    "trace files": lambda rng, folder, at: traces.attempts(rng, folder, at.trace),
    "files of a run": lambda rng, folder, at: run_files.attempts(rng, folder, at.run, at.study),
    "folders of models": lambda rng, folder, at: checkpoints.folders(rng, folder),
    "GGUF files": lambda rng, folder, at: checkpoints.gguf_files(rng, folder),
    "names in pages and tables": lambda rng, folder, at: pages.attempts(rng, folder),
    "HTTP requests": lambda rng, folder, at: http_requests.attempts(rng, folder),
}


def count(kind: str, attempts: int, seed: int, folder: Path, targets: Targets) -> Counts:
    """So many attempts of a kind, the same ones for the same seed."""
    counts = Counts()
    for made in islice(KINDS[kind](random.Random(seed), folder, targets), attempts):
        counts.add(made)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--attempts", type=int, default=500, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, action="append", help="default: all of them")
    given = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        targets = Targets.make(Path(scratch))
        for kind in given.kind or KINDS:
            folder = Path(scratch) / kind.replace(" ", "-")
            folder.mkdir()
            with sandbox(folder):
                counts = count(kind, given.attempts, given.seed, folder, targets)
            found = ", ".join(f"{number} {outcome}" for outcome, number in counts.by_outcome.items() if number)
            print(f"{kind}: {counts.attempts} attempts: {found}", flush=True)
            for attempt in counts.wrong:
                print(f"  {attempt.outcome}: {attempt.what}\n    {attempt.detail.strip()}", flush=True)
            wrong += len(counts.wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
