"""Table 1 as HTML: models by task, without and with documents, and what documents add, each with its interval."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from floatscope.report.player import escape
from floatscope.report.tables import AVERAGE

Row = Mapping[str, Any]
Scale = tuple[float, float]


def headline_html(scores: pl.DataFrame, models: Sequence[str]) -> str:
    """The accuracies and gains of a run (`Run.scores`) with each number of documents: models in order, then guesses."""
    own = scores.filter(stressor="documents", metric="accuracy")
    gained = own.filter(statistic="gain")
    counts, gains = (part["documents"].unique().sort().to_list() for part in (own, gained))
    heads = [
        '<th scope="col">model</th>',
        *(f'<th scope="col" class="number">{f"with {count}" if count else "without"}</th>' for count in counts),
        *(
            f'<th scope="col" class="number">{"gain" if len(gains) == 1 else f"gain of {count}"}</th>'
            '<td class="bar-head"></td>'
            for count in gains
        ),
    ]
    known = gained.drop_nulls("value")
    scale = (min([0.0, *known["low"]]), max([0.01, *known["high"]]))
    body = []
    for task in own["task"].unique(maintain_order=True):
        width = 1 + len(counts) + 2 * len(gains)
        title = AVERAGE if task is None else task
        body.append(f'<tr class="group"><th colspan="{width}" scope="rowgroup">{escape(title)}</th></tr>')
        part = own.filter(pl.col("task").eq_missing(task))
        for statistic in ("score", "guess"):
            found = part.filter(statistic=statistic)["model"].unique(maintain_order=True).to_list()
            found.sort(key=lambda name: models.index(name) if name in models else len(models))
            body += [_row(name, statistic, part.filter(model=name), counts, gains, scale) for name in found]
    return (
        '<div class="wide" tabindex="0" role="group" aria-label="Table 1, scrolls sideways on small screens">'
        '<table class="headline"><caption>Table 1: accuracy in percent with 95 % intervals, and the gain from '
        f"documents in percentage points</caption><thead><tr>{''.join(heads)}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _row(
    name: str, statistic: str, part: pl.DataFrame, counts: Sequence[int], gains: Sequence[int], scale: Scale
) -> str:
    """A model (its scores and gains), or a guess, which has no gains."""
    known = {(row["statistic"], row["documents"]): row for row in part.iter_rows(named=True)}
    cells = [f'<td class="number">{_cell(known.get((statistic, count)))}</td>' for count in counts]
    for count in gains:
        row = known.get(("gain", count)) if statistic == "score" else None
        cells.append(f'<td class="number">{_cell(row, sign="+")}</td><td>{_bar(row, scale)}</td>')
    kind, label = (' class="guess"', f"guess: {name}") if statistic == "guess" else ("", name)
    return f'<tr{kind}><th scope="row">{escape(label)}</th>{"".join(cells)}</tr>'


def _cell(row: Row | None, sign: str = "") -> str:
    if row is None or row["value"] is None:
        return "–"
    value, low, high = (f"{100 * row[name]:{sign}.1f}".replace("-", "−") for name in ("value", "low", "high"))
    return f"{value} <small>[{low}, {high}]</small>"


def _bar(row: Row | None, scale: Scale) -> str:
    """A dot with its interval on a line that all rows share; the tick is zero."""
    if row is None or row["value"] is None:
        return ""
    left, right = scale
    at, low, high, zero = (100 * (x - left) / (right - left) for x in (row["value"], row["low"], row["high"], 0.0))
    return (
        f'<span class="bar" aria-hidden="true"><u style="left:{zero:.1f}%"></u>'
        f'<i style="left:{low:.1f}%;width:{high - low:.1f}%"></i><b style="left:{at:.1f}%"></b></span>'
    )
