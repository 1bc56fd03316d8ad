"""What an analysis returns, the options all analyses share, and the way from per-sample numbers to a table.

Every table has one row per cell with `value`, its interval over samples, and the control columns `uniform`,
`random`, `untrained`. What the numbers are is left to the analyses.
"""

import dataclasses
import io
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from floatscope.analysis.uniform import has_uniform
from floatscope.errors import UserError
from floatscope.files import replace_bytes, write_errors
from floatscope.statistics import bootstrap_mean, sign_flip_test
from floatscope.traces import Trace

if TYPE_CHECKING:
    from floatscope.analysis.figure import Figure

CONTROLS = ("uniform", "random", "untrained")
NUMBERS = ("value", "uniform", "random")
"""What a sample has of each cell."""
GROUP = ("task", "condition")
"""What the caller says of a trace in its metadata; numbers of traces that differ in it are never pooled."""
LABELS = ("model", "kind", *GROUP, "trace")
"""What tells samples and their groups apart in a long table of samples."""


@dataclass(frozen=True)
class Options:
    """Settings that all analyses share."""

    detector: str = "zscore(3)"
    """What counts as an anchor: a detector by name, with its parameters or without."""
    normalisation: str = "rows"
    """Received attention over all rows ("rows") or over the rows that see the column ("visible")."""
    seed: int = 0
    """Seed of bootstrap draws and random positions."""
    draws: int = 1000
    """Bootstrap draws over samples."""

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise UserError(f"The seed {self.seed} is negative; give 0 or a positive whole number.")
        if self.draws < 1:
            raise UserError(f"{self.draws} bootstrap draws give no interval; give at least 1.")
        if self.normalisation not in ("rows", "visible"):
            raise UserError(f"The normalisation {self.normalisation!r} is not known; use 'rows' or 'visible'.")


@dataclass(frozen=True)
class Controls:
    """Traces of control passes that only the caller can make; uniform and random are always computed."""

    untrained: Iterable[Trace] = ()
    """The same prompts under the same architecture with random weights."""
    null_query: Iterable[Trace] = ()
    """The same prompts with the question replaced by a content-free one."""


@dataclass(frozen=True)
class Result:
    """Tables by name, the main one first, and sentences about what could not be computed.

    Every table has the columns `task` and `condition`: what traces say of themselves, empty where they say nothing.
    """

    name: str
    tables: Mapping[str, pl.DataFrame]
    notes: tuple[str, ...] = ()
    whole: "Result | None" = None
    """The result that this is a group of."""

    @property
    def table(self) -> pl.DataFrame:
        """The main table."""
        return next(iter(self.tables.values()))

    @property
    def groups(self) -> list[dict[str, str]]:
        """The tasks and conditions of the main table, in order: what belongs together in a figure."""
        columns = [name for name in GROUP if name in self.table.columns]
        return self.table.select(columns).unique(maintain_order=True).to_dicts() if columns else [{}]

    def of(self, group: Mapping[str, str] | None = None) -> "Result":
        """The rows of one of the groups; of the first, unless one is given."""
        group, tables = next(iter(self.groups), {}) if group is None else group, {}
        for name, table in self.tables.items():
            own = {column: value for column, value in group.items() if column in table.columns}
            tables[name] = table.filter(**own)
        return dataclasses.replace(self, tables=tables, whole=self)

    @property
    def figure(self) -> "Figure":
        """The figure of the analysis, which a notebook shows."""
        from floatscope.analysis import draw

        return draw(self.name, {self.name: self})

    def _repr_html_(self) -> str:
        return self.figure._repr_html_()

    def save(self, folder: str | Path) -> list[Path]:
        """One parquet file per table, in a folder that is made if needed."""
        return [write_table(table, Path(folder) / f"{name}.parquet") for name, table in self.tables.items()]


def write_table(table: pl.DataFrame, path: Path) -> Path:
    """A parquet file, written in one move into a folder that is made if needed."""
    content = io.BytesIO()
    table.write_parquet(content)  # first here: what polars says of a full disk is no OSError
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    replace_bytes(path, content.getvalue())
    return path


@dataclass
class Panel:
    """Numbers of one analysis per sample, as they stream in; few enough to hold for thousands of samples."""

    keys: tuple[str, ...]
    frames: list[pl.DataFrame] = field(default_factory=list)
    models: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    """Family, kind and number of layers by model."""
    notes: dict[str, None] = field(default_factory=dict)
    listed: list[pl.DataFrame] = field(default_factory=list)
    """Lists that come with the numbers, one per sample, in any columns."""
    beside: dict[str, "Panel"] = field(default_factory=dict)
    """Further numbers of the same samples under other keys."""
    untrained: "Panel | None" = None
    """The same numbers of the untrained control traces, where some were given."""

    def add(self, trace: Trace, columns: Mapping[str, Any]) -> None:
        """One sample: a column per key, and `value` with, where they exist, `uniform` and `random`."""
        about = (trace.family, trace.kind, trace.layers)
        if self.models.setdefault(trace.model, about) != about:
            raise UserError(
                f"Traces of different models share the name {trace.model!r} (family, kind, layers: "
                f"{self.models[trace.model]} and {about}); give each model its own name."
            )
        number = len(self.frames)
        labels = {"model": trace.model, "kind": trace.kind, **group_of(trace), "sample": sample_name(trace, number)}
        labels = {name: value for name, value in labels.items() if name not in self.keys}
        frame = pl.DataFrame(dict(columns), nan_to_null=True).select(
            *(pl.lit(value).alias(name) for name, value in labels.items()),
            pl.lit(number).alias("trace"),
            *self.keys,
            *((pl.col(name) if name in columns else pl.lit(None)).cast(pl.Float64).alias(name) for name in NUMBERS),
        )
        # 4 bytes per label: a trace has thousands of rows
        self.frames.append(frame.with_columns(pl.col(pl.String).cast(pl.Categorical)))

    def note(self, sentence: str) -> None:
        """Remember a sentence once."""
        self.notes[sentence] = None

    def next_to(self, name: str, keys: Sequence[str]) -> "Panel":
        """The panel of this name for further numbers of the same samples; it becomes a table of its own."""
        return self.beside.setdefault(name, Panel(tuple(keys)))

    def controls_of(self, model: str) -> list[str]:
        """The untrained controls of a model: the one that names it, else those of the same make."""
        known = self.untrained.models if self.untrained else {}
        return [model] if model in known else [name for name, make in known.items() if make == self.models[model]]

    @property
    def samples(self) -> pl.DataFrame:
        """The long table of all samples so far; labels are categorical, see `readable`."""
        return pl.concat(self.frames)


def readable(table: pl.DataFrame) -> pl.DataFrame:
    """Labels as text again: categories save memory while thousands of rows per trace are held."""
    return table.with_columns(pl.col(pl.Categorical).cast(pl.String))


def group_of(trace: Trace) -> dict[str, str]:
    """The task and the condition, where the caller gave them."""
    return {name: str(trace.metadata.get(name, "")) for name in GROUP}


def sample_name(trace: Trace, number: int) -> str:
    """The sample's id where the caller gave one, else its place in the call."""
    return str(trace.metadata.get("sample", number))


Measure = Callable[[Trace, np.random.Generator, Panel], Mapping[str, Any] | None]
"""One trace to columns: the keys, `value`, and its own `uniform` and `random`; None leaves the trace out."""


def collect(traces: Iterable[Trace], keys: Sequence[str], measure: Measure, seed: int = 0) -> Panel:
    """Stream traces through one measure; each trace's random positions follow from the seed and its place."""
    panel = Panel(tuple(keys))
    number = -1
    for number, trace in enumerate(traces):
        if not has_uniform(trace):
            panel.note("The column 'uniform' is null for traces whose steps computed some rows over a cache.")
        columns = measure(trace, np.random.default_rng((seed, number)), panel)
        if columns is not None:
            panel.add(trace, columns)
    if number < 0:
        raise UserError("There is no trace to analyse; give trace files, or a run that has some.")
    return panel


def analyse(
    name: str,
    traces: Iterable[Trace],
    keys: Sequence[str],
    measure: Measure,
    options: Options,
    controls: Controls,
    nothing: str = "No trace has what the analysis needs; trace the samples again, or leave the analysis out.",
    main: Callable[[Panel, Options], pl.DataFrame] | None = None,
    **further: Callable[[Panel, Options], pl.DataFrame],
) -> tuple[Result, Panel]:
    """Measure every trace and every untrained control; the result, and the numbers of each sample.

    nothing: what to say where the measure leaves out every trace. main: the table, where it is none of means over
    samples. further: other tables made of the same numbers.
    """
    panel = collect(traces, keys, measure, options.seed)
    if not panel.frames:
        raise UserError(nothing)
    untrained = iter(controls.untrained)
    notes = [*panel.notes]
    if (first := next(untrained, None)) is None:
        notes.append(
            "The column 'untrained' is null: no traces of an untrained model were given; a study captures them, "
            "or pass them as controls."
        )
    else:
        panel.untrained = collect(map(as_control, chain([first], untrained)), keys, measure, options.seed)
        for beside, other in panel.beside.items():
            other.untrained = panel.untrained.beside.get(beside)
    tables = {table: make(panel, options) for table, make in ({name: main or summarise} | further).items()}
    tables |= {table: summarise(other, options) for table, other in panel.beside.items()}
    return Result(name, tables, tuple(notes)), panel


def as_control(trace: Trace) -> Trace:
    """Under the name of the model it is a control of, where the caller said which."""
    return dataclasses.replace(trace, model=str(trace.metadata.get("control_of", trace.model)))


def summarise(
    panel: Panel,
    options: Options,
    keys: Sequence[str] = (),
    derived: Callable[[Panel], pl.DataFrame] = lambda panel: panel.samples,
    tested: pl.Expr | None = None,
) -> pl.DataFrame:
    """Per model, task, condition and cell: mean over samples, 95 % interval, spread, number of samples, controls.

    keys, derived: a long table of samples made from a panel, and its keys, where it is not the panel's own. tested: the
    rows of it whose cells get a `p` of a mean of 0, two-sided, by flipping signs over samples.
    """
    samples, keys = derived(panel), list(keys or panel.keys)
    groups = [name for name in ("model", "kind", *GROUP) if name not in keys]
    # One part after the other that shares its group and first key: matrices of samples x cells stay small and dense.
    parts = samples.partition_by(*groups, keys[0], maintain_order=True) or [samples]
    table = pl.concat(_summarise_part(readable(part), [*groups, *keys], options, tested) for part in parts)
    if panel.untrained is None or not panel.untrained.frames:
        return table.with_columns(pl.lit(None, pl.Float64).alias("untrained"))
    # beside each model its untrained control of the same task and condition; one without such labels is of all
    control, labels = readable(derived(panel.untrained)), [name for name in GROUP if name not in keys]
    joined = []
    for part in table.partition_by("model", *labels, maintain_order=True):
        own = pl.col("model").is_in(panel.controls_of(part["model"][0]))
        same = (pl.col(name).is_in(["", part[name][0]]) for name in labels)
        means = control.filter(own, *same).group_by(keys, maintain_order=True).agg(untrained=pl.col("value").mean())
        joined.append(part.join(means, on=keys, how="left", nulls_equal=True, maintain_order="left"))
    return pl.concat(joined)


def _summarise_part(samples: pl.DataFrame, keys: list[str], options: Options, tested: pl.Expr | None) -> pl.DataFrame:
    cells = samples.select(keys).unique(maintain_order=True).with_row_index("cell")
    placed = samples.join(cells, on=keys, nulls_equal=True, maintain_order="left")
    places, place = np.unique(placed["trace"].to_numpy(), return_inverse=True)
    numbers = {}
    for name in NUMBERS:
        numbers[name] = np.full((len(places), cells.height), np.nan)
        numbers[name][place, placed["cell"].to_numpy()] = placed[name].fill_null(float("nan")).to_numpy()
    interval = bootstrap_mean(numbers["value"], options.seed, options.draws)
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # cells without a value give nan
        spread = np.nanstd(numbers["value"], axis=0)
        uniform, random = (np.nanmean(numbers[name], axis=0) for name in ("uniform", "random"))
    columns = {"value": interval.estimate, "low": interval.low, "high": interval.high, "spread": spread}
    columns |= {"samples": interval.n, "uniform": uniform, "random": random}
    if tested is not None:
        chosen = cells.with_columns(tested.alias("tested"))["tested"]
        each = zip(numbers["value"].T, chosen, strict=True)
        columns["p"] = np.array([sign_flip_test(v, options.seed) if asked else np.nan for v, asked in each], float)
    table = cells.drop("cell").with_columns(pl.Series(name, values) for name, values in columns.items())
    return table.with_columns(pl.col(pl.Float64).fill_nan(None))
