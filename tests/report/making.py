"""A page's content made of small full-matrix runs: two models, a control, all analyses, Table 1, a stress curve."""

import dataclasses
from functools import cache

import polars as pl

from floatscope.analysis import ANALYSES, Controls, Options, Result, analyze
from floatscope.report.page import Content
from floatscope.traces import Trace
from tests.traces.full_matrices import full_run, to_trace

MODELS = ("diffuser", "writer")


def made_trace(model: str, seed: int, control: str = "", **settings) -> Trace:
    run = full_run(seed=seed, kind="arm" if model == "writer" else "mdm", **settings)
    run.canvas[run.prompt_length] = run.canvas[10]
    about = {
        "sample": f"sample {seed % 10}",
        "task": "ab"[seed % 2],
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


def made_headline() -> pl.DataFrame:
    rows = []
    for place, model in enumerate((*MODELS, "guess: random entity")):
        for documents, value in (("0", 0.1), ("5", 0.8), ("gain of 5", 0.7)):
            if not (model.startswith("guess") and documents.startswith("gain")):
                known = (value - place / 20, value - 0.1, value + 0.1, 40)
                rows.append(("a", model, documents, "Acc", *known))
    names = ("task", "model", "documents", "metric", "value", "low", "high", "samples")
    return pl.DataFrame(rows, schema=names, orient="row")


def made_stress() -> pl.DataFrame:
    rows = [
        (
            "noise",
            "a",
            "a, topical distractors, gold kept",
            "distractors",
            str(level),
            model,
            0.9 - level / 20,
            0.3,
            0.95,
            40,
            0.1,
            1.0,
        )
        for model in MODELS
        for level in (0, 2, 10)
    ]
    where = ("stressor", "task", "panel", "axis", "x", "model")
    names = (*where, "value", "low", "high", "samples", "closed-book", "oracle")
    return pl.DataFrame(rows, schema=names, orient="row")


def made_content() -> Content:
    return Content(
        title="a study",
        question="Who <gains> more?",
        summary=("diffuser gains 0.7.", "Nothing else."),
        models=MODELS,
        headline=made_headline(),
        headline_notes=("n = 40 samples a cell.",),
        traces=made_traces(),
        results=made_results(),
        stress=made_stress(),
        manifest={"seed": 3, "versions": {"floatscope": "1.2.3"}},
        study='name = "<demo>"',
        command="floatscope study demo",
    )
