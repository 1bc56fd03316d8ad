"""From a run to its texts and its report.html: gathers what they show. Drawing is left to `floatscope.reports`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from floatscope.analysis.results import Result
from floatscope.files import replace_text
from floatscope.reports.page import Content, build_page
from floatscope.reports.sentences import summary_sentences
from floatscope.reports.sources import source_tables
from floatscope.reports.tables import markdown, patches, write_tables
from floatscope.study.analyses import missing_analyses, read_analyses
from floatscope.study.failures import unit_frame
from floatscope.study.plan import UNTRAINED
from floatscope.study.scores import score_frame, table_notes
from floatscope.study.store import STUDY_FILE, Run
from floatscope.traces import Trace

if TYPE_CHECKING:
    import polars as pl

REPORT = "report.html"
QUESTION = (
    "What do retrieved documents do for a diffusion language model, and where does its attention go while it denoises?"
)


def tables_text(run: Run, form: str) -> str:
    """The scores of a run as Markdown, LaTeX or CSV."""
    rows = run.results()
    sources = source_tables(run.attribution())
    text = write_tables(score_frame(rows), table_notes(rows), form, run.study.rules, sources)
    if form == "markdown" and not (patched := run.patched()).is_empty():
        text += "\n" + markdown(patches(patched))
    said = run.unfinished
    marks = {"markdown": f"**{said}**\n\n", "latex": f"% {said}\n"}
    return f"{marks.get(form, '')}{text}" if said else text


def report(run: Run | str | Path, results: Mapping[str, Result] | None = None) -> Path:
    """Write report.html into a run's folder, in one move, and give its path.

    results: analyses of its traces by name; default: those that the run has.
    """
    run = run if isinstance(run, Run) else Run(run)
    path = run.folder / REPORT
    replace_text(path, build_page(gather(run, read_analyses(run) if results is None else results)))
    return path


def gather(run: Run, results: Mapping[str, Result]) -> Content:
    """Everything that the page shows, from the run's folder and the analyses."""
    rows = run.results()
    scores = score_frame(rows)
    traced = rows.drop_nulls("trace").filter(control="").unique("model", maintain_order=True)
    kinds = {row["model"]: Trace.load(run.folder / row["trace"]).kind for row in traced.iter_rows(named=True)}
    return Content(
        title=f"floatscope: {run.study.name}",
        question=run.study.description or QUESTION,
        summary=(*filter(None, (run.unfinished,)), *summary_sentences(scores, results, kinds)),
        models=ordered_models([model.name for model in run.study.models], kinds),
        scores=scores,
        notes=table_notes(rows)["documents"],
        units=unit_frame(run),
        attribution=run.attribution(),
        patched=run.patched(),
        rules=run.study.rules,
        traces=tuple(_player_traces(run, rows)),
        results=results,
        missing=missing_analyses(run),
        manifest=run.manifest,
        study=(run.folder / STUDY_FILE).read_text(encoding="utf-8"),
        command=f"# with the study below saved as {STUDY_FILE}\nfloatscope study {STUDY_FILE}",
    )


def ordered_models(names: Sequence[str], kinds: Mapping[str, str]) -> tuple[str, ...]:
    """MDMs first, in the study's order."""
    return tuple(sorted(names, key=lambda name: kinds.get(name, "mdm") == "arm"))


def _player_traces(run: Run, rows: pl.DataFrame) -> Iterable[Trace]:
    """Traces, trained and untrained: of passages in their first order, with their slots at every place, and of the
    questions under every condition, so that each traced answer of the list can be opened."""
    import polars as pl

    known = rows.drop_nulls("trace").filter(pl.col("control").is_in(["", UNTRAINED]))
    passages, questions = known.filter(stressor="passage"), known.filter(pl.col("stressor") != "passage")
    if passages.height:
        passages = passages.filter(order=passages["order"][0])
    for path in pl.concat([passages, questions])["trace"]:
        yield Trace.load(run.folder / path)
