"""A run in a process that can be killed at any moment; it writes down which units it begins, before it runs them."""

import json
import math
import os
import time
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
