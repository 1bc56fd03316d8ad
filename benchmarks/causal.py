"""The chapter "What attention does" of docs/findings.md, from runs of the studies causal and causal-smollm2.

    floatscope study heads && floatscope study causal
    python benchmarks/causal.py runs/causal --write docs/findings.md
    python benchmarks/causal.py runs/causal runs/causal-smollm2 --patch 20 --write docs/findings.md

Prints the rules of reading as the study file has them, with their verdicts; then accuracy under every edit beside what
it is held to, the other outcomes, and the attention that edits took away. --patch also replays so many questions with
the gold document exchanged for another of equal length, and prints which layers and steps bring the answer back.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import floatscope as fs
from floatscope.errors import UserError
from floatscope.qa.world import World
from floatscope.report.tables import readings
from floatscope.study.store import Run

START, END = "<!-- what attention does: benchmarks/causal.py -->", "<!-- end of what attention does -->"
PATCHED = ("twin-arm", "twin-dream", "twin-llada")


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def grid(columns: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *rows))


def accuracy_table(scores: pl.DataFrame, models: list[str]) -> str:
    """Accuracy under every dose, and after it the effects beside what it is held to; a star where p is below .05."""
    effects = scores.filter(statistic="effect", metric="accuracy")
    rows = []
    for (panel, x), part in effects.group_by(["panel", "x"], maintain_order=True):
        cells = []
        for model in models:
            own = part.filter(model=model)
            score = scores.filter(
                statistic="score", metric="accuracy", model=model, condition=own["condition"][0], task=own["task"][0]
            )
            told = [
                f"{row['beside']} {100 * row['value']:+.1f}{'*' if row['p'] < 0.05 else ''}"
                for row in own.drop_nulls("value").iter_rows(named=True)
            ]
            cells.append(f"{percent(score['value'][0])} ({'; '.join(told)})" if told else "")
        rows.append([f"{panel}, {x}", *cells])
    return grid(["edit and dose", *models], rows)


def outcome_table(scores: pl.DataFrame, models: list[str]) -> str:
    """Means of the other outcomes under every edit and twin, not differences."""
    wanted = ["log_probability", "kl", "removed", "bound"]
    own = scores.filter(pl.col("metric").is_in(wanted), statistic="score", stressor="edit")
    rows = []
    for (condition, metric), part in own.group_by(["condition", "metric"], maintain_order=True):
        values = {row["model"]: row["value"] for row in part.iter_rows(named=True)}
        shown = [
            ""
            if values.get(model) is None
            else percent(values[model])
            if metric == "removed"
            else f"{values[model]:.2f}"
            for model in models
        ]
        rows.append([str(condition).removeprefix("edit/"), str(metric).replace("_", "-"), *shown])
    return grid(["edit", "mean of", *models], rows)


def chapter_of(run: Run) -> Iterator[str]:
    """The part of the chapter that one run gives."""
    if run.unfinished:
        raise UserError(run.unfinished)
    scores, models = run.scores(), [model.name for model in run.study.models]
    counts = scores.filter(statistic="effect")["n"]
    effects = scores.filter(statistic="effect", metric="accuracy")
    table = readings(scores, run.study.rules)
    yield f"### {run.study.name}: {run.study.description}"
    comparisons = f"{effects.height} comparisons per outcome"
    yield f"`floatscope study {run.study.name}`; n = {counts.max()} questions per cell, {comparisons}."
    yield "Rules of reading, as they stand in the study file, which was written before the run:"
    yield "\n".join(f"- **{rule.claim}**: {rule.sentence}." for rule in run.study.rules)
    yield "What the run says by them (effect with its 95 % interval at the dose that decides, p by Holm's method):"
    yield grid(["claim", *models], [[row[0], *row[2:]] for row in table.rows])
    yield (
        "Accuracy in percent under each edit, and in brackets its effect in points beside each thing it is held to; "
        "* p < .05."
    )
    yield accuracy_table(scores, models)
    yield "Other outcomes (log-probability and its bound in nats, KL in nats, removed attention in percent)."
    yield outcome_table(scores, models)


def exchanged(model: fs.Model, count: int) -> Iterator[tuple[Any, Any, np.ndarray]]:
    """Prompt with another document in place of the gold one, the true prompt (the donor), and the answer's tokens."""
    samples = World(0).samples("rag", 20 * count, documents=5, seed=2)
    for sample in samples:
        place = next(number for number, document in enumerate(sample.documents) if document.gold)
        donor = fs.build_prompt(model.tokenizer, sample.question, sample.documents, sample.answers)
        for other in samples:
            gold = next(document for document in other.documents if document.gold)
            if other.id == sample.id or any(answer in gold.text for answer in sample.answers):
                continue
            documents = [*sample.documents]
            documents[place] = replace(gold, gold=True)
            prompt = fs.build_prompt(model.tokenizer, sample.question, documents, sample.answers)
            if len(prompt.ids) == len(donor.ids):
                answer = model.tokenizer(f" {sample.answers[0]}", add_special_tokens=False)["input_ids"]
                yield prompt, donor, np.array(answer)
                break


def patch_maps(count: int) -> Iterator[str]:
    """Layer by step, the mean share of the way back to the answer's log-probability, for both kinds of patch."""
    yield "### Which layers and steps bring the answer back"
    yield (
        f"`fs.patch`: {count} questions whose gold document is exchanged for another of equal length; at one layer and "
        "step the rows that may fill a slot follow the run with the gold document. Patterns: they look where its rows "
        "look. Outputs: they also take up what its rows take up. The share of the lost log-probability that comes back "
        "(means over questions), in percent, for the first two tokens of the answer."
    )
    for name in PATCHED:
        model = fs.load(name)
        for outputs in (False, True):
            found = [
                fs.patch(model, prompt, donor, answer[:2], slots=8, outputs=outputs)
                for prompt, donor, answer in islice(exchanged(model, count), count)
                if len(answer) >= 2
            ]
            way = sum(one.donor - one.prompt for one in found)  # a ratio of means: single ways may be near 0
            mean = np.sum([one.patched - one.prompt for one in found], axis=0) / way
            rows = [[str(layer), *(f"{100 * value:.0f}" for value in row)] for layer, row in enumerate(mean)]
            yield f"{name}, {'outputs' if outputs else 'patterns'} (n = {len(found)}):"
            yield grid(["layer", *(f"step {step}" for step in range(mean.shape[1]))], rows)


def write_between(path: Path, text: str) -> None:
    """Put the chapter between its markers, or at the end of a file that has none."""
    old = path.read_text(encoding="utf-8")
    before, _, rest = old.partition(START)
    after = rest.partition(END)[2] if rest else ""
    path.write_text(f"{before.rstrip()}\n\n{START}\n{text}\n{END}\n{after.lstrip()}", encoding="utf-8")


def main() -> None:
    """Parse, gather, print or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="folders of finished runs")
    parser.add_argument("--patch", type=int, default=0, help="questions to patch on the twins; 0: none")
    parser.add_argument("--write", type=Path, help="the file whose chapter is replaced")
    arguments = parser.parse_args()
    parts = ["## What attention does"]
    for folder in arguments.runs:
        parts += chapter_of(Run(folder))
    parts += patch_maps(arguments.patch) if arguments.patch else ()
    text = "\n\n".join(parts)
    print(text)
    if arguments.write:
        write_between(arguments.write, text)


if __name__ == "__main__":
    main()
