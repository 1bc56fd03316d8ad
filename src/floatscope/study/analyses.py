"""The analyses of a run over its kept traces, with its control passes: tables as parquet, figures as SVG."""

import hashlib
import json
import multiprocessing as mp
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from inspect import getsourcefile
from pathlib import Path
from typing import Any

import polars as pl

from floatscope import __version__
from floatscope.analysis import ANALYSES, Controls, Options, Result, analyze, draw
from floatscope.analysis.reading import TraceFiles
from floatscope.errors import UserError
from floatscope.files import file_hash, read_json, replace_sealed, unsealed
from floatscope.registry import load_object
from floatscope.study.engine import end_with_parent, keyboard_ignored
from floatscope.study.plan import NULL_QUERY, UNTRAINED
from floatscope.study.store import Run

TABLES, FIGURES = "tables", "figures"
LISTING = "analyses.json"
"""In the folder of tables: for each analysis its tables in order with the hash of each file, its figure's hash and its
notes, or the sentence why it has none."""


def run_analyses(run: Run, notify: Callable[[str, int, int], None]) -> None:
    """Every analysis of the study, unless the same traces gave the tables that are there."""
    names = run.study.analyses
    if not names:
        return
    own, untrained, null = (
        TraceFiles(run.traces(control=control, planned=True)) for control in ("", UNTRAINED, NULL_QUERY)
    )
    key = _key(run, (own, untrained, null))
    known = _read_listing(run)
    if known.get("key") == key and not any(_damaged(run, name, about) for name, about in known["analyses"].items()):
        return
    (run.folder / TABLES).mkdir(exist_ok=True)
    (run.folder / FIGURES).mkdir(exist_ok=True)
    listing: dict[str, object] = {}
    notify("analyses", 0, len(names))
    for name, about in _outcomes(run, names, own, untrained, null):
        listing[name] = about
        notify(f"analysis: {name}", len(listing), len(names))
    replace_sealed(run.folder / TABLES / LISTING, {"key": key, "analyses": listing})


def read_analyses(run: Run) -> dict[str, Result]:
    """The results of the analyses of a run, by name: those that could be made and are as they were written."""
    found = {}
    for name, about in _read_listing(run).get("analyses", {}).items():
        if "tables" in about and not _damaged(run, name, about):
            paths = {table: run.folder / TABLES / f"{table}.parquet" for table in about["tables"]}
            tables = {table: pl.read_parquet(path, glob=False) for table, path in paths.items()}
            found[name] = Result(name, tables, tuple(about["notes"]))
    return found


def missing_analyses(run: Run) -> dict[str, str]:
    """The analyses of the study that there are no results of, by name, each with the reason."""
    listed = _read_listing(run).get("analyses", {})
    missing = {}
    for name in run.study.analyses:
        about = listed.get(name, {"error": "it was not made yet: run the study again"})
        if reason := about.get("error") or _damaged(run, name, about):
            missing[name] = reason
    return missing


def _damaged(run: Run, name: str, about: dict[str, Any]) -> str:
    """A sentence where a file of an analysis is not what was written; nothing where all are."""
    files = {run.folder / TABLES / f"{table}.parquet": digest for table, digest in about.get("tables", {}).items()}
    if "figure" in about:
        files[run.folder / FIGURES / f"{name}.svg"] = about["figure"]
    for path, digest in files.items():
        if not path.is_file() or file_hash(path) != digest:
            return f"{path.name} is damaged or gone: run the study again, which makes it anew"
    return ""


def _outcomes(run: Run, names: Sequence[str], *traces: TraceFiles) -> Iterator[tuple[str, dict[str, object]]]:
    """Each analysis and what became of it, in as many processes as the study has."""
    if run.study.workers == 1:
        for name in names:
            yield name, _run_one(run, name, *traces)
        return
    before = mp.active_children()
    executor = ProcessPoolExecutor(run.study.workers, mp.get_context("spawn"), end_with_parent)
    try:
        with keyboard_ignored():
            started = {name: executor.submit(_run_one, run, name, *traces) for name in names}
        for name, outcome in started.items():
            yield name, outcome.result()
    except BrokenProcessPool as error:
        for child in {*mp.active_children()} - {*before}:  # one that started as it broke would never end
            child.kill()
        raise UserError(
            "A worker process ended before its analysis was done, as one that needs too much memory does; what is done "
            "is kept: run again, with fewer workers."
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


def _run_one(
    run: Run, name: str, traces: TraceFiles, untrained: TraceFiles, null_query: TraceFiles
) -> dict[str, object]:
    """Tables and figure of one analysis; what the listing says of it."""
    try:
        result = analyze(name, traces, Options(seed=run.study.seed), Controls(untrained, null_query))
    except UserError as error:  # such as no trace with evidence: the other analyses go on
        return {"error": str(error)}
    tables = result.save(run.folder / TABLES)
    (figure,) = draw(name, {name: result}).save(run.folder / FIGURES / name)
    hashes = {table: file_hash(path) for table, path in zip(result.tables, tables, strict=True)}
    return {"tables": hashes, "figure": file_hash(figure), "notes": list(result.notes)}


def _key(run: Run, traces: Sequence[TraceFiles]) -> str:
    """What the tables depend on: the study, the code, and the traces by name, size and time of writing."""
    code = [getsourcefile(load_object(ANALYSES[name].function)) for name in run.study.analyses]
    files = [path.stat() for part in traces for path in part.paths]
    described = [__version__, list(run.study.analyses), [file_hash(Path(file)) for file in code if file]]
    described += [run.study.seed, [(stat.st_size, stat.st_mtime_ns) for stat in files]]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def _read_listing(run: Run) -> dict[str, Any]:
    """The listing as it was written; nothing where it is damaged."""
    try:
        return unsealed(read_json(run.folder / TABLES / LISTING)) or {}
    except UserError:
        return {}
