"""A run: the folder a study writes, as it is read afterwards. Writing it is left to `running`."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floatscope.errors import UserError
from floatscope.study.manifest import read_manifest
from floatscope.study.plan import GUESS, NULL_QUERY, UNTRAINED, Study
from floatscope.study.store import read_rows
from floatscope.study.study_file import read_study

if TYPE_CHECKING:
    import polars as pl

STUDY_FILE = "study.toml"
LABELS = ("documents", "kind", "gold", "level", "place", "layout", "value", "slots", "placement")
"""Columns of the conditions' labels; `placement` is that of the question, whose text has the column `question`."""
_WHOLE = ("documents", "level", "place", "slots", "prompt_tokens", "steps", "cut")
_CONTROL_ORDER = ("", NULL_QUERY, UNTRAINED, GUESS)


class Run:
    """A run folder: the study, its manifest, results as a table, paths of traces."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / STUDY_FILE).is_file():
            raise UserError(f"There is no run in {self.folder}: it has no {STUDY_FILE}; `floatscope study` makes one.")

    @cached_property
    def study(self) -> Study:
        """As it was run, all values written out."""
        return read_study(self.folder / STUDY_FILE)

    @property
    def manifest(self) -> dict[str, Any]:
        """Versions, seed and hashes."""
        return read_manifest(self.folder)

    def results(self) -> pl.DataFrame:
        """One row a unit of the study that is done, in the study's order; label columns are null where not used."""
        import polars as pl

        places = self._places()
        placed = [(place, row) for row in read_rows(self.folder) if (place := _place(row, places)) is not None]
        placed.sort(key=lambda pair: pair[0])
        columns: dict[str, list[Any]] = {name: [] for name in _schema()}
        for _, row in placed:
            labels = json.loads(str(row["labels"]))
            if "question" in labels:
                labels["placement"] = labels.pop("question")
            full = dict.fromkeys(LABELS) | row | labels | {"answers": json.loads(str(row["answers"]))}
            for name, values in columns.items():
                values.append(full[name])
        return pl.DataFrame(columns, schema=_schema())

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

    def _places(self) -> dict[str, dict[str, int]]:
        """The order of names in the study."""
        from floatscope.qa.guesses import GUESSES

        conditions: dict[str, None] = {}
        for task in self.study.tasks:
            conditions |= dict.fromkeys(cell.condition.name for cell in self.study.cells(task))
        names = {
            "control": _CONTROL_ORDER,
            "model": [*(model.name for model in self.study.models), *GUESSES],
            "task": [task.name for task in self.study.tasks],
            "condition": list(conditions),
        }
        return {column: {name: place for place, name in enumerate(known)} for column, known in names.items()}


def _place(row: dict[str, Any], places: dict[str, dict[str, int]]) -> tuple[int, ...] | None:
    """Where a row stands in the study's order; None if it is no part of it."""
    found = [places[column].get(row[column]) for column in ("control", "model", "task", "condition")]
    known = [place for place in found if place is not None]
    return (*known, row["number"]) if len(known) == len(found) else None


def _schema() -> dict[str, Any]:
    import polars as pl

    texts = ("model", "task", "condition", "stressor", *LABELS, "sample", "control", "question")
    scores = dict.fromkeys(("accuracy", "em", "f1"), pl.Float64)
    rest = dict.fromkeys(("prompt_tokens", "steps", "cut"), pl.Int64) | dict.fromkeys(("error", "trace"), pl.String)
    schema: dict[str, Any] = dict.fromkeys(texts, pl.String) | {"answers": pl.List(pl.String), "prediction": pl.String}
    return schema | scores | rest | {name: pl.Int64 for name in _WHOLE if name in LABELS}
