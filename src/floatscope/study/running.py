"""Running a study: the folder, the plan, the engine, then analyses and report. The one loop that every verb uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from floatscope.analysis.results import write_table
from floatscope.errors import UserError
from floatscope.files import file_hash, replace_sealed, replace_text
from floatscope.study.analyses import TABLES, run_analyses
from floatscope.study.engine import loadings, missing_units, run_guesses, run_shares
from floatscope.study.failures import units_to_trace
from floatscope.study.plan import Study, read_study, write_study
from floatscope.study.store import (
    LOCK,
    MANIFEST,
    STUDY_FILE,
    Row,
    Run,
    Store,
    describe_model,
    describe_run,
    read_manifest,
    read_rows,
    refuse_changes,
)
from floatscope.study.units import Unit, load_task, plan_jobs

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


def run_study(
    study: Study, folder: str | Path, *, retry: bool = False, notify: Notify = lambda what, done, total: None
) -> Outcome:
    """Do what is missing of a study in a run folder, which is made if it is not there: units, then analyses.

    retry: run units again that failed before. notify: told of progress.
    """
    folder = Path(folder).expanduser()
    refuse_other_study(study, folder)
    with Store(folder) as store:
        notify("reading tasks", 0, 0)
        tasks = [load_task(study, plan) for plan in study.tasks]
        jobs = plan_jobs(study, tasks)
        manifest = describe_run(study, {task.plan.name: task.about for task in tasks}, len(jobs))
        if (folder / STUDY_FILE).is_file() and not (folder / MANIFEST).is_file() and store.done():
            raise UserError(f"{folder / MANIFEST} is gone, which says what the run was made of: give another folder.")
        before = read_manifest(folder)
        for part in ("tasks", "templates"):
            refuse_changes(before, manifest, part)
        manifest["models"] = dict(before.get("models", {}))
        if retry:
            store.forget_failed()

        def run_missing(also: frozenset[Unit] = frozenset()) -> set[Unit]:
            """Run what is missing of the plan with these units traced too."""
            planned = plan_jobs(study, tasks, also) if also else jobs
            missing = missing_units(planned, store.done(), folder)
            for plan in dict.fromkeys(loading.plan for loading in loadings(study, planned, missing)):
                about = {plan.name: describe_model(plan)}
                refuse_changes(manifest, {"models": about}, "models")
                manifest["models"] |= about
            replace_text(folder / STUDY_FILE, write_study(study))
            replace_sealed(folder / MANIFEST, manifest | {"study_sha256": file_hash(folder / STUDY_FILE)})
            done = len(planned) - len(missing)

            def commit(what: str, rows: list[Row]) -> None:
                nonlocal done
                store.put(rows)
                done += len(rows)
                notify(what, done, len(planned))

            for rows in run_guesses(study, planned, missing):
                commit("guesses", rows)
            run_shares(study, folder, planned, missing, commit, also)
            return missing

        missing = run_missing()
        if study.trace_wrong:  # which answers are wrong is known now
            missing |= run_missing(units_to_trace(jobs, read_rows(folder), tasks, study.trace_wrong))
        run = Run(folder, study)
        write_table(run.scores(), folder / TABLES / "scores.parquet")
        if any(cell.condition.attribution for task in study.tasks for cell in study.cells(task)):
            write_table(run.attribution(), folder / TABLES / "attribution.parquet")
        run_analyses(run, notify)
    return Outcome(run, len(jobs), len(missing), int(run.results()["error"].is_not_null().sum()), store.damaged)


def refuse_other_study(study: Study, folder: Path) -> None:
    """A run may grow by models, tasks, conditions, traces and analyses; anything else would mix two studies."""
    path = folder / STUDY_FILE
    if "\0" in str(folder):
        raise UserError(f"{str(folder)!r} can be no folder, since a zero byte is in it: give another name.")
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
