"""Asking models questions: `evaluate`, `table`, and what `stress` shares with them. A study is written and run."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from floatscope.cli.shared import FLAG, REPEATED, LoadFlags
from floatscope.cli.studies import UNDIVIDED, DivisionFlags, exit_code, refuse_unknown_models, run_shown
from floatscope.errors import UserError
from floatscope.registry import did_you_mean

if TYPE_CHECKING:
    from floatscope.study.plan import Curve, TaskPlan


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Asking(LoadFlags):
    """What evaluate and stress have in common."""

    model: Annotated[tuple[str, ...], REPEATED]
    """A folder, a .gguf file, a hub id or a twin; repeat for more. NAME=SOURCE gives it a name."""
    task: Annotated[tuple[str, ...], REPEATED]
    """world[:KIND[:DOCUMENTS]] (rag, twohop, ...), a .json or .jsonl file, hf:NAME, or passages:FILE for texts to fill
    in; repeat for more. NAME=SOURCE gives it a name."""
    out: Path
    """The run folder; one that is there is taken up where it stopped."""
    limit: int = 100
    """Samples of each task."""
    seed: int = 0
    """Seed of everything."""
    length: int = 32
    """Answer slots."""
    steps: int | None = None
    """Denoising steps; default: one per slot."""
    trace: int = 0
    """Keep traces of so many samples of each task and condition, with their controls."""
    trace_wrong: int = 0
    """Trace so many samples that a model got wrong and as many right ones, of each task and condition, when all answers
    are there."""
    batch: int = 16
    """Samples run together."""
    workers: int = 1
    """Processes that share the work, each with its own copy of a model: for small models on a CPU."""
    corpus: str | None = None
    """JSON or JSONL file of {title, text}, or a folder of text files: where distractors and retrieved documents come
    from."""
    retrieve: int | None = None
    """Retrieve so many documents from the corpus in place of the samples' own."""
    retriever: str = "bm25"
    """How they are found: bm25, dense or dense:MODEL."""
    shape: str | None = None
    """How the files are written, where it is not recognised."""
    prompt: str = "default"
    """default, paper, or the path of a template of your own."""
    raw: Annotated[bool, FLAG] = False
    """Leave out the chat template, where the tokenizer has one."""
    skip_wrong: Annotated[bool, FLAG] = False
    """Leave out records that cannot be read, instead of stopping."""
    retry: Annotated[bool, FLAG] = False
    """Run units again that failed before."""
    where: DivisionFlags = UNDIVIDED


def evaluate(asking: Asking, *, documents: str | None = None, edit: Annotated[tuple[str, ...], REPEATED] = ()) -> int:
    """Answer questions with and without documents, or fill in passages; print scores and comparisons with intervals.

    Example: floatscope evaluate --model twin-arm --model twin-llada --task world --documents 0,5 --length 8 --out runs/qa

    Parameters
    ----------
    documents
        Numbers of documents to show; own: each sample's, as they are given. Default: 0,own, or 0,5 in the world alone.
    edit
        A change of attention in all answers, such as "block doc 2"; repeat for more. `intervene` has controls too.
    """  # noqa: E501  an example must stay on one line to be copied
    from floatscope.study.plan import Curve

    tasks = [_task(text, asking) for text in asking.task]
    questions = tuple(task for task in tasks if not task.is_passages)
    curves = []
    if questions:
        default = "0,5" if all(task.from_world for task in questions) else "0,own"
        curves.append(Curve("documents", documents or default, tuple(task.name for task in questions)))
    for task in tasks:
        if task.is_passages:
            curves.append(Curve("passage", task.layouts, (task.name,)))
    return ask("evaluate", asking, curves, edit)


def table(run: Path, /, *, format: Literal["markdown", "latex", "csv"] = "markdown") -> int:
    """Print the tables of a run: models x tasks with intervals, gains, comparisons, guesses, stress curves.

    Exit code 3: the run is not finished, and the tables are of what is done.

    Example: floatscope table runs/qa --format latex

    Parameters
    ----------
    run
        The run folder.
    format
        How the tables are written.
    """
    from floatscope.study.reporting import tables_text
    from floatscope.study.store import Run

    found = Run(run)
    print(tables_text(found, format))
    return exit_code(found)


def compare(first: Path, second: Path, /) -> int:
    """Put two runs side by side, paired by unit: what was set otherwise, what changed, which samples turned.

    Example: floatscope compare runs/before runs/after

    Parameters
    ----------
    first
        A run folder.
    second
        Another one, with some of the same models, tasks, conditions and samples. Where each has one model, its name
        does not matter.
    """
    from floatscope.study.comparing import comparison_text
    from floatscope.study.store import Run

    print(comparison_text(Run(first), Run(second)))
    return 0


def failures(
    run: Path,
    /,
    *,
    which: Literal["wrong", "right", "disagree", "another-document", "nowhere", "all"] = "wrong",
    model: str | None = None,
    task: str | None = None,
    condition: str | None = None,
    out: Path | None = None,
) -> int:
    """Print the answers of a run that are wrong: question, gold, prediction, and the document in which it stands.

    Documents are counted from 1, as they were shown. The counts come first, by task, condition and model.

    Example: floatscope failures runs/qa --which another-document

    Parameters
    ----------
    run
        The run folder.
    which
        wrong, right, all; disagree: right under one model and wrong under another; another-document, nowhere: where the
        prediction stands.
    model
        Answers of this model only.
    task
        Of this task only.
    condition
        Under this condition only.
    out
        A .csv or .parquet file to write the answers to, instead of printing them.
    """
    from floatscope.reports.answers import failures_text, write_units
    from floatscope.study.failures import chosen, counts, unit_frame
    from floatscope.study.store import Run

    frame = unit_frame(Run(run))
    for column, wanted in (("model", model), ("task", task), ("condition", condition)):
        if wanted is not None and wanted not in (known := frame[column].unique(maintain_order=True).to_list()):
            raise UserError(f"The run {run} has no {column} {wanted!r}: {did_you_mean(wanted, known)}.")
    found = chosen(frame, which)  # before models are left out: they may disagree
    for column, wanted in (("model", model), ("task", task), ("condition", condition)):
        if wanted is not None:
            frame, found = (part.filter(part[column] == wanted) for part in (frame, found))
    if out is None:
        print(failures_text(found, counts(frame)))
    else:
        write_units(found, out)
        print(f"floatscope: {found.height} answers are in {out}", file=sys.stderr)
    return 0


def ask(name: str, asking: Asking, curves: list[Curve], edits: tuple[str, ...] = ()) -> int:
    """Write the study of the flags, each curve for the tasks that it fits, run it, print its tables."""
    from floatscope.qa.stressors import STRESSORS
    from floatscope.study.plan import ModelPlan, PromptPlan, Study

    tasks = tuple(_task(text, asking) for text in asking.task)
    for place, curve in enumerate(curves):
        row = STRESSORS[curve.stressor]
        fit = tuple(  # no other number of gold documents than it needs, as far as known; questions or passages
            task.name
            for task in tasks
            if (row.gold_documents is None or task.gold_documents in (None, row.gold_documents))
            and row.passages in (None, task.is_passages)
        )
        if not curve.tasks and len(fit) not in (0, len(tasks)):
            curves[place] = replace(curve, tasks=fit)
    study = Study(
        name=name,
        models=tuple(ModelPlan(*_named(text), **asking.how) for text in asking.model),
        tasks=tasks,
        conditions=tuple(curves),
        seed=asking.seed,
        limit=asking.limit,
        slots=asking.length,
        steps=asking.steps,
        batch=asking.batch,
        workers=asking.workers,
        traces=asking.trace,
        trace_wrong=asking.trace_wrong,
        prompt=PromptPlan(asking.prompt, asking.raw),
        edits=edits,
    )
    refuse_unknown_models(study)
    return run_shown(study, asking.out, asking.retry, asking.where.division)


def _named(text: str) -> tuple[str, str]:
    """NAME=SOURCE, or a source that is its own name."""
    name, found, source = text.partition("=")
    return (name, source) if found and name and source else (text, text)


def _task(text: str, asking: Asking) -> TaskPlan:
    from floatscope.study.plan import TaskPlan

    name, source = _named(text)
    plan = TaskPlan(source, "" if name == source else name)
    if plan.from_world or plan.is_passages:
        return replace(plan, skip_wrong=asking.skip_wrong and not plan.from_world)
    return replace(
        plan, shape=asking.shape, corpus=asking.corpus, retrieve=asking.retrieve, retriever=asking.retriever,
        skip_wrong=asking.skip_wrong,
    )  # fmt: skip
