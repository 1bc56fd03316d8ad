"""Files of a finished run, damaged: what is shown stays, is marked or refused; a resumed run ends in the same bytes."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from floatscope.errors import UserError
from floatscope.study.analyses import missing_analyses, read_analyses
from floatscope.study.plan import Study, read_study
from floatscope.study.reporting import REPORT, report, tables_text
from floatscope.study.running import run_study
from floatscope.study.store import Run
from floatscope.traces import Trace
from tests.fuzz.damage import change_a_json, change_a_line, damage
from tests.fuzz.outcomes import REDONE, REFUSED, SILENT, Attempt, attempt
from tests.fuzz.targets import Targets

Shown = tuple[str, dict[str, str], bytes]
"""The tables of scores, those of the analyses, and the report."""
LISTING, RESULTS, STUDY, MANIFEST = (
    Path(name) for name in ("tables/analyses.json", "results.sqlite", "study.toml", "manifest.json")
)
ELSEWHERE = (LISTING.name, RESULTS.name, ".lock")
"""Files whose bytes depend on when and in what order they were written; `shown` compares what they hold."""


def attempts(rng: random.Random, folder: Path, targets: Targets) -> Iterator[Attempt]:
    """Endless: one file of a copy of the run is damaged, then the run is read, resumed, and read again."""
    whole, copy = targets.run, folder / "run"
    plan, wanted, others = read_study(targets.study), shown(Run(whole)), files(whole)
    while True:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(whole, copy)
        name = rng.choice((RESULTS, RESULTS, LISTING, STUDY, MANIFEST, *rng.sample(others, 3)))
        what = f"{name}: {change(rng, copy / name)}"
        yield attempt(what, lambda: read_and_resume(copy, plan, wanted, whole), str)


def change(rng: random.Random, path: Path) -> str:
    """Damage a file; or let it say something else, in its own language."""
    if path.suffix == ".json" and rng.random() < 0.5:
        return change_a_json(rng, path)
    if path.suffix == ".toml" and rng.random() < 0.5:
        path.write_text(change_a_line(rng, path.read_text()))
        return "another line"
    return damage(rng, path)


def shown(run: Run) -> Shown:
    """All that a reader sees; the report is written anew."""
    results = read_analyses(run)
    tables = {name: result.table.write_json() for name, result in results.items()}
    return tables_text(run, "csv"), tables, report(run, results).read_bytes()


def files(run: Path) -> list[Path]:
    found = sorted(path for path in run.rglob("*") if path.is_file() and path.name not in ELSEWHERE)
    return [path.relative_to(run) for path in found]


def same(name: Path, folder: Path, whole: Path) -> bool:
    """Byte for byte; a trace that was run again without the others of its batch may differ by rounding."""
    if name.suffix != ".safetensors":
        return name.name == REPORT or (folder / name).read_bytes() == (whole / name).read_bytes()
    found, expected = Trace.load(folder / name), Trace.load(whole / name)
    close = all(np.allclose(found.arrays[key], values, rtol=2e-3, atol=1e-4) for key, values in expected.arrays.items())
    return close and found.texts == expected.texts and found.metadata == expected.metadata


def read_and_resume(folder: Path, plan: Study, wanted: Shown, whole: Path) -> str:
    """As `table` and `report`, then `study` would: the same command again heals the run or says why not."""
    try:
        run = Run(folder)
        if shown(run) != wanted and not (run.unfinished or missing_analyses(run)):
            return f"{SILENT}: another table or report"
    except UserError:
        pass  # refused as it is; resuming may heal it
    try:
        run = run_study(plan, folder).run
        found = shown(run)
    except UserError:
        return REFUSED
    if found[:2] != wanted[:2]:
        return f"{SILENT}: another table after resuming"
    now, before = set(files(folder)), set(files(whole))
    other = [*(now ^ before), *(name for name in now & before if not same(name, folder, whole))]
    return f"{SILENT}: {', '.join(map(str, other))} after resuming" if other else REDONE
