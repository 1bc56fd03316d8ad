"""Table 1 as HTML: models by task, without and with documents, and what documents add, each with its interval."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from floatscope.report.player import escape

_GAIN = "gain of "


def headline_html(table: pl.DataFrame, models: Sequence[str]) -> str:
    """Columns of `table`: task, model, documents, metric, value, low, high, samples (shares between 0 and 1)."""
    accuracy = table.filter(pl.col("metric") == "Acc")
    labels = accuracy["documents"].unique(maintain_order=True).to_list()
    counts = [label for label in labels if not label.startswith(_GAIN)]
    gains = [label for label in labels if label.startswith(_GAIN)]
    heads = [
        '<th scope="col">model</th>',
        *(f'<th scope="col" class="number">{_count_words(count)}</th>' for count in counts),
        *(
            f'<th scope="col" class="number">{escape(_gain_words(gain, gains))}</th><td class="bar-head"></td>'
            for gain in gains
        ),
    ]
    gained = accuracy.filter(pl.col("documents").is_in(gains)).drop_nulls("value")
    scale = (min([0.0, *gained["low"]]), max([0.01, *gained["high"]]))
    body = []
    for (task,), part in accuracy.group_by("task", maintain_order=True):
        width = 1 + len(counts) + 2 * len(gains)
        body.append(f'<tr class="group"><th colspan="{width}" scope="rowgroup">{escape(task)}</th></tr>')
        names = [model for model in models if model in part["model"]]
        names += [name for name in part["model"].unique(maintain_order=True) if name not in names]
        body += [_row(name, part.filter(pl.col("model") == name), counts, gains, scale) for name in names]
    return (
        '<div class="wide" tabindex="0" role="group" aria-label="Table 1, scrolls sideways on small screens">'
        '<table class="headline"><caption>Table 1: accuracy in percent with 95 % intervals, and the gain from '
        "documents in "
        f"percentage "
        f"points</caption><thead><tr>{''.join(heads)}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _row(name: str, part: pl.DataFrame, counts: Sequence[str], gains: Sequence[str], scale: tuple[float, float]) -> str:
    known: dict[str, Mapping[str, Any]] = {row["documents"]: row for row in part.iter_rows(named=True)}
    cells = [f'<td class="number">{_cell(known.get(count))}</td>' for count in counts]
    for gain in gains:
        row = known.get(gain)
        cells.append(f'<td class="number">{_cell(row, signed=True)}</td><td>{_bar(row, scale)}</td>')
    kind = ' class="guess"' if name.startswith("guess") else ""
    return f'<tr{kind}><th scope="row">{escape(name)}</th>{"".join(cells)}</tr>'


def _cell(row: Mapping[str, Any] | None, signed: bool = False) -> str:
    if row is None or row["value"] is None:
        return "–"
    sign = "+" if signed else ""
    value, low, high = (f"{100 * row[name]:{sign}.1f}".replace("-", "−") for name in ("value", "low", "high"))
    return f"{value} <small>[{low}, {high}]</small>"


def _bar(row: Mapping[str, Any] | None, scale: tuple[float, float]) -> str:
    """A dot with its interval on a line that all rows share; the tick is zero."""
    if row is None or row["value"] is None:
        return ""
    left, right = scale
    at, low, high, zero = (100 * (x - left) / (right - left) for x in (row["value"], row["low"], row["high"], 0.0))
    return (
        f'<span class="bar" aria-hidden="true"><u style="left:{zero:.1f}%"></u>'
        f'<i style="left:{low:.1f}%;width:{high - low:.1f}%"></i><b style="left:{at:.1f}%"></b></span>'
    )


def _count_words(count: str) -> str:
    if count == "0":
        return "without"
    return f"with {escape(count)}"


def _gain_words(gain: str, gains: Sequence[str]) -> str:
    return "gain" if len(gains) == 1 else gain
