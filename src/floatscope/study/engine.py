"""The local engine: one model at a time, batches of like length, rows handed over as each batch is done.

Batches are formed from the full plan and not from what is left, so a resumed run computes what an undisturbed one does.
Several processes can share them: each takes every n-th batch, and the first process alone writes to the store, at once.
So can several runs, on machines that need not know of each other: `division` says which share of the batches is whose.
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
from floatscope.study.division import Division
from floatscope.study.plan import GUESS, UNTRAINED, ModelPlan, Study
from floatscope.study.store import Row
from floatscope.study.units import Job, Unit, load_task, plan_jobs

if TYPE_CHECKING:
    from floatscope.models.model import Model
    from floatscope.study.answering import Answer, Prepared

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

    def lacks(self, missing: set[Unit]) -> bool:
        """Whether any of its jobs is missing."""
        return any(job.unit in missing for job in self.jobs)

    def load(self) -> Model:
        """The model, with the tokenizer that prompts need."""
        from floatscope.models.loading import load, load_untrained

        plan = self.plan
        model = (load_untrained if self.untrained else load)(
            plan.source,
            revision=plan.revision,
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
        if job.unit not in done or (job.traced and not is_sound(folder / (done[job.unit] or "")))
    }


def is_sound(trace: Path) -> bool:
    """Whether a trace is there, and as it was written."""
    from floatscope.traces import Trace

    try:
        dict(Trace.load(trace).arrays)  # reads and checks them all
    except UserError:
        return False
    return True


def loadings(study: Study, jobs: Sequence[Job]) -> list[Loading]:
    """The full plan by what is loaded for it, in the study's order."""
    found = []
    for plan in study.models:
        own = [job for job in jobs if job.unit.model == plan.name and job.unit.control != GUESS]
        for untrained in (False, True):
            part = tuple(job for job in own if (job.unit.control == UNTRAINED) == untrained)
            if part:
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
    for place, loading in enumerate(loadings(study, jobs)):
        first = (share - place) % of  # by its place in the full plan, so that a share is the same when it is resumed
        if first >= batch_count(study, loading.jobs) or not loading.lacks(missing):
            continue  # others do all of its batches: no need to load the model here
        loaded = Loaded(study, loading, missing)
        if first == 0 and loaded.warning:  # told by one process
            warnings.warn(loaded.warning, stacklevel=2)
        for number in range(first, len(loaded.batches), of):
            if answers := loaded.run(number):
                save_traces(folder, answers)
                done(loading.name, [row for row, _ in answers])


def save_traces(folder: Path, answers: Iterable[Answer]) -> None:
    """Write the traces of a batch where its rows say."""
    for row, trace in answers:
        if trace is not None and row.trace is not None:
            trace.save(folder / row.trace)


class Loaded:
    """A model with its samplers and prompts, and the batches of its jobs, in the order in which they are run."""

    def __init__(self, study: Study, loading: Loading, missing: set[Unit]) -> None:
        from floatscope.qa.prompts import unknown_tokens
        from floatscope.study.answering import build_sampler, choose_template, prepare

        self.study, self.loading, self.missing = study, loading, missing
        self.model = loading.load()
        self.template = choose_template(study, self.model, loading.jobs)
        sizes: list[Size] = []
        self._built: dict[Unit, Prepared] = {}
        room, self._tokens, self._unknown = KEPT_TOKENS, 0, 0
        for job in loading.jobs:
            prepared = prepare(study, self.model, self.template, job)
            sizes.append(size_of(prepared))
            if job.unit in missing and room >= sizes[-1].tokens:
                self._built[job.unit] = prepared
                room -= sizes[-1].tokens
            if prepared.prompt is not None and not job.unit.control:
                self._tokens += sizes[-1].tokens
                self._unknown += unknown_tokens(self.model.tokenizer, prepared.prompt)
        alike = {(size.slots, size.job.way): size.job.condition.sampler for size in sizes}
        self._samplers = {
            (slots, way): build_sampler(study, loading.plan, self.model.family, slots, settings)
            for (slots, way), settings in alike.items()
        }
        self.batches = batches(sizes, study.batch)
        # A run that is stopped has no more short prompts than long ones.
        random.Random(study.seed).shuffle(self.batches)

    @property
    def warning(self) -> str:
        """A sentence where many tokens of the prompts are unknown to the model, or nothing."""
        if self._unknown <= UNKNOWN * self._tokens:
            return ""
        return (
            f"{self.loading.name}: {self._unknown} of the {self._tokens} tokens of its prompts are not in its "
            "vocabulary, and it reads them as unknown: is this its tokenizer, and is the text in its language?"
        )

    def run(self, number: int) -> list[Answer]:
        """What is missing of a batch, which is run whole: its neighbours decide the last bits of a sample's numbers."""
        from floatscope.study.answering import answer, prepare

        batch = self.batches[number]
        jobs = [size.job for size in batch]
        if not any(job.unit in self.missing for job in jobs):
            return []
        todo = [self._built.pop(job.unit, None) or prepare(self.study, self.model, self.template, job) for job in jobs]
        answers = answer(self.study, self.model, self._samplers[batch[0].slots, batch[0].job.way], todo)
        return [one for one in answers if one[0].unit in self.missing]


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
    study: Study,
    folder: Path,
    jobs: Sequence[Job],
    missing: set[Unit],
    done: Done,
    division: Division,
    also: frozenset[Unit] = frozenset(),
) -> None:
    """Run all that is missing of a share: here, or in the study's number of processes while this one commits what they
    send.

    also: as `plan_jobs` has it, since a worker plans for itself.
    """
    if study.workers == 1 or not missing:
        run_share(study, folder, jobs, missing, done, division.share - 1, division.of)
        return
    if study.workers > (most := max(64, 4 * cores())):
        raise UserError(f"workers = {study.workers}: ask for at most {most}; this machine has {cores()} cores.")
    threads = max(1, cores() // study.workers)
    context = mp.get_context("spawn")
    workers: list[BaseProcess] = []
    pipes: list[Connection] = []
    try:
        for worker in range(study.workers):
            ours, theirs = context.Pipe(duplex=False)
            share = division.share - 1 + division.of * worker  # a share has the same batches with any number of workers
            work = (study, folder, missing, also, share, division.of * study.workers, threads, theirs)
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
    study: Study,
    folder: Path,
    missing: set[Unit],
    also: frozenset[Unit],
    share: int,
    of: int,
    threads: int,
    pipe: Connection,
) -> None:
    """A worker: plans as the first process did, and runs its own batches."""
    end_with_parent()  # before anything that takes long
    import torch

    plain_warnings()
    torch.set_num_threads(threads)
    with suppress(BrokenPipeError):  # the first process is gone
        try:
            jobs = quiet_plan(study, also)
            run_share(study, folder, jobs, missing, lambda what, rows: pipe.send((what, rows)), share, of)
            pipe.send(None)
        except (UserError, OSError) as error:
            pipe.send(str(error))


def quiet_plan(study: Study, also: frozenset[Unit] = frozenset()) -> list[Job]:
    """The full plan, in a process beside the first, which has told of its tasks."""
    with warnings.catch_warnings(action="ignore"):
        return plan_jobs(study, [load_task(study, plan) for plan in study.tasks], also)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
