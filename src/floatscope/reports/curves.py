"""Curves of a run, each point beside what it is held to: under stress, and under edits; and the maps of patches."""

from collections.abc import Sequence

import polars as pl

from floatscope.analysis.drawing import arrange, cells, lines
from floatscope.analysis.figure import Figure

BASELINES = ("closed-book", "oracle")
HEIGHTS = {"accuracy": "accuracy", "recovered": "tokens recovered"}
"""What curves show, by metric: of questions and of passages."""


def stress_curves(scores: pl.DataFrame, models: Sequence[str]) -> pl.DataFrame:
    """The points of all curves, in the order of `models`; columns of `Run.scores`, each baseline's and `guess`."""
    accuracy = scores.filter(pl.col("metric").is_in(list(HEIGHTS)))
    edits = accuracy.filter(statistic="effect")["stressor"].unique()
    own = accuracy.filter(pl.col("panel").is_not_null(), ~pl.col("stressor").is_in(edits), statistic="score")
    own = own.drop_nulls("value")
    for name in BASELINES:
        beside = accuracy.filter(condition=name, statistic="score").select("task", "model", value="value")
        own = own.join(beside.rename({"value": name}), on=["task", "model"], how="left", maintain_order="left")
    guesses = scores.filter(
        (pl.col("statistic") == "guess") & (pl.col("metric") == "accuracy") | (pl.col("metric") == "common")
    )
    guesses = guesses.group_by("task", "condition").agg(guess=pl.col("value").max())
    own = own.join(guesses, on=["task", "condition"], how="left", maintain_order="left")
    place = {model: number for number, model in enumerate(models)}
    return own.select(
        "stressor", "task", "panel", "axis", "x", "model", "metric", "value", "low", "high", "n", *BASELINES, "guess"
    ).sort(pl.col("model").replace_strict(place, default=len(place), return_dtype=pl.Int64), maintain_order=True)


def stress_figure(table: pl.DataFrame, models: Sequence[str]) -> Figure:
    """Accuracy by level, a panel for each curve, with the baselines as controls."""
    panels = []
    curves = table.select("stressor", "axis", "panel", "metric").unique(maintain_order=True)
    for stressor, axis, panel, metric in curves.iter_rows():
        where = {"stressor": stressor, "panel": panel}
        panels.append(
            lines(table, str(panel), where, models, "x", axis, HEIGHTS[metric], (*BASELINES, "guess"), ends=(0, 1))
        )
    return Figure(
        "stress",
        "Right answers as it gets harder",
        arrange(panels, {"table": table}),
        table,
        "Share of right answers with 95 % intervals. Thin lines are each model's baselines: closed-book without "
        "documents, oracle with the gold documents only; guess knows no model. Of passages, the share of tokens "
        "recovered, beside what the commonest token of the text would recover.",
    )


def edit_curves(scores: pl.DataFrame, models: Sequence[str], metric: str = "accuracy") -> pl.DataFrame:
    """The points of all edits of attention, with the score of what each is held to in a column of its own."""
    accuracy = scores.filter(metric=metric)
    place = ["model", "task", "condition"]
    effects = accuracy.filter(statistic="effect")
    own = accuracy.filter(statistic="score").join(effects.select(place).unique(), on=place, how="semi")
    for name in effects["beside"].unique(maintain_order=True):
        beside = effects.filter(beside=name).select(*place, effect="value")
        own = own.join(beside, on=place, how="left", maintain_order="left")
        own = own.with_columns((pl.col("value") - pl.col("effect")).alias(name)).drop("effect")
    return own.drop("statistic", "metric", "beside", "stressor", "documents", "p").sort(
        pl.col("model").replace_strict({model: at for at, model in enumerate(models)}, default=len(models)),
        maintain_order=True,
    )


def edit_figure(table: pl.DataFrame, models: Sequence[str], metric: str = "accuracy") -> Figure:
    """Accuracy or log-probability by dose, a panel for each edit and model, with the unedited model and its twins."""
    points = ("model", "task", "condition", "panel", "axis", "x", "value", "low", "high", "n")
    held = [name for name in table.columns if name not in points]
    panels, sure = [], metric == "log_probability"
    height, ends = ("log-probability", None) if sure else ("accuracy", (0, 1))
    for panel, axis, model in table.select("panel", "axis", "model").unique(maintain_order=True).iter_rows():
        where = {"panel": panel, "model": model}
        panels.append(lines(table, f"{model}: {panel}", where, models, "x", axis, height, held, ends=ends))
    shown = "Log-probability of the right answer in a replay, in nats," if sure else "Share of right answers"
    return Figure(
        "edits_log_probability" if sure else "edits",
        f"{'How likely right answers are' if sure else 'Right answers'} while attention is changed",
        arrange(panels, {"table": table}),
        table,
        f"{shown} with 95 % intervals while attention is changed. Thin lines are what an edit is held to: the unedited "
        "model, as many tokens drawn by chance, and tokens by chance that hold as much attention.",
    )


def patch_figure(table: pl.DataFrame, models: Sequence[str]) -> Figure:
    """What each layer and step brings back of the answer, a map per model, kind and task."""
    top = max(float(table["value"].fill_nan(0).max()), 0.01)  # pyright: ignore[reportArgumentType]
    groups = {}
    for task, kind in table.select("task", "kind").unique(maintain_order=True).iter_rows():
        maps = []
        for model in models:
            where = {"task": task, "kind": kind, "model": model}
            steps, layers = (table.filter(**where)[name].unique().sort().to_list() for name in ("step", "layer"))
            size = (26, max(8, min(24, 260 / max(len(layers), 1))))
            sides = ("step", "step", steps), ("layer", "layer", layers)
            told = ("model", "layer", "step", "low", "high", "control", "n")
            null = float(table.filter(**where)["control"].fill_nan(0).max() or 0)  # pyright: ignore[reportArgumentType]
            title = f"{model} (control at most {100 * null:.0f} %)"
            maps.append(cells(table, title, where, *sides, top, told=told, size=size))
        groups[f"{task}: {kind}, darkest {100 * top:.0f} %"] = maps
    return Figure(
        "patches",
        "Which layers and steps bring the answer back",
        arrange(groups, {"table": table}, max(len(models), 1)),
        table,
        "The gold document is exchanged for another, and in a replay of the right answer the rows that may fill a slot "
        "follow the run with the gold document, at one layer and one step. Patterns: they look where its rows look; "
        "outputs: they take up what its rows take up. Darker: more of the lost log-probability comes back. The control "
        "in the table follows a run with still another document.",
    )
