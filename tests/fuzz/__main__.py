"""`make fuzz`: hostile attempts of every kind, counted; exit code 1 where one was not refused, redone or harmless.

The same seed gives the same attempts. `tests/fuzz/test_fuzz.py` makes a few of each kind as part of the tests.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from tests.fuzz import checkpoints, cli_calls, http_requests, pages, run_files, traces
from tests.fuzz.outcomes import BAD, GOOD, Attempt, Counts, sandbox
from tests.fuzz.targets import Targets

KINDS: dict[str, tuple[Callable[[random.Random, Path, Targets], Iterator[Attempt]], int]] = {
    "calls": (cli_calls.attempts, 1500),
    "traces": (traces.attempts, 1500),
    "runs": (run_files.attempts, 300),
    "folders": (checkpoints.folders, 1000),
    "gguf": (checkpoints.gguf_files, 1000),
    "pages": (pages.attempts, 200),
    "http": (http_requests.attempts, 1000),
}
"""Each kind with how many attempts the long form makes."""


def make(kind: str, attempts: int, seed: int, scratch: Path, targets: Targets, until: float = float("inf")) -> Counts:
    """So many attempts of a kind, fewer where the time (of `time.monotonic`) is over; progress goes to stderr."""
    counts, folder = Counts(), scratch / kind
    folder.mkdir()
    with sandbox(folder):
        for made in islice(KINDS[kind][0](random.Random(seed), folder, targets), attempts):
            counts.add(made)
            if counts.attempts % 50 == 0:
                print(f"{kind}: {counts.attempts} of {attempts}", file=sys.stderr, flush=True)
            if time.monotonic() > until:
                break
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=KINDS, action="append", help="default: all of them")
    parser.add_argument("--attempts", type=int, help="of each kind; default: several hundred, by kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60, help="for all kinds together")
    given = parser.parse_args()
    until, wrong = time.monotonic() + 60 * given.minutes, 0
    print(f"| kind | attempts | {' | '.join((*GOOD, *BAD))} |", flush=True)
    print("|---" * (2 + len(GOOD + BAD)) + "|", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        targets = Targets.make(Path(scratch))
        for kind in given.kind or KINDS:
            counts = make(kind, given.attempts or KINDS[kind][1], given.seed, Path(scratch), targets, until)
            print(f"| {kind} | {counts.attempts} | {' | '.join(map(str, counts.by_outcome.values()))} |", flush=True)
            for attempt in counts.wrong:
                print(f"{attempt.outcome}: {attempt.what}\n  {attempt.detail.strip()}", file=sys.stderr, flush=True)
            wrong += len(counts.wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
