"""The figures made of cells: where attention goes step by step, retrieval heads, flow by gold position."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from floatscope.analysis.anchors import detect
from floatscope.analysis.drift import temporal_heatmap
from floatscope.analysis.results import Result
from floatscope.report.charts import Figure, Panel, heat_panel
from floatscope.report.findings import by_model, interval_text, number_text, rows_by_model, sentence
from floatscope.report.player import canvas_data
from floatscope.report.published import published_view
from floatscope.traces import Trace

Results = Mapping[str, Result]
_SCORES = {
    "copy": "copies the answer",
    "evidence": "committing rows to evidence",
    "query": "question to evidence",
    "query_calibrated": "question to evidence, calibrated",
}


def drift_map(traces: Sequence[Trace], models: Sequence[str]) -> Figure | None:
    """One sample under every model and untrained, at the layer whose anchors change most under the first model."""
    first = next((trace for trace in traces if trace.model == models[0] and not trace.metadata.get("control")), None)
    if first is None:
        return None
    layer = _liveliest(first)
    same = [trace for trace in traces if trace.metadata.get("sample") == first.metadata.get("sample")]
    shown = [
        trace
        for model in models
        for control in ("", "untrained")
        for trace in same
        if (_model(trace), trace.metadata.get("control", "")) == (model, control)
    ]
    tables = [temporal_heatmap(trace, round(layer * (trace.layers - 1) / max(1, first.layers - 1))) for trace in shown]
    top = max(float(table["received"].max()) for table in tables)  # pyright: ignore[reportArgumentType]
    panels = [_map_panel(trace, table, top) for trace, table in zip(shown, tables, strict=True)]
    question = first.metadata.get("question") or first.metadata.get("sample", "")
    return Figure(
        "drift_map",
        "Where attention goes, step by step",
        "Each row is a step, each column a token of the canvas; darker tokens receive more, small squares are "
        "anchors. Stripes are anchors that stay, marks that wander are anchors that float. The control is the "
        "untrained model.",
        pl.concat(tables),
        tuple(panels),
        finding=f"“{question}”, layer {layer}: the one whose anchors change most in {first.model} on this sample.",
        across=2 if len(shown) > len(models) else None,
    )


def _model(trace: Trace) -> str:
    return str(trace.metadata.get("control_of", trace.model))


def _liveliest(trace: Trace) -> int:
    """The layer whose anchors change most often; of equals, the one whose top position receives most."""
    anchors = detect(trace)  # [step, layer, token]
    changes = (anchors[1:] != anchors[:-1]).sum(axis=(0, 2)) if trace.steps > 1 else anchors.sum(axis=(0, 2)) * 0
    peaks = trace.received.max(axis=(0, 2))
    return max(range(trace.layers), key=lambda layer: (int(changes[layer]), float(peaks[layer])))


def _map_panel(trace: Trace, table: pl.DataFrame, top: float) -> Panel:
    """Cells without words of their own: `names` are the tokens, from which the page makes them."""
    anchors = [(step, position) for step, position in table.filter("anchor").select("step", "position").iter_rows()]
    title = f"{trace.model}, layer {table['layer'][0]}"
    cells = table.select("step", "position", "received").iter_rows()
    panel = heat_panel(title, range(trace.steps), range(len(trace.canvas)), cells, "token", "step", top, anchors)
    return panel | {"wide": True, "mark": "square", "names": canvas_data(trace.texts_or_ids, [])["tokens"]}


def retrieval_heads(results: Results, models: Sequence[str]) -> Figure | None:
    """Layer by head scores with every number on hover."""
    result = results["retrieval_heads"]
    table = result.table.drop_nulls("value")
    panels = []
    for score in _SCORES:
        part = table.filter(pl.col("score") == score)
        if part.is_empty():
            continue
        top = float(part["value"].max())  # pyright: ignore[reportArgumentType]
        panels += [_head_panel(part, model, _SCORES[score], top) for model in models if model in part["model"]]
    strongest = table.filter(pl.col("score") == "evidence").sort("value", descending=True)
    best = {row["model"]: row for row in strongest.unique("model", keep="first").iter_rows(named=True)}
    words = [
        f"{row['model']} layer {row['layer']} head {row['head']} with "
        f"{interval_text(row['value'], row['low'], row['high'])} (uniform {number_text(row['uniform'], 2)}, "
        f"untrained {number_text(row['untrained'], 2)})"
        for row in (best[model] for model in models if model in best)
    ]
    return Figure(
        "retrieval_heads",
        "Heads that look at the evidence",
        "Each cell is a head, darker for a higher score; hover or tap for its numbers and controls. Copying counts "
        "slots whose top key is the committed token inside the gold answer; the other scores are attention mass on "
        "the evidence, the last one minus what a question that asks nothing gives (blank below 0). The control stands "
        "above each map: what even attention would give.",
        table,
        tuple(panels),
        finding=f"Most mass on evidence: {'; '.join(words)}." if words else "",
        across=len(models),
        notes=result.notes,
    )


def _head_panel(table: pl.DataFrame, model: str, title: str, top: float) -> Panel:
    part = table.filter(pl.col("model") == model)
    layers, heads = part["layer"].unique().sort().to_list(), part["head"].unique().sort().to_list()
    cells = [
        (layers.index(row["layer"]), heads.index(row["head"]), row["value"], _cell_text(row))
        for row in part.iter_rows(named=True)
    ]
    panel = heat_panel(model, layers, heads, cells, "head", "layer", top) | {"section": title}
    even = part["uniform"].mean()
    return panel | {"note": f"uniform {number_text(even, 2)}"} if isinstance(even, float) else panel


def _cell_text(row: Mapping[str, Any]) -> str:
    controls = ", ".join(
        f"{name} {number_text(row[name])}" for name in ("uniform", "random", "untrained") if row.get(name) is not None
    )
    place = f"layer {row['layer']}, head {row['head']}"
    return f"{place}: {interval_text(row['value'], row['low'], row['high'], 3)}{' · ' + controls if controls else ''}"


def flow(results: Results, models: Sequence[str]) -> Figure | None:
    """From the answer to each document, by the place of the gold one."""
    result = results["flow"]
    table = result.tables["flow_gold"].filter(pl.col("window") == "all").drop_nulls("value")
    if table.is_empty():
        return None
    targets = sorted(table["target"].unique().to_list(), key=_document_number)
    golds = sorted(table["gold"].unique().to_list(), key=_document_number)
    columns = [name for name in ("value", "uniform", "untrained") if table[name].is_not_null().any()]
    top = max(float(table[name].max()) for name in columns)  # pyright: ignore[reportArgumentType]
    panels = [
        _flow_panel(table.filter(pl.col("model") == model), model, column, golds, targets, top)
        for model in models
        if model in table["model"]
        for column in columns
    ]
    contrast = result.tables.get("flow_contrast")
    finding = ""
    if contrast is not None and not contrast.is_empty():
        rows = contrast.filter((pl.col("gold") == "any") & (pl.col("window") == "all"))
        value, even = rows_by_model(rows, models), by_model(rows, models, "untrained")
        finding = sentence("Gold document minus the mean of the others", value, {"untrained": even}, 3)
    return Figure(
        "flow",
        "Flow from the answer to each document, by gold position",
        "Rollout over the whole stack: how much of the answer's attention ends in each document, by where the gold "
        "one stands (diamonds). If the model reads the evidence, the diagonal is dark; beside each model stand even "
        "attention and the untrained model, which know no evidence.",
        table,
        tuple(panels),
        finding=finding,
        notes=result.notes,
        across=len(columns),
        **published_view(results, "flow", models),
    )


def _flow_panel(part: pl.DataFrame, model: str, column: str, golds: list[str], targets: list[str], top: float) -> Panel:
    cells, marks = [], []
    for row in part.iter_rows(named=True):
        place = (golds.index(row["gold"]), targets.index(row["target"]))
        interval = interval_text(row["value"], row["low"], row["high"], 3)
        text = interval if column == "value" else number_text(row[column])
        cells.append((*place, row[column], f"gold at {row['gold']}, answer to {row['target']}: {text}"))
        if row["is_gold"]:
            marks.append(place)
    title = "trained" if column == "value" else column
    short = [target.removeprefix("doc ") for target in targets]
    rows = [gold.replace("doc ", "") for gold in golds]
    panel = heat_panel(title, rows, short, cells, "document", "gold at", top, marks, faint=column != "value")
    return panel | {"section": model}


def _document_number(label: str) -> tuple[int, str]:
    digits = "".join(letter for letter in label.partition("+")[0] if letter.isdigit())
    return (int(digits) if digits else 10**6, label)
