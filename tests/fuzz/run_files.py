"""Files of a finished run, damaged: tables stay, are marked or refused; a resumed run ends in the same tables."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from floatscope.errors import UserError
from floatscope.study.analyses import missing_analyses, read_analyses
from floatscope.study.plan import read_study
from floatscope.study.reporting import tables_text
from floatscope.study.running import run_study
from floatscope.study.store import Run
from tests.fuzz.damage import damage
from tests.fuzz.outcomes import REDONE, REFUSED, SILENT, Attempt, attempt

Shown = tuple[str, dict[str, str]]
"""The tables of scores, and those of the analyses."""


def attempts(rng: random.Random, folder: Path, run: Path, study: Path) -> Iterator[Attempt]:
    """Endless: one file of a copy of the run is damaged, then the run is read, resumed, and read again."""
    plan, copy = read_study(study), folder / "run"
    wanted = shown(Run(run))
    names = [path.relative_to(run) for path in sorted(run.rglob("*")) if path.is_file() and path.name != ".lock"]
    names += [Path("results.sqlite")] * (len(names) // 3)  # what matters most
    while True:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        name = rng.choice(names)
        what = f"{name}: {damage(rng, copy / name)}"
        yield attempt(what, lambda: read_and_resume(copy, plan, wanted), str)


def shown(run: Run) -> Shown:
    return tables_text(run, "csv"), {name: result.table.write_json() for name, result in read_analyses(run).items()}


def read_and_resume(folder: Path, plan: object, wanted: Shown) -> str:
    try:
        run = Run(folder)
        found = shown(run)
        marked = run.unfinished or missing_analyses(run)
        if found != wanted and not marked:
            return SILENT
    except UserError:
        pass  # refused as it is; resuming may heal it
    try:
        run_study(plan, folder)
    except UserError:
        return REFUSED
    return REDONE if shown(Run(folder)) == wanted else SILENT
