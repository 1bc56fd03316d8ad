"""Shares as a job array of Slurm, through submitit, and a job after them that merges them and writes the report.

A job that is preempted or runs out of time is put back into the queue by submitit, and its share goes on where it was.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from floatscope.errors import UserError
from floatscope.study.division import SHARES, Division, Resources
from floatscope.study.merging import merge_shares
from floatscope.study.plan import Study
from floatscope.study.reporting import report
from floatscope.study.running import refuse_other_shares, run_study

LOGS = "slurm"
"""The folder beside the shares with what submitit writes: scripts, logs, results of jobs."""


@dataclass(frozen=True)
class ShareJob:
    """A job of the array: runs one share, counted from 1."""

    study: Study
    folder: Path
    of: int

    def __call__(self, share: int) -> int:
        """The units that it ran."""
        return run_study(self.study, self.folder, division=Division(share, self.of)).done_now

    def checkpoint(self, share: int) -> Any:
        """What submitit puts into the queue when this job is taken away: the same again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, share)


def merge_and_report(folder: Path, workers: int) -> str:
    """The job after the array."""
    run = merge_shares(folder, workers=workers).run
    return str(report(run))


def submit(study: Study, folder: Path, shares: int, resources: Resources, cluster: str = "slurm") -> list[Any]:
    """Submit a job for each share and, on Slurm, one that merges them after all are done; submitit's jobs in order.

    cluster: "local" runs the jobs as processes of this machine, and merges nothing.
    """
    submitit = _submitit()
    logs = _logs(folder, shares)
    try:
        executor = submitit.AutoExecutor(logs, cluster=cluster)
    except RuntimeError as error:
        raise UserError("There is no Slurm on this machine (no srun): --dry-run shows the script for one.") from error
    executor.update_parameters(**_parameters(resources, study, resources.gpus))
    jobs = executor.map_array(ShareJob(study, logs.parents[1], shares), range(1, shares + 1))
    if cluster == "slurm":
        array = jobs[0].job_id.partition("_")[0]
        executor.update_parameters(**_parameters(resources, study, gpus=0), slurm_dependency=f"afterok:{array}")
        jobs.append(executor.submit(merge_and_report, logs.parents[1], resources.cpus))
    return jobs


def sbatch_script(study: Study, folder: Path, shares: int, resources: Resources) -> str:
    """The script that `submit` would hand to sbatch for the array; needs no Slurm, and writes nothing."""
    _submitit()
    from submitit.slurm.slurm import SlurmExecutor

    class Shown(SlurmExecutor):
        @classmethod
        def affinity(cls) -> int:
            return 1  # as if Slurm were here

    shown = Shown(_logs(folder, shares))
    asked = _parameters(resources, study, resources.gpus).items()
    shown.update_parameters(**shown._convert_parameters({name.removeprefix("slurm_"): value for name, value in asked}))
    shown.parameters["map_count"] = shares
    return shown._make_submission_file_text(shown._submitit_command_str, "")


def _parameters(resources: Resources, study: Study, gpus: int) -> dict[str, Any]:
    """As submitit's executors take them, those of Slurm with its name before them."""
    asked = {"name": f"floatscope-{study.name}", "gpus_per_node": gpus, "cpus_per_task": resources.cpus}
    asked |= {"mem_gb": resources.memory, "timeout_min": round(60 * resources.hours)}
    asked |= {"slurm_partition": resources.partition, "slurm_account": resources.account}
    return {name: value for name, value in asked.items() if value is not None}


def _logs(folder: Path, shares: int) -> Path:
    """The folder of submitit's files, if the run can be divided so."""
    if shares < 2:
        raise UserError(f"shares = {shares}: a job array needs at least 2.")
    folder = folder.expanduser().resolve()
    refuse_other_shares(folder, shares)
    return folder / SHARES / LOGS


def _submitit() -> Any:
    try:
        import submitit
    except ImportError as error:
        raise UserError("Submitting jobs needs submitit: pip install 'floatscope[slurm]'.") from error
    return submitit
