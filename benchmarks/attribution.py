"""The tables of "Where answers come from" in docs/findings.md, from runs of the studies attribution and
attribution-smollm2.

    floatscope study attribution
    python benchmarks/attribution.py runs/attribution runs/attribution-smollm2 --distances 20 --write docs/findings.md

Heads are chosen on one half of the samples and measured on the other, and the other way round; intervals are bootstrap
ones over samples. --distances also asks the twins so many questions, and tells how far hiding a document is from
cutting it, and rollout of pooled regions from that of tokens.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

import floatscope as fs
from findings import write
from floatscope.analysis.figure import interval_text
from floatscope.analysis.flow import region_rollout
from floatscope.attribution import explain
from floatscope.attribution.case import Case
from floatscope.attribution.leave_one_out import NOTHING
from floatscope.errors import UserError
from floatscope.qa.tasks import read_task
from floatscope.reports.sources import MEASURES, source_figure, source_tables
from floatscope.reports.tables import Table, markdown
from floatscope.statistics import spearman
from floatscope.study.store import Run

TWINS = ("twin-arm", "twin-dream", "twin-llada")
SHOWN = "top_stands"


def main() -> None:
    """Print the tables of each run, or put them between the markers of a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="folders of finished runs")
    parser.add_argument("--write", type=Path, help="a page with the markers of attribution")
    parser.add_argument("--distances", type=int, default=0, help="questions to the twins; 0: none")
    arguments = parser.parse_args()
    parts = [part for folder in arguments.runs for part in chapter(Run(folder))]
    parts += distances(arguments.distances) if arguments.distances else ()
    text = "\n".join(parts).rstrip()
    if arguments.write is None:
        print(text)
    else:
        write(arguments.write, "attribution", text)


def chapter(run: Run) -> Iterator[str]:
    """What one run says: methods by measures, right and wrong answers, steps, and signals."""
    if run.unfinished:
        raise UserError(run.unfinished)
    table, models = run.attribution(), [model.name for model in run.study.models]
    limit = run.study.limit
    yield f"### {run.study.name}: {run.study.description}\n"
    yield f"`floatscope study {run.study.name} --limit {limit}`. {source_figure(table, models).finding}\n"
    for one in source_tables(table):
        yield markdown(Table(one.title, one.columns, one.rows))
    yield markdown(apart(table, models))
    yield from (markdown(one) for one in by_step(table, models))
    yield markdown(signals(table, models))


def apart(table: pl.DataFrame, models: list[str]) -> Table:
    """Right answers beside wrong ones."""
    own = table.filter(pl.col("step").is_null(), measure=SHOWN)
    columns, cells = ["method"], []
    for model in models:
        for answers in ("right", "wrong"):
            part = own.filter(model=model, answers=answers)
            columns.append(f"{model}, {answers} (n = {part['n'].max() or 0})")
            cells.append({row["method"]: cell(row) for row in part.iter_rows(named=True)})
    methods = own["method"].unique(maintain_order=True).to_list()
    rows = [[method, *(known.get(method, "") for known in cells)] for method in methods]
    return Table(f"Right and wrong answers apart: {MEASURES[SHOWN]}", columns, rows)


def by_step(table: pl.DataFrame, models: list[str]) -> Iterator[Table]:
    """The tokens that committed at each step, a table for each model."""
    for model in models:
        own = table.filter(model=model, measure=SHOWN).drop_nulls("step")
        steps = own["step"].unique().sort().to_list()
        cells = {(row["method"], row["step"]): f"{row['value']:.2f}" for row in own.iter_rows(named=True)}
        counts = {step: own.filter(step=step)["n"].max() for step in steps}
        rows = [
            [method, *(cells.get((method, step), "") for step in steps)]
            for method in own["method"].unique(maintain_order=True)
        ]
        columns = ["method", *(f"step {step} (n = {counts[step]})" for step in steps)]
        yield Table(f"{model}, by the step at which tokens committed: {MEASURES[SHOWN]}", columns, rows)


def signals(table: pl.DataFrame, models: list[str]) -> Table:
    """Support beside confidence and entropy."""
    own = table.filter(measure="auroc")
    names = own["method"].unique(maintain_order=True).to_list()
    cells = {(row["model"], row["method"]): cell(row) for row in own.iter_rows(named=True)}
    rows = [[model, *(cells.get((model, name), "") for name in names)] for model in models]
    title = "Chance that a right answer is above a wrong one (AUROC; of entropy, below)"
    return Table(title, ["model", *names], rows)


def cell(row: dict[str, float]) -> str:
    return "" if row["value"] is None else interval_text(row["value"], row["low"], row["high"])


def distances(count: int) -> Iterator[str]:
    """Hidden and cut, pooled and exact, on the same questions with five documents."""
    samples = read_task("world:rag:5", limit=count, seed=0).samples
    hidden, rolled = [], []
    for name in TWINS:
        model = fs.load(name)
        sampler = model.sampler({"steps": 8}, length=8)
        prompts = [fs.build_prompt(model.tokenizer, one.question, one.documents, one.answers) for one in samples]
        pairs = zip(samples, prompts, strict=True)
        hidden.append([name, *means(np.array([cutting(model, sampler, *pair) for pair in pairs]))])
        traces = fs.trace(model, prompts, sampler, keep="rollout")
        own = [pooling(trace, one) for trace, one in zip(traces, samples, strict=True)]
        rolled.append([name, *means(np.array(own))])
    about = f"n = {count} questions with five documents"
    columns = ["model", "same top document", "difference, nats", "rank correlation"]
    yield markdown(Table(f"A document hidden at its positions, and cut from the prompt ({about})", columns, hidden))
    columns = ["model", "difference", "correlation over documents", "lead of the gold document, exact", "pooled"]
    title = f"Rollout from the answer to a document at the last step: of tokens, exact, and of pooled regions ({about})"
    yield markdown(Table(title, columns, rolled))


def means(values: np.ndarray) -> list[str]:
    return [f"{value:.3f}" for value in values.mean(0)]


def cutting(model: fs.Model, sampler: fs.Sampler, sample: fs.Sample, prompt: fs.Prompt) -> list[float]:
    """Whether the top document is the same, the mean difference of scores, and their rank correlation."""
    answer = fs.generate(model, prompt, sampler)
    case = Case.of(model, prompt, sampler, answer, sampler.seed)
    hidden, before, falls = explain(case, "leave_one_out").documents, case.log_probabilities([NOTHING]).sum(), []
    for place in range(len(sample.documents)):
        documents = sample.documents[:place] + sample.documents[place + 1 :]
        short = fs.build_prompt(model.tokenizer, sample.question, documents, sample.answers)
        canvas = np.concatenate([short.ids, answer.canvas[len(prompt.ids) :]])
        moved = replace(answer, canvas=canvas, slots=answer.slots + len(short.ids) - len(prompt.ids))
        logs = Case.of(model, short, sampler, moved, sampler.seed).log_probabilities([NOTHING])
        falls.append(before - logs.sum())
    cut = np.array(falls)
    return [float(hidden.argmax() == cut.argmax()), float(np.abs(hidden - cut).mean()), float(spearman(hidden, cut))]


def pooling(trace: fs.Trace, sample: fs.Sample) -> list[float]:
    """The mean difference over documents, their correlation, and by how much the gold document leads in each form."""
    labels = list(trace.region_labels)
    places = [labels.index(f"doc {number}") for number in range(1, len(sample.documents) + 1)]
    answer, gold = labels.index("answer"), np.array([bool(document.gold) for document in sample.documents])
    exact = trace.region_rollout()[-1, -1, answer][places]
    pooled = region_rollout(trace.region_matrix(head_mean=True)[-1].astype(float))[answer][places]
    leads = [float(one[gold].mean() - one[~gold].mean()) for one in (exact, pooled)]
    return [float(np.abs(exact - pooled).mean()), float(np.corrcoef(exact, pooled)[0, 1]), *leads]


if __name__ == "__main__":
    main()
