"""A run, the folder a study writes: results with one row per unit, the manifest, and how both are read afterwards.

results.sqlite is committed batch by batch, so kill -9 loses the batch in flight and no more. One process writes at a
time, held by a lock that ends with it; readers may look on meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floatscope import __version__
from floatscope.errors import UserError
from floatscope.files import PARTIAL, file_hash, read_json, replace_json
from floatscope.qa.stressors import Label, label_types
from floatscope.study.plan import GUESS, NULL_QUERY, UNTRAINED, Study, read_study
from floatscope.study.units import Unit, storable

if TYPE_CHECKING:
    import polars as pl

STUDY_FILE, RESULTS, MANIFEST, TRACES = "study.toml", "results.sqlite", "manifest.json", "traces"
LOCK = ".lock"
PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "polars", "safetensors", "bm25s", "scipy")
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
_CONTROL_ORDER = ("", NULL_QUERY, UNTRAINED, GUESS)


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
            for half in (folder / TRACES).glob(f".*{PARTIAL}"):  # what a killed process was writing
                half.unlink(missing_ok=True)
            self._database = sqlite3.connect(folder / RESULTS, timeout=60)
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
    if not (folder / RESULTS).is_file():
        raise UserError(f"There is no run in {folder}: it has no {RESULTS}.")
    with _sentences(folder):
        database = sqlite3.connect(folder / RESULTS, timeout=60)
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
        if "locked" not in str(error):  # a full disk, for one
            raise
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
            f"{folder / RESULTS} cannot be used ({error}); what it holds is kept: make room or mend it, and run again."
        ) from error
    except OSError as error:
        raise UserError(
            f"The run folder {folder} cannot be used ({error.strerror}); what it holds is kept: mend that, run again."
        ) from error


class Run:
    """A run folder: the study, its manifest, results as a table, paths of traces."""

    def __init__(self, folder: str | Path, study: Study | None = None) -> None:
        """study: where it is known already, so that the file need not be read."""
        self.folder = Path(folder)
        self._study = study
        if not (self.folder / STUDY_FILE).is_file():
            raise UserError(f"There is no run in {self.folder}: it has no {STUDY_FILE}; `floatscope study` makes one.")

    @property
    def study(self) -> Study:
        """As it was run, all values written out."""
        if self._study is None:
            self._study = read_study(self.folder / STUDY_FILE)
        return self._study

    @property
    def manifest(self) -> dict[str, Any]:
        """Versions, seed and hashes."""
        return read_manifest(self.folder)

    def results(self) -> pl.DataFrame:
        """One row per unit of the study that is done, in the study's order; label columns are null where not used."""
        import polars as pl

        cells = [cell for task in self.study.tasks for cell in self.study.cells(task)]
        labels = {cell.condition.name: cell.condition.labels for cell in cells}
        places = self._places(labels)
        placed = [(place, row) for row in read_rows(self.folder) if (place := _place(row, places)) is not None]
        placed.sort(key=lambda pair: pair[0])
        schema = _column_types()
        columns: dict[str, list[Any]] = {name: [] for name in schema}
        for _, row in placed:
            full = row | {"answers": json.loads(str(row["answers"]))} | dict(labels[str(row["condition"])])
            for name, values in columns.items():
                values.append(full.get(name))
        return pl.DataFrame(columns, schema=schema)

    def scores(self) -> pl.DataFrame:
        """Every score of the run in one long table, also in tables/scores.parquet; shares between 0 and 1.

        statistic: "score" of a model; "guess" of a guess without a model; "gain" from documents; "difference" of the
        gain of `model` minus that of `beside`; "only right", the share that `model` got right and `beside` did not.
        value, low, high: with a 95 % interval. n: samples, 0 where there is no value. p: of gains and differences;
        McNemar's for "only right". task: null for an average over tasks. panel, axis, x: of points of stress curves.
        """
        from floatscope.study.scores import score_frame

        return score_frame(self.results())

    def traces(
        self,
        model: str | None = None,
        task: str | None = None,
        condition: str | None = None,
        sample: str | None = None,
        control: str | None = "",
    ) -> list[Path]:
        """Paths of kept traces, in the order of the results; `control=None` gives controls too."""
        wanted = {"model": model, "task": task, "condition": condition, "sample": sample, "control": control}
        found = self.results()
        for name, value in wanted.items():
            if value is not None:
                found = found.filter(found[name] == value)
        return [self.folder / path for path in found["trace"].drop_nulls()]

    def _places(self, conditions: Iterable[str]) -> dict[str, dict[str, int]]:
        """The order of names in the study."""
        from floatscope.qa.guesses import GUESSES

        names = {
            "control": _CONTROL_ORDER,
            "model": [*(model.name for model in self.study.models), *GUESSES],
            "task": [task.name for task in self.study.tasks],
            "condition": conditions,
        }
        return {column: {name: place for place, name in enumerate(known)} for column, known in names.items()}


def _place(row: dict[str, Any], places: dict[str, dict[str, int]]) -> tuple[int, ...] | None:
    """Where a row stands in the study's order; None if it is no part of it."""
    found = [places[column].get(row[column]) for column in ("control", "model", "task", "condition")]
    known = [place for place in found if place is not None]
    return (*known, row["number"]) if len(known) == len(found) else None


def _column_types() -> dict[str, Any]:
    """The columns of the results: the labels of all stressors stand behind the condition."""
    import polars as pl

    texts = dict.fromkeys(("model", "task", "condition", "stressor"), pl.String)
    types = {str: pl.String, int: pl.Int64, float: pl.Float64}
    labels = {name: types[kind] for name, kind in label_types().items()}
    rest = dict.fromkeys(("sample", "control", "question"), pl.String) | {"answers": pl.List(pl.String)}
    rest |= {"prediction": pl.String} | dict.fromkeys(("accuracy", "em", "f1"), pl.Float64)
    rest |= dict.fromkeys(("prompt_tokens", "steps", "cut"), pl.Int64) | dict.fromkeys(("error", "trace"), pl.String)
    if taken := labels.keys() & (texts | rest).keys():
        raise UserError(f"A stressor has a label {min(taken)!r}, which all results have: give it another name.")
    return texts | labels | rest


def describe_run(study: Study, tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What is known before a model is loaded; `models` is filled as they are."""
    return {
        "study": study.name,
        "seed": study.seed,
        "versions": {"floatscope": __version__, "python": platform.python_version()} | _versions(),
        "platform": f"{platform.system()} {platform.machine()}",
        "tasks": dict(tasks),
        "models": {},
    }


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run, empty where there is none yet."""
    path = folder / MANIFEST
    try:
        return read_json(path) if path.exists() else {}
    except UserError as error:
        raise UserError(f"{error} Remove it, and run again.") from error


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Replace the manifest in one move."""
    replace_json(folder / MANIFEST, manifest)


def refuse_changes(old: Mapping[str, Any], new: Mapping[str, Any], part: str) -> None:
    """The samples or weights of a run that goes on must be those that it began with."""
    for name, about in new.get(part, {}).items():
        before = old.get(part, {}).get(name)
        if before is not None and before["sha256"] != about["sha256"]:
            raise UserError(
                f"The {part[:-1]} {name!r} is not what it was when this run began (its content has changed): "
                "give another folder for a new run."
            )


def describe_model(source: str) -> dict[str, Any]:
    """Where a model comes from and one hash over its files."""
    from floatscope.models.loading import locate

    files = locate(source).files()
    digest = hashlib.sha256("".join(f"{file.name} {file_hash(file)}\n" for file in files).encode())
    return {"source": source, "sha256": digest.hexdigest()}


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
