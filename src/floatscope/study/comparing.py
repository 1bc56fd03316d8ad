"""Two runs side by side, paired by unit: what was set otherwise, what that did to the scores, which samples turned."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from floatscope.errors import UserError
from floatscope.reports.tables import Table, markdown, plain
from floatscope.statistics import mcnemar, paired_difference
from floatscope.study.store import STUDY_FILE, Run

if TYPE_CHECKING:
    import polars as pl

UNIT = ("model", "task", "condition", "sample")
CELL = list(UNIT[:3])


def compare(first: Run, second: Run) -> tuple[list[list[str]], pl.DataFrame, pl.DataFrame]:
    """What changed (name, first, second); scores by model, task and condition; the units whose answer turned.

    Units are the same by model, task, condition and sample; where each run has one model, whatever it is called.
    value is the second run's accuracy minus the first's, p McNemar's.
    """
    import polars as pl

    frames = []
    for run in (first, second):
        own = run.results().filter(pl.col("control") == "", pl.col("accuracy").is_not_null())
        frames.append(own.select(*UNIT, "question", "answers", "prediction", "accuracy"))
    if all(frame["model"].n_unique() == 1 for frame in frames):
        frames[1] = frames[1].with_columns(model=pl.lit(frames[0]["model"][0]))
    pairs = frames[0].join(frames[1].drop("question", "answers"), on=UNIT, suffix="_second", maintain_order="left")
    if pairs.is_empty():
        raise UserError(
            f"{first.folder} and {second.folder} have no unit in common (model, task, condition and sample): compare "
            "runs of the same questions."
        )
    rows = []
    for (model, task, condition), part in pairs.group_by(*CELL, maintain_order=True):
        before, after = part["accuracy"].to_numpy(), part["accuracy_second"].to_numpy()
        apart, turned = paired_difference(after, before), mcnemar(after, before)
        rows.append(
            {
                **{"model": model, "task": task, "condition": condition, "n": part.height},
                **{"first": float(before.mean()), "second": float(after.mean())},
                **{"value": apart.estimate, "low": apart.low, "high": apart.high, "p": turned.p},
                **{"turned right": turned.only_first, "turned wrong": turned.only_second},
                "other answers": int((part["prediction"] != part["prediction_second"]).sum()),
            }
        )
    turned = pairs.filter(pairs["accuracy"] != pairs["accuracy_second"])
    return list(_changes(first, second)), pl.DataFrame(rows), turned


def comparison_text(first: Run, second: Run) -> str:
    """The comparison as Markdown."""
    changes, cells, turned = compare(first, second)
    told = [
        [
            *(row[name] for name in CELL),
            *(f"{100 * row[name]:.1f}" for name in ("first", "second")),
            "{:+.1f} [{:+.1f}, {:+.1f}]".format(*(100 * row[name] for name in ("value", "low", "high"))),
            *(f"{row['p']:.3f}", *(str(row[name]) for name in ("n", "turned right", "turned wrong", "other answers"))),
        ]
        for row in plain(cells).iter_rows(named=True)
    ]
    columns = (*CELL, "first", "second", "difference", "p", "n", "turned right", "turned wrong", "other answers")
    notes = ["Accuracy in percent, paired by sample, with 95 % intervals; p is McNemar's."]
    tables = [
        Table("Changed", ("what", "first", "second"), changes),
        Table(f"Scores: {first.folder} and {second.folder}", columns, told, notes),
    ]
    names = (*UNIT, "question", "gold answer", "first", "second", "now")
    shown = [
        [
            *(row[name] for name in UNIT),
            *(" ".join(text.split()) for text in (row["question"], ", ".join(row["answers"]))),
            *(" ".join((row[name] or "").split()) for name in ("prediction", "prediction_second")),
            "right" if row["accuracy_second"] > row["accuracy"] else "wrong",
        ]
        for row in plain(turned).iter_rows(named=True)
    ]
    tables.append(Table("Samples that turned", names, shown))
    return "\n".join(markdown(table) for table in tables if table.rows)


def _changes(first: Run, second: Run) -> Iterator[list[str]]:
    """Whatever study files and manifests say otherwise: name, first, second."""
    sides = []
    for run in (first, second):
        study = tomllib.loads((run.folder / STUDY_FILE).read_text(encoding="utf-8"))
        manifest = {part: run.manifest.get(part, {}) for part in ("versions", "models", "tasks", "templates")}
        files = {f"files of {part}": known for part, known in manifest.items() if part != "versions"}
        sides.append(dict(_flat(study)) | dict(_flat({"versions": manifest["versions"], **files})))
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        before, after = (side.get(name, "–") for side in sides)
        if before != after and not name.startswith(("name", "description")):
            yield [" ".join(text.split())[:60] for text in (name, before, after)]


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every entry under its path; tables in a list go by their own name, or else by their place."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}, {key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
        for place, one in enumerate(value, 1):
            yield from _flat(one, f"{name} {one.get('name', place)}")
    else:
        yield name, str(value)
