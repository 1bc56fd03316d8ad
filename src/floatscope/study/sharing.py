"""Several processes for one run: each takes every n-th batch, and this one alone writes to the store, at once.

A worker sends the rows of a batch through a pipe; when this process ends, however that happens, the pipe breaks and
the worker ends with its next batch. So a kill loses the batches in flight, one for each worker.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from floatscope.errors import UserError
from floatscope.study.engine import Done, run_share
from floatscope.study.plan import Study
from floatscope.study.store import Row
from floatscope.study.tasks import load_task
from floatscope.study.units import Job, Unit, plan_jobs

LAST_SECONDS = 10
Message = tuple[str, list[Row]] | str | None
"""Rows of a batch; or a sentence that stops the run; None at the end."""


def run_shares(study: Study, folder: Path, jobs: Sequence[Job], missing: set[Unit], done: Done) -> None:
    """Run all that is missing: here, or in the study's number of processes while this one commits what they send."""
    if study.workers == 1 or not missing:
        run_share(study, folder, jobs, missing, done)
        return
    threads = max(1, _cores() // study.workers)
    context = mp.get_context("spawn")
    workers: list[BaseProcess] = []
    pipes: list[Connection] = []
    try:
        for share in range(study.workers):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_work, args=(study, folder, missing, share, threads, theirs), daemon=True
            )  # fmt: skip
            with keyboard_ignored():
                process.start()
            theirs.close()
            workers.append(process)
            pipes.append(ours)
        while pipes:
            for pipe in wait(pipes):
                assert isinstance(pipe, Connection)
                if not _take(pipe, done):
                    pipes.remove(pipe)
        for process in workers:
            process.join(LAST_SECONDS)  # to leave in good order
    finally:
        for process in workers:
            process.terminate()
            process.join()


@contextmanager
def keyboard_ignored() -> Iterator[None]:
    """Processes that are started meanwhile leave Ctrl-C to this one, which ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say so
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _take(pipe: Connection, done: Done) -> bool:
    """Hand on a worker's next message; whether there will be more."""
    try:
        message: Message = pipe.recv()
    except EOFError:
        raise UserError("A worker process ended before its work was done; what is done is kept: run again.") from None
    if isinstance(message, str):
        raise UserError(message)
    if message is not None:
        done(*message)
    return message is not None


def _work(study: Study, folder: Path, missing: set[Unit], share: int, threads: int, pipe: Connection) -> None:
    """A worker: plans as the first process did, and runs its own batches."""
    _set_threads(threads)
    with suppress(BrokenPipeError):  # the first process is gone
        try:
            jobs = plan_jobs(study, [load_task(study, plan) for plan in study.tasks])
            run_share(study, folder, jobs, missing, lambda what, rows: pipe.send((what, rows)), share, study.workers)
            pipe.send(None)
        except UserError as error:
            pipe.send(str(error))


def _set_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
