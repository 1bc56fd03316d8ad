"""Depth: numbers per layer as means over thirds of the stack, and the contrast of its shallow and its deep third.

Taken per sample, so that "shallow ..., deep ..." is a number with an interval and a test, and not two curves by eye.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from floatscope.analysis.results import LABELS, NUMBERS, Options, Panel, readable, summarise

THIRDS = ("shallow", "middle", "deep")
CONTRAST = "shallow - deep"


def thirds(count: int) -> NDArray[np.int64]:
    """[count] 0, 1, 2 for the first, second and last third of layers or steps; of two, one is each end."""
    if count == 2:
        return np.array([0, 2])
    return np.arange(count) * 3 // max(count, 1)


def third_members(count: int) -> NDArray[np.float64]:
    """[4, count] 1 where a layer or step is in the first, second or last third, and at all."""
    return np.vstack([np.eye(3)[:, thirds(count)], np.ones(count)])


def depth_table(panel: Panel, options: Options) -> pl.DataFrame:
    """Per model and cell: the mean over layers of each third, over all, and the contrast with its p."""
    keys = [key for key in panel.keys if key not in ("layer", "head")]
    return summarise(panel, options, (*keys, "depth"), _by_depth, pl.col("depth") == CONTRAST)


def _by_depth(panel: Panel) -> pl.DataFrame:
    """The long table of samples with `depth` for `layer`."""
    groups = [*LABELS, *(key for key in panel.keys if key not in ("layer", "head"))]
    depth = pl.lit(None, pl.String)
    for model, (_, _, layers) in panel.models.items():  # which may differ in their number of layers
        names = {layer: THIRDS[third] for layer, third in enumerate(thirds(layers))}
        here = pl.col("layer").replace_strict(names, default=None, return_dtype=pl.String)
        depth = pl.when(pl.col("model") == model).then(here).otherwise(depth)
    samples = readable(panel.samples).with_columns(depth=depth)
    mean = pl.col(NUMBERS).mean()
    by_third = samples.group_by([*groups, "depth"], maintain_order=True).agg(mean)
    whole = samples.group_by(groups, maintain_order=True).agg(mean).with_columns(depth=pl.lit("all"))
    shallow, deep = (by_third.filter(depth=name) for name in (THIRDS[0], THIRDS[2]))
    contrast = minus(shallow, deep, groups).with_columns(depth=pl.lit(CONTRAST))
    return pl.concat(part.select(*groups, "depth", *NUMBERS) for part in (by_third, whole, contrast))


def minus(first: pl.DataFrame, second: pl.DataFrame, labels: Sequence[str]) -> pl.DataFrame:
    """The numbers of samples minus others, where both have the same labels."""
    both = first.join(second, on=labels, suffix=" less", nulls_equal=True, maintain_order="left")
    return both.select(*labels, *(pl.col(name) - pl.col(f"{name} less") for name in NUMBERS))
