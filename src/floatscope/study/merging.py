"""Merging shares into one run: every unit of every share once, then the analyses, in the bytes of an undivided run.

The shares' own folders stay as they are: rows are copied, traces are linked, or copied where the disk has no links.
"""

import dataclasses
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from floatscope.errors import UserError
from floatscope.files import replacing
from floatscope.study.division import FINISHED, SHARES, Division
from floatscope.study.engine import is_sound, missing_units, quiet_plan
from floatscope.study.plan import read_study
from floatscope.study.running import Notify, Outcome, finish, refuse_other_shares, refuse_other_study
from floatscope.study.store import MANIFEST, STUDY_FILE, Run, Store, read_manifest


def merge_shares(folder: str | Path, *, workers: int = 1, notify: Notify = lambda what, done, total: None) -> Outcome:
    """Join the shares of a run into its folder and make its tables; shares that do not fit together are refused.

    workers: processes that share the analyses.
    """
    folder = Path(folder).expanduser()
    shares = find_shares(folder)
    _refuse_unlike(shares)
    study = dataclasses.replace(read_study(shares[0] / STUDY_FILE), workers=workers)
    refuse_other_study(study, folder)
    with Store(folder) as store:
        for done, share in enumerate(shares):
            notify("merging shares", done, len(shares))
            for trace in sorted((share / "traces").glob("*.safetensors")):
                _link(trace, folder / "traces" / trace.name)
            store.take(share)
        jobs = quiet_plan(study)
        if missing := missing_units(jobs, store.done(), folder):
            raise UserError(
                f"{len(missing)} of the {len(jobs)} units of {folder} are in no share, or their rows or traces are "
                "damaged: run every share again, which does only what it lacks, then merge again."
            )
        for name in (STUDY_FILE, MANIFEST):
            with replacing(folder / name) as temporary:
                shutil.copyfile(shares[0] / name, temporary)
        run = Run(folder, study)
        finish(run, notify)
    return Outcome(run, len(jobs), 0, int(run.results()["error"].is_not_null().sum()), store.damaged)


def find_shares(folder: Path) -> list[Path]:
    """The folders of all shares of a run in their order, each finished."""
    found = sorted((folder / SHARES).glob("*-of-*"))
    if not found:
        raise UserError(f"There are no shares in {folder}: run a study with --share 1/2 --out {folder}, and so on.")
    number = found[0].name.partition("-of-")[2]
    if not number.isdecimal():
        raise UserError(f"{found[0]} is no share of a run: move it away.")
    refuse_other_shares(folder, int(number))
    shares = [Division(share, int(number)).folder(folder) for share in range(1, int(number) + 1)]
    if open_ := [share.name for share in shares if not (share / FINISHED).is_file()]:
        raise UserError(
            f"{len(open_)} of the {number} shares of {folder} are not finished ({', '.join(open_[:10])}"
            f"{', ...' if len(open_) > 10 else ''}): run them, then merge again."
        )
    return shares


def _refuse_unlike(shares: list[Path]) -> None:
    """What decides results must be the same for all: the plan, the models' files, the data, the versions."""
    first = read_manifest(shares[0])
    for share in shares:
        Run(share).study  # noqa: B018  its file must be what its manifest says
        if differs := _first_difference(first, read_manifest(share)):
            raise UserError(
                f"The shares {shares[0].name} and {share.name} do not belong together, since {differs}: run one of "
                "them again as the other was, in a new folder."
            )


def _first_difference(one: Any, other: Any, name: str = "") -> str:
    """A sentence's part on the first value in which two manifests differ, or nothing."""
    if isinstance(one, dict) and isinstance(other, dict):
        parts = (_first_difference(one.get(key), other.get(key), f"{name} {key}".strip()) for key in {**one, **other})
        return next(filter(None, parts), "")
    return "" if one == other else f"{name} is {str(one)[:40]!r} in the one and {str(other)[:40]!r} in the other"


def _link(trace: Path, to: Path) -> None:
    """Give a trace a second name, in one move; a sound one that is there already stays."""
    if to.exists() and (to.samefile(trace) or is_sound(to)):
        return
    with replacing(to) as temporary:
        temporary.unlink()
        with suppress(OSError):
            os.link(trace, temporary)
        if not temporary.exists():
            shutil.copyfile(trace, temporary)
