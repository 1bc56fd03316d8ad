"""The attention parts of docs/findings.md: traces of models and their controls, every analysis, tables with verdicts.

    python benchmarks/findings.py                              # prints the tables
    python benchmarks/findings.py --write docs/findings.md     # puts them between the markers of that file
    python benchmarks/findings.py --figures docs/howto/images  # and draws the pictures of the how-to from these traces
    python benchmarks/findings.py --forks smollm2-arm smollm2-dream smollm2-llada --task held_out.jsonl \\
        --write docs/findings.md                               # the same of forks of a real model

Twins, their untrained versions, the parent, and the parent under full visibility (its causal mask taken away, nothing
trained) answer the same questions of World(0)'s test split: rag with five documents, the gold one at each place, and
for task dependence binding and two-hop questions. About four minutes on one core.

Forks (names or adapter folders) come with their parent, which is the ARM fork's control, and as the MDM forks' controls
with that parent under full visibility. Their distractors are other questions' passages, by BM25.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

import floatscope as fs
from findings_tables import Cast, Findings, render
from floatscope.analysis import ANALYSES, Controls, Options, Result, analyze
from floatscope.analysis.reading import TraceFiles
from floatscope.analysis.results import Panel, collect, readable, summarise
from floatscope.analysis.statistics import bootstrap_mean
from floatscope.analysis.uniform import uniform_layers
from floatscope.decoding import AnySampler, make_sampler
from floatscope.errors import UserError
from floatscope.models.families import get_family
from floatscope.models.loading import locate
from floatscope.models.model import Model
from floatscope.models.visibility import BIDIRECTIONAL
from floatscope.probe.attention import Geometry, Probe, probing
from floatscope.probe.kernel import LayerStatistics
from floatscope.probe.layout import Layout
from floatscope.qa.readers import read_samples
from floatscope.qa.samples import Sample
from floatscope.qa.stressors import Pool, StressOptions, build_conditions, stress
from floatscope.report.drawing import save_figure
from floatscope.report.heatmaps import trace_heatmaps
from floatscope.traces import Trace
from floatscope.twins.tokenizer import MASK_ID
from floatscope.twins.world import World

DOCUMENTS = 5
SINK_FROM = 3  # the layer, counted from 0, from which on the parent has its sink
SINK_DEPTHS = 6
PARENT_FULL = fs.Family(
    "parent-full", "LlamaForCausalLM", BIDIRECTIONAL, "shifted", mask_id=MASK_ID, sampler={"name": "dream"}
)


@dataclass(frozen=True)
class Subject:
    """A model to trace: what to load, how to call it, and its part."""

    source: str
    name: str
    family: fs.Family | None = None
    trained: bool = False
    """One that the claims are about: its matrices are kept of some samples."""
    control_of: str = ""
    """The model whose untrained control it is."""
    own: bool = True
    """Whether it has lines of its own in the tables."""


@dataclass(frozen=True)
class Plan:
    """What is traced and how."""

    cast: Cast
    subjects: tuple[Subject, ...]
    tasks: dict[str, list[Sample]]
    """The first one is what the analyses read; the others are for task dependence only."""
    samples: str
    """A sentence: how many of what."""
    slots: int
    batch: int
    full: int
    """Of every so many samples of the first task, one has its matrices kept."""
    raw: bool = False
    matrix_steps: tuple[int, ...] | None = None
    markers: str = "attention"
    """The name of the pair of markers between which the tables are written."""


@dataclass(frozen=True)
class Traced:
    """A trace file and what it is of."""

    subject: Subject
    task: str
    path: Path


def twins_plan(n: int) -> Plan:
    """n questions for each place of the gold document; as many binding and two-hop ones as for two places."""
    world = World(0)
    places = range(1, DOCUMENTS + 1)
    rag = [s for g in places for s in world.samples("rag", n, documents=DOCUMENTS, gold_position=g, seed=g)]
    others = {kind: world.samples(kind, 2 * n, documents=DOCUMENTS) for kind in ("binding", "twohop")}
    arm, *mdms = twins = ("twin-arm", "twin-dream", "twin-llada")
    names = {name: name for name in twins} | {"twin-parent": "parent", "parent-full": "parent, full visibility"}
    return Plan(
        cast=Cast(arm, tuple(mdms), names, "twin"),
        subjects=(
            *(Subject(name, name, trained=True) for name in twins),
            Subject("twin-parent", "twin-parent"),
            Subject("twin-parent", "parent-full", PARENT_FULL),
            *(Subject(f"{name}-untrained", f"{name}-untrained", control_of=name, own=False) for name in twins),
        ),
        tasks={"rag": rag, **others},
        samples=f"Samples a model: {5 * n} rag questions ({n} for each gold place), {2 * n} binding, {2 * n} two-hop.",
        slots=8,
        batch=25,
        full=max(1, n // 2),
    )


def forks_plan(sources: Sequence[str], task: Path, n: int) -> Plan:
    """The forks, their one parent, and it without its mask: n held-out questions for each place of the gold document.

    Without an ARM among the forks the parent is the ARM that the MDMs are compared with.
    """
    forks = {Path(source).name: (source, locate(source).fork) for source in sources}
    kinds = {name: get_family(fork.family) for name, (_, fork) in forks.items() if fork is not None}
    parents = {fork.parent for _, fork in forks.values() if fork is not None}
    mdms = tuple(name for name, family in kinds.items() if not family.is_arm)
    arms = [name for name, family in kinds.items() if family.is_arm]
    if len(kinds) < len(sources) or len(parents) != 1 or not mdms or len(arms) > 1:
        raise UserError("--forks needs adapters of one parent under different names: one MDM or more, one ARM at most")
    (parent,) = parents
    called, arm = Path(parent).name, "".join(arms)
    samples = placed(task, n)
    return Plan(
        cast=Cast(arm or called, mdms, {name: name for name in (*arms, *mdms)} | {called: "parent"}, "fork", called),
        subjects=(
            *(Subject(forks[name][0], name, trained=True) for name in (*arms, *mdms)),
            Subject(parent, called, trained=not arms, control_of=arm),
            *(Subject(f"{forks[name][0]}-untrained", f"{name}-untrained", control_of=name, own=False) for name in mdms),
        ),
        tasks={"held-out": samples},
        samples=f"Samples a model: {len(samples)} held-out questions ({n} for each gold place).",
        slots=12,
        batch=10,
        full=n,
        raw=True,
        matrix_steps=(11,),  # the only one that compat reads; all of them would be gigabytes a sample
        markers="real",
    )


def placed(task: Path, n: int) -> list[Sample]:
    """n questions for each place of the gold document, another n each; those with too few distractors are left out."""
    held_out = list(read_samples(task))
    pool, waiting = Pool(held_out), iter(held_out)
    found: list[Sample] = []
    for condition in build_conditions({"position": "all"}, StressOptions(documents=DOCUMENTS), baselines=False):
        wanted = len(found) + n
        while len(found) < wanted:
            if (sample := next(waiting, None)) is None:
                raise UserError(f"{task} has too few questions for {n} at each of {DOCUMENTS} places: lower --n")
            try:
                found.append(stress(sample, condition, pool, seed=0))
            except UserError as error:
                print(f"left out: {error}")
    return found


def sampler(model: Model, slots: int) -> AnySampler:
    """The family's own, a step for each slot."""
    steps: dict[str, Any] = {} if model.family.is_arm else {"steps": slots}
    return make_sampler(**model.family.sampler, length=slots, **steps)


def open_model(subject: Subject) -> Model:
    """The subject's model under its name."""
    model = fs.load(subject.source, family=subject.family, check=False)
    model.name = subject.name
    return model


def capture(plan: Plan, subject: Subject, folder: Path) -> tuple[list[Traced], list[Traced]]:
    """Trace every sample into a file; and some of the first task with matrices."""
    model = open_model(subject)
    first = next(iter(plan.tasks))
    everything = subject.trained or not subject.own
    compact = [
        traced
        for task, samples in plan.tasks.items()
        if everything or task == first
        for traced in trace_task(plan, subject, model, task, samples, folder)
    ]
    some = plan.tasks[first][:: plan.full] if subject.trained else []
    return compact, list(trace_task(plan, subject, model, first, some, folder, matrices=True))


def trace_task(
    plan: Plan, subject: Subject, model: Model, task: str, samples: list[Sample], folder: Path, matrices: bool = False
) -> Iterator[Traced]:
    """A file a sample, batch by batch; a batch that an earlier run left in the folder is not traced again."""
    about = {"control": "untrained", "control_of": subject.control_of} if subject.control_of else {}
    kept: dict[str, Any] = {"keep": "matrices", "matrix_steps": plan.matrix_steps} if matrices else {}
    for start in range(0, len(samples), plan.batch):
        batch = samples[start : start + plan.batch]
        prompts = [fs.build_prompt(model.tokenizer, s.question, s.documents, s.answers, raw=plan.raw) for s in batch]
        kind = f"{'matrices' if matrices else 'compact'}-{subject.name}-{task}"
        paths = [folder / f"{kind}-{number:04}.safetensors" for number in range(start, start + len(batch))]
        if not all(is_trace_of(path, prompt.ids) for path, prompt in zip(paths, prompts, strict=True)):
            metadata = [{"sample": s.id, "task": task, **about} for s in batch]
            traces = fs.trace(model, prompts, sampler(model, plan.slots), metadata=metadata, **kept)
            assert isinstance(traces, list)
            for path, trace in zip(paths, traces, strict=True):
                trace.save(path)
        yield from (Traced(subject, task, path) for path in paths)


def is_trace_of(path: Path, prompt: Any) -> bool:
    return path.exists() and np.array_equal((kept := Trace.load(path)).canvas[: kept.prompt_length], prompt)


def finished_text(plan: Plan, full: list[Traced]) -> pl.DataFrame:
    """Top-position absorption of an MDM: last captured step against one forward over the finished text, in percent."""
    rows = []
    for subject in plan.subjects:
        if subject.name not in plan.cast.mdms:
            continue
        model = open_model(subject)
        for trace in TraceFiles(traced.path for traced in full if traced.subject == subject):
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


def measure(plan: Plan, folder: Path, say: Any) -> tuple[dict[str, Result], list[Traced]]:
    """Every analysis of the first task's traces (task dependence: of all), with the controls; and the full traces."""
    compact: list[Traced] = []
    full: list[Traced] = []
    for subject in plan.subjects:
        say(f"trace {subject.name}")
        for known, new in zip((compact, full), capture(plan, subject, folder), strict=True):
            known += new
    first = next(iter(plan.tasks))
    results = {}
    for name in ANALYSES:
        every = name == "task_dependence"
        if every and len(plan.tasks) == 1:
            continue
        say(f"analyse {name}")
        used = [traced for traced in compact if every or traced.task == first]
        own = full if name == "compat" else [t for t in used if t.subject.own and (t.subject.trained or not every)]
        control = [traced for traced in used if traced.subject.control_of]
        found = analyze(name, files(own), controls=Controls(untrained=files(control)))
        results[name] = without_control(found, plan.cast.parent)
    if plan.cast.parent:
        say("analyse sink")
        results["sink"] = sink(plan, files(compact))
    return results, full


def files(traced: Sequence[Traced]) -> TraceFiles:
    return TraceFiles(one.path for one in traced)


def without_control(result: Result, parent: str) -> Result:
    """A parent that is the control of its forks has none itself; an analysis would take it for its own."""
    untrained = pl.when(pl.col("model") != parent).then("untrained").alias("untrained")
    tables = {
        name: table.with_columns(untrained) if {"model", "untrained"} <= set(table.columns) else table
        for name, table in result.tables.items()
    }
    return Result(result.name, tables, result.notes)


def sink(plan: Plan, traces: TraceFiles) -> Result:
    """Received attention at the first token by layer, in percent, of forks, parent and untrained forks; and changes."""

    def at_first(trace: Trace, rng: np.random.Generator, panel: Panel) -> dict[str, Any]:
        even, kinds = uniform_layers(trace)
        own = 100 * trace.received[..., 0].mean(axis=0, dtype=np.float64)  # [layer]
        flat = 100 * even.received[..., 0].mean(axis=0, dtype=np.float64)[kinds]
        chosen = np.linspace(0, trace.layers - 1, SINK_DEPTHS).round().astype(int)
        names = [*(f"layer {layer}" for layer in chosen), f"layers {SINK_FROM} to {trace.layers - 1}"]
        value, uniform = ([*numbers[chosen], numbers[SINK_FROM:].mean()] for numbers in (own, flat))
        seen = [trace.visibility] * len(names)
        return {"layers": names, "visibility": seen, "value": value, "uniform": uniform}

    panel = collect(traces, ("layers", "visibility"), at_first)
    return Result("sink", {"sink": summarise(panel, Options()), "sink_steps": changes(plan, readable(panel.samples))})


def changes(plan: Plan, samples: pl.DataFrame) -> pl.DataFrame:
    """What removing the mask and what training did to the mean over layers, paired by sample."""
    mean = samples.filter(pl.col("layers").str.starts_with("layers"))
    by_model = {name: dict(part.select("sample", "value").iter_rows()) for (name,), part in mean.group_by("model")}
    parent, rows = plan.cast.parent, []
    wanted = [("trained, mask kept", parent, plan.cast.arm)] if plan.cast.arm != parent else []
    for mdm in plan.cast.mdms:
        removed = f"{mdm}-untrained"
        wanted += [("mask removed", parent, removed), ("then trained", removed, mdm), ("both", parent, mdm)]
    for change, start, end in wanted:
        differences = np.array([by_model[end][sample] - value for sample, value in by_model[start].items()])
        value, low, high, *_ = (float(part[0]) for part in bootstrap_mean(differences[:, None]))
        rows.append({"change": change, "start": start, "end": end, "value": value, "low": low, "high": high})
    return pl.DataFrame(rows).with_columns(pl.col(pl.Float64).fill_nan(None))


def draw(plan: Plan, results: dict[str, Result], full: list[Traced], folder: Path) -> None:
    """The pictures of the how-to."""
    for name in ANALYSES.keys() & results.keys():
        save_figure(ANALYSES[name].figure(results[name]), folder / name, ("svg",))
    one = files([traced for traced in full if traced.subject.name == plan.cast.mdms[-1]][:1])
    for chart in trace_heatmaps("drift", one, 2).values():
        save_figure(chart, folder / "temporal_heatmap", ("svg",))
    for chart in trace_heatmaps("qk", one, 2).values():
        chart.save(folder / "qk_heatmaps.png", scale_factor=1)  # thousands of cells: megabytes as SVG


def write(path: Path, markers: str, text: str) -> None:
    """Replace what stands between the markers."""
    begin, end = f"<!-- {markers}:begin -->", f"<!-- {markers}:end -->"
    page = path.read_text(encoding="utf-8")
    before, _, rest = page.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{path} has no markers {begin} and {end}.")
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def main() -> None:
    """Trace, analyse, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forks", nargs="+", help="forks in place of the twins: names or adapter folders")
    parser.add_argument("--task", type=Path, help="the forks' held-out questions")
    parser.add_argument("--n", type=int, default=10, help="questions for each place of the gold document")
    parser.add_argument("--write", type=Path, help="a page with the markers")
    parser.add_argument("--figures", type=Path, help="folder for the how-to's pictures")
    parser.add_argument("--traces", type=Path, help="keep the traces in this folder, and use those already there")
    arguments = parser.parse_args()
    if (arguments.forks is None) != (arguments.task is None):
        parser.error("--forks and --task go together")
    torch.set_num_threads(1)
    start = time.perf_counter()

    def say(what: str) -> None:
        print(f"{time.perf_counter() - start:6.0f} s  {what}", flush=True)

    try:
        plan = forks_plan(arguments.forks, arguments.task, arguments.n) if arguments.forks else twins_plan(arguments.n)
    except UserError as error:
        raise SystemExit(str(error)) from error
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.traces or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        results, full = measure(plan, folder, say)
        say("finished text")
        text = render(Findings(plan.cast, results, finished_text(plan, full), plan.samples))
        print(text)
        if arguments.write:
            write(arguments.write, plan.markers, text)
        if arguments.figures:
            draw(plan, results, full, arguments.figures)
    say("done")


if __name__ == "__main__":
    main()
