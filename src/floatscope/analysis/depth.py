"""Depth: numbers per layer as means over thirds of the stack, and the contrast of its shallow and its deep third.

Taken per sample, so that "shallow ..., deep ..." is a number with an interval and a test, and not two curves by eye.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from floatscope.analysis.results import Options, Panel, readable, summarise_samples, with_untrained
from floatscope.statistics import sign_flip_test

THIRDS = ("shallow", "middle", "deep")
ALL = "all"
CONTRAST = "shallow - deep"


def thirds(count: int) -> NDArray[np.int64]:
    """[count] 0, 1, 2 for the first, second and last third of layers or steps; of two, one is each end."""
    if count == 2:
        return np.array([0, 2])
    return np.arange(count) * 3 // max(count, 1)


def depth_table(panel: Panel, options: Options) -> pl.DataFrame:
    """Per model and cell: the mean over layers of each third, over all, and the contrast with its p.

    p is two-sided, by flipping signs over samples, and given for the contrast only.
    """
    keys = [key for key in panel.keys if key not in ("layer", "head")]
    samples = _by_depth(panel, keys)
    control = _by_depth(panel.untrained, keys) if panel.untrained is not None and panel.untrained.frames else None
    table = with_untrained(summarise_samples(samples, (*keys, "depth"), options), (*keys, "depth"), panel, control)
    return with_test(table, samples.filter(pl.col("depth") == CONTRAST), ["model", *keys, "depth"], options)


def with_test(table: pl.DataFrame, samples: pl.DataFrame, keys: Sequence[str], options: Options) -> pl.DataFrame:
    """The column `p` of a mean difference of 0 over samples, for the cells that `samples` has; null elsewhere."""
    cells = samples.drop_nulls("value").group_by(keys, maintain_order=True)
    rows = [(*cell, sign_flip_test(part["value"].to_numpy(), options.seed)) for cell, part in cells]
    schema = {key: table.schema[key] for key in keys} | {"p": pl.Float64}
    found = pl.DataFrame(rows, schema=schema, orient="row").with_columns(pl.col("p").fill_nan(None))
    return table.join(found, on=list(keys), how="left", nulls_equal=True, maintain_order="left")


def _by_depth(panel: Panel, keys: Sequence[str]) -> pl.DataFrame:
    """The long table of samples with `depth` for `layer`."""
    numbers = ("value", "uniform", "random")
    groups = ["model", "kind", "trace", *keys]
    samples = readable(panel.samples).with_columns(_depth(panel))
    mean = [pl.col(name).mean() for name in numbers]
    thirds_part = samples.group_by([*groups, "depth"], maintain_order=True).agg(mean)
    whole = samples.group_by(groups, maintain_order=True).agg(mean).with_columns(depth=pl.lit(ALL))
    ends = [thirds_part.filter(pl.col("depth") == name).drop("depth") for name in (THIRDS[0], THIRDS[2])]
    joined = ends[0].join(ends[1], on=groups, suffix="_deep", nulls_equal=True, maintain_order="left")
    contrast = joined.select(
        *groups, *(pl.col(name) - pl.col(f"{name}_deep") for name in numbers), pl.lit(CONTRAST).alias("depth")
    )
    order = [*groups, "depth", *numbers]
    return pl.concat([thirds_part.select(order), whole.select(order), contrast.select(order)])


def _depth(panel: Panel) -> pl.Expr:
    """The third of each row's layer; models may differ in their number of layers."""
    depth = pl.lit(None, pl.String)
    for model, (_, _, layers) in panel.models.items():
        names = {layer: THIRDS[third] for layer, third in enumerate(thirds(layers))}
        here = pl.col("layer").replace_strict(names, default=None, return_dtype=pl.String)
        depth = pl.when(pl.col("model") == model).then(here).otherwise(depth)
    return depth.alias("depth")
