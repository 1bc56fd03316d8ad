"""`make faults`: processes killed, files damaged, disks full; exit code 1 where anything was lost, doubled or changed.

`tests/faults/test_faults.py` makes a few of the quick kinds as part of the tests.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import astuple
from pathlib import Path

from tests.faults.kinds import KINDS, Ground


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=KINDS, action="append", help="default: all of them")
    parser.add_argument("--faults", type=int, help="of each kind; default: by kind")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    wrong = False
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE"):
        os.environ[name] = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}.get(name, "")
    print("| kind | faults | units lost | counted twice | bytes differ | processes left | did not end | seconds |")
    print("|---" * 8 + "|", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["FLOATSCOPE_CACHE"] = f"{scratch}/cache"
        ground = Ground(Path(scratch), given.seed)
        for kind in given.kind or KINDS:
            make, usual = KINDS[kind]
            started = time.monotonic()
            counts = make(ground, given.faults or usual)
            told = (kind, *astuple(counts), round(time.monotonic() - started))
            print(f"| {' | '.join(map(str, told))} |", flush=True)
            wrong |= counts.wrong()
        if wrong:
            print(ground.log.read_text()[-3000:], file=sys.stderr)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
