"""Task dependence: whether anchors differ more between tasks than within one ("task-dependent anchors").

Each sample has three anchor profiles per depth third (relative position, region, token class); tasks come from
`trace.metadata["task"]`. The test permutes task labels over samples.
"""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np
import polars as pl

from floatscope.analysis.anchors import detect, random_like
from floatscope.analysis.cells import Array, cell_columns, ratio
from floatscope.analysis.depth import THIRDS, third_members
from floatscope.analysis.drawing import dots
from floatscope.analysis.figure import Figure, finding, result_figure
from floatscope.analysis.results import CONTROLS, Controls, Options, Panel, Result, analyse, readable
from floatscope.analysis.token_classes import class_mass, step_classes
from floatscope.errors import UserError
from floatscope.traces import Trace

BINS = 10
REGIONS = ("bos", "scaffold", "query", "doc", "answer", "other")
PROFILES = {
    "position": "tenths of the canvas",
    "region": "bos, scaffold, query, documents, answer",
    "class": "token classes",
}
_PERMUTATIONS = 2000
_AT_ONCE = 50


def task_dependence(traces: Iterable[Trace], options: Options, controls: Controls) -> Result:
    """Mean distance of anchor profiles between tasks and within tasks, per model, depth and profile.

    Distance is total variation (0: same profile, 1: disjoint). Random control: profiles of random positions.
    """

    def measure(trace: Trace, rng: np.random.Generator, panel: Panel) -> dict[str, Any]:
        panel.note("The column 'uniform' is null: even attention has no anchors.")
        if trace.texts is None:
            panel.note("Traces without token texts have no class profile.")
        weights = detect(trace, options.detector, options.normalisation)
        chance = random_like(weights, trace.visible > 0, rng)
        own, drawn = (anchor_profiles(trace, chosen) for chosen in (weights, chance))
        columns = cell_columns(keys[1:], value=own, random=drawn)
        return columns | {"task": np.full(len(columns["bin"]), str(trace.metadata.get("task", "unnamed")))}

    keys = ("task", "profile", "depth", "bin")
    return analyse("task_dependence", traces, keys, measure, options, controls, main=_distances)[0]


def _distances(panel: Panel, options: Options) -> pl.DataFrame:
    """Each model's anchors, random positions and untrained anchors, by depth and profile."""
    samples = readable(panel.samples)
    bare = samples.clear() if panel.untrained is None else readable(panel.untrained.samples)
    tasks = sorted(samples["task"].unique())
    if len(tasks) < 2:
        raise UserError(
            f"Task dependence needs traces of at least two tasks and found {len(tasks)} "
            f"({', '.join(tasks)}); give traces of more tasks."
        )
    rows = []
    groups = samples.select("model", "condition").unique(maintain_order=True).rows()
    for (model, condition), (number, depth), profile in product(groups, enumerate((*THIRDS, "all")), PROFILES):
        own = samples.filter(model=model, condition=condition, depth=number, profile=profile)
        known = pl.col("model").is_in(panel.controls_of(model)) & pl.col("condition").is_in(["", condition])
        control = bare.filter(known, depth=number, profile=profile)
        labels = {"model": model, "condition": condition, "depth": depth, "profile": profile}
        chance, untrained = _compare(own, "random", options.seed), _compare(control, "value", options.seed)
        beside = {"random": chance["value"], "untrained": untrained["value"], "uniform": None}
        rows.append(labels | _compare(own, "value", options.seed) | beside)
    return pl.DataFrame(
        rows, schema_overrides=dict.fromkeys(("value", "between", "within", "p", *CONTROLS), pl.Float64)
    )


def anchor_profiles(trace: Trace, weights: Array) -> dict[str, Array]:
    """Shares of anchor mass [depth and all, bin] by relative position, region and class; nan without anchors."""
    mass = (weights * trace.received).astype(np.float64)  # [step, layer, token]
    tokens = len(trace.canvas)
    depth = third_members(trace.layers)  # [4, layer]
    tenth = np.eye(BINS)[np.arange(tokens) * BINS // tokens]  # [token, bin]
    place = np.full(tokens, REGIONS.index("other"))
    for region in trace.regions:
        kind = region.label.partition(" ")[0]
        place[region.start : region.stop] = REGIONS.index(kind if kind in REGIONS else "other")
    by_token = depth @ mass.sum(axis=0)  # [4, token]
    profiles = {"position": by_token @ tenth, "region": by_token @ np.eye(len(REGIONS))[place]}
    known = trace.texts is not None
    profiles["class"] = depth @ class_mass(mass, step_classes(trace)).sum(axis=0) if known else np.zeros((4, 1))
    return {name: ratio(values, values.sum(axis=-1, keepdims=True)) for name, values in profiles.items()}


def _compare(samples: pl.DataFrame, column: str, seed: int) -> dict[str, Any]:
    """Mean pairwise distance between and within tasks, their difference, and its permutation p (one-sided)."""
    kept = samples.pivot("bin", index=["trace", "task"], values=column).drop_nulls()
    names, codes, sizes = np.unique(kept["task"].to_numpy(), return_inverse=True, return_counts=True)
    found = dict.fromkeys(("value", "between", "within", "p")) | {"samples": kept.height, "tasks": len(names)}
    if (sizes >= 2).sum() < 2:  # a mean within a task needs pairs, of two tasks at least
        return found
    values = kept.drop("trace", "task").to_numpy()  # [sample, bin]
    distance = 0.5 * np.abs(values[:, None] - values[None]).sum(axis=-1)
    first, second = np.triu_indices(kept.height, 1)
    pairs = distance[first, second]
    between, within = _means(pairs, codes[None, first] == codes[None, second])
    rng = np.random.default_rng(seed)
    extreme = 0
    for _ in range(_PERMUTATIONS // _AT_ONCE):
        drawn = rng.permuted(np.tile(codes, (_AT_ONCE, 1)), axis=1)
        apart, together = _means(pairs, drawn[:, first] == drawn[:, second])
        extreme += int((apart - together >= between - within - 1e-12).sum())
    apart, together, p = float(between[0]), float(within[0]), (extreme + 1) / (_PERMUTATIONS + 1)
    return found | {"value": apart - together, "between": apart, "within": together, "p": p}


def _means(pairs: Array, same: Array) -> tuple[Array, Array]:
    """Mean distance of pairs between tasks and within tasks, [draw]; same [draw, pair]."""
    inside = same @ pairs
    count = same.sum(axis=1)
    return (pairs.sum() - inside) / (len(pairs) - count), inside / count


def figure(result: Result, models: Sequence[str]) -> Figure:
    """Distance between tasks minus distance within tasks; hollow where a permutation of tasks does as well."""
    table = result.table
    order, chance = (*THIRDS, "all"), "datum.p >= 0.05"
    panels = [
        dots(table, f"{name}: {about}", {"profile": name}, models, "depth", order, "between - within", chance)
        for name, about in PROFILES.items()
    ]
    whole = table.filter(depth="all", profile="position")
    what = "Between tasks minus within, position of anchors, all layers"
    return result_figure(
        result,
        "Whether anchors depend on the task",
        panels,
        "Distance (total variation) of anchor profiles between samples of different tasks minus that between samples "
        "of one task: above 0, anchors are elsewhere in another task. Hollow points: a permutation of the tasks does "
        "as well (p >= 0.05). Grey marks are controls: as many random positions, the untrained model.",
        finding(what, whole, models, ("random", "untrained"), 3, rows=True),
        subtitle="hollow: p >= 0.05",
    )
