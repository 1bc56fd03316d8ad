"""The engine ray, on a cluster that is started for the run: the local engine's bytes, also when actors die."""

import os
import signal
import sys
from dataclasses import replace

import pytest

from floatscope.errors import UserError
from floatscope.study.division import Division
from floatscope.study.merging import merge_shares
from floatscope.study.plan import Curve, ModelPlan, TaskPlan
from floatscope.study.ray_engine import Holder
from floatscope.study.running import run_study
from floatscope.study.units import load_task, plan_jobs
from tests.study.killing import below
from tests.study.run_bytes import run_bytes
from tests.study.small_studies import small_study

STUDY = small_study(batch=2, limit=3, tasks=(TaskPlan("world:rag:3"),))
RAY = Division(engine="ray")


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("FLOATSCOPE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        folder = tmp_path_factory.mktemp("local") / "run"
        run_study(STUDY, folder)
        return run_bytes(folder)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_two_actors_give_the_bytes_of_the_local_engine_although_one_is_killed(tmp_path, monkeypatch, local):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("floatscope.study.ray_engine.cores", lambda: 2)  # a thread for each, as the local run had
    killed = []

    def kill_one(what, done, total):
        if what.startswith("twin") and not killed:
            killed.extend([pid for pid, command in below(os.getpid()).items() if "ray::Holder" in command][:1])
            os.kill(killed[0], signal.SIGKILL)

    outcome = run_study(replace(STUDY, workers=2), tmp_path / "run", division=RAY, notify=kill_one)
    assert killed and outcome.failed == 0
    assert run_bytes(tmp_path / "run") == local
    assert not [command for command in below(os.getpid()).values() if "ray" in command]


@pytest.mark.slow
def test_a_share_on_ray_and_a_local_one_are_merged_into_the_same_bytes(tmp_path, monkeypatch, local):
    monkeypatch.setattr("floatscope.study.ray_engine.cores", lambda: 1)
    run_study(STUDY, tmp_path / "run", division=Division(1, 2, engine="ray"))
    run_study(STUDY, tmp_path / "run", division=Division(2, 2))
    merge_shares(tmp_path / "run")
    assert run_bytes(tmp_path / "run") == local


@pytest.mark.slow
def test_a_sentence_of_an_actor_and_too_small_a_cluster_stop_the_run(tmp_path):
    wrong = replace(STUDY, models=(ModelPlan("twin-llada", sampler={"block": 3}),))
    with pytest.raises(UserError, match="'twin-llada' with 4 slots"):
        run_study(wrong, tmp_path / "wrong", division=RAY)
    with pytest.raises(UserError, match="1 workers need 64 GPUs, and the Ray cluster has"):
        run_study(STUDY, tmp_path / "large", division=Division(engine="ray", gpus=64))


@pytest.mark.slow
def test_an_actor_gives_each_batch_of_its_plan_and_nothing_beyond(monkeypatch, tmp_path):
    study = small_study(
        models=(ModelPlan("twin-llada"),), tasks=(TaskPlan("world:rag:3"),), conditions=(Curve("documents", "0,3"),),
        batch=4, controls=(),
    )  # fmt: skip
    jobs = plan_jobs(study, [load_task(study, task) for task in study.tasks])
    own = {job.unit for job in jobs if job.unit.control == ""}
    monkeypatch.chdir(tmp_path)
    holder = Holder(study, own, 1, str(tmp_path))
    found = [holder.run(0, number) for number in range(5)]
    assert all(isinstance(answers, list) and warning == "" for answers, warning in found)
    rows = [row for answers, _ in found for row, _ in answers]  # pyright: ignore[reportAttributeAccessIssue]
    assert sorted(len(answers) for answers, _ in found[:3]) == [2, 4, 4] and [*found[3][0], *found[4][0]] == []
    assert {row.unit for row in rows} == own and len(rows) == 10
    assert holder.run(0, 0)[0] == found[0][0]  # a second try gives the same
