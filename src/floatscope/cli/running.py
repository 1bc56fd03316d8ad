"""A study on screen: a bar over all units with the time left, and a sentence at the end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from floatscope.cli.shared import progress_bar

if TYPE_CHECKING:
    from floatscope.study.plan import Study
    from floatscope.study.running import Outcome


def run_shown(study: Study, folder: Path, *, retry: bool) -> Outcome | None:
    """Run a study with a progress bar; None if it was stopped by the keyboard, after a sentence on how to go on."""
    from rich.markup import escape

    from floatscope.study.running import run_study

    try:
        with progress_bar() as progress:
            bar = progress.add_task("starting", total=None)
            started: list[int] = []

            def notify(what: str, done: int, total: int) -> None:
                if total and not started:  # time left is judged by the units of this call alone
                    started.append(done)
                    progress.reset(bar, total=total, completed=done)
                progress.update(bar, description=escape(what), completed=done, total=total or None)

            outcome = run_study(study, folder, retry=retry, notify=notify)
    except KeyboardInterrupt:
        print(
            f"floatscope: stopped; what is done is kept in {folder}: the same command goes on from there",
            file=sys.stderr,
        )
        return None
    _tell(outcome)
    return outcome


def _tell(outcome: Outcome) -> None:
    done, units = outcome.done_now, outcome.units
    told = f"{done} of {units} units were run, the others were there" if done < units else f"{units} units were run"
    failed = f"; {outcome.failed} failed (see the column error; --retry runs them again)" if outcome.failed else ""
    print(f"floatscope: {told}{failed}; the run is {outcome.run.folder}", file=sys.stderr)
