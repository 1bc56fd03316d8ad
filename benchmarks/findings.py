"""The attention parts of docs/findings.md: traces of models and their controls, every analysis, tables with verdicts.

    python benchmarks/findings.py                              # prints the tables
    python benchmarks/findings.py --write docs/findings.md     # puts them between the markers of that file
    python benchmarks/findings.py --figures docs/howto/images  # and draws the pictures of the how-to from these traces
    python benchmarks/findings.py --run runs/smollm2 --write docs/findings.md  # the same of a study of forks

Twins, their untrained versions, the parent, and the parent under full visibility (its causal mask taken away, nothing
trained) answer the same questions of World(0)'s test split: rag with five documents, the gold one at each place, and
for task dependence binding and two-hop questions. About four minutes on one core.

Of a run (`floatscope study smollm2`) the analyses are read as they are: forks of one parent, which is among the models
too; the ARM fork's control is that parent, the MDM forks' controls are that parent under full visibility.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
import vl_convert

import floatscope as fs
from findings_tables import Cast, Findings, render
from floatscope.analysis import ANALYSES, Controls, Options, Result, analyze, draw, draw_traces
from floatscope.analysis.reading import TraceFiles
from floatscope.analysis.results import Panel, collect, readable, summarise
from floatscope.analysis.uniform import uniform_layers
from floatscope.errors import UserError
from floatscope.models.families import get_family
from floatscope.models.loading import locate
from floatscope.models.model import Model
from floatscope.models.visibility import BIDIRECTIONAL
from floatscope.probe.attention import Geometry, Probe, probing
from floatscope.probe.kernel import LayerStatistics
from floatscope.probe.layout import Layout
from floatscope.qa.samples import Sample
from floatscope.qa.world import World
from floatscope.qa.world.vocabulary import MASK_ID
from floatscope.statistics import bootstrap_mean
from floatscope.study.analyses import read_analyses
from floatscope.study.store import Run
from floatscope.traces import Trace

DOCUMENTS = 5
MOST_CHARACTERS = 1_000_000  # of a picture as SVG
SINK_FROM = 3  # the layer, counted from 0, from which on the parent has its sink
SINK_DEPTHS = 6
FINISHED = 5  # traces of a run whose finished text is read again
PARENT_FULL = fs.Family(
    "parent-full", "LlamaForCausalLM", BIDIRECTIONAL, "shifted", mask_id=MASK_ID, sampler={"name": "dream"}
)

Say = Callable[[str], None]


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
    """A file a sample, batch by batch."""
    about = {"control": "untrained", "control_of": subject.control_of} if subject.control_of else {}
    kept: dict[str, Any] = {"keep": "matrices"} if matrices else {}
    for start in range(0, len(samples), plan.batch):
        batch = samples[start : start + plan.batch]
        prompts = [fs.build_prompt(model.tokenizer, s.question, s.documents, s.answers) for s in batch]
        kind = f"{'matrices' if matrices else 'compact'}-{subject.name}-{task}"
        paths = [folder / f"{kind}-{number:04}.safetensors" for number in range(start, start + len(batch))]
        metadata = [{"sample": s.id, "task": task, **about} for s in batch]
        sampler = model.sampler({"steps": plan.slots}, length=plan.slots)
        traces = fs.trace(model, prompts, sampler, metadata=metadata, **kept)
        for path, trace in zip(paths, traces, strict=True):
            trace.save(path)
        yield from (Traced(subject, task, path) for path in paths)


def finished_text(traced: Iterable[tuple[Model, Iterable[Trace]]]) -> pl.DataFrame:
    """Top-position absorption of an MDM: last captured step against one forward over the finished text, in percent."""
    rows = []
    for model, traces in traced:
        for trace in traces:
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
    layout = Layout.whole(torch.zeros(length, dtype=torch.long), 1, torch.ones(length, 1), torch.tensor([0]), 1)
    found: dict[int, torch.Tensor] = {}

    def listen(layer: int, sample: int, statistics: LayerStatistics, geometry: Geometry) -> None:
        found[layer] = statistics.group_sums.sum(1).mean(0) / length

    with torch.inference_mode(), probing(Probe([0], [layout], listen, model.layers)):
        model.forward(tokens, torch.zeros(1, dtype=torch.long), torch.tensor([[0]]))
    return torch.stack([found[layer] for layer in sorted(found)]).numpy()


def measure(plan: Plan, folder: Path, say: Say) -> tuple[dict[str, Result], list[Traced]]:
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
        say(f"analyse {name}")
        used = [traced for traced in compact if every or traced.task == first]
        own = full if name == "compat" else [t for t in used if t.subject.own and (t.subject.trained or not every)]
        control = [traced for traced in used if traced.subject.control_of]
        results[name] = analyze(name, files(own), controls=Controls(untrained=files(control)))
    return results, full


def files(traced: Sequence[Traced]) -> TraceFiles:
    return TraceFiles(one.path for one in traced)


def twins_findings(n: int, folder: Path, say: Say) -> tuple[Findings, list[Traced]]:
    """Trace and analyse the twins; with the traces that keep matrices."""
    plan = twins_plan(n)
    results, full = measure(plan, folder, say)
    say("finished text")
    mdms = [subject for subject in plan.subjects if subject.name in plan.cast.mdms]
    finished = finished_text((open_model(s), files([one for one in full if one.subject == s])) for s in mdms)
    return Findings(plan.cast, results, finished, plan.samples), full


def run_findings(folder: Path, say: Say) -> Findings:
    """What a study of forks of one parent found, and what became of the parent's sink."""
    run = Run(folder)
    cast = forks_cast(run)
    results, traces = read_analyses(run), {mdm: run.traces(mdm) for mdm in cast.mdms}
    say("analyse sink")
    results["sink"] = sink(cast, TraceFiles([*run.traces(), *run.traces(control="untrained")]))
    say("finished text")
    sources = {plan.name: plan.source for plan in run.study.models}
    models = {mdm: open_model(Subject(sources[mdm], mdm)) for mdm in cast.mdms}
    finished = finished_text((models[mdm], TraceFiles(paths[:FINISHED])) for mdm, paths in traces.items())
    samples = f"Samples a model: {len(traces[cast.mdms[0]])} held-out questions."
    return Findings(cast, results, finished, samples)


def forks_cast(run: Run) -> Cast:
    """The parts of a study's models: one ARM fork, MDM forks, and the parent of them all."""
    forks = {plan.name: fork for plan in run.study.models if (fork := locate(plan.source).fork) is not None}
    arms = [name for name, fork in forks.items() if get_family(fork.family).is_arm]
    mdms = tuple(name for name in forks if name not in arms)
    parents = {fork.parent for fork in forks.values()}
    known = {plan.source: plan.name for plan in run.study.models}
    if len(arms) != 1 or not mdms or len(parents) != 1 or not parents <= known.keys():
        raise UserError(f"{run.folder} is no study of one ARM fork, MDM forks and the parent of them all")
    parent = known[parents.pop()]
    return Cast(arms[0], mdms, {name: name for name in (*arms, *mdms)} | {parent: "parent"}, "fork", parent)


def sink(cast: Cast, traces: Iterable[Trace]) -> Result:
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
    return Result("sink", {"sink": summarise(panel, Options()), "sink_steps": changes(cast, readable(panel.samples))})


def changes(cast: Cast, samples: pl.DataFrame) -> pl.DataFrame:
    """What removing the mask and what training did to the mean over layers, paired by sample."""
    mean = samples.filter(pl.col("layers").str.starts_with("layers"))
    by_model = {name: dict(part.select("sample", "value").iter_rows()) for (name,), part in mean.group_by("model")}
    parent, rows = cast.parent, []
    wanted = [("trained, mask kept", parent, cast.arm)]
    for mdm in cast.mdms:
        removed = f"{mdm}-untrained"
        wanted += [("mask removed", parent, removed), ("then trained", removed, mdm), ("both", parent, mdm)]
    for change, start, end in wanted:
        before, after = by_model.get(start, {}), by_model.get(end, {})
        if not (both := before.keys() & after.keys()):
            raise UserError(f"the run has no traces of {start} and {end} on the same samples: run it to its end")
        differences = np.array([after[sample] - before[sample] for sample in sorted(both)])
        found = bootstrap_mean(differences[:, None])
        bounds = {"value": found.estimate[0], "low": found.low[0], "high": found.high[0]}
        rows.append({"change": change, "start": start, "end": end, **bounds})
    return pl.DataFrame(rows).with_columns(pl.col(pl.Float64).fill_nan(None))


def draw_all(found: Findings, full: list[Traced], folder: Path) -> None:
    """The pictures of the how-to."""
    model = found.cast.mdms[-1]
    one = files([traced for traced in full if traced.subject.name == model][:1])
    for name in ANALYSES:
        draw(name, {name: found.results[name]}).save(folder / name)
        picture = draw_traces(name, one, (model,), 2)
        if picture is not None and len(picture.svg()) < MOST_CHARACTERS:
            picture.save(folder / picture.name)
        elif picture is not None:  # matrices have thousands of cells
            (folder / f"{picture.name}.png").write_bytes(vl_convert.svg_to_png(picture.svg()))


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
    """Trace and analyse, or read a run; print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a run of forks with their parent, in place of the twins")
    parser.add_argument("--n", type=int, default=10, help="questions for each place of the gold document (twins)")
    parser.add_argument("--write", type=Path, help="a page with the markers")
    parser.add_argument("--figures", type=Path, help="folder for the how-to's pictures (twins)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()

    def say(what: str) -> None:
        print(f"{time.perf_counter() - start:6.0f} s  {what}", flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        try:
            if arguments.run:
                found, full = run_findings(arguments.run, say), []
            else:
                found, full = twins_findings(arguments.n, Path(scratch), say)
        except UserError as error:
            raise SystemExit(str(error)) from error
        text = render(found)
        print(text)
        if arguments.write:
            write(arguments.write, "real" if arguments.run else "attention", text)
        if arguments.figures and full:
            draw_all(found, full, arguments.figures)
    say("done")


if __name__ == "__main__":
    main()
