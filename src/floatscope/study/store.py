"""A run, the folder a study writes: results with one row per unit, the manifest, and how both are read afterwards.

results.sqlite is committed batch by batch, so kill -9 loses the batch in flight and no more. One process writes at a
time, held by a lock that ends with it; readers may look on meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floatscope import __version__
from floatscope.errors import UserError
from floatscope.files import PARTIAL, file_hash, read_json, unsealed
from floatscope.qa.guesses import GUESSES
from floatscope.qa.metrics import METRICS, OUTCOMES, PASSAGE_METRICS, SIGNALS
from floatscope.qa.stressors import Label, label_types
from floatscope.study.plan import GUESS, NULL_QUERY, UNTRAINED, ModelPlan, Study, read_study
from floatscope.study.units import Job, Unit, storable

if TYPE_CHECKING:
    import polars as pl

STUDY_FILE, RESULTS, MANIFEST, TRACES = "study.toml", "results.sqlite", "manifest.json", "traces"
LOCK = ".lock"
PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "polars", "safetensors", "bm25s", "scipy")
SCHEMA_VERSION = 2
_TEXT, _WHOLE = "TEXT NOT NULL", "INTEGER NOT NULL"
_COLUMNS = {
    **dict.fromkeys(("model", "task", "condition", "content", "sample", "control"), _TEXT),
    **{"number": _WHOLE, "stressor": _TEXT, "labels": _TEXT, "question": _TEXT, "answers": _TEXT},
    **{"prediction": "TEXT", "scores": "TEXT", "prompt_tokens": "INTEGER", "steps": "INTEGER", "cut": "INTEGER"},
    **{"error": "TEXT", "trace": "TEXT"},
}
"""Fields of a Row and its unit, each with its type in the database."""
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS results (
    {", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())}, checksum TEXT NOT NULL,
    PRIMARY KEY (model, task, condition, content, sample, control)
)
"""


@dataclass(frozen=True)
class Row:
    """What became of a unit: an answer with its scores, or the error in its place."""

    unit: Unit
    number: int
    stressor: str
    labels: Mapping[str, Label | None] = field(hash=False)
    question: str
    answers: tuple[str, ...]
    prediction: str | None = None
    scores: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """By metric; none where the unit failed. `attribution` and `patched` are records of their own."""
    prompt_tokens: int | None = None
    steps: int | None = None
    cut: int | None = None
    """Document tokens that did not fit."""
    error: str | None = None
    trace: str | None = None
    """Path in the run folder."""

    @classmethod
    def of(cls, job: Job, **found: Any) -> Row:
        """The row of a job, with what was found."""
        condition, sample = job.condition, job.sample
        return cls(job.unit, job.number, condition.stressor, condition.labels, sample.question, sample.answers, **found)

    @property
    def values(self) -> tuple[object, ...]:
        """As the table has them, without the checksum."""
        found = vars(self.unit) | vars(self)
        return tuple(_stored(found[name]) for name in _COLUMNS)


def _stored(value: Any) -> Any:
    """As the database has it: tables and lists as JSON."""
    if isinstance(value, Mapping | tuple):
        value = json.dumps(dict(value) if isinstance(value, Mapping) else value, ensure_ascii=False)
    return storable(value) if isinstance(value, str) else value


def _checksum(values: Sequence[object]) -> str:
    """Of a row's values as they are stored: a bit that flips on the disk changes it."""
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=8).hexdigest()


class Store:
    """The results of one run, open for writing; use it as a context."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with _sentences(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with ExitStack() as opened:
                # First of all: by this file a folder is known for a run that was killed before it had anything else.
                opened.enter_context(closing(_take_lock(folder)))
                (folder / TRACES).mkdir(exist_ok=True)
                halves = (f".*{PARTIAL}", f"*/.*{PARTIAL}", f"{TRACES}/.tmp*")  # the last are of safetensors
                for half in (found for pattern in halves for found in folder.glob(pattern)):
                    half.unlink(missing_ok=True)  # what a killed process was writing
                self._database = opened.enter_context(closing(sqlite3.connect(folder / RESULTS, timeout=60)))
                _has_rows(self._database)  # a table of another version is refused
                self._database.execute(_SCHEMA)
                self._database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                self.damaged = self._drop_damaged()
                self._opened = opened.pop_all()  # whatever fails before is no writer and holds no lock

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def _drop_damaged(self) -> int:
        """Build the table anew from its sound rows where anything in it is damaged; how many rows were."""
        rows, damaged = _sound_rows(self._database)
        if damaged or self._database.execute("PRAGMA integrity_check").fetchone() != ("ok",):
            with self._database:
                self._database.execute("DROP TABLE results")
                self._database.execute(_SCHEMA)
                self._insert(rows)
        return damaged

    def _insert(self, rows: Iterable[Sequence[object]]) -> None:
        marks = ", ".join("?" * (len(_COLUMNS) + 1))
        statement = f"INSERT OR REPLACE INTO results ({', '.join(_COLUMNS)}, checksum) VALUES ({marks})"
        self._database.executemany(statement, [(*row, _checksum(row)) for row in rows])

    def done(self) -> dict[Unit, str | None]:
        """Units that have a row, with the trace each has."""
        query = "SELECT model, task, condition, sample, control, content, trace FROM results"
        with _sentences(self.folder):
            return {Unit(*row[:6]): row[6] for row in self._database.execute(query)}

    def put(self, rows: Iterable[Row]) -> None:
        """Commit a batch: all of it or nothing."""
        with _sentences(self.folder), self._database:
            self._insert(row.values for row in rows)

    def take(self, folder: Path) -> None:
        """Commit every sound row of another run, as it stands there."""
        with _sentences(self.folder), self._database, closing(sqlite3.connect(folder / RESULTS, timeout=60)) as other:
            self._insert(_sound_rows(other)[0])

    def forget_failed(self) -> int:
        """Drop the rows of units that failed, so that they are run again; how many there were."""
        with _sentences(self.folder), self._database:
            return self._database.execute("DELETE FROM results WHERE error IS NOT NULL").rowcount


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """Every sound row as it stands, read without the lock: a run can be looked at while it goes on."""
    if not (folder / RESULTS).is_file():
        raise UserError(f"There is no run in {folder}: it has no {RESULTS}.")
    with _sentences(folder):
        database = sqlite3.connect(folder / RESULTS, timeout=60)
        try:
            rows, _ = _sound_rows(database)
        finally:
            database.close()
    found = [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
    return [row | {name: json.loads(row[name]) for name in ("labels", "answers", "scores")} for row in found]


def _sound_rows(database: sqlite3.Connection) -> tuple[list[tuple[Any, ...]], int]:
    """The rows whose checksum is right, and how many have a wrong one."""
    if not _has_rows(database):
        return [], 0
    database.text_factory = lambda raw: raw.decode("utf-8", "replace")
    found = database.execute(f"SELECT {', '.join(_COLUMNS)}, checksum FROM results").fetchall()
    sound = [row[:-1] for row in found if _checksum(row[:-1]) == row[-1]]
    return sound, len(found) - len(sound)


def _has_rows(database: sqlite3.Connection) -> bool:
    """Whether there is a table yet; one of another schema is refused."""
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'results'").fetchone():
        return False
    if (version := database.execute("PRAGMA user_version").fetchone()[0]) != SCHEMA_VERSION:
        raise sqlite3.DatabaseError(f"its schema has version {version}, and this floatscope knows {SCHEMA_VERSION}")
    return True


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
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # sqlite's own sentence may quote damaged text
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
        self.folder = Path(folder).expanduser()
        self._study = study
        if not (self.folder / STUDY_FILE).is_file():
            raise UserError(f"There is no run in {self.folder}: it has no {STUDY_FILE}; `floatscope study` makes one.")

    def __repr__(self) -> str:
        try:
            study, done = self.study, self.results()
            parts = f"{len(study.models)} models, {len(study.tasks)} tasks, {done['condition'].n_unique()} conditions"
            told = f"{parts}, {done.height} of {self.manifest.get('units')} units, {done['trace'].count()} traces"
        except UserError as error:
            told = str(error)
        return f"Run({str(self.folder)!r}: {told})"

    @property
    def study(self) -> Study:
        """As it was run, all values written out."""
        if self._study is None:
            path = self.folder / STUDY_FILE
            now = file_hash(path)
            if self.manifest.get("study_sha256", now) != now:
                raise UserError(f"{path} is not what the run was made with: put that back, or run the study again.")
            self._study = read_study(path)
        return self._study

    @property
    def manifest(self) -> dict[str, Any]:
        """Versions, seed and hashes."""
        return read_manifest(self.folder)

    def results(self) -> pl.DataFrame:
        """One row per unit of the study that is done, in the study's order; label columns are null where not used."""
        import polars as pl

        study = self.study
        cells = [(task.name, cell.condition) for task in study.tasks for cell in study.cells(task)]
        conditions = {(task, condition.name): condition for task, condition in cells}
        order = {
            "control": ["", NULL_QUERY, UNTRAINED, GUESS],
            "model": [*(model.name for model in study.models), *GUESSES],
            "task": [task.name for task in study.tasks],
            "condition": [condition.name for _, condition in cells],
        }
        places = {
            column: {name: place for place, name in enumerate(dict.fromkeys(names))} for column, names in order.items()
        }
        rows = []
        for row in read_rows(self.folder):
            condition = conditions.get((row["task"], row["condition"]))
            known = all(row[column] in names for column, names in places.items())
            if known and condition is not None and row["content"] in ("", condition.content):
                rows.append(row | row["scores"] | dict(condition.labels))
        rows.sort(key=lambda row: (*(names[row[column]] for column, names in places.items()), row["number"]))
        texts = dict.fromkeys(("model", "task", "condition", "stressor"), pl.String)
        types = {str: pl.String, int: pl.Int64, float: pl.Float64}
        labels = {name: types[kind] for name, kind in label_types().items()}
        metrics = (*METRICS, *(PASSAGE_METRICS if any(task.is_passages for task in study.tasks) else ()))
        metrics += OUTCOMES if any(condition.draws is not None for _, condition in cells) else ()
        rest = dict.fromkeys(("sample", "control", "question"), pl.String) | {"answers": pl.List(pl.String)}
        metrics += SIGNALS if any(condition.attribution for _, condition in cells) else ()
        rest |= {"number": pl.Int64, "prediction": pl.String} | dict.fromkeys(metrics, pl.Float64)
        rest |= dict.fromkeys(("prompt_tokens", "steps", "cut"), pl.Int64)
        rest |= dict.fromkeys(("error", "trace"), pl.String)
        if taken := labels.keys() & (texts | rest).keys():
            raise UserError(f"A stressor has a label {min(taken)!r}, which all results have: give it another name.")
        schema = texts | labels | rest
        return pl.DataFrame({name: [row.get(name) for row in rows] for name in schema}, schema=schema)

    def attribution(self) -> pl.DataFrame:
        """How far each method of attribution can be believed, with intervals; also in tables/attribution.parquet."""
        from floatscope.attribution.faithfulness import faithfulness

        return faithfulness(self._records("attribution"))

    def patched(self) -> pl.DataFrame:
        """Which layers and steps bring an answer back, as `study.donors` tells; also in tables/patched.parquet."""
        from floatscope.study.donors import patch_frame

        return patch_frame(self._records("patched"))

    def _records(self, name: str) -> list[dict[str, Any]]:
        """The rows that have such a record among their scores, in a fixed order."""
        found = read_rows(self.folder)
        rows = [row | row["scores"] for row in found if not row["control"] and name in row["scores"]]
        return sorted(rows, key=lambda row: (row["model"], row["task"], row["condition"], row["number"]))

    @property
    def unfinished(self) -> str:
        """A sentence that says how many units are still to be run, or nothing."""
        if not (self.folder / MANIFEST).is_file():
            return f"{MANIFEST} of this run is gone, so that nobody knows how many units are still to be run."
        done, planned = self.results().height, self.manifest.get("units", 0)
        if done >= planned:
            return ""
        return f"This run is not finished: {done} of {planned} units are done, and what is shown is of these alone."

    def scores(self) -> pl.DataFrame:
        """Every score of the run in one long table, also in tables/scores.parquet; shares between 0 and 1.

        statistic: "score" of a model; "guess" of a guess without a model; "gain" from documents; "difference" of the
        gain of `model` minus that of `beside`; "only right", the share that `model` got right and `beside` did not;
        "effect", what an edit of attention does to `metric`, minus `beside`: the unedited model or a control twin.
        value, low, high: with a 95 % interval. n: samples, 0 where there is no value. p: of gains and differences;
        McNemar's for "only right"; of effects as docs/definitions.md says, corrected by Holm's method. task: null for
        an average over tasks. panel, axis, x: of points of stress curves.
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
        planned: bool = False,
    ) -> list[Path]:
        """Paths of kept traces, in the order of the results; `control=None` gives controls too.

        planned: without those that were chosen by their answers (`trace_wrong`), which would bias a mean.
        """
        import polars as pl

        wanted = {"model": model, "task": task, "condition": condition, "sample": sample, "control": control}
        found = self.results()
        for name, value in wanted.items():
            if value is not None:
                found = found.filter(found[name] == value)
        if planned:
            cells = (cell for plan in self.study.tasks for cell in self.study.cells(plan))
            first = {(cell.task.name, cell.condition.name): cell.traces for cell in cells}
            places = found.select("task", "condition", "number").iter_rows()
            known = [number < first[name, condition] for name, condition, number in places]
            found = found.filter(pl.Series(known, dtype=pl.Boolean))
        return [self.folder / path for path in found["trace"].drop_nulls()]


def describe_run(study: Study, tasks: Mapping[str, Mapping[str, Any]], units: int) -> dict[str, Any]:
    """What is known before a model is loaded; `models` is filled as they are."""
    from floatscope.qa.templates import read_template

    template = repr(read_template(study.prompt.template))
    return {
        "study": study.name,
        "seed": study.seed,
        "versions": {"floatscope": __version__, "python": platform.python_version()}
        | {package: version(package) for package in PACKAGES},
        "platform": f"{platform.system()} {platform.machine()}",
        "units": units,
        "templates": {study.prompt.template: {"sha256": {"The text": hashlib.sha256(template.encode()).hexdigest()}}},
        "tasks": dict(tasks),
        "models": {},
    }


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run, empty where there is none yet."""
    path = folder / MANIFEST
    try:
        kept = unsealed(read_json(path)) if path.exists() else {}
        if kept is None:
            raise UserError("it is not what was written.")
    except UserError as error:
        raise UserError(
            f"{path} is damaged ({str(error).rstrip('.')}): put back what was there, or give another folder."
        ) from error
    return kept


def refuse_changes(old: Mapping[str, Any], new: Mapping[str, Any], part: str) -> None:
    """Whatever decides a result must be what it was when the run began: files of models, tasks, the prompt."""
    for name, about in new.get(part, {}).items():
        before, now = old.get(part, {}).get(name, {}).get("sha256", {}), about["sha256"]
        for content in {**now, **before} if before else ():
            if before.get(content) != now.get(content):
                raise UserError(
                    f"{content} of the {part[:-1]} {name!r} changed since this run began: put back what was there, or "
                    "give another folder for a new run."
                )


def describe_model(plan: ModelPlan) -> dict[str, Any]:
    """Where a model comes from, and a hash of each file that decides what it answers."""
    from floatscope.models.loading import locate

    place = locate(plan.source, plan.revision)
    files = {file.name: file_hash(file) for file in place.files()}
    if plan.family is not None and Path(plan.family).is_file():
        files["The family"] = file_hash(Path(plan.family))
    commit = place.weights.name if place.weights.parent.name == "snapshots" else None  # as the hub's cache calls it
    told = {"revision": plan.revision, "commit": commit}
    return {"source": plan.source, **{name: one for name, one in told.items() if one is not None}, "sha256": files}
