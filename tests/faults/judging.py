"""What a run is worth after its faults: compared with the same study, run once without a disturbance."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

from floatscope.errors import UserError
from tests.study.run_bytes import run_bytes

UNIT = "model, task, condition, sample, control"


@dataclass
class Counts:
    """Of one kind; all but the first should be 0."""

    faults: int = 0
    lost: int = 0
    """Units without a row."""
    twice: int = 0
    """Rows of units that have another one, in the run or in two of its shares."""
    differing: int = 0
    """Files whose bytes are not those of the undisturbed run."""
    left_over: int = 0
    """Processes that outlived the call that they belong to."""
    unfinished: int = 0
    """Runs that did not end when nothing disturbed them any more."""

    def wrong(self) -> bool:
        return any(getattr(self, part.name) for part in fields(self)[1:])


@dataclass(frozen=True)
class Judge:
    """The undisturbed run."""

    whole: Path

    @cached_property
    def bytes(self) -> dict[str, str]:
        return run_bytes(self.whole)

    def judge(self, folder: Path, counts: Counts) -> None:
        """Add what is wrong with a run that was disturbed and then ended in peace."""
        expected = Counter(units(self.whole))
        found = Counter(units(folder))
        shares = Counter(unit for share in sorted(folder.glob("shares/*-of-*")) for unit in units(share))
        counts.lost += (expected - found).total()
        counts.twice += (found - expected).total() + (shares - Counter(shares.keys())).total()
        try:
            theirs = run_bytes(folder)
        except UserError:
            counts.differing += 1
            return
        ours = self.bytes
        counts.differing += sum(ours.get(name) != theirs.get(name) for name in ours.keys() | theirs.keys())


def units(folder: Path) -> list[tuple[str, ...]]:
    """Of a store, as they stand in it."""
    database = sqlite3.connect(folder / "results.sqlite", timeout=60)
    try:
        return database.execute(f"SELECT {UNIT} FROM results").fetchall()
    except sqlite3.DatabaseError:
        return []
    finally:
        database.close()
