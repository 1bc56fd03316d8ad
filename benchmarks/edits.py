"""What edits of attention cost: a traced run with an edit / without, and answers under a static block / without.

    python benchmarks/edits.py                       # SmolLM2-135M's shape, random weights, 512 and 1024 tokens
    python benchmarks/edits.py --tokens 512 --layers 6 --repeats 3 --steps 4

Both sides of a ratio run in turn in one process; CPU seconds, medians of ratios of the same round. `trace` keeps what a
study keeps; the edits are one that the kernel applies to named keys (zero), one that picks by rank (block top(3), which
needs one pass more in the whole run, so that it costs about 1 / steps), and a block of a document. `evaluate` is a
study of questions without traces, through its store, with and without a static block: a mask of SDPA there.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import floatscope as fs
from capture import smollm2_shape
from floatscope.canvas import Prompt, Region
from floatscope.study.plan import Curve, ModelPlan, Study, TaskPlan
from floatscope.study.running import run_study

SLOTS, DOCUMENTS = 32, 10
EDITS = {
    "zero a document": fs.Edit("zero", keys="doc 3"),
    "block a document": fs.Edit("block", keys="doc 3"),
    "block top(3)": fs.Edit("block", keys="top(3)"),
}


def prompt_of(tokens: int, vocabulary: int) -> Prompt:
    """A bos, ten documents and a question."""
    length = tokens - SLOTS
    edges = np.linspace(1, length, DOCUMENTS + 2).astype(int)
    names = ["bos", *(f"doc {number}" for number in range(1, DOCUMENTS + 1)), "query"]
    spans = zip(names, [0, *edges[:-1]], edges, strict=True)
    ids = np.random.default_rng(0).integers(1, vocabulary, length)
    return Prompt("", ids, tuple(Region(*span) for span in spans))


def ways(model: fs.Model, prompt: Prompt, batch: int, steps: int) -> dict[str, Callable[[], Any]]:
    """What is timed, by name; a name with a plus is held to the one before it."""
    sampler = fs.LLaDASampler(steps=steps, length=SLOTS)
    prompts = [prompt] * batch
    found: dict[str, Callable[[], Any]] = {"trace": lambda: fs.trace(model, prompts, sampler)}
    for name, edit in EDITS.items():
        found[f"trace + {name}"] = lambda edit=edit: fs.trace(model, prompts, sampler, edits=[edit])
    return found


def evaluations(name: str, questions: int) -> dict[str, Callable[[], Any]]:
    """`floatscope evaluate --model NAME --task world:rag:10 --documents 10 --length 8`, with and without an edit."""

    def run(*edits: str) -> None:
        curves, tasks = (Curve("documents", "10"),), (TaskPlan("world:rag:10"),)
        study = Study("cost", (ModelPlan(name),), tasks, curves, limit=questions, slots=8, edits=edits)
        with TemporaryDirectory() as folder:
            run_study(study, Path(folder) / "run")

    return {"evaluate": run, "evaluate + block a document": lambda: run("block doc 3")}


def measure(run: dict[str, Callable[[], Any]], repeats: int) -> dict[str, tuple[float, float]]:
    """CPU seconds of each way, and the median of its ratio to the way without an edit."""
    seconds: dict[str, list[float]] = {name: [] for name in run}
    for round_ in range(repeats + 1):
        for name, call in run.items():
            start = time.process_time()
            call()
            if round_:  # the first round warms up
                seconds[name].append(time.process_time() - start)
    found = {}
    for name, own in seconds.items():
        plain = seconds[name.partition(" + ")[0]]
        ratios = [one / other for one, other in zip(own, plain, strict=True)]
        found[name] = (statistics.median(own), statistics.median(ratios))
    return found


def main() -> None:
    """Parse, measure, print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="512,1024", help="canvas lengths, comma separated")
    parser.add_argument("--layers", type=int, default=30, help="layers of the random model")
    parser.add_argument("--steps", type=int, default=16, help="steps of a traced run, which divide 32 slots")
    parser.add_argument("--model", default="twin-llada", help="the model that is evaluated")
    parser.add_argument("--questions", type=int, default=48, help="questions that it is asked")
    parser.add_argument("--batch", type=int, default=2, help="canvases that run together")
    parser.add_argument("--repeats", type=int, default=7, help="timed rounds")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = smollm2_shape(arguments.layers)
    print("| tokens | way | CPU s | / without the edit |\n|---|---|---|---|")
    for tokens in map(int, arguments.tokens.split(",")):
        run = ways(model, prompt_of(tokens, model.vocabulary), arguments.batch, arguments.steps)
        for name, (seconds, ratio) in measure(run, arguments.repeats).items():
            print(f"| {tokens} | {name} | {seconds:.2f} | {ratio:.3f} |", flush=True)
    if arguments.questions:
        run = evaluations(arguments.model, arguments.questions)
        for name, (seconds, ratio) in measure(run, arguments.repeats).items():
            print(f"| {arguments.model} | {name} | {seconds:.2f} | {ratio:.3f} |", flush=True)


if __name__ == "__main__":
    main()
