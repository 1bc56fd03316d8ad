"""How much is to do and how long it may take: the units, and some batches of each model timed. Nothing is stored."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from floatscope.study.engine import Loading, Size, batches, loadings, size_of
from floatscope.study.plan import Study
from floatscope.study.tasks import load_task
from floatscope.study.units import plan_jobs


@dataclass(frozen=True)
class Estimate:
    """One load of a model: its units and batches, and the seconds that they may take."""

    name: str
    units: int
    batches: int
    seconds: float


def estimate(study: Study, notify: Callable[[str], None] = lambda what: None) -> list[Estimate]:
    """For every load of a model, from a batch of middle length of each kind (traced or not, by slots)."""
    jobs = plan_jobs(study, [load_task(study, plan) for plan in study.tasks])
    found = []
    for loading in loadings(study, jobs, {job.unit for job in jobs}):
        notify(f"timing {loading.name}")
        found.append(_estimate_loading(study, loading))
    return found


def _estimate_loading(study: Study, loading: Loading) -> Estimate:
    from floatscope.study.answering import answer, build_sampler, choose_template, prepare

    started = time.perf_counter()
    model = loading.load()
    template = choose_template(study, model, loading.jobs)
    planned = batches([size_of(prepare(study, model, template, job)) for job in loading.jobs], study.batch)
    seconds = time.perf_counter() - started
    for (_, slots), group in groupby(planned, key=lambda batch: batch[0].kind):
        alike = list(group)
        sampler = build_sampler(study, loading.plan, model.family, slots)
        middle = alike[len(alike) // 2]
        prepared = [prepare(study, model, template, size.job) for size in middle]
        answer(study, model, sampler, prepared[:1])  # the first call of a kind pays for things that later ones find
        before = time.perf_counter()
        answer(study, model, sampler, prepared)
        taken = time.perf_counter() - before
        seconds += taken * sum(map(_size, alike)) / _size(middle) / study.workers
    return Estimate(loading.name, len(loading.jobs), len(planned), seconds)


def _size(batch: Sequence[Size]) -> int:
    """Tokens of a batch as it is run, pads included."""
    return len(batch) * (max(size.tokens for size in batch) + batch[0].slots)
