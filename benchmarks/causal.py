"""The chapter "What attention does" of docs/findings.md, from runs of the studies causal and causal-smollm2.

    floatscope study heads && floatscope study causal
    python benchmarks/causal.py runs/causal --write docs/findings.md
    floatscope study heads-smollm2 && floatscope study causal-smollm2
    python benchmarks/causal.py runs/causal-smollm2 --write docs/findings.md

Prints the rules of reading as the study file has them, with their verdicts; ours beside the published figures; accuracy
under every edit beside what it is held to; the other outcomes; and the maps of patches, where the run has some. Each
run's part stands between markers of its own, so that one can be written again without the other.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from floatscope.errors import UserError
from floatscope.reports.tables import patches, readings
from floatscope.study.store import Run

HEADING = "## What attention does"
ARMS = ("twin-arm", "twin-parent", "smollm2-arm", "smollm2-135m")
FORKS = ("twin-arm", "twin-dream", "twin-llada", "smollm2-arm", "smollm2-dream", "smollm2-llada")
PUBLISHED = (
    "Published for models of 8 billion parameters on GSM8K, with the top 1, 5 and 10 sinks masked (arXiv 2510.15731): "
    "Llama falls from .85 to .02, LLaDA from .76 to .75, .73 and .55, Dream from .82 to .79, .78 and .75: the ARM "
    "cannot do without its sinks, and the MDMs can."
)


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def grid(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *rows))


def accuracy_table(scores: pl.DataFrame, models: list[str]) -> str:
    """Accuracy under every dose, and after it the effects beside what it is held to; a star where p is below .05."""
    effects = scores.filter(statistic="effect", metric="accuracy").drop_nulls("value")
    rows = []
    for (panel, x), part in effects.group_by(["panel", "x"], maintain_order=True):
        cells = []
        for model in models:
            own = part.filter(model=model)
            place = {"model": model, "condition": part["condition"][0], "task": part["task"][0]}
            score = scores.filter(statistic="score", metric="accuracy", **place)
            told = [
                f"{row['beside']} {100 * row['value']:+.1f}{'*' if row['p'] < 0.05 else ''}"
                for row in own.iter_rows(named=True)
            ]
            cells.append(f"{percent(score['value'][0])} ({'; '.join(told)})" if told else "")
        rows.append([f"{panel}, {x}", *cells])
    return grid(["edit and dose", *models], rows)


def outcome_table(scores: pl.DataFrame, models: list[str]) -> str:
    """Means of the other outcomes under every edit and twin, not differences."""
    wanted = ["log_probability", "kl", "removed", "bound"]
    own = scores.filter(pl.col("metric").is_in(wanted), statistic="score", stressor="edit")
    rows = []
    for (task, condition, metric), part in own.group_by(["task", "condition", "metric"], maintain_order=True):
        values = dict(part.drop_nulls("value").select("model", "value").iter_rows())
        shown = [
            "" if model not in values else percent(values[model]) if metric == "removed" else f"{values[model]:.2f}"
            for model in models
        ]
        rows.append([str(task), str(condition).removeprefix("edit/"), str(metric).replace("_", "-"), *shown])
    return grid(["task", "edit", "mean of", *models], rows)


def beside_published(scores: pl.DataFrame, models: list[str]) -> Iterator[str]:
    """Accuracy without the 1, 5 and 10 tokens that receive most, what these held, and whether it is as published."""
    own = scores.filter(pl.col("condition").str.contains(r"^edit/(none|block top/\d+/all)$"), statistic="score")
    own = own.filter((pl.col("condition") != "edit/none").any().over("task"))  # unedited on the same questions
    found: dict[tuple[str, str, str], float] = {
        (model, condition.split("/")[2] if "top" in condition else "0", metric): value
        for model, condition, metric, value in own.drop_nulls("value")
        .select("model", "condition", "metric", "value")
        .iter_rows()
    }
    doses = sorted({dose for _, dose, _ in found} - {"0"}, key=int)
    rows = []
    for model in models:
        shown = [percent(found.get((model, "0", "accuracy")))]
        for dose in doses:
            shown.append(percent(found.get((model, dose, "accuracy"))))
            shown.append(percent(found.get((model, dose, "removed"))))
        rows.append([f"{model} ({'ARM' if model in ARMS else 'full visibility'})", *shown])
    yield PUBLISHED
    yield "Ours, accuracy in percent without the tokens that receive most, and the attention that these held:"
    columns = [name for dose in doses for name in (f"top {dose}", f"held by top {dose}")]
    yield grid(["model", "unedited", *columns], rows)
    lost = {
        dose: {
            model: 1 - found[model, dose, "accuracy"] / found[model, "0", "accuracy"]
            for model in models
            if model in FORKS and found.get((model, "0", "accuracy")) and (model, dose, "accuracy") in found
        }
        for dose in doses
    }
    for dose, shares in lost.items():
        arms = {model: share for model, share in shares.items() if model in ARMS}
        others = {model: share for model, share in shares.items() if model not in ARMS}
        if not arms or not others:
            continue
        more = min(arms.values()) > max(others.values())
        less = max(arms.values()) < min(others.values())
        verdict = (
            "as published, the ARM loses more than both MDMs"
            if more
            else "contrary to the published figures, the ARM loses less than both MDMs"
            if less
            else "unlike in the published figures, the ARM stands between or beside the MDMs"
        )
        told = ", ".join(f"{model} {100 * share:.0f} %" for model, share in shares.items())
        effects = scores.filter(statistic="effect", metric="accuracy", x=dose, beside="as much, answer spared")
        effects = effects.filter(
            pl.col("condition") == f"edit/block top/{dose}/all", pl.col("model").is_in(list(shares))
        )
        apart = ", ".join(
            f"{row['model']} {100 * row['value']:+.1f} [{100 * row['low']:+.1f}, {100 * row['high']:+.1f}]"
            for row in effects.drop_nulls("value").iter_rows(named=True)
        )
        yield (
            f"Without the top {dose}: {verdict} (accuracy lost, as a share of the unedited one: {told}). Beside as "
            f"much attention taken elsewhere, the answer spared, these tokens are worth, in points: {apart}. Below 0 "
            "they carry more than their attention, above 0 less."
        )


def chapter_of(run: Run) -> Iterator[str]:
    """The part of the chapter that one run gives."""
    if run.unfinished:
        raise UserError(run.unfinished)
    if any(curve.stressor == "edit" for curve in run.study.conditions):
        yield from edits_of(run)
    patched = run.patched()
    if not patched.is_empty():
        maps = patches(patched)
        yield "### Which layers and steps bring the answer back"
        yield f"{maps.title}; n = {patched['n'].max()} questions."
        yield grid(maps.columns, maps.rows)


def edits_of(run: Run) -> Iterator[str]:
    """Rules and verdicts, the published figures beside ours, all effects and outcomes."""
    scores, models = run.scores(), [model.name for model in run.study.models]
    effects = scores.filter(statistic="effect").drop_nulls("value")
    sizes = effects["metric"].value_counts(sort=True).iter_rows()
    counts = ", ".join(f"{count} on {metric.replace('_', '-')}" for metric, count in sizes)
    table = readings(scores, run.study.rules)
    yield f"### {run.study.name}: {run.study.description}"
    yield (
        f"`floatscope study {run.study.name}`; n = {effects['n'].max()} questions per cell; effects that Holm's method "
        f"corrects for: {counts}."
    )
    yield "Rules of reading, as they stand in the study file, which was written before the run:"
    yield "\n".join(f"- **{rule.claim}**: {rule.sentence}." for rule in run.study.rules)
    yield "What the run says by them (effect with its 95 % interval at the dose that decides, p by Holm's method):"
    yield grid(["claim", *table.columns[2:]], [[row[0], *row[2:]] for row in table.rows])
    yield from beside_published(scores, models)
    yield (
        "Accuracy in percent under each edit, and in brackets its effect in points beside each thing it is held to; "
        "* p < .05."
    )
    yield accuracy_table(scores, models)
    yield "Other outcomes (log-probability and its bound in nats, KL in nats, removed attention in percent)."
    yield outcome_table(scores, models)


def write_between(path: Path, name: str, text: str) -> None:
    """Put a run's part between its markers, or at the end of a file that has none, under the chapter's heading."""
    start, end = f"<!-- {name}: benchmarks/causal.py -->", f"<!-- end of {name} -->"
    before, _, rest = path.read_text(encoding="utf-8").partition(start)
    after = rest.partition(end)[2].strip()
    heading = "" if HEADING in before else f"{HEADING}\n\n"
    whole = f"{before.rstrip()}\n\n{heading}{start}\n{text}\n{end}\n" + (f"\n{after}\n" if after else "")
    path.write_text(whole, encoding="utf-8")


def main() -> None:
    """Parse, gather, print or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="folders of finished runs")
    parser.add_argument("--write", type=Path, help="the file whose chapter is written")
    arguments = parser.parse_args()
    for folder in arguments.runs:
        run = Run(folder)
        text = "\n\n".join(chapter_of(run))
        print(text)
        if arguments.write:
            write_between(arguments.write, run.study.name, text)


if __name__ == "__main__":
    main()
