"""Who runs the batches of a study: which share of them, and on which engine.

None of it is part of a study, since it changes no result: a run that was divided ends in the same bytes.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from floatscope.errors import UserError
from floatscope.registry import Registry

SHARES = "shares"
"""The folder of a run that holds a run of each share."""
FINISHED = "finished"
"""The file of a share's folder that says that nothing of it is left to do."""
SLURM = "slurm"


@dataclass(frozen=True)
class Engine:
    """A row of the registry: where batches are run. The function is given as it is, or as "module:object"."""

    description: str
    function: Callable[..., None] | str
    """(study, folder, jobs, missing, done, division): runs what is missing, and hands rows over as batches are done."""


ENGINES: Registry[Engine] = Registry(
    "engine",
    {
        "local": Engine("processes of this machine", "floatscope.study.engine:run_shares"),
        "ray": Engine("actors of a Ray cluster, as many as workers", "floatscope.study.ray_engine:run"),
    },
)


@dataclass(frozen=True)
class Division:
    """One of so many shares, counted from 1, and the engine that runs its batches."""

    share: int = 1
    of: int = 1
    engine: str = "local"
    address: str | None = None
    """Of a Ray cluster that runs already; None: one is started for this run."""
    gpus: float = 0
    """GPUs of each Ray actor; a fraction lets several share one."""

    def __post_init__(self) -> None:
        if not 1 <= self.share <= self.of:
            raise UserError(f"There is no share {self.share} of {self.of}: shares are counted from 1, as 3/16.")
        ENGINES.named(self.engine)
        if self.engine == "local" and (self.address is not None or self.gpus):
            raise UserError("An address, and GPUs for each actor, are for the engine ray: add --engine ray.")

    def folder(self, run: Path) -> Path:
        """Where results go: the run itself, or the share's own folder in it, which no other process writes."""
        return run if self.of == 1 else run / SHARES / f"{self.share}-of-{self.of}"


WHOLE = Division()
"""All of a study, on this machine."""


@dataclass(frozen=True)
class Resources:
    """What each job of an array asks Slurm for; the text under a field is its help on the command line."""

    partition: str | None = None
    """Slurm's partition; default: its own."""
    account: str | None = None
    """Slurm's account; default: its own."""
    gpus: int = 1
    """GPUs of each job."""
    cpus: int = 4
    """Cores of each job."""
    memory: int = 32
    """Gigabytes of each job."""
    hours: float = 4
    """Time of each job, after which it is put back into the queue and goes on."""


def parse_share(text: str, environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Share and number of shares: of "3/16", or for "slurm" of the job array that this process is a task of."""
    if text == SLURM:
        names = [f"SLURM_ARRAY_TASK_{name}" for name in ("ID", "COUNT", "MIN", "STEP")]
        task, count, first, step = (environment.get(name, default) for name, default in zip(names, "  01", strict=True))
        if not (task.isdecimal() and count.isdecimal() and first.isdecimal() and step.isdecimal()):
            raise UserError(f"--share slurm is for the tasks of a job array, which have {names[0]} and {names[1]}.")
        return (int(task) - int(first)) // int(step) + 1, int(count)
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if found is None:
        raise UserError(f"{text!r} is no share: write 3/16 for the third of sixteen, or slurm in a job array.")
    return int(found[1]), int(found[2])
