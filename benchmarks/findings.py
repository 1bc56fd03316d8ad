"""The attention part of docs/findings.md: traces of the twins and their controls, every analysis, tables with verdicts.

    python benchmarks/findings.py                              # prints the tables
    python benchmarks/findings.py --write docs/findings.md     # puts them between the markers of that file
    python benchmarks/findings.py --figures docs/howto/images  # and draws the pictures of the how-to from these traces

Twins, their untrained versions, the parent, and the parent under full visibility (its causal mask taken away, nothing
trained) answer the same questions of World(0)'s test split: rag with five documents, the gold one at each place, and
for task dependence binding and two-hop questions. About four minutes on one core.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch

import floatscope as fs
from findings_tables import LLADA, render
from floatscope.analysis import ANALYSES, Controls, Result, analyze
from floatscope.analysis.reading import TraceFiles
from floatscope.models.model import Model
from floatscope.models.visibility import BIDIRECTIONAL
from floatscope.probe.attention import Geometry, Probe, probing
from floatscope.probe.kernel import LayerStatistics
from floatscope.probe.layout import Layout
from floatscope.qa.samples import Sample
from floatscope.report.drawing import save_figure
from floatscope.report.heatmaps import trace_heatmaps
from floatscope.twins.tokenizer import MASK_ID
from floatscope.twins.world import World

SLOTS = 8
DOCUMENTS = 5
BATCH = 25
BEGIN, END = "<!-- attention:begin -->", "<!-- attention:end -->"
PARENT_FULL = fs.Family(
    "parent-full", "LlamaForCausalLM", BIDIRECTIONAL, "shifted", mask_id=MASK_ID, sampler={"name": "dream"}
)


@dataclass(frozen=True)
class Subject:
    """A model to trace: what to load, how to call it, and of which model it is the untrained control."""

    source: str
    name: str
    family: fs.Family | None = None
    control_of: str = ""


TWINS = ("twin-arm", "twin-dream", "twin-llada")
SUBJECTS = (
    *(Subject(name, name) for name in (*TWINS, "twin-parent")),
    Subject("twin-parent", "parent-full", PARENT_FULL),
    *(Subject(f"{name}-untrained", f"{name}-untrained", control_of=name) for name in TWINS),
)


def samples(n: int) -> dict[str, list[Sample]]:
    """n questions for each place of the gold document; as many binding and two-hop ones as for two places."""
    world = World(0)
    places = range(1, DOCUMENTS + 1)
    rag = [s for g in places for s in world.samples("rag", n, documents=DOCUMENTS, gold_position=g, seed=g)]
    others = {kind: world.samples(kind, 2 * n, documents=DOCUMENTS) for kind in ("binding", "twohop")}
    return {"rag": rag, **others}


def sampler(model: Model) -> Any:
    """The family's own, a step for each slot."""
    if model.mask_id is None:
        return fs.AutoregressiveSampler(length=SLOTS)
    if model.family.name == "llada":
        return fs.LLaDASampler(length=SLOTS, steps=SLOTS, block=SLOTS)
    return fs.DreamSampler(length=SLOTS, steps=SLOTS)


def capture(subject: Subject, tasks: dict[str, list[Sample]], folder: Path, keep: str = "compact") -> Iterator[Path]:
    """Trace every sample of every task into a file."""
    model = fs.load(subject.source, family=subject.family, check=False)
    model.name = subject.name
    about = {"control": "untrained", "control_of": subject.control_of} if subject.control_of else {}
    for task, found in tasks.items():
        for start in range(0, len(found), BATCH):
            batch = found[start : start + BATCH]
            prompts = [fs.build_prompt(model.tokenizer, s.question, s.documents, s.answers) for s in batch]
            metadata = [{"sample": s.id, "task": task, **about} for s in batch]
            traces = fs.trace(model, prompts, sampler(model), keep=keep, metadata=metadata)  # pyright: ignore
            assert isinstance(traces, list)
            for sample, trace in zip(batch, traces, strict=True):
                yield trace.save(folder / f"{keep}-{subject.name}-{sample.id}.safetensors")


def finished_text(paths: list[Path]) -> pl.DataFrame:
    """Top-position absorption of an MDM: last captured step against one forward over the finished text, in percent."""
    rows = []
    models: dict[str, Model] = {}
    for trace in TraceFiles(paths):
        if trace.kind == "arm" or trace.model not in TWINS:
            continue
        model = models.setdefault(trace.model, fs.load(trace.model, check=False))
        finished = received(model, torch.from_numpy(trace.canvas)[None]).max(axis=-1)
        last = trace.received[-1].max(axis=-1)
        both = {"last step": 100 * float(last.mean()), "finished text": 100 * float(finished.mean())}
        apart = 100 * float(abs(finished - last).max())
        rows.append({"model": trace.model, **both, "largest difference": apart})
    means = pl.col("last step", "finished text").mean()
    return pl.DataFrame(rows).group_by("model", maintain_order=True).agg(means, pl.col("largest difference").max())


def received(model: Model, tokens: torch.Tensor) -> Any:
    """[layer, token] head-mean received attention of one forward over the canvas as it is."""
    length = tokens.shape[1]
    layout = Layout(torch.zeros(length, dtype=torch.long), 1, torch.ones(length, 1), torch.tensor([0]), 1)
    found: dict[int, torch.Tensor] = {}

    def listen(layer: int, sample: int, statistics: LayerStatistics, geometry: Geometry) -> None:
        found[layer] = statistics.group_sums.sum(1).mean(0) / length

    with torch.inference_mode(), probing(Probe([0], [layout], listen)):
        model.forward(tokens, torch.zeros(1, dtype=torch.long), torch.tensor([[0]]))
    return torch.stack([found[layer] for layer in sorted(found)]).numpy()


def measure(n: int, folder: Path, say: Any) -> tuple[dict[str, Result], list[Path]]:
    """Every analysis of the rag traces (task dependence: of all), with the untrained twins as controls."""
    tasks = samples(n)
    few = {"rag": tasks["rag"][:: max(1, n // 2)]}
    files: dict[str, list[Path]] = {"own": [], "control": [], "full": []}
    for subject in SUBJECTS:
        say(f"trace {subject.name}")
        only = {"rag": tasks["rag"]} if subject.name in ("twin-parent", "parent-full") else tasks
        files["control" if subject.control_of else "own"] += capture(subject, only, folder)
        if subject.name in TWINS:
            files["full"] += capture(subject, few, folder, keep="matrices")
    results = {}
    for name in ANALYSES:
        say(f"analyse {name}")
        every = name == "task_dependence"
        own, control = (
            TraceFiles(path for path in files[part] if every or "-rag-" in path.name) for part in ("own", "control")
        )
        if every:
            own = TraceFiles(path for path in own.paths if any(f"-{twin}-" in path.name for twin in TWINS))
        traces = TraceFiles(files["full"]) if name == "compat" else own
        results[name] = analyze(name, traces, controls=Controls(untrained=control))
    return results, files["full"]


def draw(results: dict[str, Result], full: list[Path], folder: Path) -> None:
    """The pictures of the how-to."""
    for name, result in results.items():
        save_figure(ANALYSES[name].figure(result), folder / name, ("svg",))
    one = [path for path in full if f"-{LLADA}-" in path.name][:1]
    for chart in trace_heatmaps("drift", TraceFiles(one), 2).values():
        save_figure(chart, folder / "temporal_heatmap", ("svg",))
    for chart in trace_heatmaps("qk", TraceFiles(one), 2).values():
        chart.save(folder / "qk_heatmaps.png", scale_factor=1)  # thousands of cells: megabytes as SVG


def write(path: Path, text: str) -> None:
    """Replace what stands between the markers."""
    page = path.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{path} has no markers {BEGIN} and {END}.")
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Trace, analyse, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=10, help="questions for each place of the gold document")
    parser.add_argument("--write", type=Path, help="a page with the markers")
    parser.add_argument("--figures", type=Path, help="folder for the how-to's pictures")
    parser.add_argument("--traces", type=Path, help="keep the traces in this folder")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()

    def say(what: str) -> None:
        print(f"{time.perf_counter() - start:6.0f} s  {what}", flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.traces or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        results, full = measure(arguments.n, folder, say)
        say("finished text")
        text = render(results, finished_text(full), arguments.n)
        print(text)
        if arguments.write:
            write(arguments.write, text)
        if arguments.figures:
            draw(results, full, arguments.figures)
    say("done")


if __name__ == "__main__":
    main()
