"""The run store: results.sqlite, one row a unit, committed batch by batch. kill -9 loses the batch in flight, no more.

One process writes at a time, held by a lock that ends with it; readers may look on meanwhile.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from floatscope.errors import UserError
from floatscope.qa.stressors import Label
from floatscope.study.units import Unit, storable

FILE = "results.sqlite"
LOCK = ".lock"
TRACES = "traces"
_COLUMNS = (
    "model", "task", "condition", "sample", "control", "number", "stressor", "labels", "question", "answers",
    "prediction", "accuracy", "em", "f1", "prompt_tokens", "steps", "cut", "error", "trace",
)  # fmt: skip
_SCHEMA = """
CREATE TABLE IF NOT EXISTS results (
    model TEXT NOT NULL, task TEXT NOT NULL, condition TEXT NOT NULL, sample TEXT NOT NULL, control TEXT NOT NULL,
    number INTEGER NOT NULL, stressor TEXT NOT NULL, labels TEXT NOT NULL, question TEXT NOT NULL,
    answers TEXT NOT NULL, prediction TEXT, accuracy REAL, em REAL, f1 REAL, prompt_tokens INTEGER, steps INTEGER,
    cut INTEGER, error TEXT, trace TEXT,
    PRIMARY KEY (model, task, condition, sample, control)
)
"""


@dataclass(frozen=True)
class Row:
    """What became of a unit: an answer with its scores, or the error in its place."""

    unit: Unit
    number: int
    stressor: str
    labels: Mapping[str, Label] = field(hash=False)
    question: str
    answers: tuple[str, ...]
    prediction: str | None = None
    accuracy: float | None = None
    em: float | None = None
    f1: float | None = None
    prompt_tokens: int | None = None
    steps: int | None = None
    cut: int | None = None
    """Document tokens that did not fit."""
    error: str | None = None
    trace: str | None = None
    """Path in the run folder."""

    @property
    def values(self) -> tuple[object, ...]:
        """As the table has them."""
        kept = [getattr(self, name) for name in _COLUMNS[10:]]
        texts = (self.question, json.dumps(self.answers), *kept)
        described = (self.number, self.stressor, json.dumps(dict(self.labels)))
        return tuple(
            storable(value) if isinstance(value, str) else value for value in (*self.unit.parts, *described, *texts)
        )


class Store:
    """The results of one run, open for writing; use it as a context."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with _sentences(folder):
            (folder / TRACES).mkdir(parents=True, exist_ok=True)
            self._lock = _take_lock(folder)
            for half in (folder / TRACES).glob(".*.partial"):  # what a killed process was writing
                half.unlink(missing_ok=True)
            self._database = sqlite3.connect(folder / FILE, timeout=60)
            self._database.execute(_SCHEMA)
            self._database.commit()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()
        self._lock.close()

    def done(self) -> dict[Unit, str | None]:
        """Units that have a row, with the trace each has."""
        query = "SELECT model, task, condition, sample, control, trace FROM results"
        with _sentences(self.folder):
            return {Unit(*row[:5]): row[5] for row in self._database.execute(query)}

    def put(self, rows: Iterable[Row]) -> None:
        """Commit a batch: all of it or nothing."""
        marks = ", ".join("?" * len(_COLUMNS))
        statement = f"INSERT OR REPLACE INTO results ({', '.join(_COLUMNS)}) VALUES ({marks})"
        with _sentences(self.folder), self._database:
            self._database.executemany(statement, [row.values for row in rows])

    def forget_failed(self) -> int:
        """Drop the rows of units that failed, so that they are run again; how many there were."""
        with _sentences(self.folder), self._database:
            return self._database.execute("DELETE FROM results WHERE error IS NOT NULL").rowcount


def read_rows(folder: Path) -> list[dict[str, object]]:
    """Every row as it stands, read without the lock: a run can be looked at while it goes on."""
    if not (folder / FILE).is_file():
        raise UserError(f"There is no run in {folder}: it has no {FILE}.")
    with _sentences(folder):
        database = sqlite3.connect(folder / FILE, timeout=60)
        try:
            found = database.execute(f"SELECT {', '.join(_COLUMNS)} FROM results").fetchall()
        finally:
            database.close()
    return [dict(zip(_COLUMNS, row, strict=True)) for row in found]


def _take_lock(folder: Path) -> sqlite3.Connection:
    """An exclusive transaction on a file of its own: the system ends it with the process, however that ends."""
    lock = sqlite3.connect(folder / LOCK, timeout=0, isolation_level=None)
    try:
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        lock.close()
        raise UserError(
            f"The run {folder} is being written by another process: wait for it, or choose another folder."
        ) from error
    return lock


@contextmanager
def _sentences(folder: Path) -> Iterator[None]:
    """Trouble with disk or file as one sentence; what was committed before stays."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise UserError(
            f"{folder / FILE} cannot be used ({error}); what it holds is kept: make room or mend it, and run again."
        ) from error
    except OSError as error:
        raise UserError(
            f"The run folder {folder} cannot be used ({error.strerror}); what it holds is kept: mend that, run again."
        ) from error
