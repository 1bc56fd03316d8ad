"""From jobs to rows: prompts under their conditions, the sampler for them, a batch through the model, scores.

A sample that fails becomes a row with its error. Which jobs make a batch, and where rows go, is left to `engine`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, cast

import numpy as np

from floatscope.attribution import METHODS
from floatscope.attribution.case import Case
from floatscope.attribution.recorded import record, signals
from floatscope.canvas import Ids, Prompt
from floatscope.decoding import Generation, Sampler, generate
from floatscope.errors import UserError
from floatscope.models.family import Family
from floatscope.models.likelihood import Pair, log_likelihoods, replayed
from floatscope.models.loading import locate
from floatscope.models.model import Model
from floatscope.models.patching import patch
from floatscope.qa.gaps import build_gap, score_gap
from floatscope.qa.metrics import mentions, score
from floatscope.qa.prompts import build_prompt
from floatscope.qa.templates import Template, read_template
from floatscope.study.donors import MOST_TOKENS, exchanged
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
    donors: tuple[Prompt, ...] = ()
    """What its replay is patched from: the prompt with its gold documents, and the control."""


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
        build = partial(
            build_prompt,
            model.tokenizer,
            question,
            answers=sample.answers,
            template=template,
            placement=condition.placement,
            raw=study.prompt.raw,
            room=None if model.context is None else model.context - slots,
            slots=slots,
        )
        prompt, *donors = exchanged(build, sample) if condition.patch else (build(sample.documents),)
    except Exception as error:  # whatever is wrong with one sample stays with it
        return Prepared(job, slots, error=sentence(error))
    return Prepared(job, slots, prompt, donors=tuple(donors))


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
    if not condition.answered:
        told = zip(batch, _outcomes(model, batch, prompts, sampler.length, seeds), strict=True)
        return [(_row(prepared, scores=outcome), None) for prepared, outcome in told]
    if batch[0].job.traced:
        done = trace(model, prompts, sampler, seeds=seeds, keep=study.keep, **options)
    else:
        done = generate(model, prompts, sampler, seeds, **options)
    passed: Sequence[Generation | Trace] = done
    if passages and not condition.replay:
        wishes = {"order": "left-to-right", "tokens_per_step": 1, "steps": sampler.length}
        passed = generate(
            model, prompts, model.sampler(wishes, length=sampler.length), seeds, **options | {"replay": True}
        )
    outcomes = (
        [{} for _ in batch] if condition.draws is None else _outcomes(model, batch, prompts, sampler.length, seeds)
    )
    answers: list[Answer] = []
    told = zip(batch, prompts, done, passed, outcomes, seeds, strict=True)
    for prepared, prompt, one, true, outcome, seed in told:
        prediction, sample = model.text(one.answer), prepared.job.sample
        if passages:
            scores = {} if condition.replay else score_gap(sample, prompt, one.answer, prediction)
            scores["bits"] = float(-np.log2(np.maximum(true.confidence, np.finfo(np.float32).tiny)).mean())
        else:
            scores = score(prediction, sample.answers) | outcome
            if condition.patch and sample.answers:
                scores = scores | {"patched": _patched(model, prepared, prompt, sampler.length, seed)}
            if condition.attribution:
                case = Case.of(model, prompt, sampler, cast(Generation, one), seed)  # a Trace has what it needs
                scores = scores | _attributed(study, prepared, case, prediction)
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
    [plan] = [plan for plan in study.models if plan.name == unit.model]
    forked = unit.control == UNTRAINED and locate(plan.source, plan.revision).fork is not None
    return BEFORE_FORK if forked else unit.control


def _attributed(study: Study, prepared: Prepared, case: Case, prediction: str) -> dict[str, Any]:
    """Where the answer came from, by the methods of the condition, and where it could: gold, and where it stands."""
    job = prepared.job
    asked = set(job.condition.attribution)
    shown = job.task.under(job.condition, job.sample, study.seed).documents
    found = record(case, [name for name in job.condition.attribution if name in METHODS], "sentences" in asked,
                   "removal" in asked)  # fmt: skip
    answered = case.canvas.marks.get("gold_answer", ())
    found["gold"] = [bool(document.gold) for document in shown]
    found["stands"] = [mentions(f"{document.title} {document.text}", [prediction]) for document in shown]
    found["gold_sentences"] = [any(one.start <= place < one.stop for place in answered) for one in case.sentences]
    return {"attribution": found} | signals(case)


def _outcomes(
    model: Model, batch: Sequence[Prepared], prompts: Sequence[Prompt], slots: int, seeds: Sequence[int]
) -> list[dict[str, float]]:
    """What edits do to the right answer, the first that is accepted, of each sample; nothing where there is none."""
    condition, found = batch[0].job.condition, [dict[str, float]() for _ in batch]
    known = [place for place, prepared in enumerate(batch) if prepared.job.sample.answers]
    golds = {place: _gold(model, batch[place], prompts[place])[:slots] for place in known}
    known = [place for place in known if len(golds[place])]
    for _, alike in groupby(sorted(known, key=lambda place: len(golds[place])), key=lambda place: len(golds[place])):
        places = [*alike]  # answers of one length, a step per token: none waits for a longer one
        asked, answers = [prompts[place] for place in places], [golds[place] for place in places]
        told = replayed(model, asked, answers, slots, [seeds[place] for place in places], condition.edits)
        for place, one in zip(places, told, strict=True):
            found[place] |= one
    if condition.draws and not model.is_arm:
        for place in (place for place in known if prompts[place].slots is None):
            prompt = prompts[place]
            pair = Pair(tuple(prompt.ids.tolist()), tuple(golds[place].tolist()), prompt)
            [bound] = log_likelihoods(model, [pair], condition.draws, seeds[place] % 2**32, len(batch), condition.edits)
            found[place]["bound"] = bound
    return found


def _gold(model: Model, prepared: Prepared, prompt: Prompt) -> Ids:
    """The tokens of the right answer, the first that is accepted."""
    answer = prepared.job.sample.answers[0]
    answer = answer if prompt.text[-1:].isspace() else f" {answer}"
    return np.array(model.tokenizer(answer, add_special_tokens=False)["input_ids"], np.int64)


def _patched(model: Model, prepared: Prepared, prompt: Prompt, slots: int, seed: int) -> dict[str, Any]:
    """By kind, log-probabilities of the right answer as it is replayed and patched, [layer][step] from each donor."""
    answer, found = _gold(model, prepared, prompt)[: min(slots, MOST_TOKENS)], {}
    for kind in prepared.job.condition.patch:
        true, control = (
            patch(model, prompt, donor, answer, slots=slots, outputs=kind == "outputs", seed=seed)
            for donor in prepared.donors
        )
        maps = {"patched": true.patched.tolist(), "control": control.patched.tolist()}
        found[kind] = {"prompt": true.prompt, "donor": true.donor} | maps
    return found


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
