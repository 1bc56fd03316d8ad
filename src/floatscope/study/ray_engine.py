"""The engine ray: actors that each hold one model at a time, batches as their tasks, and one writer, this process.

Rows and traces come back through Ray's object store, so that actors need no folder in common with the run; data and
models must be under the same paths on every node. An actor is given two batches at a time, so no more wait in memory.
What dies with an actor or its node is run again by a new one.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floatscope.errors import UserError, plain_warnings
from floatscope.registry import EXTENSIONS
from floatscope.study.division import Division
from floatscope.study.engine import Done, Loaded, batch_count, cores, loadings, quiet_plan, save_traces
from floatscope.study.plan import Study
from floatscope.study.units import Job, Unit

if TYPE_CHECKING:
    from floatscope.study.answering import Answer

AT_ONCE = 2
"""Batches that an actor is given before it has handed one over."""
TRIES = 3
"""How often a batch is tried whose actor dies."""
PASSED_ON = (EXTENSIONS, "FLOATSCOPE_CACHE", "HF_HOME", "HF_HUB_OFFLINE")
"""Variables of the environment that actors on other machines take over."""
Task = tuple[int, int]
"""A load of a model by its place in the plan, and one of its batches."""


def run(
    study: Study,
    folder: Path,
    jobs: Sequence[Job],
    missing: set[Unit],
    done: Done,
    division: Division,
    also: frozenset[Unit] = frozenset(),
) -> None:
    """Run all that is missing of a share on a Ray cluster, and write down what its actors send."""
    if not missing:
        return
    try:
        import ray
    except ImportError as error:
        raise UserError("The engine ray needs Ray: pip install 'floatscope[cluster]'.") from error
    threads = max(1, cores() // study.workers)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # without GPUs of its own an actor sees them all
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if division.address is None:
        quiet |= {"num_cpus": study.workers * threads, "include_dashboard": False}
    else:
        passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        quiet |= {"address": division.address, "runtime_env": {"env_vars": passed_on}}
    try:
        ray.init(**quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(f"There is no Ray cluster to use ({' '.join(str(error).split())[:200]}).") from error
    try:
        _refuse_too_few(ray.cluster_resources(), study.workers, threads, division.gpus)
        actor = ray.remote(num_cpus=threads, num_gpus=division.gpus, max_restarts=0)(Holder)
        crew = _Crew(actor, (study, ray.put(missing), threads, os.getcwd(), also))
        names = [loading.name for loading in loadings(study, jobs)]
        for place, answers in crew.run(list(_tasks(study, jobs, missing, division)), study.workers):
            if answers:
                save_traces(folder, answers)
                done(names[place], [row for row, _ in answers])
    finally:
        ray.shutdown()


def _tasks(study: Study, jobs: Sequence[Job], missing: set[Unit], division: Division) -> Iterator[Task]:
    """The batches of a share: the same as the local engine's."""
    for place, loading in enumerate(loadings(study, jobs)):
        if loading.lacks(missing):
            first = (division.share - 1 - place) % division.of
            yield from ((place, number) for number in range(first, batch_count(study, loading.jobs), division.of))


def _refuse_too_few(there: Mapping[str, float], workers: int, threads: int, gpus: float) -> None:
    """Actors that a cluster has no room for would be waited for without end."""
    for name, needed in (("CPU", workers * threads), ("GPU", workers * gpus)):
        if there.get(name, 0) < needed:
            raise UserError(
                f"{workers} workers need {needed:g} {name}s, and the Ray cluster has {there.get(name, 0):g}: ask for "
                "fewer workers."
            )


@dataclass
class _Crew:
    """Actors at work: each has at most so many tasks, and one that dies is replaced."""

    actor: Any
    given: tuple[Any, ...]
    """What each actor is made with."""
    running: dict[Any, tuple[Any, Task]] = field(default_factory=dict)
    """By the reference to what a task will give: its actor and the task."""
    deaths: Counter[Task] = field(default_factory=Counter)

    def run(self, tasks: list[Task], workers: int) -> Iterator[tuple[int, list[Answer]]]:
        """What each task gives, with the place of its model, in the order in which they are done."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        tasks.reverse()  # the next is the last
        told: set[str] = set()
        crew = [self.actor.remote(*self.given) for _ in range(min(workers, len(tasks)))]
        for actor in crew * AT_ONCE:
            self._give(actor, tasks)
        while self.running:
            (reference,), _ = ray.wait(list(self.running))
            actor, task = self.running.pop(reference)
            try:
                found, warning = ray.get(reference)
            except RayTaskError:
                raise  # a mistake of ours, which another try would make again
            except RayError as error:
                self._replace(actor, task, tasks, error)
                continue
            if isinstance(found, str):
                raise UserError(found)
            if warning and warning not in told:
                warnings.warn(warning, stacklevel=2)
                told.add(warning)
            self._give(actor, tasks)
            yield task[0], found

    def _give(self, actor: Any, tasks: list[Task]) -> None:
        if tasks:
            task = tasks.pop()
            self.running[actor.run.remote(*task)] = (actor, task)

    def _replace(self, dead: Any, task: Task, tasks: list[Task], error: Exception) -> None:
        """A new actor for the tasks of one that is dead or cannot be reached; what that may still send is not taken."""
        import ray

        self.deaths[task] += 1
        if self.deaths[task] >= TRIES:
            raise UserError(
                f"A batch ended its Ray actor {TRIES} times ({type(error).__name__}), as one does that needs too much "
                "memory; what is done is kept: run again, with fewer workers or a smaller batch."
            ) from error
        ray.kill(dead)
        lost = [reference for reference, (actor, _) in self.running.items() if actor == dead]
        tasks += [self.running.pop(reference)[1] for reference in reversed(lost)] + [task]
        actor = self.actor.remote(*self.given)
        for _ in range(AT_ONCE):
            self._give(actor, tasks)


class Holder:
    """An actor: plans as the first process did, and holds the model of the batch that it runs."""

    def __init__(
        self, study: Study, missing: set[Unit], threads: int, folder: str, also: frozenset[Unit] = frozenset()
    ) -> None:
        import torch

        plain_warnings()
        torch.set_num_threads(threads)
        if os.path.isdir(folder):
            os.chdir(folder)  # paths of a study are seen from where it is started
        self.study, self.missing, self.also = study, missing, also
        self.place, self.jobs, self.loaded = -1, None, None

    def run(self, place: int, number: int) -> tuple[list[Answer] | str, str]:
        """The answers of a batch, or a sentence that stops the run; and a warning, or nothing."""
        try:
            if self.jobs is None:
                self.jobs = quiet_plan(self.study, self.also)
            if self.loaded is None or place != self.place:
                self.loaded = None  # before the next one is loaded: there may be room for one
                self.loaded = Loaded(self.study, loadings(self.study, self.jobs)[place], self.missing)
                self.place = place
            few = number >= len(self.loaded.batches)  # passages make fewer batches than they may
            return [] if few else self.loaded.run(number), self.loaded.warning
        except (UserError, OSError) as error:
            return str(error), ""
