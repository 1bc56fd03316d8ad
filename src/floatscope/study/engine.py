"""The local engine: one model at a time, batches of like length, rows handed over as each batch is done.

Batches are formed from the full plan and not from what is left, so a resumed run computes what an undisturbed one does.
Several processes can share the batches; see `sharing`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from floatscope.errors import UserError
from floatscope.qa.guesses import GUESSES
from floatscope.qa.metrics import score
from floatscope.study.plan import GUESS, UNTRAINED, ModelPlan, Study
from floatscope.study.store import Row
from floatscope.study.units import Job, Unit

if TYPE_CHECKING:
    from floatscope.models.model import Model
    from floatscope.study.answering import Prepared

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
        from floatscope.study.controls import load_model, load_untrained

        model = load_untrained(self.plan) if self.untrained else load_model(self.plan)
        if model.tokenizer is None:
            raise UserError(f"{self.plan.name} has no tokenizer beside its weights: add tokenizer.json.")
        return model


def missing_units(jobs: Iterable[Job], done: Mapping[Unit, str | None], folder: Path) -> set[Unit]:
    """Units without a row, and traced ones whose trace is not there or cannot be read."""
    return {job.unit for job in jobs if job.unit not in done or (job.traced and not _has_trace(done[job.unit], folder))}


def _has_trace(trace: str | None, folder: Path) -> bool:
    from floatscope.traces import Trace

    if trace is None or not (folder / trace).is_file():
        return False
    try:
        Trace.load(folder / trace)
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


def run_guesses(study: Study, jobs: Sequence[Job], missing: set[Unit]) -> list[Row]:
    """What one scores without a model."""
    return [_guessed(study, job) for job in jobs if job.unit.control == GUESS and job.unit in missing]


def _guessed(study: Study, job: Job) -> Row:
    row = Row(
        job.unit, job.number, job.condition.stressor, job.condition.labels, job.sample.question, job.sample.answers
    )  # fmt: skip
    try:
        sample = job.task.under(job.condition, job.sample, study.seed)
    except UserError as error:
        return replace(row, error=str(error))
    rng = random.Random(job.unit.seed(study.seed))
    guess = GUESSES[job.unit.model](sample, job.task.samples, rng)
    scores = score(guess, job.sample.answers)
    return replace(row, prediction=guess, accuracy=scores.accuracy, em=scores.exact_match, f1=scores.f1)


def run_share(
    study: Study, folder: Path, jobs: Sequence[Job], missing: set[Unit], done: Done, share: int = 0, of: int = 1
) -> None:
    """Run what is missing of every `of`-th batch; `done` gets the rows of each once its traces are written."""
    for place, loading in enumerate(loadings(study, jobs, missing)):
        if len(loading.jobs) <= study.batch and place % of != share:
            continue  # a single batch, which another process does: no need to load the model here
        for rows in _run_loading(study, folder, loading, missing, (share - place) % of, of):
            done(loading.name, rows)


def _run_loading(
    study: Study, folder: Path, loading: Loading, missing: set[Unit], first: int, stride: int
) -> Iterator[list[Row]]:
    """Load a model and run its batches that lack anything, from the `first` on every `stride`-th."""
    from floatscope.study.answering import answer, build_sampler, choose_template, prepare

    model = loading.load()
    template = choose_template(study, model, loading.jobs)
    planned = [size_of(prepare(study, model, template, job)) for job in loading.jobs]
    slots = {size.slots for size in planned}
    samplers = {number: build_sampler(study, loading.plan, model.family, number) for number in slots}
    for batch in batches(planned, study.batch)[first::stride]:
        todo = [prepare(study, model, template, size.job) for size in batch if size.job.unit in missing]
        if not todo:
            continue
        answers = answer(study, model, samplers[todo[0].slots], todo)
        for found in answers:
            if found.trace is not None and found.row.trace is not None:
                found.trace.save(folder / found.row.trace)
        yield [found.row for found in answers]


@dataclass(frozen=True, eq=False)
class Size:
    """What batches are made by; the prompt itself is made again when its batch is run, since all would not fit."""

    job: Job
    slots: int
    tokens: int

    @property
    def kind(self) -> tuple[bool, int]:
        return self.job.traced, self.slots


def size_of(prepared: Prepared) -> Size:
    """The size of a job; one without a prompt has none."""
    return Size(prepared.job, prepared.slots, len(prepared.prompt.ids) if prepared.prompt is not None else 0)


def batches(sizes: Sequence[Size], most: int) -> list[list[Size]]:
    """Like with like: traced or not, then slots, then prompts by length."""
    ordered = sorted(sizes, key=lambda size: (*size.kind, size.tokens))  # equal lengths stay in the plan's order
    found = []
    for _, group in groupby(ordered, key=lambda size: size.kind):
        alike = list(group)
        found += [alike[start : start + most] for start in range(0, len(alike), most)]
    return found
