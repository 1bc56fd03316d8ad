"""Files of a finished run, damaged: tables stay, are marked or refused; a resumed run ends in the same bytes."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from floatscope.errors import UserError
from floatscope.study.analyses import missing_analyses, read_analyses
from floatscope.study.plan import Study, read_study
from floatscope.study.reporting import tables_text, write_report
from floatscope.study.running import run_study
from floatscope.study.store import Run
from floatscope.traces import Trace
from tests.fuzz.damage import damage
from tests.fuzz.outcomes import REDONE, REFUSED, SILENT, Attempt, attempt

Shown = tuple[str, dict[str, str]]
"""The tables of scores, and those of the analyses."""
ELSEWHERE = ("results.sqlite", "analyses.json", ".lock")
"""Files whose bytes depend on when and in what order they were written; `shown` compares what they hold."""


def attempts(rng: random.Random, folder: Path, run: Path, study: Path) -> Iterator[Attempt]:
    """Endless: one file of a copy of the run is damaged, then the run is read, resumed, and read again."""
    plan, copy = read_study(study), folder / "run"
    wanted, names = shown(Run(run)), [*files(run), Path("tables/analyses.json")]
    names += [Path("results.sqlite")] * (len(names) // 3 + 1)  # what matters most
    while True:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        name = rng.choice(names)
        what = f"{name}: {damage(rng, copy / name)}"
        yield attempt(what, lambda: read_and_resume(copy, plan, wanted, run), str)


def shown(run: Run) -> Shown:
    return tables_text(run, "csv"), {name: result.table.write_json() for name, result in read_analyses(run).items()}


def files(run: Path) -> list[Path]:
    found = sorted(path for path in run.rglob("*") if path.is_file() and path.name not in ELSEWHERE)
    return [path.relative_to(run) for path in found]


def same(name: Path, folder: Path, whole: Path) -> bool:
    """Byte for byte; a trace that was run again without the others of its batch may differ by rounding."""
    if name.suffix != ".safetensors":
        return (folder / name).read_bytes() == (whole / name).read_bytes()
    found, expected = Trace.load(folder / name), Trace.load(whole / name)
    close = all(np.allclose(found.arrays[key], values, rtol=2e-3, atol=1e-4) for key, values in expected.arrays.items())
    return close and found.texts == expected.texts and found.metadata == expected.metadata


def read_and_resume(folder: Path, plan: Study, wanted: Shown, whole: Path) -> str:
    """As `table`, then `study` would: the same command again heals the run or says why not."""
    try:
        run = Run(folder)
        if shown(run) != wanted and not (run.unfinished or missing_analyses(run)):
            return f"{SILENT}: another table"
    except UserError:
        pass  # refused as it is; resuming may heal it
    try:
        run = run_study(plan, folder).run
        write_report(run, read_analyses(run))
    except UserError:
        return REFUSED
    if shown(run) != wanted:
        return f"{SILENT}: another table after resuming"
    found, expected = set(files(folder)), set(files(whole))
    other = [*(found ^ expected), *(name for name in found & expected if not same(name, folder, whole))]
    return f"{SILENT}: {', '.join(map(str, other))} after resuming" if other else REDONE
