"""What a study will cost: its units and batches, seconds on this machine, hours on GPUs, disk for its traces.

Seconds and bytes come from a short calibration here. Hours on GPUs are arithmetic: a forward takes the longer of its
operations at a share of the peak and of reading the weights once. The probe, loading and scoring are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from floatscope.errors import UserError
from floatscope.models.families import LLADA_CONFIG
from floatscope.study.engine import Size, batch_count, batches, loadings, quiet_plan, size_of
from floatscope.study.plan import GUESS, ModelPlan, Study
from floatscope.traces.arrays import ARRAYS, kept_arrays

if TYPE_CHECKING:
    from floatscope.models.model import Model

UTILISATION = 0.4
"""The share of a GPU's peak that large forwards reach: an assumption."""
TEMPLATE_TOKENS, LETTERS, HEADER = 16, 4, 8000
"""Of a trace before it is made: tokens of the template, letters of a token, bytes of its file beside its numbers."""
FIXED_AXES = {"qk_step": 3, "rank": 8, "candidate": 5, "bound": 2}
WEIGHT_BYTES = 2
"""Of a parameter on a GPU, as bfloat16."""


@dataclass(frozen=True)
class GPU:
    """A kind of GPU, by its data sheet: dense bfloat16 operations a second, bytes a second from its memory."""

    peak: float
    bandwidth: float


GPUS = {"A100": GPU(312e12, 2.0e12), "H100": GPU(989e12, 3.35e12)}
"""A100 SXM with 80 GB, H100 SXM."""


@dataclass(frozen=True)
class ModelShape:
    """What decides how many operations a forward takes."""

    body: int
    """Parameters of the layers: all that are multiplied with every token."""
    head: int
    """Parameters of the output layer, which runs on the slots alone."""
    layers: int
    width: int
    """Of all query heads together."""

    @classmethod
    def of(cls, model: Model) -> ModelShape:
        """The shape of a loaded model; of a mixture of experts all of them count, also those that a token skips."""
        config = model.config
        table = model.backbone.get_input_embeddings().weight
        output = model.backbone.get_output_embeddings()
        own = 0 if output is None or output.weight is table else output.weight.numel()
        total = sum(parameter.numel() for parameter in model.backbone.parameters())
        heads = config.num_attention_heads
        width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
        return cls(total - table.numel() - own, table.numel(), model.layers, width)

    def operations(self, rows: int, keys: int, slots: int) -> float:
        """Of one sample's forward: matrices over its rows, attention of rows to keys, the head over the slots."""
        return 2 * self.body * rows + 4 * self.layers * self.width * rows * keys + 2 * self.head * slots

    def seconds(self, gpu: GPU, samples: int, rows: int, keys: int, slots: int) -> float:
        """One forward of a batch on a GPU."""
        reading = WEIGHT_BYTES * (self.body + self.head) / gpu.bandwidth
        return max(samples * self.operations(rows, keys, slots) / (UTILISATION * gpu.peak), reading)

    def batch_seconds(
        self, gpu: GPU, samples: int, tokens: int, slots: int, steps: int, arm: bool, traced: bool
    ) -> float:
        """All forwards of a batch of prompts of so many tokens: an MDM's over the canvas at every step; an ARM's over
        its prompt, then over one token at a time, and where it is traced once more over all of its text."""
        canvas = tokens + slots
        if not arm:
            return steps * self.seconds(gpu, samples, canvas, canvas, slots)
        first = self.seconds(gpu, samples, tokens, tokens, 1)
        again = self.seconds(gpu, samples, canvas, canvas, 0) if traced else 0
        return first + again + steps * self.seconds(gpu, samples, 1, canvas, 1)


@dataclass(frozen=True)
class Estimate:
    """One load of a model: its units and batches, and what they may take."""

    name: str
    units: int
    batches: int
    seconds: float = 0
    """On this machine, with the study's workers."""
    trace_bytes: int = 0
    gpu_seconds: tuple[float, ...] = ()
    """On one GPU of each kind in `GPUS`."""


def count(study: Study) -> list[Estimate]:
    """Guesses and each load of a model with what there is to do, none loaded; of passages at most so many batches."""
    jobs = quiet_plan(study)
    guessed = sum(job.unit.control == GUESS for job in jobs)
    return [
        *[Estimate("guesses, by no model", guessed, 0)] * bool(guessed),
        *(Estimate(one.name, len(one.jobs), batch_count(study, one.jobs)) for one in loadings(study, jobs)),
    ]


def estimate(study: Study, notify: Callable[[str], None] = lambda what: None) -> list[Estimate]:
    """For every load of a model, from a batch of middle length of each kind (traced or not, by slots)."""
    from floatscope.study.answering import answer, build_sampler, choose_template, prepare

    found = []
    for loading in loadings(study, quiet_plan(study)):
        notify(f"timing {loading.name}")
        started = time.perf_counter()
        model = loading.load()
        template = choose_template(study, model, loading.jobs)
        planned = batches([size_of(prepare(study, model, template, job)) for job in loading.jobs], study.batch)
        seconds = time.perf_counter() - started
        shape, on_gpus, kept = ModelShape.of(model), [0.0] * len(GPUS), 0.0
        for (traced, slots, _), group in groupby(planned, key=lambda batch: batch[0].kind):
            alike = list(group)
            middle = alike[len(alike) // 2]
            sampler = build_sampler(study, loading.plan, model.family, slots, middle[0].job.condition.sampler)
            prepared = [prepare(study, model, template, size.job) for size in middle]
            answer(study, model, sampler, prepared[:1])  # the first call of a kind pays for what later ones find
            before = time.perf_counter()
            answers = answer(study, model, sampler, prepared)
            taken = time.perf_counter() - before
            scale = sum(map(_size, alike)) / _size(middle)
            seconds += taken * scale / study.workers
            with TemporaryDirectory() as folder:
                file = Path(folder) / "trace.safetensors"
                kept += scale * sum(made.save(file).stat().st_size for _, made in answers if made is not None)
            steps = max(row.steps or 0 for row, _ in answers)
            for place, gpu in enumerate(GPUS.values()):
                for batch in alike:
                    tokens = max(size.tokens for size in batch)
                    on_gpus[place] += shape.batch_seconds(
                        gpu, len(batch), tokens, slots, steps, model.family.is_arm, traced
                    )
        found.append(Estimate(loading.name, len(loading.jobs), len(planned), seconds, round(kept), tuple(on_gpus)))
    return found


def expected_trace_bytes(study: Study) -> int | None:
    """About what the files of traces will take, from the shapes of the plan: 0.7 to 1.4 of it in four runs.

    None where the config of a model is not on this machine.
    """
    total = 0.0
    for loading in loadings(study, quiet_plan(study)):
        traced = [job for job in loading.jobs if job.traced]
        heads = _layers_and_heads(loading.plan) if traced else (0, 0, 0)
        if heads is None:
            return None
        for job in traced:
            try:
                sample = job.task.under(job.condition, job.sample, study.seed)
            except UserError:
                continue  # it becomes a row that says so
            texts = [sample.question, sample.before, sample.after, *(d.title + d.text for d in sample.documents)]
            slots = job.condition.slots or study.slots
            if sample.is_passage:
                slots = min(slots, len(sample.answers[0]) // LETTERS)
            steps, groups = study.steps_for(slots) or slots, 5 + len(sample.documents)
            tokens = TEMPLATE_TOKENS + sum(map(len, texts)) // LETTERS + slots
            axes = {"step": steps, "layer": heads[0], "head": heads[1], "kv_head": heads[2], "token": tokens}
            axes |= {"answer": slots, "group": groups, "column": groups} | FIXED_AXES
            rows = [ARRAYS[name] for name in kept_arrays(study.keep) if name != "seen_by_step"]
            held = [row for row in rows if not {*row.axes} - {*axes}]  # matrices have axes of their own
            total += sum(row.bytes * prod(axes[axis] for axis in row.axes) for row in held) + HEADER + tokens * 40
    return round(total)


def _layers_and_heads(plan: ModelPlan) -> tuple[int, int, int] | None:
    """Layers, heads and key-value heads, as config.json says them in the words of its family."""
    from floatscope.models.families import get_family
    from floatscope.models.loading import locate, read_config
    from floatscope.study.checking import local_folder

    if (folder := local_folder(plan.source, plan.revision)) is None or (place := locate(folder).weights).is_file():
        return None
    config = read_config(place)
    renamed = get_family(plan.family).config if plan.family else LLADA_CONFIG
    known = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "num_key_value_heads": ""}
    found: list[int | None] = []
    for new, other in known.items():
        names = (new, other, *(old for old, name in renamed.items() if name == new))
        found.append(next((config[name] for name in names if isinstance(config.get(name), int)), None))
    layers, heads, shared = found
    return (layers, heads, shared or heads) if layers and heads else None


def _size(batch: Sequence[Size]) -> int:
    """Tokens of a batch as it is run, pads included."""
    return len(batch) * (max(size.tokens for size in batch) + batch[0].slots)
