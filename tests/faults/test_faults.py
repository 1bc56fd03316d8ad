"""The short form of `make faults`, and that its judge sees what it is there to see."""

import os
import shutil
import sqlite3

import pytest

from tests.faults.judging import Counts
from tests.faults.kinds import KINDS, Ground

pytestmark = pytest.mark.slow
SHORT = {"drivers": 3, "shares": 3, "signals": 2, "damage": 5, "locks": 2}
"""Quick kinds; `tests/study/test_ray.py` and `tests/study/test_killing.py` kill actors and workers."""


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("FLOATSCOPE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        environment.setenv("OMP_NUM_THREADS", "1")
        before = os.getcwd()
        yield Ground(tmp_path_factory.mktemp("faults"), seed=0)
        os.chdir(before)


@pytest.mark.parametrize("kind", SHORT)
def test_nothing_is_lost_counted_twice_or_changed(ground, kind):
    counts = KINDS[kind][0](ground, SHORT[kind])
    assert counts.faults >= SHORT[kind] and not counts.wrong(), counts


def test_the_judge_sees_units_that_are_lost_doubled_or_changed(ground):
    folder = ground.finished()
    counts = Counts()
    ground.judge(folder, counts)
    assert not counts.wrong()
    database = sqlite3.connect(folder / "results.sqlite")
    with database:
        database.execute("DELETE FROM results WHERE rowid IN (SELECT rowid FROM results LIMIT 2)")
    database.close()
    for share in ("1-of-2", "2-of-2"):
        (folder / "shares" / share).mkdir(parents=True)
        shutil.copy(folder / "results.sqlite", folder / "shares" / share)
    next((folder / "traces").iterdir()).unlink()
    ground.judge(folder, counts)
    assert counts.lost == 2 and counts.twice > 0 and counts.differing > 0
