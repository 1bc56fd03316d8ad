"""kill -9 at random moments, then resume: the same table to the byte, no unit twice, only the last batch lost."""

import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from floatscope.errors import UserError
from floatscope.study.analyses import missing_analyses, read_analyses
from floatscope.study.plan import Curve, ModelPlan, TaskPlan, write_study
from floatscope.study.running import run_study
from tests.study.killing import PATIENCE, alive, begun, run_and_log
from tests.study.small_studies import small_study

KILLS = int(os.environ.get("FLOATSCOPE_KILLS", "3"))


def stored(folder) -> list[tuple[str, ...]]:
    """The models' units in the database; what another process commits meanwhile may be in it or not."""
    if not (folder / "results.sqlite").exists():
        return []
    database = sqlite3.connect(folder / "results.sqlite", timeout=30)
    query = "SELECT model, task, condition, sample, control FROM results WHERE control != 'guess'"
    try:
        return database.execute(query).fetchall()
    except sqlite3.OperationalError:  # killed before the table was made
        return []
    finally:
        database.close()


def table(folder) -> bytes:
    return subprocess.run(
        [sys.executable, "-m", "floatscope.cli", "table", folder], capture_output=True, check=True
    ).stdout


@pytest.mark.slow
def test_a_run_killed_again_and_again_ends_in_the_same_bytes(tmp_path):
    study = small_study(
        models=(ModelPlan("twin-llada"),),
        tasks=(TaskPlan("world:rag:3"),),
        conditions=(
            Curve("documents", "0"),
            Curve("documents", "3", traces=4),
            Curve("position", "all", options={"documents": 3}),
        ),
        limit=2 * KILLS,
        batch=2,
    )
    file, folder, log = tmp_path / "study.toml", tmp_path / "killed", tmp_path / "log"
    file.write_text(write_study(study))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.study.killing", "floatscope.models.loading", "floatscope.tracing"])
    coin = random.Random(KILLS)
    for _ in range(KILLS):
        before, begun_before = stored(folder), len(begun(log))
        wanted, deadline = coin.randrange(1, 7), time.monotonic() + PATIENCE
        process = context.Process(target=run_and_log, args=(str(file), str(folder), str(log), wanted + 4))
        process.start()
        while process.is_alive() and len(stored(folder)) < len(before) + wanted and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(coin.random() * 0.2)
        assert process.is_alive() and process.pid is not None, "the study was over before it could be killed"
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        after = stored(folder)
        ran = begun(log)[begun_before:]
        assert set(before) <= set(after) and len(set(after)) == len(after)
        assert not {unit for batch in ran for unit in batch} & set(before)  # nothing that was stored is run again
        lost = [batch for batch in ran if not set(batch) <= set(after)]
        assert len(lost) <= 1 and lost == ran[-1:][: len(lost)]  # all that is lost is the batch in flight, whole
        assert not any(set(batch) & set(after) for batch in lost)
    process = context.Process(target=run_and_log, args=(str(file), str(folder), str(log)))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 0
    times_run = Counter(unit for batch in begun(log) for unit in batch)
    assert set(times_run) == set(stored(folder))
    assert sum(times_run.values()) - len(times_run) <= KILLS * study.batch

    whole = tmp_path / "whole"
    process = context.Process(target=run_and_log, args=(str(file), str(whole), str(tmp_path / "other log")))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 0
    assert sorted(stored(folder)) == sorted(stored(whole))
    shown = table(folder)
    assert shown == table(whole) and b"position/3/3" in shown
    names = [sorted(path.name for path in (run / "traces").iterdir()) for run in (folder, whole)]
    assert names[0] == names[1] and len(names[0]) == 4 * 3


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
@pytest.mark.parametrize(
    ("during", "end"), [("units", signal.SIGKILL), ("analyses", signal.SIGKILL), ("analyses", signal.SIGTERM)]
)
def test_workers_end_with_the_process_that_started_them(tmp_path, during, end):
    """However it ends: a kill cannot be caught."""
    study = small_study(
        workers=2,
        batch=1,
        limit=40 if during == "units" else 5,
        analyses=("drift", "flow", "anchors") if during == "analyses" else (),
    )
    (tmp_path / "study.toml").write_text(write_study(study))
    command = [sys.executable, "-m", "floatscope.cli", "study", tmp_path / "study.toml", "--out", tmp_path / "run"]
    command += ["--workers", "2"]
    if during == "analyses":  # all units are there, and only analyses are left
        run_study(replace(study, analyses=()), tmp_path / "run")
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline, workers = time.monotonic() + PATIENCE, []
    while len(workers) < 2 and time.monotonic() < deadline and driver.poll() is None:
        found = Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()
        workers = [pid for pid in found if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        time.sleep(0.05)
    time.sleep(1.0)  # at work
    driver.send_signal(end)
    driver.wait()
    assert len(workers) == 2
    deadline = time.monotonic() + 60
    while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in workers)


@pytest.mark.slow
def test_an_analysis_whose_worker_is_killed_ends_in_a_sentence_and_can_be_made_again(tmp_path):
    study = small_study(workers=2, analyses=("drift", "flow"))
    run_study(replace(study, analyses=(), workers=1), tmp_path)

    def kill_workers(what, done, total):
        if what == "analyses":
            threading.Thread(target=end_children).start()

    def end_children():
        while not multiprocessing.active_children():
            time.sleep(0.01)
        for child in multiprocessing.active_children():
            child.kill()

    with pytest.raises(UserError, match="A worker process ended before its analysis was done"):
        run_study(study, tmp_path, notify=kill_workers)
    run = run_study(study, tmp_path).run
    assert missing_analyses(run) == {} and list(read_analyses(run)) == ["drift", "flow"]
