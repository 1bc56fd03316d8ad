"""What an analysis returns, the options all analyses share, and the way from per-sample numbers to a table.

Every table has one row per cell with `value`, its interval over samples, and the control columns `uniform`,
`random`, `untrained`. What the numbers are is left to the analyses.
"""

import dataclasses
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from floatscope.errors import UserError
from floatscope.files import replace_bytes, write_errors
from floatscope.statistics import bootstrap_mean
from floatscope.traces import Trace

CONTROLS = ("uniform", "random", "untrained")
NORMALISATIONS = ("rows", "visible")


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
        if self.normalisation not in NORMALISATIONS:
            raise UserError(f"The normalisation {self.normalisation!r} is not known; use 'rows' or 'visible'.")


@dataclass(frozen=True)
class Controls:
    """Traces of control passes that only the caller can make; uniform and random are always computed."""

    untrained: Iterable[Trace] = ()
    """The same prompts under the same architecture with random weights."""
    null_query: Iterable[Trace] = ()
    """The same prompts with the question replaced by a content-free one."""


DEFAULTS = Options()
NO_CONTROLS = Controls()


@dataclass(frozen=True)
class Result:
    """Tables by name, the main one first, and sentences about what could not be computed."""

    name: str
    tables: Mapping[str, pl.DataFrame]
    notes: tuple[str, ...] = ()

    @property
    def table(self) -> pl.DataFrame:
        """The main table."""
        return next(iter(self.tables.values()))

    def _repr_html_(self) -> str:
        """For notebooks: the figure of the analysis."""
        from floatscope.analysis import draw

        return draw(self.name, {self.name: self})._repr_html_()

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
    notes: dict[str, None] = field(default_factory=dict)
    listed: list[pl.DataFrame] = field(default_factory=list)
    """Lists that come with the numbers, one per sample, in any columns."""
    beside: dict[str, "Panel"] = field(default_factory=dict)
    """Further numbers of the same samples under other keys."""
    untrained: "Panel | None" = None
    """The same numbers of the untrained control traces, where some were given."""

    def add(self, trace: Trace, columns: Mapping[str, Any]) -> None:
        """One sample: a column per key, and `value` with, where they exist, `uniform` and `random`."""
        refuse_namesakes(self.models, trace)
        frame = pl.DataFrame(dict(columns), nan_to_null=True)
        missing = [pl.lit(None, pl.Float64).alias(name) for name in ("uniform", "random") if name not in columns]
        numbers = pl.col("value", "uniform", "random").cast(pl.Float64)
        labels = {
            "model": trace.model,
            "kind": trace.kind,
            "sample": sample_name(trace, len(self.frames)),
            "trace": len(self.frames),
        }
        self.frames.append(
            frame.with_columns(missing)
            .with_columns(numbers)
            .select(
                *(pl.lit(value).alias(name) for name, value in labels.items()),
                *self.keys,
                "value",
                "uniform",
                "random",
            )
            .with_columns(pl.col(pl.String).cast(pl.Categorical))  # 4 bytes per label: a trace has thousands of rows
        )

    def note(self, sentence: str) -> None:
        """Remember a sentence once."""
        self.notes[sentence] = None

    def other(self, name: str, keys: tuple[str, ...]) -> "Panel":
        """The panel of that name beside this one."""
        return self.beside.setdefault(name, Panel(keys))

    @property
    def samples(self) -> pl.DataFrame:
        """The long table of all samples so far; labels are categorical, see `readable`."""
        return pl.concat(self.frames)


def readable(table: pl.DataFrame) -> pl.DataFrame:
    """Labels as text again: categories save memory while thousands of rows per trace are held."""
    return table.with_columns(pl.col(pl.Categorical).cast(pl.String))


def refuse_namesakes(models: dict[str, tuple[str, str, int]], trace: Trace) -> None:
    """Remember a model's family, kind and number of layers; another model under its name is an error."""
    about = (trace.family, trace.kind, trace.layers)
    if models.setdefault(trace.model, about) != about:
        raise UserError(
            f"Traces of different models share the name {trace.model!r} (family, kind, layers: "
            f"{models[trace.model]} and {about}); give each model its own name."
        )


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
        columns = measure(trace, np.random.default_rng((seed, number)), panel)
        if columns is not None:
            panel.add(trace, columns)
    if number < 0:
        raise UserError("There is no trace to analyse; give trace files, or a run that has some.")
    return panel


def summarise(panel: Panel, options: Options) -> pl.DataFrame:
    """Per model and cell: mean over samples, 95 % interval, spread, number of samples, and the controls."""
    if not panel.frames:
        return _empty(["model", "kind", *panel.keys])
    table = summarise_samples(panel.samples, panel.keys, options)
    control = panel.untrained.samples if panel.untrained is not None and panel.untrained.frames else None
    return with_untrained(table, panel.keys, panel, control)


def summarise_samples(samples: pl.DataFrame, keys: Sequence[str], options: Options) -> pl.DataFrame:
    """The same for any long table of samples (model, kind, trace, keys, value, uniform, random)."""
    all_keys = ["model", "kind", *keys]
    # One part after the other that shares model and first key: matrices of samples x cells stay small and dense.
    parts = []
    for model, first in samples.select("model", keys[0]).unique(maintain_order=True).iter_rows():
        chosen = samples.filter((pl.col("model") == model) & pl.col(keys[0]).eq_missing(first))
        parts.append(_summarise_part(readable(chosen), all_keys, options))
    return pl.concat(parts)


def _summarise_part(samples: pl.DataFrame, keys: list[str], options: Options) -> pl.DataFrame:
    cells = samples.select(keys).unique(maintain_order=True).with_row_index("cell")
    placed = samples.join(cells, on=keys, nulls_equal=True, maintain_order="left")
    places, place = np.unique(placed["trace"].to_numpy(), return_inverse=True)
    shape = (len(places), cells.height)
    cell = placed["cell"].to_numpy()
    numbers = {name: _matrix(placed[name], place, cell, shape) for name in ("value", "uniform", "random")}
    interval = bootstrap_mean(numbers["value"], options.seed, options.draws)
    table = cells.drop("cell").with_columns(
        pl.Series("value", interval.estimate),
        pl.Series("low", interval.low),
        pl.Series("high", interval.high),
        pl.Series("spread", _column_spreads(numbers["value"])),
        pl.Series("samples", interval.n),
        pl.Series("uniform", _column_means(numbers["uniform"])),
        pl.Series("random", _column_means(numbers["random"])),
    )
    return table.with_columns(pl.col(pl.Float64).fill_nan(None))


def analyse(
    name: str,
    traces: Iterable[Trace],
    keys: Sequence[str],
    measure: Measure,
    options: Options,
    controls: Controls,
) -> tuple[Result, Panel]:
    """Measure every trace and every untrained control; the main table, and the numbers of each sample."""
    panel = collect(traces, keys, measure, options.seed)
    panel.untrained = untrained_panel(controls, keys, measure, options.seed)
    if panel.untrained is not None:
        for beside, other in panel.beside.items():
            other.untrained = panel.untrained.beside.get(beside)
    return Result(name, {name: summarise(panel, options)}, control_notes(panel)), panel


def untrained_panel(controls: Controls, keys: Sequence[str], measure: Measure, seed: int = 0) -> Panel | None:
    """The same measure over the untrained control traces; None without any."""
    found = iter(controls.untrained)
    first = next(found, None)
    if first is None:
        return None
    return collect((as_control(trace) for trace in chain([first], found)), keys, measure, seed)


def control_notes(panel: Panel) -> tuple[str, ...]:
    """The sentences of a result, with one for a missing untrained control."""
    notes = list(panel.notes)
    if panel.untrained is None:
        notes.append(
            "The column 'untrained' is null: no traces of an untrained model were given; a study captures them, "
            "or pass them as controls."
        )
    return tuple(notes)


def as_control(trace: Trace) -> Trace:
    """Under the name of the model it is a control of, where the caller said which."""
    return dataclasses.replace(trace, model=str(trace.metadata.get("control_of", trace.model)))


def _empty(keys: list[str]) -> pl.DataFrame:
    numbers = ("value", "low", "high", "spread", "samples", *CONTROLS)
    return pl.DataFrame(schema=dict.fromkeys(keys, pl.String) | dict.fromkeys(numbers, pl.Float64))


def _matrix(values: pl.Series, place: NDArray[Any], cell: NDArray[Any], shape: tuple[int, int]) -> NDArray[np.float64]:
    matrix = np.full(shape, np.nan)
    matrix[place, cell] = values.fill_null(float("nan")).to_numpy()
    return matrix


def _column_means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    known = ~np.isnan(values)
    total = known.sum(axis=0)
    sums = np.where(known, values, 0).sum(axis=0)
    return np.divide(sums, total, out=np.full(total.shape, np.nan), where=total > 0)


def _column_spreads(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard deviations over the samples that there are."""
    return np.sqrt(_column_means((values - _column_means(values)) ** 2))


def with_untrained(
    table: pl.DataFrame, keys: Sequence[str], panel: Panel, control: pl.DataFrame | None
) -> pl.DataFrame:
    """Join each model with its untrained control: the one that names it, else one of the same make.

    `control`: the control's long table of samples under the same keys; without one the column is null.
    """
    if control is None or panel.untrained is None:
        return table.with_columns(pl.lit(None, pl.Float64).alias("untrained"))
    keys = list(keys)
    parts = []
    for model, about in panel.models.items():
        named = [name for name in panel.untrained.models if name == model]
        named = named or [name for name, other in panel.untrained.models.items() if other == about]
        mean = control.filter(pl.col("model").is_in(named)).group_by(keys, maintain_order=True)
        mean = readable(mean.agg(pl.col("value").mean().alias("untrained")))
        part = table.filter(pl.col("model") == model)
        parts.append(part.join(mean, on=keys, how="left", nulls_equal=True, maintain_order="left"))
    return pl.concat(parts)
