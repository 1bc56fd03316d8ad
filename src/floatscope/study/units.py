"""Units: every (model, task, condition, sample) of a study and its control passes, in one fixed order."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from floatscope.qa.guesses import GUESSES
from floatscope.qa.samples import Sample
from floatscope.qa.stressors import Condition, derived_seed
from floatscope.study.plan import GUESS, NULL_QUERY, UNTRAINED, Study
from floatscope.study.tasks import LoadedTask


@dataclass(frozen=True)
class Unit:
    """The atom of work and of resume; `control` is empty for a model's own answer."""

    model: str
    task: str
    condition: str
    sample: str
    control: str = ""

    @property
    def parts(self) -> tuple[str, str, str, str, str]:
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
class Job:
    """A unit with what it takes to run it: the sample as it was read, and the condition to put it under."""

    unit: Unit
    task: LoadedTask
    condition: Condition
    sample: Sample
    number: int
    """The sample's place in its task."""
    traced: bool


def plan_jobs(study: Study, tasks: Sequence[LoadedTask]) -> list[Job]:
    """The full plan: guesses, then each model's units with its null queries, then its untrained passes."""
    jobs = [job for guess in GUESSES for job in _pass(study, tasks, guess, GUESS)]
    for model in study.models:
        jobs += _pass(study, tasks, model.name, "")
        jobs += [job for control in (NULL_QUERY, UNTRAINED) if control in study.controls
                 for job in _pass(study, tasks, model.name, control)]  # fmt: skip
    return jobs


def _pass(study: Study, tasks: Sequence[LoadedTask], model: str, control: str) -> list[Job]:
    """The units of one pass over all tasks; control passes take the traced samples only."""
    jobs = []
    for task in tasks:
        for cell in study.cells(task.plan):
            only_traced = control in (NULL_QUERY, UNTRAINED)
            for number, sample in enumerate(
                task.samples[: min(cell.limit, cell.traces) if only_traced else cell.limit]
            ):
                unit = Unit(model, task.plan.name, cell.condition.name, storable(sample.id), control)
                traced = number < cell.traces and control != GUESS
                jobs.append(Job(unit, task, cell.condition, sample, number, traced))
    return jobs


def storable(text: str) -> str:
    """Text that files and databases take: a lone surrogate, as some data has, becomes a question mark."""
    return text.encode("utf-8", "replace").decode()
