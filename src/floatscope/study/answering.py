"""From jobs to rows: prompts under their conditions, the sampler for them, a batch through the model, scores.

A sample that fails becomes a row with its error. Which jobs make a batch, and where rows go, is left to `engine`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from floatscope.canvas import Prompt
from floatscope.decoding import Generation, Sampler, generate
from floatscope.errors import UserError
from floatscope.models.families import Family
from floatscope.models.loading import locate
from floatscope.models.model import Model
from floatscope.qa.gaps import build_gap, score_gap
from floatscope.qa.metrics import score
from floatscope.qa.prompts import build_prompt
from floatscope.qa.templates import Template, read_template
from floatscope.study.plan import NULL_QUERY, UNTRAINED, ModelPlan, Study
from floatscope.study.store import TRACES, Row
from floatscope.study.units import Job, Unit
from floatscope.traces import Trace
from floatscope.tracing import trace

BEFORE_FORK = "before the fork"
NULL_QUESTION = "N/A"  # content-free, as QRHead (2025) has it


@dataclass(frozen=True, eq=False)
class Prepared:
    """A job with its prompt, or with the reason why there is none."""

    job: Job
    slots: int
    prompt: Prompt | None = None
    error: str | None = None


Answer = tuple[Row, Trace | None]
"""A row, and the trace to keep with it."""


def prepare(study: Study, model: Model, template: Template, job: Job) -> Prepared:
    """The sample under its condition, as a prompt for this model."""
    condition = job.condition
    slots = condition.slots or study.slots
    try:
        sample = job.task.under(condition, job.sample, study.seed)
        if sample.is_passage:
            canvas = build_gap(
                model.tokenizer, sample, slots, layout=condition.layout, context=condition.context, room=model.context
            )
            assert canvas.slots is not None
            return Prepared(job, len(canvas.slots), canvas)
        question = NULL_QUESTION if job.unit.control == NULL_QUERY else sample.question
        prompt = build_prompt(
            model.tokenizer,
            question,
            sample.documents,
            sample.answers,
            template=template,
            placement=condition.placement,
            raw=study.prompt.raw,
            room=None if model.context is None else model.context - slots,
            slots=slots,
        )
    except Exception as error:  # whatever is wrong with one sample stays with it
        return Prepared(job, slots, error=sentence(error))
    return Prepared(job, slots, prompt)


def choose_template(study: Study, model: Model, jobs: Sequence[Job]) -> Template:
    """The prompt template for a model; one that cannot do what the conditions ask stops the run."""
    template = read_template(study.prompt.template, model.family.name)
    for job in jobs:
        if job.condition.placement not in (None, *template.placements):
            raise UserError(
                f"The template {template.name} cannot have the question {job.condition.placement} the documents, which "
                f"the condition {job.condition.name!r} asks for: choose another template or leave the condition out."
            )
    return template


def build_sampler(
    study: Study, plan: ModelPlan, family: Family, slots: int, of_condition: Mapping[str, Any] | None = None
) -> Sampler:
    """The family's way to fill slots, with the settings of the model's plan; a mistake in them stops the run.

    of_condition: settings that a condition is about. A sampler that does not have them stays as it is: an ARM, asked
    for another order, answers in its own.
    """
    try:
        sampler = family.make_sampler({"steps": study.steps_for(slots)}, **{**plan.sampler, "length": slots})
        had = {part.name for part in dataclasses.fields(sampler)}
        return dataclasses.replace(
            sampler, **{name: value for name, value in (of_condition or {}).items() if name in had}
        )
    except UserError as error:
        raise UserError(f"The model {plan.name!r} with {slots} slots: {error}") from error


def answer(study: Study, model: Model, sampler: Sampler, batch: Sequence[Prepared]) -> list[Answer]:
    """One row per job, in order. All of the batch are traced or none is, and all have the sampler's slots.

    Where the batch fails as a whole its samples are run one by one, so that only those fail that must.
    """
    good = [prepared for prepared in batch if prepared.prompt is not None]
    try:
        answers = _run(study, model, sampler, good) if good else []
    except Exception as error:  # of any kind: memory, numbers that are not finite, a prompt too long
        if len(good) > 1:
            return [one for prepared in batch for one in answer(study, model, sampler, [prepared])]
        answers = [(_row(prepared, error=sentence(error)), None) for prepared in good]
    made = dict(zip(map(id, good), answers, strict=True))
    return [made.get(id(prepared)) or (_row(prepared, error=prepared.error), None) for prepared in batch]


def _run(study: Study, model: Model, sampler: Sampler, batch: Sequence[Prepared]) -> list[Answer]:
    prompts = [prepared.prompt for prepared in batch if prepared.prompt is not None]
    seeds = [prepared.job.unit.seed(study.seed) for prepared in batch]
    condition, passages = batch[0].job.condition, batch[0].job.sample.is_passage
    options: Any = {"replay": condition.replay, "edits": [condition.edits] * len(batch) if condition.edits else ()}
    if batch[0].job.traced:
        done = trace(model, prompts, sampler, seeds=seeds, keep=study.keep, **options)
    else:
        done = generate(model, prompts, sampler, seeds, **options)
    replayed: Sequence[Generation | Trace] = done
    if passages and not condition.replay:
        wishes = {"order": "left-to-right", "tokens_per_step": 1, "steps": sampler.length}
        replayed = generate(
            model, prompts, model.sampler(wishes, length=sampler.length), seeds, **options | {"replay": True}
        )
    answers: list[Answer] = []
    for prepared, prompt, one, true in zip(batch, prompts, done, replayed, strict=True):
        prediction, sample = model.text(one.answer), prepared.job.sample
        if passages:
            scores = {} if condition.replay else score_gap(sample, prompt, one.answer, prediction)
            scores["bits"] = float(-np.log2(np.maximum(true.confidence, np.finfo(np.float32).tiny)).mean())
        else:
            scores = score(prediction, sample.answers)
        row = _row(prepared, prediction=prediction, scores=scores, steps=one.steps)
        if prompt.answer is not None:
            row = dataclasses.replace(row, answers=(model.text(prompt.answer),))
        if isinstance(one, Trace):
            row = dataclasses.replace(row, trace=f"{TRACES}/{row.unit.file_name}")
            metadata = {
                "sample": row.unit.sample,
                "task": row.unit.task,
                "condition": row.unit.condition,
                "labels": dict(row.labels),
                "control": row.unit.control,
                "control_name": _control_name(study, row.unit),
                "control_of": row.unit.model,
                "question": row.question,
                "answers": list(row.answers),
                "prediction": row.prediction,
                "accuracy": row.scores.get("accuracy"),
            }
            answers.append((row, dataclasses.replace(one, metadata=dict(one.metadata) | metadata)))
        else:
            answers.append((row, None))
    return answers


def _control_name(study: Study, unit: Unit) -> str:
    """What a control is called for people: that of a fork is its parent, which is not untrained at all."""
    source = next((plan.source for plan in study.models if plan.name == unit.model), "")
    return BEFORE_FORK if unit.control == UNTRAINED and locate(source).fork is not None else unit.control


def _row(prepared: Prepared, **found: Any) -> Row:
    if prepared.prompt is not None:
        slots = 0 if prepared.prompt.slots is None else prepared.slots
        found |= {"prompt_tokens": len(prepared.prompt.ids) - slots, "cut": sum(prepared.prompt.cut)}
    row = Row.of(prepared.job, **found)
    return dataclasses.replace(row, question=NULL_QUESTION) if row.unit.control == NULL_QUERY else row


def sentence(error: Exception) -> str:
    """An error as one line; other kinds than a UserError say which they are."""
    text = " ".join(str(error).split())[:500]
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"
