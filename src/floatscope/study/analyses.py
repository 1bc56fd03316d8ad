"""The analyses of a run over its kept traces, with its control passes: tables as parquet, figures as SVG."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import multiprocessing as mp
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import polars as pl

from floatscope.analysis import Controls, Options, Result, analyze, draw
from floatscope.errors import UserError
from floatscope.files import read_json, replace_json
from floatscope.study.engine import keyboard_ignored
from floatscope.study.plan import NULL_QUERY, UNTRAINED
from floatscope.study.store import Run
from floatscope.traces import Trace

TABLES, FIGURES = "tables", "figures"
LISTING = "analyses.json"
"""In the folder of tables: for each analysis its tables in order and its notes, or the sentence why it has none."""


class RunTraces:
    """Traces of a run as a stream; a sample is told apart by its task and condition too, which may share ids."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)

    def __iter__(self) -> Iterator[Trace]:
        for path in self.paths:
            trace = Trace.load(path)
            about = dict(trace.metadata)
            about["sample"] = "/".join(str(about[key]) for key in ("task", "condition", "sample"))
            yield dataclasses.replace(trace, metadata=about)


def run_analyses(run: Run, notify: Callable[[str, int, int], None]) -> None:
    """Every analysis of the study, unless the same traces gave the tables that are there."""
    names = run.study.analyses
    if not names:
        return
    own, untrained, null = (RunTraces(run.traces(control=control)) for control in ("", UNTRAINED, NULL_QUERY))
    key = _key(run, (own, untrained, null))
    listing_file = run.folder / TABLES / LISTING
    if _read_listing(listing_file).get("key") == key:
        return
    (run.folder / TABLES).mkdir(exist_ok=True)
    (run.folder / FIGURES).mkdir(exist_ok=True)
    listing: dict[str, object] = {}
    notify("analyses", 0, len(names))
    for name, about in _outcomes(run, names, own, untrained, null):
        listing[name] = about
        notify(f"analysis: {name}", len(listing), len(names))
    replace_json(listing_file, {"key": key, "analyses": listing})


def read_analyses(run: Run) -> dict[str, Result]:
    """The results of the analyses of a run, by name, those that could be made."""
    found = {}
    for name, about in _read_listing(run.folder / TABLES / LISTING).get("analyses", {}).items():
        if "tables" in about:
            tables = {table: pl.read_parquet(run.folder / TABLES / f"{table}.parquet") for table in about["tables"]}
            found[name] = Result(name, tables, tuple(about["notes"]))
    return found


def missing_analyses(run: Run) -> dict[str, str]:
    """The analyses that could not be made, by name, each with the reason."""
    listed = _read_listing(run.folder / TABLES / LISTING).get("analyses", {})
    return {name: about["error"] for name, about in listed.items() if "error" in about}


def _outcomes(run: Run, names: Sequence[str], *traces: RunTraces) -> Iterator[tuple[str, dict[str, object]]]:
    """Each analysis and what became of it, in as many processes as the study has."""
    if run.study.workers == 1:
        for name in names:
            yield name, _run_one(run, name, *traces)
        return
    executor = ProcessPoolExecutor(run.study.workers, mp_context=mp.get_context("spawn"))
    try:
        with keyboard_ignored():
            started = {name: executor.submit(_run_one, run, name, *traces) for name in names}
        for name, outcome in started.items():
            yield name, outcome.result()
    finally:
        executor.shutdown(cancel_futures=True)


def _run_one(run: Run, name: str, traces: RunTraces, untrained: RunTraces, null_query: RunTraces) -> dict[str, object]:
    """Tables and figure of one analysis; what the listing says of it."""
    try:
        result = analyze(name, traces, Options(seed=run.study.seed), Controls(untrained, null_query))
    except UserError as error:  # such as no trace with evidence: the other analyses go on
        return {"error": str(error)}
    result.save(run.folder / TABLES)
    draw(name, {name: result}).save(run.folder / FIGURES / name)
    return {"tables": list(result.tables), "notes": list(result.notes)}


def _key(run: Run, traces: Sequence[RunTraces]) -> str:
    """What the tables depend on: the study, and the traces by name, size and time of writing."""
    files = [path.stat() for part in traces for path in part.paths]
    described = [list(run.study.analyses), run.study.seed, [(stat.st_size, stat.st_mtime_ns) for stat in files]]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def _read_listing(path: Path) -> dict:
    try:
        return read_json(path)
    except UserError:
        return {}
