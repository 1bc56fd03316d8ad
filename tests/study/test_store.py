"""The store: all of a batch or nothing, one writer, sentences for trouble, and nothing lost by it."""

import sqlite3
import subprocess
import sys

import pytest

from floatscope.errors import UserError
from floatscope.study.store import RESULTS, Row, Store, read_rows
from floatscope.study.units import Unit


def row(sample: str, **found) -> Row:
    unit = Unit("m", "t", "documents/0", sample)
    return Row(unit, int(sample), "documents", {"documents": 0}, "Who?", ("Ada", "Ida"), **found)


def test_rows_come_back_as_they_were_put(tmp_path):
    with Store(tmp_path / "run") as store:
        store.put(
            [row("1", prediction="Ada", accuracy=1.0, em=0.0, f1=0.5, steps=3, cut=0), row("2", error="too long")]
        )
        assert store.done() == {row("1").unit: None, row("2").unit: None}
    first, second = read_rows(tmp_path / "run")
    assert (first["prediction"], first["accuracy"], first["f1"], first["error"]) == ("Ada", 1.0, 0.5, None)
    assert second["error"] == "too long" and second["answers"] == '["Ada", "Ida"]' and second["accuracy"] is None


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
        store.put([row("1", prediction="a\ud800b")])
    assert read_rows(tmp_path)[0]["prediction"] == "a?b"


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
