"""Running a study: the folder, the plan, the engine, then analyses and report. The one loop that every verb uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from floatscope.analysis.results import write_table
from floatscope.errors import UserError
from floatscope.files import replace_text
from floatscope.study.analyses import TABLES, run_analyses
from floatscope.study.engine import Loading, loadings, missing_units, run_guesses, run_shares
from floatscope.study.plan import Study, read_study, write_study
from floatscope.study.store import (
    LOCK,
    STUDY_FILE,
    Row,
    Run,
    Store,
    describe_model,
    describe_run,
    read_manifest,
    refuse_changes,
    write_manifest,
)
from floatscope.study.units import load_task, plan_jobs

Notify = Callable[[str, int, int], None]
"""What is going on, units done, units in all."""


@dataclass(frozen=True)
class Outcome:
    """What a call did: the run, the units it had to do, and those of the whole run that failed."""

    run: Run
    units: int
    done_now: int
    failed: int
    damaged: int
    """Rows that had changed on the disk, and were run again."""


def run_study(study: Study, folder: str | Path, *, retry: bool = False, notify: Notify | None = None) -> Outcome:
    """Do what is missing of a study in a run folder, which is made if it is not there: units, then analyses.

    retry: run units again that failed before. notify: told of progress.
    """
    folder = Path(folder).expanduser()
    notify = notify or (lambda what, done, total: None)
    refuse_other_study(study, folder)
    with Store(folder) as store:
        notify("reading tasks", 0, 0)
        tasks = [load_task(study, plan) for plan in study.tasks]
        jobs = plan_jobs(study, tasks)
        manifest = _begin(study, folder, describe_run(study, {task.plan.name: task.about for task in tasks}, len(jobs)))
        if retry:
            store.forget_failed()
        missing = missing_units(jobs, store.done(), folder)
        _note_models(loadings(study, jobs, missing), manifest, folder)
        units = _Units(store, notify, len(jobs) - len(missing), len(jobs))
        for rows in run_guesses(study, jobs, missing):
            units.done("guesses", rows)
        run_shares(study, folder, jobs, missing, units.done)
        run = Run(folder, study)
        write_table(run.scores(), folder / TABLES / "scores.parquet")
        run_analyses(run, notify)
    return Outcome(run, len(jobs), len(missing), _failed(run), store.damaged)


def refuse_other_study(study: Study, folder: Path) -> None:
    """A run may grow by models, tasks, conditions, traces and analyses; anything else would mix two studies."""
    path = folder / STUDY_FILE
    if not path.is_file():
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file, and a run is a folder: give another name.")
        if folder.exists() and any(folder.iterdir()) and not (folder / LOCK).exists():
            raise UserError(f"{folder} is not empty and holds no run: give another folder.")
        return
    difference = _difference(read_study(path), study)
    if difference:
        raise UserError(f"{folder} holds another study: {difference}. Give another folder for this one.")


def _difference(old: Study, new: Study) -> str | None:
    """The first thing in which a run's study is not part of the new one."""
    for key in ("name", "seed", "limit", "slots", "steps", "keep", "prompt"):
        if getattr(old, key) != getattr(new, key):
            return f"{key} is {getattr(old, key)!r} there and {getattr(new, key)!r} here"
    for key in ("models", "tasks"):
        now = {part.name: part for part in getattr(new, key)}
        for part in getattr(old, key):
            if part.name not in now:
                return f"it has the {key[:-1]} {part.name!r}, which is not asked for here"
            if part != now[part.name]:
                return f"the {key[:-1]} {part.name!r} is described otherwise there"
    for task in old.tasks:
        cells = {cell.condition.name: cell for cell in new.cells(next(t for t in new.tasks if t.name == task.name))}
        for cell in old.cells(task):
            if cell.condition.name not in cells or cells[cell.condition.name].limit < cell.limit:
                return f"it has the condition {cell.condition.name!r} of {task.name!r} with {cell.limit} samples"
    return None


def _begin(study: Study, folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """study.toml and manifest.json, with the hashes of models that are known from before."""
    before = read_manifest(folder)
    for part in ("tasks", "templates"):
        refuse_changes(before, manifest, part)
    manifest["models"] = dict(before.get("models", {}))
    replace_text(folder / STUDY_FILE, write_study(study))
    write_manifest(folder, manifest)
    return manifest


def _note_models(needed: Sequence[Loading], manifest: dict[str, Any], folder: Path) -> None:
    """The hashes of the models that will be loaded; weights that changed since the run began are refused."""
    for plan in dict.fromkeys(loading.plan for loading in needed):
        about = {plan.name: describe_model(plan)}
        refuse_changes(manifest, {"models": about}, "models")
        manifest["models"] |= about
    write_manifest(folder, manifest)


def _failed(run: Run) -> int:
    return int(run.results()["error"].is_not_null().sum())


class _Units:
    """Commits rows as they come and tells how many there are."""

    def __init__(self, store: Store, notify: Notify, done: int, total: int) -> None:
        self._store, self._notify, self._done, self._total = store, notify, done, total

    def done(self, what: str, rows: list[Row]) -> None:
        self._store.put(rows)
        self._done += len(rows)
        self._notify(what, self._done, self._total)
