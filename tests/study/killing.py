"""A run in a process that can be killed at any moment, and the processes below it.

The run writes down which units it begins, before it runs them.
"""

import json
import math
import os
import time
from contextlib import suppress
from pathlib import Path

from floatscope.study import answering
from floatscope.study.plan import read_study
from floatscope.study.running import run_study

PATIENCE = 900


def run_and_log(study_file: str, folder: str, log: str, most: float = math.inf) -> None:
    """`run_study`, with a line in the log for every batch that is begun.

    With the batch that goes beyond `most` units it waits to be killed, so that it cannot be over before.
    """
    real, units = answering.answer, 0

    def answer(study, model, sampler, batch):
        nonlocal units
        line = json.dumps([prepared.job.unit.parts for prepared in batch])
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{line}\n".encode())
        os.close(descriptor)
        units += len(batch)
        if units > most:
            time.sleep(PATIENCE)
        return real(study, model, sampler, batch)

    answering.answer = answer
    run_study(read_study(study_file), folder)


def begun(log: Path) -> list[list[tuple[str, ...]]]:
    """The batches that were begun, in order."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [[tuple(unit) for unit in json.loads(line)] for line in lines]


def below(pid: int) -> dict[int, str]:
    """All processes that a process started, directly or not, with the command line of each; of Linux alone."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found: dict[int, str] = {}
    for child in parents:
        line = [child]
        while parents.get(line[-1], 0) > 1:
            line.append(parents[line[-1]])
        if pid in line[1:]:
            with suppress(OSError):
                found[child] = Path(f"/proc/{child}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    return found


def alive(pid: int | str) -> bool:
    """Whether a process runs; one that is dead and not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
