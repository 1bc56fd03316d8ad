"""Running a study: the folder, the plan, the engine, then analyses and report. The one loop that every verb uses.

A share does the same in a folder of its own, up to the analyses, which `merging` makes of all shares together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from floatscope.analysis.results import write_table
from floatscope.errors import UserError
from floatscope.files import file_hash, replace_sealed, replace_text
from floatscope.registry import load_object
from floatscope.study.analyses import TABLES, run_analyses
from floatscope.study.division import ENGINES, FINISHED, SHARES, WHOLE, Division
from floatscope.study.engine import loadings, missing_units, run_guesses
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
from floatscope.study.units import Job, LoadedTask, Unit, load_task, plan_jobs

Notify = Callable[[str, int, int], None]
"""What is going on, units done, units in all."""


@dataclass(frozen=True)
class Outcome:
    """What a call did: the run, its units (of a share, those that it has), the units done now, and those of the whole
    run that failed."""

    run: Run
    units: int
    done_now: int
    failed: int
    damaged: int
    """Rows that had changed on the disk, and were run again."""


def run_study(
    study: Study,
    folder: str | Path,
    *,
    retry: bool = False,
    division: Division = WHOLE,
    notify: Notify = lambda what, done, total: None,
) -> Outcome:
    """Do what is missing of a study in a run folder, which is made if it is not there: units, then analyses.

    retry: run units again that failed before. division: the share to run, and where. notify: told of progress.
    """
    folder = Path(folder).expanduser()
    if division.of > 1:
        if study.trace_wrong:
            raise UserError(
                "Which answers are wrong is known when all are there: run and merge shares without trace_wrong, then "
                "the study with it in the same folder, without a share."
            )
        refuse_other_shares(folder, division.of)
    folder = division.folder(folder)
    refuse_other_study(study, folder)
    with Store(folder) as store:
        notify("reading tasks", 0, 0)
        tasks = [load_task(study, plan) for plan in study.tasks]
        jobs = plan_jobs(study, tasks)
        done = 0

        def commit(what: str, rows: list[Row]) -> None:
            nonlocal done
            store.put(rows)
            done += len(rows)
            notify(what, done, max(done, -(-len(jobs) // division.of)))  # of a share about so many

        def run_missing(planned: Sequence[Job], also: frozenset[Unit] = frozenset()) -> int:
            """Run what is missing of a plan, which has these units traced too; how many units were there."""
            nonlocal done
            missing = _begin(study, store, tasks, jobs, planned, retry and not also)
            done = before = len(planned) - len(missing)
            if division.share == 1:
                for rows in run_guesses(study, planned, missing):
                    commit("guesses", rows)
            run_batches = load_object(ENGINES.named(division.engine).function)
            run_batches(study, folder, planned, missing, commit, division, also)
            return before

        (folder / FINISHED).unlink(missing_ok=True)
        done_before = run_missing(jobs)
        done_now = done - done_before
        if study.trace_wrong:  # which answers are wrong is known now
            also = units_to_trace(jobs, read_rows(folder), tasks, study.trace_wrong)
            done_now -= run_missing(plan_jobs(study, tasks, also), also)
            done_now += done
        run = Run(folder, study)
        if division.of > 1:
            replace_text(folder / FINISHED, "")
        else:
            finish(run, notify)
    units = len(jobs) if division.of == 1 else done
    return Outcome(run, units, done_now, int(run.results()["error"].is_not_null().sum()), store.damaged)


def finish(run: Run, notify: Notify) -> None:
    """Make the tables of a run that has all of its units."""
    write_table(run.scores(), run.folder / TABLES / "scores.parquet")
    for name, frame in (("attribution", run.attribution()), ("patched", run.patched())):
        if frame.height:
            write_table(frame, run.folder / TABLES / f"{name}.parquet")
    run_analyses(run, notify)


def _begin(
    study: Study,
    store: Store,
    tasks: Sequence[LoadedTask],
    jobs: Sequence[Job],
    planned: Sequence[Job],
    retry: bool,
) -> set[Unit]:
    """Write what the run is made of, unless that changed since it began; the units of a plan that are missing."""
    folder = store.folder
    manifest = describe_run(study, {task.plan.name: task.about for task in tasks}, len(jobs))
    if (folder / STUDY_FILE).is_file() and not (folder / MANIFEST).is_file() and store.done():
        raise UserError(f"{folder / MANIFEST} is gone, which says what the run was made of: give another folder.")
    before = read_manifest(folder)
    for part in ("tasks", "templates"):
        refuse_changes(before, manifest, part)
    manifest["models"] = dict(before.get("models", {}))
    if retry:
        store.forget_failed()
    missing = missing_units(planned, store.done(), folder)
    for plan in dict.fromkeys(loading.plan for loading in loadings(study, planned) if loading.lacks(missing)):
        about = {plan.name: describe_model(plan)}
        refuse_changes(manifest, {"models": about}, "models")
        manifest["models"] |= about
    replace_text(folder / STUDY_FILE, write_study(study))
    manifest["study_sha256"] = file_hash(folder / STUDY_FILE)
    replace_sealed(folder / MANIFEST, manifest)
    return missing


def refuse_other_shares(folder: Path, of: int) -> None:
    """A run is divided into one number of shares: batches of another number would be counted twice or not at all."""
    for found in sorted((folder / SHARES).glob("*-of-*")):
        if found.name.partition("-of-")[2] != str(of):
            raise UserError(
                f"{folder} is divided otherwise, since it has the share {found.name}: run that number of shares, or "
                "give another folder."
            )


def refuse_other_study(study: Study, folder: Path) -> None:
    """A run may grow by models, tasks, conditions, traces and analyses; anything else would mix two studies."""
    path = folder / STUDY_FILE
    if "\0" in str(folder):
        raise UserError(f"{str(folder)!r} can be no folder, since a zero byte is in it: give another name.")
    if not path.is_file():
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file, and a run is a folder: give another name.")
        if folder.exists() and any(folder.iterdir()) and not any((folder / name).exists() for name in (LOCK, SHARES)):
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
