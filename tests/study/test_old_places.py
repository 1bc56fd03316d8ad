"""Runs from before places were counted from 1: the same answers under today's names."""

import sqlite3
from contextlib import closing

import pytest

from floatscope.files import file_hash, replace_sealed
from floatscope.study.old_places import FIRST_PLACE, counted_from_one, named_from_one
from floatscope.study.plan import Curve, ModelPlan, Study, TaskPlan
from floatscope.study.running import run_study
from floatscope.study.store import MANIFEST, RESULTS, STUDY_FILE, Run, _checksum, _sound_rows, read_manifest


def study(*curves: Curve) -> Study:
    return Study(
        name="places", models=(ModelPlan("twin-arm"),), tasks=(TaskPlan("world:rag:3"),), conditions=curves, limit=2,
        slots=4, controls=(),
    )  # fmt: skip


def test_studies_and_rows_have_todays_numbers():
    curves: list[dict] = [
        {"stressor": "position", "values": "0,2"},
        {"stressor": "position", "values": "all"},
        {"stressor": "noise", "values": "0,2"},
        {"stressor": "edit", "values": "pin bos", "places": [0, 2]},
    ]
    found = [counted_from_one(curve) for curve in curves]
    assert [one["values"] for one in found] == ["1,3", "all", "0,2", "pin bos"] and found[3]["places"] == [1, 3]
    names = [
        "position/10/9",
        "edit/block top, gold at 0/9/all",
        "edit/none, gold at 2",
        "documents/5",
        "noise/random/0",
    ]
    assert [named_from_one({"condition": name})["condition"] for name in names] == [
        "position/10/10", "edit/block top, gold at 1/9/all", "edit/none, gold at 3", "documents/5", "noise/random/0",
    ]  # fmt: skip


@pytest.mark.slow
def test_an_old_run_is_read_as_it_was_answered_and_gone_on_with(tmp_path):
    today = study(Curve("position", "1,3", options={"documents": 3}))
    run = run_study(today, tmp_path / "run").run
    before = run.results()
    assert set(before["condition"]) >= {"position/3/1", "position/3/3"} and set(before["place"]) == {1, 3, None}
    make_old(run)
    old = Run(run.folder)
    assert old.results().equals(before) and not old.unfinished
    assert old.scores().equals(run.scores())
    again = run_study(today, run.folder)  # rows under other names are answered again, and the old ones are not counted
    assert again.done_now > 0 and Run(run.folder).results().equals(before)


def make_old(run: Run) -> None:
    """The folder as it was written when places were counted from 0."""
    path = run.folder / STUDY_FILE
    path.write_text(path.read_text().replace('values = "1,3"', 'values = "0,2"'))
    manifest = {key: value for key, value in read_manifest(run.folder).items() if key != FIRST_PLACE}
    replace_sealed(run.folder / MANIFEST, manifest | {"study_sha256": file_hash(path)})
    with closing(sqlite3.connect(run.folder / RESULTS)) as database, database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(results)")]
        rows = [list(row) for row in _sound_rows(database)[0]]
        database.execute("DELETE FROM results")
        for row in rows:
            row[:] = [value.replace("position/3/1", "position/3/0").replace("position/3/3", "position/3/2")
                      if isinstance(value, str) else value for value in row]  # fmt: skip
            marks = ", ".join("?" * len(columns))
            database.execute(f"INSERT INTO results VALUES ({marks})", [*row, _checksum(row)])
