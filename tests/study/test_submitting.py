"""Shares as jobs: submitit's local executor runs them; what Slurm would get is kept by a stand-in for its commands."""

import sys
from dataclasses import replace

import pytest
from submitit.helpers import DelayedSubmission

from floatscope.errors import UserError
from floatscope.study.division import Resources
from floatscope.study.merging import merge_shares
from floatscope.study.plan import TaskPlan
from floatscope.study.running import run_study
from floatscope.study.submitting import ShareJob, sbatch_script, submit
from tests.study.run_bytes import run_bytes
from tests.study.small_studies import small_study

STUDY = small_study(batch=2, limit=2, tasks=(TaskPlan("world:rag:3"),))
ASKED = Resources(partition="gpu", account="lab", gpus=2, cpus=3, memory=20, hours=1.5)


@pytest.mark.slow
def test_jobs_of_the_local_executor_end_in_the_bytes_of_one_process(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run_study(STUDY, tmp_path / "whole")
    jobs = submit(STUDY, tmp_path / "run", 2, Resources(gpus=0, hours=0.2), cluster="local")
    assert sum(job.result() for job in jobs) == len(list_units(tmp_path / "whole"))
    merge_shares(tmp_path / "run")
    assert run_bytes(tmp_path / "run") == run_bytes(tmp_path / "whole")


def list_units(folder):
    from floatscope.study.store import read_rows

    return read_rows(folder)


def test_the_script_asks_for_what_was_given_and_nothing_is_written(tmp_path):
    script = sbatch_script(STUDY, tmp_path / "run", 16, ASKED)
    asked = {line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")}
    assert {"array=0-15%16", "partition=gpu", "account=lab", "gpus-per-node=2", "cpus-per-task=3", "mem=20GB"} <= asked
    assert {"time=90", "job-name=floatscope-small", "open-mode=append"} <= asked
    assert f"submitit.core._submit {tmp_path}/run/shares/slurm" in script
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="shares = 1: a job array needs at least 2"):
        sbatch_script(STUDY, tmp_path / "run", 1, ASKED)


def test_slurm_gets_the_array_and_a_job_that_merges_after_it(tmp_path, monkeypatch):
    """sbatch is a stand-in that keeps the scripts it is given: there is no Slurm on the machine of the tests."""
    if sys.platform != "linux":
        pytest.skip("the stand-in is a shell script")
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "srun").write_text("#!/bin/sh\n")
    kept = tmp_path / "submitted"
    (commands / "sbatch").write_text(
        f'#!/bin/sh\ncat "$1" >> {kept}\necho "Submitted batch job $(grep -c bin/bash {kept})7"\n'
    )
    for command in commands.iterdir():
        command.chmod(0o755)
    monkeypatch.setenv("PATH", str(commands), prepend=":")
    jobs = submit(STUDY, tmp_path / "run", 3, ASKED)
    assert [job.job_id for job in jobs] == ["17_0", "17_1", "17_2", "27"]
    first, second = kept.read_text().split("#!/bin/bash")[1:]
    assert "array=0-2%3" in first and "gpus-per-node=2" in first and "dependency" not in first
    assert jobs[-1].submission().args == (tmp_path / "run", 3)  # the processor cores that the job asks for
    assert [job.submission().args for job in jobs[:-1]] == [(1,), (2,), (3,)]
    assert "cpus-per-task=3" in second and "mem=20GB" in second and "time=90" in second
    assert "dependency=afterok:17" in second and "--array" not in second and "gpus-per-node=0" in second


def test_without_slurm_there_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="There is no Slurm on this machine"):
        submit(STUDY, tmp_path / "run", 2, ASKED)


def test_a_job_that_is_taken_away_is_submitted_again_as_it_was(tmp_path):
    job = ShareJob(replace(STUDY, limit=1), tmp_path / "run", 2)
    again = job.checkpoint(2)
    assert isinstance(again, DelayedSubmission) and again.function == job and again.args == (2,)
