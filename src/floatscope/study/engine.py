"""The local engine: one model at a time, batches of like length, rows handed over as each batch is done.

Batches are formed from the full plan and not from what is left, so a resumed run computes what an undisturbed one does.
Several processes can share them: each takes every n-th batch, and the first process alone writes to the store, at once.
A worker sends the rows of a batch through a pipe, and ends when the first process does, however that happens. So a kill
loses the batches in flight, one for each worker.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import random
import signal
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

from floatscope.errors import UserError, plain_warnings
from floatscope.qa.guesses import GUESSES
from floatscope.qa.metrics import score
from floatscope.study.plan import GUESS, UNTRAINED, ModelPlan, Study
from floatscope.study.store import Row
from floatscope.study.units import Job, Unit, load_task, plan_jobs

if TYPE_CHECKING:
    from floatscope.models.model import Model
    from floatscope.study.answering import Prepared

LAST_SECONDS = 10
GUESSES_AT_ONCE = 1000
KEPT_TOKENS = 2_000_000
"""Prompts of one load of a model that stay in memory until they are run, in tokens: about 100 MB. Those beyond are
built again when their batch is run."""
UNKNOWN = 0.01
"""The share of tokens that a tokenizer does not know above which it is said."""
Done = Callable[[str, list[Row]], None]
"""What was running, and the rows of a batch, whose traces are written."""


@dataclass(frozen=True)
class Loading:
    """The jobs that one load of a model does: the trained one's, or the untrained one's."""

    plan: ModelPlan
    untrained: bool
    jobs: tuple[Job, ...]

    @property
    def name(self) -> str:
        return f"{self.plan.name}, {UNTRAINED}" if self.untrained else self.plan.name

    def load(self) -> Model:
        """The model, with the tokenizer that prompts need."""
        from floatscope.models.loading import load, load_untrained

        plan = self.plan
        model = (load_untrained if self.untrained else load)(
            plan.source,
            family=plan.family,
            dtype=plan.dtype,
            device=plan.device,
            device_map=plan.device_map,
            mask_id=plan.mask_id,
            block=plan.block,
        )
        model.name = f"{plan.name}-{UNTRAINED}" if self.untrained else plan.name
        if model.tokenizer is None:
            raise UserError(f"{self.plan.name} has no tokenizer beside its weights: add tokenizer.json.")
        return model


def missing_units(jobs: Iterable[Job], done: Mapping[Unit, str | None], folder: Path) -> set[Unit]:
    """Units without a row, and traced ones whose trace is not there or not as it was written."""
    return {
        job.unit
        for job in jobs
        if job.unit not in done or (job.traced and not _is_sound(folder / (done[job.unit] or "")))
    }


def _is_sound(trace: Path) -> bool:
    from floatscope.traces import Trace

    try:
        dict(Trace.load(trace).arrays)  # reads and checks them all
    except UserError:
        return False
    return True


def loadings(study: Study, jobs: Sequence[Job], missing: set[Unit]) -> list[Loading]:
    """The full plan by what is loaded for it, in the study's order; only what lacks something."""
    found = []
    for plan in study.models:
        own = [job for job in jobs if job.unit.model == plan.name and job.unit.control != GUESS]
        for untrained in (False, True):
            part = tuple(job for job in own if (job.unit.control == UNTRAINED) == untrained)
            if any(job.unit in missing for job in part):
                found.append(Loading(plan, untrained, part))
    return found


def run_guesses(study: Study, jobs: Sequence[Job], missing: set[Unit]) -> Iterator[list[Row]]:
    """What one scores without a model, a few rows at a time."""
    wanted = [job for job in jobs if job.unit.control == GUESS and job.unit in missing]
    for (name, _), group in groupby(wanted, key=lambda job: (job.unit.model, job.unit.task)):
        own = list(group)
        guess = GUESSES[name](own[0].task.samples)
        for start in range(0, len(own), GUESSES_AT_ONCE):
            rows = []
            for job in own[start : start + GUESSES_AT_ONCE]:
                try:
                    sample = job.task.under(job.condition, job.sample, study.seed)
                    prediction = guess(sample, random.Random(job.unit.seed(study.seed)))
                    rows.append(Row.of(job, prediction=prediction, scores=score(prediction, job.sample.answers)))
                except UserError as error:
                    rows.append(Row.of(job, error=str(error)))
            yield rows


def run_share(
    study: Study, folder: Path, jobs: Sequence[Job], missing: set[Unit], done: Done, share: int = 0, of: int = 1
) -> None:
    """Run what is missing of every `of`-th batch; `done` gets the rows of each once its traces are written."""
    for place, loading in enumerate(loadings(study, jobs, missing)):
        first = (share - place) % of
        if first >= batch_count(study, loading.jobs):
            continue  # others do all of its batches: no need to load the model here
        for rows in _run_loading(study, folder, loading, missing, first, of):
            done(loading.name, rows)


def _run_loading(
    study: Study, folder: Path, loading: Loading, missing: set[Unit], first: int, stride: int
) -> Iterator[list[Row]]:
    """Load a model and run its batches that lack anything, from the `first` on every `stride`-th."""
    from floatscope.qa.prompts import unknown_tokens
    from floatscope.study.answering import answer, build_sampler, choose_template, prepare

    model = loading.load()
    template = choose_template(study, model, loading.jobs)
    sizes: list[Size] = []
    built: dict[Unit, Prepared] = {}
    room, total, unknown = KEPT_TOKENS, 0, 0
    for job in loading.jobs:
        prepared = prepare(study, model, template, job)
        sizes.append(size_of(prepared))
        if job.unit in missing and room >= sizes[-1].tokens:
            built[job.unit] = prepared
            room -= sizes[-1].tokens
        if prepared.prompt is not None and not job.unit.control:
            total += sizes[-1].tokens
            unknown += unknown_tokens(model.tokenizer, prepared.prompt)
    if first == 0 and unknown > UNKNOWN * total:  # told by one process
        warnings.warn(
            f"{loading.name}: {unknown} of the {total} tokens of its prompts are not in its vocabulary, and it reads "
            "them as unknown: is this its tokenizer, and is the text in its language?",
            stacklevel=2,
        )
    alike = {(size.slots, size.job.way): size.job.condition.sampler for size in sizes}
    samplers = {
        (slots, way): build_sampler(study, loading.plan, model.family, slots, settings)
        for (slots, way), settings in alike.items()
    }
    planned = batches(sizes, study.batch)
    random.Random(study.seed).shuffle(planned)  # a run that is stopped has no more short prompts than long ones
    for batch in planned[first::stride]:
        jobs = [size.job for size in batch if size.job.unit in missing]
        if not jobs:
            continue
        todo = [built.pop(job.unit, None) or prepare(study, model, template, job) for job in jobs]
        answers = answer(study, model, samplers[batch[0].slots, batch[0].job.way], todo)
        for row, trace in answers:
            if trace is not None and row.trace is not None:
                trace.save(folder / row.trace)
        yield [row for row, _ in answers]


@dataclass(frozen=True, eq=False)
class Size:
    """What batches are made by."""

    job: Job
    slots: int
    tokens: int

    @property
    def kind(self) -> tuple[bool, int, str]:
        return self.job.traced, self.slots, self.job.way


def size_of(prepared: Prepared) -> Size:
    """The size of a job; one without a prompt has none."""
    return Size(prepared.job, prepared.slots, len(prepared.prompt.ids) if prepared.prompt is not None else 0)


def batch_count(study: Study, jobs: Iterable[Job]) -> int:
    """How many batches jobs make, which their lengths do not change; of passages, which have slots of their own, at
    most so many."""
    kinds = Counter(
        job.unit if job.sample.is_passage else (job.traced, job.condition.slots or study.slots, job.way) for job in jobs
    )
    return sum(-(-count // study.batch) for count in kinds.values())


def batches(sizes: Sequence[Size], most: int) -> list[list[Size]]:
    """Like with like: traced or not, then slots, then what runs apart, then prompts by length."""
    ordered = sorted(sizes, key=lambda size: (*size.kind, size.tokens))  # equal lengths stay in the plan's order
    found = []
    for _, group in groupby(ordered, key=lambda size: size.kind):
        alike = list(group)
        found += [alike[start : start + most] for start in range(0, len(alike), most)]
    return found


def run_shares(
    study: Study, folder: Path, jobs: Sequence[Job], missing: set[Unit], done: Done, also: frozenset[Unit] = frozenset()
) -> None:
    """Run all that is missing: here, or in the study's number of processes while this one commits what they send.

    also: as `plan_jobs` has it, since a worker plans for itself.
    """
    if study.workers == 1 or not missing:
        run_share(study, folder, jobs, missing, done)
        return
    if study.workers > (most := max(64, 4 * _cores())):
        raise UserError(f"workers = {study.workers}: ask for at most {most}; this machine has {_cores()} cores.")
    threads = max(1, _cores() // study.workers)
    context = mp.get_context("spawn")
    workers: list[BaseProcess] = []
    pipes: list[Connection] = []
    try:
        for share in range(study.workers):
            ours, theirs = context.Pipe(duplex=False)
            work = (study, folder, missing, also, share, threads, theirs)
            process = context.Process(target=_work, args=work, daemon=True)
            with keyboard_ignored():
                process.start()
            theirs.close()
            workers.append(process)
            pipes.append(ours)
        while pipes:
            for pipe in wait(pipes):
                assert isinstance(pipe, Connection)
                try:
                    message = pipe.recv()  # rows of a batch; or a sentence that stops the run; None at the end
                except EOFError:
                    raise UserError(
                        "A worker process ended before its work was done; what is done is kept: run again."
                    ) from None
                if isinstance(message, str):
                    raise UserError(message)
                if message is None:
                    pipes.remove(pipe)
                else:
                    done(*message)
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


def end_with_parent() -> None:
    """Let this process end when the one that started it does, however that happens."""
    parent = mp.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _work(
    study: Study, folder: Path, missing: set[Unit], also: frozenset[Unit], share: int, threads: int, pipe: Connection
) -> None:
    """A worker: plans as the first process did, and runs its own batches."""
    import torch

    end_with_parent()
    plain_warnings()
    torch.set_num_threads(threads)
    with suppress(BrokenPipeError):  # the first process is gone
        try:
            with warnings.catch_warnings(action="ignore"):  # the first process has told them
                jobs = plan_jobs(study, [load_task(study, plan) for plan in study.tasks], also)
            run_share(study, folder, jobs, missing, lambda what, rows: pipe.send((what, rows)), share, study.workers)
            pipe.send(None)
        except (UserError, OSError) as error:
            pipe.send(str(error))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
