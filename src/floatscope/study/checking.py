"""A study before it runs: what it lacks (weights, data, packages, devices).

Looks at this machine only, at no network, and stores nothing.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from floatscope.errors import UserError
from floatscope.files import read_json
from floatscope.qa.readers.records import HUB
from floatscope.qa.templates import read_template
from floatscope.study.plan import ModelPlan, Study, TaskPlan
from floatscope.study.units import load_task, missing_files


@dataclass(frozen=True)
class Readiness:
    """A part of the study, and what it lacks; nothing where it is ready."""

    part: str
    source: str
    lacks: str = ""


def check_study(study: Study) -> list[Readiness]:
    """One for each model, each task and the prompt template."""
    template = study.prompt.template
    parts: list[tuple[str, str, Callable[[], object]]] = [
        *((f"model {plan.name}", plan.source, partial(_check_model, study, plan)) for plan in study.models),
        *((f"task {plan.name}", plan.source, partial(_check_task, study, plan)) for plan in study.tasks),
        ("prompt", template, partial(read_template, template)),
    ]
    found = []
    for part, source, check in parts:
        try:
            check()
            found.append(Readiness(part, source))
        except UserError as error:
            found.append(Readiness(part, source, str(error)))
    return found


def _check_model(study: Study, plan: ModelPlan) -> None:
    """Raises what the model lacks."""
    import torch

    from floatscope.models.adapters import absent_files, is_adapter, read_fork
    from floatscope.models.families import get_family
    from floatscope.models.loading import Place, read_config, refuse_pickles
    from floatscope.study.answering import build_sampler

    folder = local_folder(plan.source, plan.revision)
    fork = read_fork(folder) if folder is not None and is_adapter(folder) else None
    if folder is not None and fork is not None and (absent := absent_files(folder, fork)):
        raise UserError(f"{folder} lacks {absent[0]}")
    folder = local_folder(fork.parent) if fork else folder
    if folder is None:
        raise UserError("its weights are not on this machine: they will be downloaded from the hub when the study runs")
    family = get_family(plan.family) if plan.family else None
    if folder.is_dir():
        config = read_config(folder)
        refuse_pickles(folder)
        family = family or Place(plan.source, folder, fork).family(config)
        indices = [read_json(index) for index in folder.glob("*.safetensors.index.json")]
        shards = {name for index in indices for name in index.get("weight_map", {}).values()}
        if missing := sorted(name for name in shards if not (folder / name).exists()):
            raise UserError(f"{len(missing)} of its weight files are missing, such as {missing[0]}")
    if family is not None:
        cells = [cell for task in study.tasks for cell in study.cells(task)]
        for condition in (cell.condition for cell in cells):
            build_sampler(study, plan, family, condition.slots or study.slots, condition.sampler)
    if plan.device is not None and plan.device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"the device {plan.device} is not available on this machine")


def local_folder(source: str, revision: str | None = None) -> Path | None:
    """Where a model is on this machine: a twin, a path, or the hub's cache; None for a hub id that is not there."""
    from floatscope.models.loading import before_training, resolve

    source = before_training(source) or source
    of_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", source) and not source.startswith(".")
    try:
        return resolve(source, revision, download=False)
    except UserError:
        if of_hub and not Path(source).expanduser().exists():
            return None
        raise


def _check_task(study: Study, plan: TaskPlan) -> None:
    """Raises what the task lacks; a dataset of the hub is not fetched."""
    if missing := missing_files(plan):
        raise UserError(f"there is no file {' and no file '.join(missing)}")
    if not plan.source.startswith(HUB):
        load_task(study, plan)
    elif find_spec("datasets") is None:
        raise UserError("it needs the package datasets: pip install 'floatscope[datasets]'")
