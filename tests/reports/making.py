"""A page's content made of small full-matrix runs: two models, a control, all analyses, Table 1, a stress curve."""

import dataclasses
from collections.abc import Iterable
from functools import cache

import polars as pl

from floatscope.analysis import ANALYSES, Controls, Options, Result, analyze
from floatscope.reports.page import Content
from floatscope.traces import Trace
from tests.traces.full_matrices import full_run, to_trace

MODELS = ("diffuser", "writer")


def made_trace(model: str, seed: int, control: str = "", **settings) -> Trace:
    run = full_run(seed=seed, kind="arm" if model == "writer" else "mdm", **settings)
    run.canvas[run.prompt_length] = run.canvas[10]
    about = {
        "sample": f"sample {seed % 10}",
        "task": "ab"[seed % 2],
        "condition": "documents/5",
        "question": "Who <rules> & why?",
        "answers": ["Ann"],
        "accuracy": float(seed % 2),
        "control": control,
        "control_of": model,
    }
    return dataclasses.replace(to_trace(run, model=model), metadata=about)


@cache
def made_traces() -> tuple[Trace, ...]:
    own = [made_trace(model, seed) for model in MODELS for seed in range(4)]
    return (*own, *(made_trace(model, seed + 10, "untrained", sharpness=0.1) for model in MODELS for seed in range(4)))


@cache
def made_results() -> dict[str, Result]:
    own = [trace for trace in made_traces() if not trace.metadata["control"]]
    controls = Controls(untrained=[trace for trace in made_traces() if trace.metadata["control"]])
    return {name: analyze(name, own, Options(detector="zscore(1)", draws=50), controls) for name in ANALYSES}


SCORES = dict.fromkeys(("model", "task", "condition", "stressor"), pl.String) | {
    "documents": pl.Int64,
    **dict.fromkeys(("metric", "statistic", "beside"), pl.String),
    **dict.fromkeys(("value", "low", "high"), pl.Float64),
    "n": pl.Int64,
    "p": pl.Float64,
    **dict.fromkeys(("panel", "axis", "x"), pl.String),
}


def score_row(model: str, statistic: str, *numbers: float | None, **labels) -> dict:
    """A row of accuracy with documents, unless the labels say otherwise; numbers: value, low, high, and p."""
    row = {"model": model, "task": "a", "stressor": "documents", "metric": "accuracy", "statistic": statistic, "n": 40}
    row |= dict(zip(("value", "low", "high", "p"), numbers, strict=False)) | labels
    return {"condition": f"documents/{row.get('documents')}"} | row


def score_table(rows: Iterable[dict]) -> pl.DataFrame:
    """Rows as the long table of scores that a run gives."""
    return pl.DataFrame(list(rows), schema=SCORES)


def made_scores() -> pl.DataFrame:
    rows = []
    for place, model in enumerate(MODELS):
        for statistic, documents, value in (("score", 0, 0.1), ("score", 5, 0.8), ("gain", 5, 0.7)):
            numbers = (value - place / 20, value - 0.1, value + 0.1)
            rows.append(score_row(model, statistic, *numbers, documents=documents))
    rows += [score_row("random entity", "guess", 0.05, 0.0, 0.2, documents=count) for count in (0, 5)]
    for model in MODELS:
        for condition, value in (("closed-book", 0.1), ("oracle", 1.0)):
            rows.append(score_row(model, "score", value, 0.0, 1.0, stressor="baseline", condition=condition))
        for level in (0, 2, 10):
            curve = {"panel": "a, topical distractors, gold kept", "axis": "distractors", "x": str(level)}
            about = {"stressor": "noise", "condition": f"noise/topical/kept/{level}"} | curve
            rows.append(score_row(model, "score", 0.9 - level / 20, 0.3, 0.95, **about))
    return score_table(rows)


def made_attribution() -> pl.DataFrame:
    """How far two methods can be believed, as `Run.attribution` gives it."""
    about = {"task": "a", "condition": "attribution/3", "answers": "all", "step": None, "n": 20}

    def row(model: str, method: str, measure: str, value: float, gap: float, guess: float, **other) -> dict:
        numbers = {"value": value, "low": value - gap, "high": value + gap, "guess": guess}
        return about | {"model": model, "method": method, "measure": measure} | numbers | other

    rows = [
        row("diffuser", "leave_one_out", "top_gold", 0.9, 0.1, 1 / 3),
        row("diffuser", "leave_one_out", "top_stands", 0.85, 0.15, 1 / 3),
        row("diffuser", "leave_one_out", "removal", 12, 1, 6.5),
        row("diffuser", "attention", "top_gold", 0.6, 0.1, 1 / 3),
        row("diffuser", "attention", "removal", 8, 1, 6.5),
        row("diffuser", "support", "auroc", 0.7, 0.1, 0.5),
        row("writer", "leave_one_out", "removal", 10, 1, 6.5),
        row("writer", "attention", "removal", 9, 1, 6.5),
        row("writer", "support", "auroc", 0.55, 0.15, 0.5, high=0.8),
        row("diffuser", "leave_one_out", "top_gold", 0.2, 0.1, 1 / 3, answers="wrong"),
        *(row("diffuser", "leave_one_out", "top_stands", step / 4, 0.1, 1 / 3, step=step) for step in range(4)),
    ]
    kinds = dict.fromkeys(("model", "task", "condition", "answers"), pl.String) | {"step": pl.Int64}
    kinds |= dict.fromkeys(("method", "measure"), pl.String)
    return pl.DataFrame(
        rows, schema=kinds | dict.fromkeys(("value", "low", "high", "guess"), pl.Float64) | {"n": pl.Int64}
    )


def made_content() -> Content:
    return Content(
        title="a study",
        question="Who <gains> more?",
        summary=("diffuser gains 0.7.", "Nothing else."),
        models=MODELS,
        scores=made_scores(),
        notes=("n = 40 samples per cell.",),
        attribution=made_attribution(),
        traces=made_traces(),
        results=made_results(),
        manifest={"seed": 3, "versions": {"floatscope": "1.2.3"}},
        study='name = "<demo>"',
        command="floatscope study demo",
    )
