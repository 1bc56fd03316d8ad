"""The plan of a study: models, tasks, conditions, settings, traces, controls, analyses. Frozen data that runs nothing.

Each class is a table of the study's TOML file, each field a key of it; at the end, files are read and written.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from floatscope.analysis import ANALYSES
from floatscope.errors import UserError
from floatscope.models.shipped import UNTRAINED
from floatscope.qa.stressors import BASELINES, STRESSORS, Condition
from floatscope.qa.tasks import PASSAGES, WORLD
from floatscope.qa.world import KINDS
from floatscope.registry import did_you_mean
from floatscope.reports.rules import Rule
from floatscope.study import attributions as attributions  # their rows of the registry
from floatscope.study import donors as donors
from floatscope.study import interventions as interventions
from floatscope.validation import Mistake, mistakes_in, read_toml, validated

NULL_QUERY, GUESS = "null_query", "guess"
CONTROL_PASSES = (UNTRAINED, NULL_QUERY)
RETRIEVERS = ("bm25", "dense")
DOCUMENTS = "documents"
SHIPPED = Path(__file__).parent / "studies"
PARTS = ("models", "tasks", "conditions", "rules")
NEEDED = {
    "models": 'name = "twin-llada"',
    "tasks": 'source = "world:rag:5"',
    "conditions": 'stressor = "documents" and values = [0, 5]',
}
"""What a study must have at least, and an example."""
"""Keys of a study that are lists of tables."""


@dataclass(frozen=True)
class ModelPlan:
    """A model and how it is loaded and decoded."""

    name: str
    """What it is called in tables."""
    source: str = ""
    """A folder, a .gguf file, a hub id or a twin; its name where left out."""
    family: str | None = None
    """A family's name or TOML file, if it is not recognised."""
    dtype: str | None = None
    """float32, bfloat16, ..."""
    device: str | None = None
    """cpu, cuda, mps, ..."""
    device_map: str | None = None
    """"auto" spreads a model over several devices."""
    mask_id: int | None = None
    """The mask token, where the checkpoint does not say."""
    block: int | None = None
    """The block size of a model that sees in blocks, where it is neither stated nor its family's."""
    revision: str | None = None
    """Of a hub id: a branch, a tag or a commit."""
    sampler: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Its own sampler settings beside the family's (`name` for another sampler); slots and steps are the study's."""

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise Mistake("A model needs a name.", "name")
        if not self.source:
            object.__setattr__(self, "source", self.name)
        if self.device is not None and self.device_map is not None:
            raise Mistake("Give device or device_map, not both.", "device_map")
        if self.sampler:
            _check_sampler(self.sampler)


@dataclass(frozen=True)
class TaskPlan:
    """Where samples come from; see `qa.tasks`."""

    source: str
    """world[:KIND[:DOCUMENTS]], a .json or .jsonl file (gzipped or not), hf:NAME[@CONFIG][:SPLIT], or passages:FILE."""
    name: str = ""
    """What it is called in tables; where left out, the world's kind or the file's name."""
    shape: str | None = None
    """Of a file: how it is written, where it is not recognised."""
    corpus: str | None = None
    """JSON or JSONL file of {title, text}, or a folder of text files: where distractors and retrieved documents come
    from."""
    retrieve: int | None = None
    """Documents retrieved from the corpus in place of a sample's own."""
    retriever: str = "bm25"
    """How they are found: bm25, dense or dense:MODEL."""
    limit: int | None = None
    """Samples, the first so many; where left out, the study's."""
    skip_wrong: bool = False
    """Leave out records of a file that cannot be read, instead of stopping."""

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise Mistake("A task needs a source.", "source")
        if not self.name:
            plain = (self.kind or WORLD) if self.from_world else self.source.removeprefix(PASSAGES)
            object.__setattr__(self, "name", plain if plain.startswith("hf:") else Path(plain).name.split(".")[0])
        if self.retriever.partition(":")[0] not in RETRIEVERS:
            hint = did_you_mean(self.retriever, RETRIEVERS)
            raise Mistake(f"There is no retriever {self.retriever!r}: {hint}.", "retriever")
        if self.retrieve is not None and self.corpus is None:
            raise Mistake(f"The task {self.name!r} retrieves documents: say from which corpus.", "retrieve")
        _check_least(self, f"The task {self.name!r}", retrieve=1, limit=1)
        whose = "is the world's" if self.from_world else "has passages" if self.source.startswith(PASSAGES) else ""
        for key in ("shape", "corpus", "retrieve"):
            if whose and getattr(self, key) is not None:
                raise Mistake(f"The task {self.name!r} {whose} and takes no {key}.", key)
        if self.kind is not None and self.kind not in KINDS:
            hint = did_you_mean(self.kind, KINDS)
            raise Mistake(f"The world makes no samples of kind {self.kind!r}: {hint}.", "source")

    @property
    def from_world(self) -> bool:
        return self.source.partition(":")[0] == WORLD

    @property
    def kind(self) -> str | None:
        """The kind of the world's samples; None for other sources."""
        return (self.source.split(":")[1:2] or ["rag"])[0] if self.from_world else None

    @property
    def is_passages(self) -> bool:
        """Whether there are texts to fill in, and no questions."""
        return self.source.startswith(PASSAGES) or (self.kind is not None and KINDS[self.kind].layout is not None)

    @property
    def layouts(self) -> str:
        """The layouts that its passages have text for, as the stressor `passage` takes them."""
        return (KINDS[self.kind].layout or "") if self.kind else "continue,infill,mirrored"

    @property
    def gold_documents(self) -> int | None:
        """How many gold documents each sample has; None where only the data can tell."""
        if self.kind is None:
            return None
        return KINDS[self.kind].least if KINDS[self.kind].placed else 0


@dataclass(frozen=True)
class Curve:
    """A stressor and its values: the conditions of one curve, as a `[[conditions]]` table."""

    stressor: str
    """Its name; `floatscope stress --help` has them all."""
    values: str
    """As on the command line: "0,5", "0..10", "all", "gap,order"; or a list."""
    tasks: tuple[str, ...] = ()
    """Names of the tasks it is for; all where left out."""
    traces: int | None = None
    """Traces to keep, of the first so many samples of each task and condition; where left out, the study's."""
    limit: int | None = None
    """Samples, the first so many of each task's."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The stressor's own options: the other keys of the table, and the defaults of those left out."""
    models: tuple[str, ...] = ()
    """Names of the models it is for; all where left out."""

    def __post_init__(self) -> None:
        _check_names((self.stressor,), STRESSORS, "stressor", "stressor")
        _check_least(self, f"The stressor {self.stressor!r}", traces=0, limit=1)
        row = STRESSORS[self.stressor]
        options = {part.name: part.default for part in fields(row.options)}
        if taken := [part.name for part in fields(self) if part.name in options]:
            raise Mistake(
                f"The option {taken[0]!r} of {self.stressor!r} is a key of every curve: rename it.", "stressor"
            )
        for key, value in self.options.items():  # each alone, so that a mistake is told with its key
            try:
                options[key] = getattr(validated(row.options, {key: value}, f"the stressor {row.name!r}"), key)
            except Mistake as error:
                raise Mistake(str(error), key) from error
        object.__setattr__(self, "options", options)
        try:
            self.conditions  # noqa: B018  a mistake in the values is found here
        except UserError as error:
            raise Mistake(str(error), "values") from error

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions, without the baselines."""
        row = STRESSORS[self.stressor]
        return row.conditions(self.values, row.options(**self.options))


@dataclass(frozen=True)
class PromptPlan:
    """How a sample becomes text."""

    template: str = "default"
    """default, paper, or the path of a template of your own."""
    raw: bool = False
    """Leave out the tokenizer's chat template, where it has one."""


@dataclass(frozen=True)
class Cell:
    """A condition of a task: how many of the task's samples are run and how many are traced."""

    task: TaskPlan
    condition: Condition
    limit: int
    traces: int
    models: tuple[str, ...] = ()
    """Names of the models it is for; empty: all."""


@dataclass(frozen=True)
class Study:
    """Models x tasks x conditions x analyses."""

    name: str
    models: tuple[ModelPlan, ...] = ()
    tasks: tuple[TaskPlan, ...] = ()
    conditions: tuple[Curve, ...] = ()
    description: str = ""
    """What is asked, for readers of the report."""
    seed: int = 0
    """Seed of everything."""
    limit: int = 100
    """Samples of each task."""
    slots: int = 32
    """Answer slots."""
    steps: int | None = None
    """Denoising steps; one a slot where left out. Other numbers of slots scale them."""
    batch: int = 16
    """Samples run together."""
    workers: int = field(default=1, compare=False)
    """Processes that share the batches, each with its own copy of the model: for small models on a CPU. A run's own
    study.toml does not say it, since it changes no result."""
    traces: int = 0
    """Traces to keep of each model, task and condition, where a condition says nothing else."""
    trace_wrong: int = 0
    """Traces to keep beside these, chosen by the answers: of each task and condition so many samples that a model got
    wrong and as many right ones, under every model; analyses leave them out."""
    keep: Literal["compact", "rollout", "groups", "heads"] = "compact"
    """How much a trace holds."""
    controls: tuple[str, ...] = CONTROL_PASSES
    """Control passes for samples that are traced: untrained, null_query."""
    analyses: tuple[str, ...] = ()
    """Analyses of the traces, by name; "all" is every one."""
    prompt: PromptPlan = PromptPlan()
    rules: tuple[Rule, ...] = ()
    """What counts as present, as `[[rules]]` tables: written before a run, and printed with its verdicts."""
    edits: tuple[str, ...] = ()
    """Changes of attention under every condition, such as "block doc 2"."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w[\w .-]*", self.name):
            raise Mistake(
                f"A study cannot be called {self.name!r}, since its run's folder bears its name: use letters, digits, "
                "blanks, dots and dashes.",
                "name",
            )
        for key, below in NEEDED.items():
            if not getattr(self, key):
                raise Mistake(f"A study needs {key}: write [[{key}]] and, below it, {below}.", key)
        for key, parts in (("models", self.models), ("tasks", self.tasks)):
            names = [part.name for part in parts]
            for number, name in enumerate(names):
                if name in names[:number]:
                    raise Mistake(f"Two {key} are called {name!r}: give each its own name.", key, number, "name")
        _check_least(self, "The study", seed=0, limit=1, slots=1, steps=1, batch=1, workers=1, traces=0, trace_wrong=0)
        _check_names(self.controls, CONTROL_PASSES, "control", "controls")
        if "all" in self.analyses:
            object.__setattr__(self, "analyses", tuple(ANALYSES))
        _check_names(self.analyses, ANALYSES, "analysis", "analyses")
        _read_edits(self.edits)
        for number, rule in enumerate(self.rules):
            _check_names(rule.models, [model.name for model in self.models], "model", "rules", number, "models")
        if self.analyses and not any(self.traces_of(curve) for curve in self.conditions):
            raise Mistake("Analyses need traces, and this study keeps none: set traces.", "analyses")
        self._check_curves()

    def _check_curves(self) -> None:
        """Each for tasks that there are and that it fits, and no condition of a task in two of them."""
        names = [task.name for task in self.tasks]
        seen: dict[tuple[str, str], int] = {}
        for number, curve in enumerate(self.conditions):
            place = ("conditions", number)
            _check_names(curve.tasks, names, "task", *place, "tasks")
            _check_names(curve.models, [model.name for model in self.models], "model", *place, "models")
            needed, passages = STRESSORS[curve.stressor].gold_documents, STRESSORS[curve.stressor].passages
            for task in self.tasks_of(curve):
                if passages not in (None, task.is_passages):
                    wanted, there = ("passages", "questions") if passages else ("questions", "passages")
                    raise Mistake(
                        f"The stressor {curve.stressor!r} is for {wanted}, and the task {task.name!r} has {there}: say "
                        "for which tasks it is, with tasks.",
                        *place,
                        "tasks",
                    )
                if needed is not None and task.gold_documents not in (None, needed):
                    raise Mistake(
                        f"The stressor {curve.stressor!r} needs {needed} gold document{'s' * (needed > 1)} in a "
                        f"sample, and the task {task.name!r} has {task.gold_documents}: say for which tasks it is, "
                        "with tasks.",
                        *place,
                        "tasks",
                    )
                for condition in curve.conditions:
                    if seen.setdefault((task.name, condition.name), number) == number:
                        continue
                    before = {one.name: one for one in self.conditions[seen[task.name, condition.name]].conditions}
                    axis = STRESSORS[condition.stressor].axis
                    shared = axis is not None and axis.twin and not condition.labels[axis.label]  # edits are held to it
                    if not shared or before[condition.name].content != condition.content:
                        raise Mistake(
                            f"The condition {condition.name!r} of the task {task.name!r} comes twice.", *place
                        )

    def tasks_of(self, curve: Curve) -> tuple[TaskPlan, ...]:
        """The tasks that a curve is for."""
        return tuple(task for task in self.tasks if not curve.tasks or task.name in curve.tasks)

    def traces_of(self, curve: Curve) -> int:
        """Traces kept of each model, task and condition of a curve."""
        return self.traces if curve.traces is None else curve.traces

    def samples_of(self, task: TaskPlan) -> int:
        """Samples of a task."""
        return task.limit if task.limit is not None else self.limit

    def cells(self, task: TaskPlan) -> tuple[Cell, ...]:
        """The conditions of a task: under stress the baselines first, then each curve's."""
        curves = [curve for curve in self.conditions if task in self.tasks_of(curve)]
        found: list[Cell] = []
        if not task.is_passages and any(STRESSORS[curve.stressor].axis is not None for curve in curves):
            found += [Cell(task, condition, self.samples_of(task), 0) for condition in BASELINES]
        for curve in curves:
            limit = min(self.samples_of(task), curve.limit or self.samples_of(task))
            traces, models = self.traces_of(curve), curve.models
            found += [Cell(task, condition, limit, traces, models) for condition in curve.conditions]
        edits, cells = _read_edits(self.edits), dict[str, Cell]()
        for cell in found:  # what several curves are held to is run once, for the one that wants most
            had = cells.setdefault(cell.condition.name, cell)
            limit, traces = max(had.limit, cell.limit), max(had.traces, cell.traces)
            models = tuple(dict.fromkeys((*had.models, *cell.models))) if had.models and cell.models else ()
            cells[cell.condition.name] = replace(had, limit=limit, traces=traces, models=models)
        if not edits:
            return tuple(cells.values())
        edited = (replace(one.condition, edits=(*edits, *one.condition.edits)) for one in cells.values())
        return tuple(replace(cell, condition=condition) for cell, condition in zip(cells.values(), edited, strict=True))

    def steps_for(self, slots: int) -> int:
        """Denoising steps for a number of slots: in the study's proportion, at least one."""
        return slots if self.steps is None else max(1, round(self.steps * slots / self.slots))


@cache
def _read_edits(lines: tuple[str, ...]) -> tuple[Any, ...]:
    if not lines:
        return ()
    from floatscope.probe.edits import read_edit  # not before: it loads torch

    try:
        return tuple(map(read_edit, lines))
    except UserError as error:
        raise Mistake(str(error), "edits") from error


def _check_sampler(settings: Mapping[str, Any]) -> None:
    """Names and settings that no sampler has; whether they fit the model's own is known when it is loaded."""
    from floatscope.decoding import SAMPLERS  # not before: it loads torch

    name = settings.get("name")
    if name is not None and name not in SAMPLERS:
        raise Mistake(f"There is no sampler {name!r}: {did_you_mean(str(name), SAMPLERS)}.", "sampler", "name")
    chosen = [SAMPLERS[name]] if name else list(SAMPLERS.values())
    known = dict.fromkeys(part.name for sampler in chosen for part in fields(sampler))
    for taken, instead in (("length", "slots"), ("steps", "steps"), ("seed", "seed")):
        known.pop(taken, None)
        if taken in settings:
            raise Mistake(f"The sampler's {taken} is set for the whole study, as {instead!r}.", "sampler", taken)
    for key in settings:
        if key != "name" and key not in known:
            whose = f"The sampler {name!r}" if name else "No sampler"
            raise Mistake(
                f"{whose} has {'no' if name else 'a'} setting {key!r}: {did_you_mean(key, known)}.", "sampler", key
            )


def _check_names(names: Iterable[str], known: Iterable[str], what: str, *key: str | int) -> None:
    for name in names:
        if name not in known:
            raise Mistake(f"There is no {what} {name!r}: {did_you_mean(name, known)}.", *key)


def _check_least(part: ModelPlan | TaskPlan | Curve | Study, owner: str, **least: int) -> None:
    for key, bound in least.items():
        value = getattr(part, key)
        if value is not None and value < bound:
            raise Mistake(f"{owner} has {key} = {value}: it must be at least {bound}.", key)


def find_study(name: str | Path) -> Path:
    """The file of a study: a path, or the name of one that comes with the package."""
    path = Path(name)
    if path.suffix == ".toml":
        if not path.is_file():
            raise UserError(f"There is no study file {path}.")
        return path
    known = {file.stem: file for file in sorted(SHIPPED.glob("*.toml"))}
    if str(name) not in known:
        raise UserError(f"There is no study {str(name)!r}: {did_you_mean(str(name), known)}; or give a .toml file.")
    return known[str(name)]


def read_study(path: str | Path) -> Study:
    """The study of a TOML file; every mistake is a sentence with its line."""
    path = Path(path)
    table = read_toml(path)
    with mistakes_in(path):
        if isinstance(curves := table.get("conditions"), list):
            table["conditions"] = [
                _curve_of(number, one) if isinstance(one, dict) else one for number, one in enumerate(curves)
            ]
        return validated(Study, table, "a study")


def _curve_of(number: int, table: dict[str, Any]) -> dict[str, Any]:
    """A `[[conditions]]` table as a Curve has it: in the file, its stressor's options stand beside the other keys."""
    common = [part.name for part in fields(Curve) if part.name != "options"]
    own: list[str] = []
    if (name := table.get("stressor", "")) in STRESSORS:  # one that is not known is told first, by Curve
        own = [part.name for part in fields(STRESSORS[name].options)]
        for key in table:
            if key not in (*common, *own):
                hint = did_you_mean(key, [*common, *own])
                raise Mistake(f"There is no key {key!r} in [conditions]: {hint}.", "conditions", number, key)
    given = {key: value for key, value in table.items() if key in common}
    if isinstance(values := given.get("values"), list | int) and not isinstance(values, bool):
        given["values"] = ",".join(map(str, values)) if isinstance(values, list) else str(values)
    return given | {"options": {key: table[key] for key in own if key in table}}


def write_study(study: Study) -> str:
    """The study as TOML text, all values that decide its results; `read_study` gives the same study again."""
    told = {part.name for part in fields(study) if part.compare} - {*PARTS}
    lines = [f"{name} = {_value(value)}" for name, value in _plain(study).items() if name in told]
    for key in PARTS:
        for part in getattr(study, key):
            lines += ["", f"[[{key}]]", *(f"{name} = {_value(value)}" for name, value in _plain(part).items())]
    return "\n".join(lines) + "\n"


def _plain(part: Any) -> dict[str, Any]:
    """Field values that a file can hold; what is None is left out."""
    values = {field.name: getattr(part, field.name) for field in fields(part)}
    if isinstance(part, Curve):
        values |= values.pop("options")
    return {name: value for name, value in values.items() if value is not None and value != {}}


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, PromptPlan):
        value = _plain(value)
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_name(key)} = {_value(item)}' for key, item in value.items())} }}"
    return repr(value)


def _name(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)
