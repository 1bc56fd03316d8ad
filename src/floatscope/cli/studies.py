"""The verbs on whole studies: study, submit, merge, report. A run on screen is a bar, and a sentence at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from floatscope.cli import flags
from floatscope.cli.shared import FLAG, one_line, progress_bar
from floatscope.errors import UserError
from floatscope.study.division import Division, Resources

if TYPE_CHECKING:
    from floatscope.study.plan import Study
    from floatscope.study.running import Notify
    from floatscope.study.store import Run

_WHERE = Parameter(group=Group("Beyond one machine", sort_key=3))


def _engines() -> Parameter:
    """Help that tells every engine; called when a verb's line is read."""
    from floatscope.study.division import ENGINES

    known = "; ".join(f"{name}: {row.description}" for name, row in ENGINES.items())
    return Parameter(help=f"Where batches are run. {known}.")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DivisionFlags:
    """Who runs the batches."""

    share: Annotated[str | None, _WHERE] = None
    """Run this share of the batches alone, such as 3/16, counted from 1; slurm: as the job array says. `floatscope
    merge` joins all shares."""
    engine: Annotated[str, _WHERE, _engines()] = "local"
    address: Annotated[str | None, _WHERE] = None
    """Of a Ray cluster that runs already; default: one is started for this run."""
    actor_gpus: Annotated[float, _WHERE] = 0
    """GPUs of each Ray actor; 0.5 lets two share one."""

    @property
    def division(self) -> Division:
        """As the library takes it."""
        from floatscope.study.division import parse_share

        share, of = (1, 1) if self.share is None else parse_share(self.share)
        return Division(share, of, self.engine, self.address, self.actor_gpus)


UNDIVIDED = DivisionFlags()
MODEST = Resources()


def study(
    study: Annotated[str, flags.studies()],
    /,
    where: DivisionFlags = UNDIVIDED,
    *,
    out: Path | None = None,
    limit: int | None = None,
    seed: int | None = None,
    batch: int | None = None,
    workers: int | None = None,
    trace_wrong: int | None = None,
    check: Annotated[bool, FLAG] = False,
    dry_run: Annotated[bool, FLAG] = False,
    estimate: Annotated[bool, FLAG] = False,
    retry: Annotated[bool, FLAG] = False,
) -> int:
    """Run a study: answers, scores, traces with controls, analyses and the report, all in one folder.

    Example: floatscope study demo --out runs/demo

    Parameters
    ----------
    out
        The run folder; default: runs/NAME. One that is there is taken up where it stopped.
    limit
        Samples of each task at most; default: as the study says.
    seed
        Seed of everything; default: the study's.
    batch
        Samples run together; default: the study's.
    workers
        Processes that share the work, each with its own copy of a model; default: the study's.
    trace_wrong
        When all answers are there, trace so many samples that a model got wrong and as many right ones, of each task
        and condition; default: the study's.
    check
        Say what is wrong with the study or missing for it (weights, data), and run nothing; no network is used.
    dry_run
        Print the units and batches of each model, and run nothing.
    estimate
        Print what they may take, from a short calibration: time here, hours on GPUs, disk for traces.
    retry
        Run units again that failed before.
    """
    plan = _plan(study, limit, not check, seed=seed, batch=batch, workers=workers, trace_wrong=trace_wrong)
    if check:
        return _check(plan)
    if dry_run or estimate:
        return _estimate(plan, timed=estimate)
    return run_shown(plan, out or Path("runs") / plan.name, retry, where.division, wants_report=True)


def _plan(study: str, limit: int | None, needs_data: bool, **given: int | None) -> Study:
    """The study of a name or a file, with what flags say otherwise."""
    from floatscope.study.plan import SHIPPED, find_study, read_study
    from floatscope.study.units import missing_files

    file = find_study(study)
    plan = read_study(file)
    refuse_unknown_models(plan)
    plan = replace(plan, **{name: value for name, value in given.items() if value is not None})
    if limit is not None:
        tasks = tuple(replace(task, limit=min(limit, task.limit)) if task.limit else task for task in plan.tasks)
        plan = replace(plan, limit=min(limit, plan.limit), tasks=tasks)
    data = (
        plan.tasks if needs_data and file.parent == SHIPPED else ()
    )  # these come with the package, but not their data
    if missing := [path for task in data for path in missing_files(task)]:
        raise UserError(
            f"The study {plan.name} needs {', '.join(missing)}, seen from this folder: docs/howto/study.md says where "
            "its data comes from."
        )
    return plan


def submit(
    study: str,
    /,
    *,
    shares: int,
    out: Path | None = None,
    resources: Annotated[Resources, Parameter(name="*")] = MODEST,
    limit: int | None = None,
    dry_run: Annotated[bool, FLAG] = False,
) -> int:
    """Submit the shares of a study to Slurm as a job array, and a job after it that merges them.

    Example: floatscope submit demo --shares 16 --partition gpu --out runs/demo --dry-run

    Parameters
    ----------
    study
        As for `floatscope study`.
    shares
        Jobs of the array, each with a share of the batches and a store of its own.
    out
        The run folder, on a disk that all nodes see; default: runs/NAME.
    limit
        Samples of each task at most; default: as the study says.
    dry_run
        Print the script for sbatch, and submit nothing.
    """
    from floatscope.study.submitting import sbatch_script
    from floatscope.study.submitting import submit as submit_shares

    plan = _plan(study, limit, not dry_run)
    folder = out or Path("runs") / plan.name
    if dry_run:
        print(sbatch_script(plan, folder, shares, resources))
        return 0
    jobs = submit_shares(plan, folder, shares, resources)
    print(f"floatscope: submitted {shares} shares and the job that merges them: {jobs[0].job_id} to {jobs[-1].job_id}")
    return 0


def merge(run: Path, /, *, workers: int = 1) -> int:
    """Join the shares of a run, once all are finished: its tables, traces and report, as one process would make them.

    Example: floatscope merge runs/mine

    Parameters
    ----------
    run
        The run folder, as every share was given it with --out.
    workers
        Processes that share the analyses.
    """
    from floatscope.study.merging import merge_shares
    from floatscope.study.reporting import report, tables_text

    with _bar() as notify:
        merged = merge_shares(run, workers=workers, notify=notify).run
    path = report(merged)
    print(f"floatscope: open {path} in a browser", file=sys.stderr)
    print(tables_text(merged, "markdown"), flush=True)
    return exit_code(merged)


def report(run: Path, /) -> int:
    """Make the report of a run again, from its tables and traces.

    Exit code 3: the run is not finished, and the report is of what is done.

    Example: floatscope report runs/demo

    Parameters
    ----------
    run
        The run folder.
    """
    from floatscope.study.reporting import report
    from floatscope.study.store import Run

    found = Run(run)
    print(report(found))
    return exit_code(found)


def push(run: Path, repository: str, /, *, private: Annotated[bool, FLAG] = False) -> None:
    """Upload a finished run to the hub as a dataset with a card: results, tables, traces and report.

    Example: floatscope push runs/mine owner/my-run

    Parameters
    ----------
    run
        The run folder.
    repository
        The dataset, as owner/name; made if it is not there.
    private
        Make it so that only its owner sees it.
    """
    from floatscope.study.sharing import push_run
    from floatscope.study.store import Run

    print(push_run(Run(run), repository, private))


def exit_code(run: Run) -> int:
    """0; 1 where all units of a model failed; 3, after a sentence, for a run that is not finished."""
    if run.unfinished:
        print(f"floatscope: {run.unfinished}", file=sys.stderr)
        return 3
    own = run.results().filter(control="")
    return int(any(of_model["error"].is_not_null().all() for of_model in own.partition_by("model")))


def _check(plan: Study) -> int:
    """Exit code 1 where something is missing."""
    from floatscope.study.checking import check_study

    findings = check_study(plan)
    for finding in findings:
        print(one_line(f"{finding.part} ({finding.source}): {finding.lacks or 'ready'}"))
    most = len(plan.models) * sum(cell.limit for task in plan.tasks for cell in plan.cells(task))
    lacking = sum(bool(finding.lacks) for finding in findings)
    verdict = f"{lacking} of its {len(findings)} parts are not ready" if lacking else "all of its parts are ready"
    print(f"The study {plan.name} is valid: at most {most} units of models without controls; {verdict}.")
    return 1 if lacking else 0


def _estimate(plan: Study, timed: bool) -> int:
    from datetime import timedelta

    from rich.console import Console
    from rich.table import Table

    from floatscope.study.estimating import GPUS, UTILISATION, Estimate, count, estimate

    with Console(stderr=True).status("reading tasks") as status:
        found = estimate(plan, status.update) if timed else count(plan)
    names = ("units", "batches", "seconds", "trace_bytes")
    units, number, seconds, kept = (sum(getattr(row, name) for row in found) for name in names)
    on_gpus = tuple(map(sum, zip(*(row.gpu_seconds for row in found), strict=True)))
    table = Table("model", "units", "batches", *(("time here", "traces", *(f"{name} hours" for name in GPUS)) * timed))
    for row in (*found, Estimate("all", units, number, seconds, kept, on_gpus)):
        cells = [one_line(row.name), str(row.units), str(row.batches)]
        if timed:
            hours = (f"{taken / 3600:.2g}" for taken in row.gpu_seconds)
            cells += [str(timedelta(seconds=round(row.seconds))), f"{row.trace_bytes / 1e6:,.1f} MB", *hours]
        table.add_row(*cells)
    Console().print(table)
    if timed:
        print(f"Hours on GPUs are arithmetic (bfloat16 at {UTILISATION:.0%} of the peak), not measured. Wall time:")
        for name, taken in zip(GPUS, on_gpus, strict=True):
            print(f"{name}: " + ", ".join(f"{taken / 3600 / gpus:.2g} h on {gpus}" for gpus in (1, 4, 16, 64)))
    return 0


@contextmanager
def _bar() -> Iterator[Notify]:
    """A progress bar, as what is to be told of progress."""
    from rich.markup import escape

    with progress_bar() as progress:
        bar = progress.add_task("starting", total=None)
        started: list[int] = []

        def notify(what: str, done: int, total: int) -> None:
            if total and not started:  # time left is judged by the units of this call alone
                started.append(done)
                progress.reset(bar, total=total, completed=done)
            progress.update(bar, description=escape(one_line(what)), completed=done, total=total or None)

        yield notify


def refuse_unknown_models(plan: Study) -> None:
    """A typo in a model's name is told before tasks are read and other models are run."""
    from floatscope.models.pulling import refuse_unknown

    for model in plan.models:
        refuse_unknown(model.source)


def run_shown(study: Study, folder: Path, retry: bool, division: Division, wants_report: bool = False) -> int:
    """Run a study with a progress bar, write its report if it is wanted, print its tables; the exit code.

    One that is stopped by the keyboard, or asked to end, ends in a sentence on how to go on.
    """
    from floatscope.study.estimating import expected_trace_bytes
    from floatscope.study.reporting import report, tables_text
    from floatscope.study.running import run_study

    if traced := len(study.models) * sum(cell.traces for task in study.tasks for cell in study.cells(task)):
        beside = f", and {traced} more under each control ({', '.join(study.controls)})" if study.controls else ""
        kept = expected_trace_bytes(study)
        size = "" if kept is None else f", about {kept / 1e6:,.1f} MB in all"
        print(
            f"floatscope: up to {traced} answers are traced{beside}; each takes a file{size}, and longer than an "
            "answer alone (`floatscope study FILE --estimate` measures both)",
            file=sys.stderr,
        )
    try:
        with _bar() as notify:
            outcome = run_study(study, folder, retry=retry, division=division, notify=notify)
    except KeyboardInterrupt:
        print(
            f"floatscope: stopped; what is done is kept in {folder}: the same command goes on from there",
            file=sys.stderr,
        )
        return 130
    done, units = outcome.done_now, outcome.units
    told = f"{done} of {units} units were run, the others were there" if done < units else f"{units} units were run"
    failed = f"; {outcome.failed} failed (see the column error; --retry runs them again)" if outcome.failed else ""
    again = f"; {outcome.damaged} rows had changed on the disk and were run again" if outcome.damaged else ""
    print(one_line(f"floatscope: {told}{failed}{again}; the run is {outcome.run.folder}"), file=sys.stderr)
    if division.of > 1:
        print(f"floatscope: after all {division.of} shares: floatscope merge {folder}", file=sys.stderr)
        return 0
    if kept := [path.stat().st_size for path in outcome.run.traces(control=None) if path.is_file()]:
        told = f"{len(kept)} traces ({sum(kept) / 1e6:,.1f} MB) are in {outcome.run.folder / 'traces'}"
        print(one_line(f"floatscope: {told}: floatscope analyze drift {outcome.run.folder}"), file=sys.stderr)
    if wants_report:  # before the tables: whoever reads those may end this process
        path = report(outcome.run)
        print(f"floatscope: open {path} in a browser", file=sys.stderr)
    print(tables_text(outcome.run, "markdown"), flush=True)
    return exit_code(outcome.run)
