"""The store: all of a batch or nothing, one writer, sentences for trouble, and nothing lost by it."""

import os
import random
import sqlite3
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace

import pytest

from floatscope.errors import UserError
from floatscope.study.running import refuse_other_study
from floatscope.study.store import RESULTS, Row, Store, read_rows, refuse_changes
from floatscope.study.units import Unit
from tests.study.small_studies import small_study


def row(sample: str, **found) -> Row:
    unit = Unit("m", "t", "documents/0", sample)
    return Row(unit, int(sample), "documents", {"documents": 0}, "Who?", ("Ada", "Ida"), **found)


def test_rows_come_back_as_they_were_put(tmp_path):
    with Store(tmp_path / "run") as store:
        store.put(
            [
                row("1", prediction="Ada", scores={"accuracy": 1.0, "f1": 0.5}, steps=3, cut=0),
                row("2", error="too long"),
            ]
        )
        assert store.done() == {row("1").unit: None, row("2").unit: None}
    first, second = read_rows(tmp_path / "run")
    assert (first["prediction"], first["scores"], first["error"]) == ("Ada", {"accuracy": 1.0, "f1": 0.5}, None)
    assert second["error"] == "too long" and second["answers"] == ["Ada", "Ida"] and second["scores"] == {}


def test_a_unit_has_one_row_however_often_it_is_put(tmp_path):
    with Store(tmp_path) as store:
        store.put([row("1", prediction="a")])
        store.put([row("1", prediction="b"), row("1", prediction="c")])
    assert [found["prediction"] for found in read_rows(tmp_path)] == ["c"]


def test_failed_units_can_be_forgotten(tmp_path):
    with Store(tmp_path) as store:
        store.put([row("1", prediction="a"), row("2", error="x")])
        assert store.forget_failed() == 1
        assert list(store.done()) == [row("1").unit]


def test_a_lone_surrogate_is_stored(tmp_path):
    with Store(tmp_path) as store:
        store.put([replace(row("1", prediction="a\ud800b"), answers=("\ud800", "é"))])
    [found] = read_rows(tmp_path)
    assert found["prediction"] == "a?b" and found["answers"] == ["?", "é"]


@pytest.mark.slow
def test_a_second_writer_is_told_so_and_a_dead_one_leaves_no_lock(tmp_path):
    code = f"""
from pathlib import Path
from floatscope.study.store import Store
store = Store(Path({str(tmp_path)!r}))
print("locked", flush=True)
input()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"locked\n"
        with pytest.raises(UserError, match="being written by another process"):
            Store(tmp_path)
        assert read_rows(tmp_path) == []  # readers may look on
        other.kill()
        other.wait()
    with Store(tmp_path) as store:
        store.put([row("1")])


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path):
    with Store(tmp_path) as store:
        store.put([row("1", prediction="kept")])
        store._database.execute("PRAGMA max_page_count = 4")  # sqlite's own limit gives its error of a full disk
        with pytest.raises(UserError, match=r"full.*make room"):
            store.put([row(str(number), prediction="x" * 2000) for number in range(2, 40)])
        assert list(store.done()) == [row("1").unit]
    assert [found["prediction"] for found in read_rows(tmp_path)] == ["kept"]


def test_what_a_killed_process_was_writing_is_removed_and_nothing_else(tmp_path):
    (tmp_path / "traces").mkdir()
    names = {".a.safetensors.12-ab.partial", ".tmpXyZ123", "a.safetensors", "b.partial"}
    for name in names:
        (tmp_path / "traces" / name).write_bytes(b"x")
    (tmp_path / ".manifest.json.12-ab.partial").write_bytes(b"x")
    with Store(tmp_path):
        assert not list(tmp_path.glob("*.partial"))
        assert {path.name for path in (tmp_path / "traces").iterdir()} == {"a.safetensors", "b.partial"}


def test_a_folder_is_taken_up_after_a_kill_at_any_moment_of_its_making(tmp_path, monkeypatch):
    """After each folder that is made and each database that is opened, the process ends."""

    def ending(made, at):
        def call(*given, **named):
            found = made(*given, **named)
            calls.append(made)
            if len(calls) == at:
                raise KeyboardInterrupt
            return found

        return call

    for at in range(1, 10):
        calls, folder = [], tmp_path / str(at) / "run"
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(os, "mkdir", ending(os.mkdir, at))
            patch.setattr(sqlite3, "connect", ending(sqlite3.connect, at))
            Store(folder).__exit__()
        refuse_other_study(small_study(), folder)
        with Store(folder) as store:
            assert store.done() == {}
        if len(calls) < at:  # it came to its end
            break
    assert 4 < at < 9 and calls.count(sqlite3.connect) == 2


def test_a_foreign_file_is_refused_in_one_sentence(tmp_path):
    (tmp_path / RESULTS).write_bytes(b"no database at all, but long enough to be read as one" * 40)
    with pytest.raises(UserError, match="cannot be used"):
        Store(tmp_path)
    with pytest.raises(UserError, match="no run in"):
        read_rows(tmp_path / "nowhere")


def test_a_batch_is_committed_as_a_whole(tmp_path):
    """Another connection sees nothing of a batch until all of it is there."""
    with Store(tmp_path) as store:
        other = sqlite3.connect(tmp_path / RESULTS)
        seen = []

        def rows():
            for number in range(5):
                seen.append(other.execute("SELECT count(*) FROM results").fetchone()[0])
                yield row(str(number))

        store.put(rows())
        assert seen == [0] * 5
        assert other.execute("SELECT count(*) FROM results").fetchone()[0] == 5
        other.close()


def flipped(path, place: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def test_a_row_that_changed_on_the_disk_is_left_out_when_read_and_dropped_when_the_run_goes_on(tmp_path):
    with Store(tmp_path) as store:
        store.put([row("1", prediction="Ada Lovelace"), row("2", prediction="Ida Ritter")])
    place = (tmp_path / RESULTS).read_bytes().index(b"Lovelace")
    flipped(tmp_path / RESULTS, place, 0)
    assert [found["prediction"] for found in read_rows(tmp_path)] == ["Ida Ritter"]
    with Store(tmp_path) as store:
        assert store.damaged == 1 and list(store.done()) == [row("2").unit]
    with Store(tmp_path) as store:
        assert store.damaged == 0


@pytest.mark.slow
def test_no_bit_that_flips_anywhere_changes_a_row_silently(tmp_path):
    """Each bit of 300, over the whole file: every row that is read is one that was put, or the file is refused."""
    rows = [row(str(number), prediction=f"name {number}", scores={"accuracy": number % 2}) for number in range(30)]
    with Store(tmp_path / "run") as store:
        store.put(rows)
    whole = {found["sample"]: found for found in read_rows(tmp_path / "run")}
    path, rng = tmp_path / "run" / RESULTS, random.Random(0)
    content = path.read_bytes()
    lost = refused = 0
    for _ in range(300):
        path.write_bytes(content)
        flipped(path, rng.randrange(len(content)), rng.randrange(8))
        try:
            found = read_rows(tmp_path / "run")
        except UserError:
            refused += 1
            continue
        assert all(one == whole[one["sample"]] for one in found)
        lost += len(whole) - len({one["sample"] for one in found}) > 0
    assert lost and refused  # some flips are in rows, some in the file's own structure


def test_a_condition_that_changed_under_its_name_makes_other_units(tmp_path):
    with Store(tmp_path) as store:
        store.put([row("1")])
        changed = replace(row("1"), unit=replace(row("1").unit, content="other"))
        assert changed.unit not in store.done()
        store.put([changed])
        assert list(store.done()) == [row("1").unit, changed.unit]


@pytest.mark.parametrize(
    ("before", "now", "changed"),
    [
        ({"a": "1", "b": "2"}, {"a": "1", "b": "3"}, "b"),
        ({"a": "1", "b": "2"}, {"a": "1"}, "b"),
        ({"a": "1"}, {"a": "1", "chat_template.jinja": "2"}, "chat_template.jinja"),
        ({"a": "1"}, {"a": "1"}, None),
        ({}, {"a": "1"}, None),  # nothing is known of it yet
    ],
)
def test_files_of_a_model_that_change_go_or_come_are_refused_by_name(before, now, changed):
    old, new = ({"models": {"mine": {"sha256": found}}} for found in (before, now))
    if changed is None:
        refuse_changes(old, new, "models")
        return
    with pytest.raises(UserError, match=f"^{changed} of the model 'mine' changed since this run began"):
        refuse_changes(old, new, "models")
