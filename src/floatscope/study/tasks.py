"""Tasks of a study in memory: samples and pool as `qa.tasks` gives them, checked against the study's conditions."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from floatscope.errors import UserError
from floatscope.qa.corpus import content_hash, read_corpus
from floatscope.qa.samples import Sample
from floatscope.qa.stressors import Condition, Pool, check_conditions, stress
from floatscope.qa.tasks import read_task
from floatscope.study.plan import Study, TaskPlan


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


def load_task(study: Study, plan: TaskPlan) -> LoadedTask:
    """Read or make the samples; refuse conditions that none of them can be put under."""
    try:
        task = read_task(
            plan.source,
            limit=study.samples_of(plan),
            seed=study.seed,
            shape=plan.shape,
            on_error="skip" if plan.skip_wrong else "raise",
            corpus=plan.corpus,
            retrieve=plan.retrieve,
            retriever=plan.retriever,
        )
        check_conditions([cell.condition for cell in study.cells(plan)], task.samples, task.pool, study.seed)
    except UserError as error:
        raise UserError(f"The task {plan.name!r}: {error}") from error
    about: dict[str, Any] = {"source": plan.source, "samples": len(task.samples), "sha256": _hash(task.samples)}
    if plan.corpus is not None:
        about["corpus_sha256"] = content_hash(read_corpus(plan.corpus))
    if task.recall:
        about["recall"] = [{"k": recall.k, "answer": recall.answer, "gold": recall.gold} for recall in task.recall]
    if task.skipped:
        about["skipped"] = [str(skipped) for skipped in task.skipped]
    return LoadedTask(plan, task.samples, task.pool, about)


def missing_files(plan: TaskPlan) -> list[str]:
    """Files that the task names and that are not there."""
    named = [plan.corpus] if plan.from_world or plan.source.startswith("hf:") else [plan.source, plan.corpus]
    return [path for path in named if path and not Path(path).is_file()]


def _hash(samples: tuple[Sample, ...]) -> str:
    digest = hashlib.sha256()
    for sample in samples:
        documents = [(document.title, document.text, document.gold) for document in sample.documents]
        content = json.dumps([sample.id, sample.question, sample.answers, documents])
        digest.update(content.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()
