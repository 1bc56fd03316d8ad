"""A run in a process that can be killed at any moment; it writes down which units it begins, before it runs them."""

import json
import os
from pathlib import Path

from floatscope.study import answering
from floatscope.study.running import run_study
from floatscope.study.study_file import read_study


def run_and_log(study_file: str, folder: str, log: str) -> None:
    """`run_study`, with a line in the log for every batch that is begun."""
    real = answering.answer

    def answer(study, model, sampler, batch):
        line = json.dumps([prepared.job.unit.parts for prepared in batch])
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{line}\n".encode())
        os.close(descriptor)
        return real(study, model, sampler, batch)

    answering.answer = answer
    run_study(read_study(study_file), folder)


def begun(log: Path) -> list[list[tuple[str, ...]]]:
    """The batches that were begun, in order."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [[tuple(unit) for unit in json.loads(line)] for line in lines]
