"""From a run to its report.html: gathers what the page shows. Drawing is left to `floatscope.report`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floatscope.analysis.results import Result
from floatscope.qa.statistics import Difference, Interval, proportion_interval
from floatscope.qa.stressors import STRESSORS
from floatscope.report.page import Content, build_page
from floatscope.study.manifest import replace_text
from floatscope.study.plan import DOCUMENTS, GUESS, UNTRAINED
from floatscope.study.run import STUDY_FILE, Run
from floatscope.study.summary import summary_sentences
from floatscope.study.tables import comparisons, headline
from floatscope.traces import Trace

if TYPE_CHECKING:
    import polars as pl

REPORT = "report.html"
QUESTION = (
    "What do retrieved documents do for a diffusion language model, and where does its attention go while it denoises?"
)
_BASELINES = ("closed-book", "oracle")


def write_report(run: Run, results: Mapping[str, Result]) -> Path:
    """Write report.html into the run's folder, in one move; `results` are the analyses of its traces by name."""
    path = run.folder / REPORT
    replace_text(path, build_page(gather(run, results)))
    return path


def gather(run: Run, results: Mapping[str, Result]) -> Content:
    """Everything that the page shows, from the run's folder and the analyses."""
    rows = run.results()
    scored = rows.filter(rows["control"].is_in(["", GUESS]))
    traces = tuple(_player_traces(run, rows))
    kinds = _kinds(run, rows)
    models = ordered_models([model.name for model in run.study.models], kinds)
    table = headline(scored)
    long = headline_frame(table.rows, table.columns)
    return Content(
        title=f"floatscope: {run.study.name}",
        question=run.study.description or QUESTION,
        summary=summary_sentences(long, comparisons(scored).rows, results, kinds),
        models=models,
        headline=long,
        headline_notes=table.notes,
        traces=traces,
        results=results,
        stress=stress_frame(scored, models),
        manifest=run.manifest,
        study=(run.folder / STUDY_FILE).read_text(encoding="utf-8"),
        command=f"# with the study below saved as {STUDY_FILE}\nfloatscope study {STUDY_FILE}",
    )


def ordered_models(names: Sequence[str], kinds: Mapping[str, str]) -> tuple[str, ...]:
    """MDMs first, in the study's order."""
    return tuple(sorted(names, key=lambda name: kinds.get(name, "mdm") == "arm"))


def headline_frame(rows: Iterable[Sequence[Any]], columns: Sequence[str]) -> pl.DataFrame:
    """Table 1 in long form: a row for each task, model, number of documents and metric."""
    import polars as pl

    found: list[dict[str, Any]] = []
    for name, documents, *cells in rows:
        for column, cell in zip(columns[2:], cells, strict=True):
            task, _, metric = column.rpartition(" ")
            interval = cell.interval if isinstance(cell, Difference) else cell
            known = isinstance(interval, Interval)
            found.append(
                {
                    "task": task,
                    "model": name,
                    "documents": documents,
                    "metric": metric,
                    "value": interval.estimate if known else None,
                    "low": interval.low if known else None,
                    "high": interval.high if known else None,
                    "samples": interval.n if known else None,
                }
            )
    texts = dict.fromkeys(("task", "model", "documents", "metric"), pl.String)
    numbers = dict.fromkeys(("value", "low", "high"), pl.Float64) | {"samples": pl.Int64}
    order = {task: place for place, task in enumerate(dict.fromkeys(row["task"] for row in found))}
    found.sort(key=lambda row: order[row["task"]])
    return pl.DataFrame(found, schema=texts | numbers)


def stress_frame(rows: pl.DataFrame, models: Sequence[str]) -> pl.DataFrame:
    """The stress curves in long form, with each model's baselines and the best guess beside every point."""
    import polars as pl

    found: list[dict[str, Any]] = []
    axes = {name: row.axis for name, row in STRESSORS.items() if row.axis is not None}
    own = rows.filter((pl.col("control") == "") & pl.col("stressor").is_in(list(axes)))
    keys = ("stressor", "task", "model", "condition")
    for (stressor, task, model, condition), part in own.group_by(keys, maintain_order=True):
        right = part["accuracy"].drop_nulls().to_list()
        if not right:
            continue
        first, axis = part.row(0, named=True), axes[str(stressor)]
        interval = proportion_interval(right)
        here = rows.filter(pl.col("task") == task)
        guesses = here.filter((pl.col("control") == GUESS) & (pl.col("condition") == condition))
        found.append(
            {
                "stressor": stressor,
                "task": task,
                "panel": ", ".join(filter(None, (str(task), axis.panel.format_map(first)))),
                "axis": axis.title,
                "x": str(first[axis.label]),
                "model": model,
                "value": interval.estimate,
                "low": interval.low,
                "high": interval.high,
                "samples": interval.n,
                **{
                    name: _mean(here.filter(pl.col("model") == model, pl.col("condition") == name))
                    for name in _BASELINES
                },
                "guess": max((_mean(one) or 0.0 for _, one in guesses.group_by("model")), default=None),
            }
        )
    if not found:
        return pl.DataFrame()
    place = {model: number for number, model in enumerate(models)}
    return pl.DataFrame(found, infer_schema_length=None).sort(
        pl.col("model").replace_strict(place, default=len(place), return_dtype=pl.Int64), maintain_order=True
    )


def _mean(rows: pl.DataFrame) -> float | None:
    known = rows["accuracy"].drop_nulls()
    return float(known.mean()) if len(known) else None  # pyright: ignore[reportArgumentType]


def _kinds(run: Run, rows: pl.DataFrame) -> dict[str, str]:
    """mdm or arm, as far as traces tell."""
    traced = rows.drop_nulls("trace").filter(rows.drop_nulls("trace")["control"] == "")
    return {
        model: Trace.load(run.folder / path).kind
        for model, path in traced.unique("model", maintain_order=True).select("model", "trace").iter_rows()
    }


def _player_traces(run: Run, rows: pl.DataFrame) -> Iterable[Trace]:
    """The traces of one condition of every task, trained and untrained: the one with most documents that has any."""
    import polars as pl

    known = rows.drop_nulls("trace").filter(pl.col("control").is_in(["", UNTRAINED]))
    if known.is_empty():
        return
    rank = (pl.col("stressor") == DOCUMENTS) * 1000 + pl.col(DOCUMENTS).fill_null(-1)
    most = known.sort(rank, descending=True, maintain_order=True).row(0, named=True)
    for path in known.filter(condition=most["condition"])["trace"]:
        yield Trace.load(run.folder / path)
