"""From a request to events: each model denoises in turn, and every step is handed out when it is done.

The capture is `floatscope.trace` itself, so a live run is the trace of the same prompt, sampler and seed.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.analysis.anchors import Field, parse_detector
from floatscope.canvas import Prompt, document_label
from floatscope.decoding import Sampler, Step
from floatscope.decoding.generation import make_batch
from floatscope.errors import UserError
from floatscope.live.jobs import Emit
from floatscope.live.requests import GAP, Request
from floatscope.models.model import Model
from floatscope.probe.edits import Edit
from floatscope.qa.metrics import accuracy
from floatscope.qa.prompts import build_canvas, build_prompt, unknown_tokens
from floatscope.reports.player import DETECTOR, canvas_data, commits_data, named_regions, run_data, step_data
from floatscope.tracing import trace


@dataclass(frozen=True)
class Live:
    """A model that is to answer."""

    model: Model
    prompt: Prompt
    sampler: Sampler
    edits: tuple[Edit, ...] = ()

    @property
    def name(self) -> str:
        """What the page calls it."""
        return f"{self.model.name}, edited" if self.edits else self.model.name

    @property
    def canvas(self) -> Prompt:
        """The prompt with its slots."""
        return self.prompt.with_slots(self.sampler.length)


def denoise(models: Mapping[str, Model], request: Request, emit: Emit) -> None:
    """Run a request. Events: `opened` once; for each run `step` or `token`, then `finished` and `trace`, its
    file; `done` at the end.

    An ARM's attention comes from one forward after its last token: its steps are in `finished`.
    """
    runs: list[Live] = []
    for model in (models[name] for name in request.models):
        asked = {"steps": request.steps, "seed": request.seed}  # for samplers that have such settings
        sampler = model.sampler(asked, length=request.slots)
        if GAP in request.question:
            before, _, after = request.question.partition(GAP)
            if after and model.family.is_arm:
                raise UserError(
                    f"{model.name} is autoregressive and writes at the end only: put {GAP} there or choose another."
                )
            prompt = build_canvas(model, before, request.slots, after)
        else:
            prompt = build_prompt(model, request.question, request.documents, request.answers)
        sampler = sampler if prompt.slots is not None else sampler.fitted(model, len(prompt.ids))
        make_batch(model, [prompt], sampler)  # refuses what does not fit, before any model runs
        runs.append(Live(model, prompt, sampler))
    if request.hidden:  # the first model again, beside its run as it is
        size = len(runs[0].canvas.ids)
        if beyond := [name for name in request.hidden if name.isdecimal() and int(name) >= size]:
            raise UserError(f"There is no token {beyond[0]} to hide: the canvas has {size}, counted from 0.")
        runs[1:] = [replace(runs[0], edits=(Edit("block", keys=" or ".join(request.hidden)),))]
    opened = [_opened(run, request) for run in runs]
    emit({"event": "opened", "question": request.question, "answers": request.answers, "runs": opened})
    for number, run in enumerate(runs):
        _run(number, run, request, emit)
    emit({"event": "done"})


def _opened(run: Live, request: Request) -> dict[str, Any]:
    """A run of the player before its first step: the prompt and empty slots."""
    model, canvas = run.model, run.canvas
    assert canvas.slots is not None
    gold = [document_label(number) for number, document in enumerate(request.documents, 1) if document.gold]
    is_slot = np.isin(np.arange(len(canvas.ids)), canvas.slots)
    texts = ["" if slot else text for text, slot in zip(model.token_texts(canvas.ids), is_slot, strict=True)]
    return {
        **canvas_data(texts, named_regions(canvas.regions, canvas.marks)),
        "model": run.name,
        "kind": "arm" if model.family.is_arm else "mdm",
        "visibility": str(model.visibility),
        "gold": gold,
        "marked": canvas.marks.get("gold_answer", np.zeros(0, np.int64)).tolist(),
        "slots": canvas.slots.tolist(),
        "layers": model.layers,
        "foreseen": run.sampler.step_bounds(int(canvas.slots[0]), model.block)[1],
        "unknown": unknown_tokens(model.tokenizer, canvas),
    }


def _run(number: int, run: Live, request: Request, emit: Emit) -> None:
    started, model = time.perf_counter(), run.model
    find = parse_detector(DETECTOR)

    def committed(step: Step) -> list[list[Any]]:
        slots = (step.committed[0] | step.revised[0]).nonzero()[:, 0]
        canvas = model.token_texts(step.canvas[0].numpy())
        positions = dict(zip(slots.tolist(), step.given.positions[0, slots].tolist(), strict=True))
        return commits_data(canvas, positions, step.confidence[0][slots].tolist())

    def on_token(step: Step) -> None:
        emit({"event": "token", "run": number, "commits": committed(step)})

    def on_received(step: Step, received: Sequence[NDArray[np.float32]]) -> None:
        seen = received[0]  # [layer, token]: in an MDM every column is seen by some row
        anchors = find(Field(seen, seen, np.ones(seen.shape, bool), np.full((1, 1), seen.shape[-1]))) > 0.5
        emit({"event": "step", "run": number, "step": step_data(seen, anchors, committed(step))})

    is_arm = model.family.is_arm
    [found] = trace(
        model,
        [run.prompt],
        run.sampler,
        on_step=on_token if is_arm else None,
        on_received=on_received,
        edits=run.edits,
    )
    seconds = time.perf_counter() - started
    known: dict[str, Any] = {"question": request.question, "answers": request.answers}
    if request.answers:
        known["accuracy"] = accuracy(found.prediction or "", request.answers)
    found = replace(found, model=run.name, metadata=dict(found.metadata) | known)
    emit({"event": "finished", "run": number, "data": run_data(found), "seconds": round(seconds, 3)})
    with TemporaryDirectory() as folder:  # nothing of it stays on the server
        file = found.save(Path(folder) / "trace")
        name = re.sub(r"[^\w.-]+", "-", Path(run.name).name)
        data = base64.b64encode(file.read_bytes()).decode("ascii")
    emit({"event": "trace", "run": number, "file": f"{name}.safetensors", "data": data})
