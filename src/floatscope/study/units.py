"""Units: every (model, task, condition, sample) of a study and its control passes, in one fixed order.

Tasks are read here as `qa.tasks` gives them and checked against the study's conditions.
"""

import hashlib
import json
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from floatscope.errors import UserError
from floatscope.qa.corpus import content_hash, read_corpus
from floatscope.qa.guesses import GUESSES
from floatscope.qa.samples import Sample
from floatscope.qa.stressors import Condition, Pool, check_conditions, derived_seed, stress
from floatscope.qa.stressors.baselines import changed_documents
from floatscope.qa.tasks import PASSAGES, read_task
from floatscope.study.plan import GUESS, NULL_QUERY, UNTRAINED, Study, TaskPlan


@dataclass(frozen=True)
class Unit:
    """The atom of work and of resume; `control` is empty for a model's own answer."""

    model: str
    task: str
    condition: str
    sample: str
    control: str = ""
    content: str = ""
    """What its condition does, as a hash: a condition that changes under its name makes other units."""

    @property
    def parts(self) -> tuple[str, str, str, str, str]:
        """The names it goes by, which its seed and its file are made of."""
        return (self.model, self.task, self.condition, self.sample, self.control)

    def seed(self, study_seed: int) -> int:
        """The unit's own randomness, whatever its place in a batch."""
        return derived_seed(study_seed, *self.parts)

    @property
    def file_name(self) -> str:
        """A name for its trace that any file system takes, told apart by a hash of the unit."""
        digest = hashlib.sha256("\x1f".join(self.parts).encode("utf-8", "surrogatepass")).hexdigest()[:8]
        words = re.sub(r"[^A-Za-z0-9]+", "-", "_".join(filter(None, self.parts)).replace("_", "\0"))
        return f"{words.strip('-')[:100]}-{digest}.safetensors"


@dataclass(frozen=True, eq=False)
class LoadedTask:
    """A task as it is run: samples in order, the pool, and what the manifest tells of them."""

    plan: TaskPlan
    samples: tuple[Sample, ...]
    pool: Pool
    about: dict[str, Any]
    _shown: dict[tuple[str, str], Sample] = field(default_factory=dict)

    def under(self, condition: Condition, sample: Sample, seed: int) -> Sample:
        """The sample as the condition shows it: the same for every model, so it is made once."""
        key = (condition.name, sample.id)
        if key not in self._shown:
            self._shown[key] = stress(sample, condition, self.pool, seed)
        return self._shown[key]


@dataclass(frozen=True, eq=False)
class Job:
    """A unit with what it takes to run it: the sample as it was read, and the condition to put it under."""

    unit: Unit
    task: LoadedTask
    condition: Condition
    sample: Sample
    number: int
    """The sample's place in its task."""
    traced: bool

    @property
    def way(self) -> str:
        """How its condition has the slots filled, where it says, and whether they are a passage's: jobs that differ in
        it are not run together."""
        condition = self.condition
        told = (dict(condition.sampler), condition.edits, condition.replay, self.sample.is_passage)
        told += () if condition.draws is None else (f"draws {condition.draws}",)
        told += tuple(filter(None, (condition.attribution, condition.patch, not condition.answered)))
        return repr(told) if any(told) else ""


def plan_jobs(study: Study, tasks: Sequence[LoadedTask], also: frozenset[Unit] = frozenset()) -> list[Job]:
    """The full plan: guesses, then each model's units with its null queries, then its untrained passes.

    also: units that are traced beside the first so many.
    """
    jobs = [job for guess in GUESSES for job in _pass(study, tasks, guess, GUESS)]
    for model in study.models:
        jobs += _pass(study, tasks, model.name, "")
        jobs += [job for control in (NULL_QUERY, UNTRAINED) if control in study.controls
                 for job in _pass(study, tasks, model.name, control)]  # fmt: skip
    return [replace(job, traced=True) if job.unit in also else job for job in jobs]


def _pass(study: Study, tasks: Sequence[LoadedTask], model: str, control: str) -> list[Job]:
    """The units of one pass over all tasks; control passes take the traced samples only."""
    jobs = []
    for task in tasks:
        if task.plan.is_passages and control in (GUESS, NULL_QUERY):
            continue  # they ask nothing, and what is commonest in their text is a score of their own
        for cell in study.cells(task.plan):
            if cell.models and model not in cell.models and control != GUESS:
                continue
            only_traced = control in (NULL_QUERY, UNTRAINED)
            for number, sample in enumerate(
                task.samples[: min(cell.limit, cell.traces) if only_traced else cell.limit]
            ):
                names = (model, task.plan.name, cell.condition.name, storable(sample.id), control)
                unit = Unit(*names, content=cell.condition.content)
                traced = number < cell.traces and control != GUESS
                jobs.append(Job(unit, task, cell.condition, sample, number, traced))
    return jobs


def storable(text: str) -> str:
    """Text that files and databases take: a lone surrogate, as some data has, becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def load_task(study: Study, plan: TaskPlan) -> LoadedTask:
    """Read or make the samples; refuse conditions that none of them can be put under."""
    try:
        task = read_task(
            plan.source,
            limit=study.samples_of(plan),
            seed=study.seed,
            shape=plan.shape,
            skip_wrong=plan.skip_wrong,
            corpus=plan.corpus,
            retrieve=plan.retrieve,
            retriever=plan.retriever,
        )
        conditions = [cell.condition for cell in study.cells(plan)]
        check_conditions(conditions, task.samples, task.pool, study.seed)
        for edit in (edit for condition in conditions for edit in condition.edits):
            if "retrieval(" in edit.heads:
                raise UserError(
                    f"The edit of the heads {edit.heads} needs a table of heads: name what `floatscope analyze "
                    "retrieval_heads` wrote, with table."
                )
    except UserError as error:
        raise UserError(f"The task {plan.name!r}: {error}") from error
    for notice in filter(None, (changed_documents(task.samples, condition) for condition in conditions)):
        warnings.warn(f"The task {plan.name!r}: {notice}", stacklevel=2)
    about: dict[str, Any] = {"source": plan.source, "samples": len(task.samples)}
    about["sha256"] = {"The samples": _hash(task.samples), "The pool of distractors": _hash(task.pool.samples)}
    if plan.corpus is not None:
        about["sha256"]["The corpus"] = content_hash(read_corpus(plan.corpus))
    if task.recall:
        about["recall"] = [{"k": recall.k, "answer": recall.answer, "gold": recall.gold} for recall in task.recall]
    if task.skipped:
        about["skipped"] = [str(skipped) for skipped in task.skipped]
    return LoadedTask(plan, task.samples, task.pool, about)


def missing_files(plan: TaskPlan) -> list[str]:
    """Files that the task names and that are not there."""
    source = plan.source.removeprefix(PASSAGES)
    named = [] if plan.from_world or source.startswith("hf:") or Path(source).is_file() else [source]
    return named + [path for path in (plan.corpus,) if path and not Path(path).exists()]


def _hash(samples: tuple[Sample, ...]) -> str:
    digest = hashlib.sha256()
    for sample in samples:
        documents = [(document.title, document.text, document.gold) for document in sample.documents]
        sides = [sample.before, sample.after] if sample.is_passage else []
        content = json.dumps([sample.id, sample.question, sample.answers, documents, *sides])
        digest.update(content.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()
