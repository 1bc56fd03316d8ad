"""Attention of the committing row as attribution: all heads, chosen heads, weighted by values, summed until the commit.

What a row looks at need not be what it uses: `faithfulness` measures how far these agree with causal methods.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from floatscope.attribution.attributed import Scores
from floatscope.attribution.case import Array, Case, Rows
from floatscope.errors import UserError

Pairs = Sequence[tuple[int, int]]


def attention(case: Case) -> Scores:
    """Mean over layers and heads, for each answer token from the row that filled it at its commit."""
    return Scores.of_tokens(case, _gathered(case, case.committing, lambda rows: rows.attention.mean((0, 1))))


def value_weighted(case: Case) -> Scores:
    """The same with every key weighted by the norm of its value, as shares: a sink has small values."""

    def weighted(rows: Rows) -> Array:
        found = (rows.attention * rows.value_norm[:, :, None]).mean((0, 1))  # [N, T]
        return found / np.maximum(found.sum(-1, keepdims=True), 1e-30)

    return Scores.of_tokens(case, _gathered(case, case.committing, weighted))


def attention_sum(case: Case) -> Scores:
    """Mean over layers and heads, summed over all steps until the token commits."""
    return Scores.of_tokens(case, _gathered(case, case.rows(case.until), lambda rows: rows.attention.mean((0, 1))))


def retrieval_heads(case: Case, heads: str | Path | Pairs = ()) -> Scores:
    """Mean over chosen heads, as `read_heads` takes them."""
    pairs = read_heads(heads, case.model.name)
    layers, count = case.model.layers, int(case.model.config.num_attention_heads)
    if wrong := [pair for pair in pairs if not (0 <= pair[0] < layers and 0 <= pair[1] < count)]:
        raise UserError(
            f"There is no head {wrong[0][0]}.{wrong[0][1]}: the model has {layers} layers of {count} heads."
        )
    chosen = tuple(np.array(pairs).T)
    return Scores.of_tokens(case, _gathered(case, case.committing, lambda rows: rows.attention[chosen].mean(0)))


def read_heads(heads: str | Path | Pairs, model: str, most: int = 8, score: str = "evidence") -> list[tuple[int, int]]:
    """(layer, head) pairs from a list, from "3.1, 5.0", or from the table `retrieval_heads_top.parquet` of a run: the
    model's `most` first by a score."""
    if isinstance(heads, str) and not heads.endswith(".parquet"):
        try:
            heads = [(int(layer), int(head)) for layer, head in (pair.split(".") for pair in heads.split(",") if pair)]
        except ValueError as error:
            raise UserError(
                f"heads={heads!r} should be layer.head pairs, as in 3.1,5.0, or a .parquet table."
            ) from error
    if isinstance(heads, str | Path):
        import polars as pl

        if not Path(heads).is_file():
            raise UserError(f"There is no table of heads {heads}: `floatscope analyze retrieval_heads` writes one.")
        table = pl.read_parquet(heads, glob=False)
        if lacking := {"model", "score", "rank", "layer", "head"} - set(table.columns):
            raise UserError(f"{heads} has no column {min(lacking)!r}: give retrieval_heads_top.parquet of a run.")
        table = table.filter(model=model, score=score).filter(pl.col("rank") <= most)
        heads = list(table.select("layer", "head").unique(maintain_order=True).iter_rows())
    if not len(heads):
        raise UserError(
            f"No retrieval heads of {model} are given: name some, heads='3.1,5.0', or retrieval_heads_top.parquet of a "
            "run that has them."
        )
    return [(int(layer), int(head)) for layer, head in heads]


def _gathered(case: Case, found: Sequence[Rows], reduce: Callable[[Rows], Array]) -> Array:
    """[n, T]: what rows of each moment add to their slots."""
    tokens = np.zeros((len(case.slots), len(case.canvas.ids)))
    for rows in found:
        tokens[rows.slots] += reduce(rows)
    return tokens
