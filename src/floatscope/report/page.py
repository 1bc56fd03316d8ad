"""The report: one HTML page that opens by double click, with nothing to fetch. It takes tables, Results and Traces.

Where they come from is left to `floatscope.study.reporting`. Parts that are missing leave a sentence in their place.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from floatscope.analysis.results import Result
from floatscope.report.charts import Figure, csv_text, line_panels
from floatscope.report.curves import BASELINES, stress_curves
from floatscope.report.headline import headline_html
from floatscope.report.maps import drift_map
from floatscope.report.player import asset, escape, player_data, script_json
from floatscope.report.sections import FIGURES
from floatscope.traces import Trace


@dataclass(frozen=True)
class Content:
    """What a page shows, as plain parts; an empty part leaves its section out with a sentence."""

    title: str
    question: str
    summary: tuple[str, ...] = ()
    """The answer in a few sentences with numbers."""
    models: tuple[str, ...] = ()
    """The order of models everywhere: MDMs first."""
    scores: pl.DataFrame | None = None
    """All scores in one long table, as `Run.scores` gives them: Table 1 and the stress curves are made of it."""
    notes: tuple[str, ...] = ()
    """What is said below Table 1."""
    traces: tuple[Trace, ...] = ()
    """For the player and the drift map; controls among them carry `control` in their metadata."""
    results: Mapping[str, Result] = field(default_factory=dict)
    """Analyses by name; "compat" gives the figures their published view."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    study: str = ""
    """The study as a TOML text."""
    command: str = ""
    """What to type to get the same page."""


def build_page(content: Content) -> str:
    """The whole page as one text."""
    parts = (
        _summary(content),
        _headline(content),
        _player(content),
        _figures(content),
        _stress(content),
        _making(content),
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(content.title)}</title>\n"
        '<link rel="icon" href="data:,">\n'
        f"<style>\n{asset('components.css')}\n{asset('page.css')}</style>\n"
        + "".join(
            f"<script>\n{asset(name)}</script>\n"
            for name in ("theme.js", "canvas.js", "player.js", "plots.js", "charts.js")
        )
        + '</head>\n<body>\n<div class="floatscope page">\n'
        + '<a class="skip" href="#main">Skip to the content</a>\n'
        + "\n".join(parts)
        + f"\n</div>\n<script>\n{asset('page.js')}</script>\n</body>\n</html>\n"
    )


def _summary(content: Content) -> str:
    links = (("table", "Table 1"), ("player", "Player"), ("figures", "Figures"), ("stress", "Stress"), ("made", "How"))
    sentences = "".join(f"<li>{_names_whole(sentence, content.models)}</li>" for sentence in content.summary)
    return (
        '<header>\n<div class="top"><nav aria-label="Sections">'
        + "".join(f'<a href="#{name}">{title}</a>' for name, title in links)
        + '</nav><button type="button" id="theme">theme</button></div>\n'
        f"<h1>{escape(content.question)}</h1>\n"
        + (f'<ul class="answer">{sentences}</ul>\n' if sentences else _missing("There are no results to sum up yet."))
        + '</header>\n<main id="main">'
    )


def _names_whole(sentence: str, models: Sequence[str]) -> str:
    """The sentence with names of models that no line break cuts at a hyphen."""
    names = "|".join(re.escape(escape(name)) for name in sorted(models, key=len, reverse=True))
    text = escape(sentence)
    return re.sub(names, lambda found: f'<span class="name">{found[0]}</span>', text) if names else text


def _headline(content: Content) -> str:
    opening = '<section aria-labelledby="table">\n<h2 id="table">What documents add</h2>'
    table = None if content.scores is None else content.scores.filter(stressor="documents")
    if table is None or table.is_empty():
        return f"{opening}\n{_missing('No condition is with and without documents: there is no Table 1.')}</section>"
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in content.notes)
    guessed = (table["statistic"] == "guess").any()
    guesses = " Guesses that know no model stand below, so that a number can be read." if guessed else ""
    return (
        f"{opening}\n"
        '<p class="lead">Share of right answers with 95 % intervals, without documents and with them; the gain is '
        f"paired by sample.{guesses}</p>\n"
        f'<div class="card">{headline_html(table, content.models)}{notes}'
        '<div class="fs-tools"><button type="button" data-csv="table-csv" data-name="table-1">CSV</button></div></div>'
        f'<script type="application/json" id="table-csv">{script_json(csv_text(table))}</script>\n</section>'
    )


def _player(content: Content) -> str:
    opening = '<section aria-labelledby="player">\n<h2 id="player">Watch it denoise</h2>'
    if not content.traces:
        return f"{opening}\n{_missing('The study kept no traces: there is nothing to play.')}</section>"
    shown = [trace for trace in content.traces if trace.metadata.get("control", "") in ("", "untrained")]
    return (
        f"{opening}\n"
        '<p class="lead">One sample, every step. The strip shows all steps of a layer at a glance; below it stands the '
        "canvas itself. A token appears at the step that commits it. The switch shows the same model untrained.</p>\n"
        '<p class="keys"><kbd>space</kbd> play or pause · <kbd>←</kbd> <kbd>→</kbd> step · '
        "<kbd>↑</kbd> <kbd>↓</kbd> layer · <kbd>home</kbd> <kbd>end</kbd> first and last step</p>\n"
        '<div id="player-root"></div>\n'
        f'<script>floatscope.player = new floatscope.Player(document.getElementById("player-root"), '
        f"{script_json(player_data(shown))});</script>\n</section>"
    )


def _figures(content: Content) -> str:
    opening = '<section aria-labelledby="figures">\n<h2 id="figures">Where attention goes</h2>'
    made = list(analysis_figures(content.results, content.models, content.traces))
    if not made:
        return f"{opening}\n{_missing('The study ran no analyses of traces: there are no figures.')}</section>"
    lead = (
        "Every figure carries its controls: what even attention, random positions or the untrained model would give. "
        "Names in the legend switch lines off and on; “as published” shows the paper's own computation where it "
        "differs. Layers, heads and steps are counted from 0, as in the tables."
    )
    return f'{opening}\n<p class="lead">{lead}</p>\n' + "\n".join(figure_html(figure) for figure in made) + "</section>"


def analysis_figures(
    results: Mapping[str, Result], models: Sequence[str], traces: Sequence[Trace] = ()
) -> Iterable[Figure]:
    """The figures that can be drawn, in the order of the page."""
    first = drift_map(traces, models) if traces else None
    found = [first, *(build(results, models) for name, build in FIGURES.items() if name in results)]
    return [figure for figure in found if figure is not None and figure.panels]


def _stress(content: Content) -> str:
    opening = '<section aria-labelledby="stress">\n<h2 id="stress">Under stress</h2>'
    table = None if content.scores is None else stress_curves(content.scores, content.models)
    if table is None or table.is_empty():
        return f"{opening}\n{_missing('The study has no stress conditions: there are no curves.')}</section>"
    return f"{opening}\n{figure_html(stress_figure(table, content.models))}</section>"


def stress_figure(table: pl.DataFrame, models: Sequence[str]) -> Figure:
    """Accuracy by level, a panel for each curve, with the baselines as controls."""
    controls = [name for name in (*BASELINES, "guess") if table[name].is_not_null().any()]
    panels = []
    for (_, axis), part in table.group_by(["stressor", "axis"], maintain_order=True):
        panels += line_panels(part, "panel", models, "accuracy", "x", str(axis), controls=controls)
    for panel in panels:
        panel["range"] = [0, 1]
        for point in (point for series in panel["series"] for point in series["points"]):
            point[0] = int(point[0]) if str(point[0]).isdigit() else point[0]
    return Figure(
        "stress",
        "Right answers as it gets harder",
        "Share of right answers with 95 % intervals. Thin lines are each model's baselines: closed-book without "
        "documents, "
        "oracle with the gold documents only; guess knows no model.",
        table,
        tuple(panels),
    )


def figure_html(figure: Figure, suffix: str = "") -> str:
    """A figure as a card: title, finding, chart, caption, and buttons to save it; `suffix` makes its id unique."""
    switch = ""
    if figure.published:
        switch = '<label class="fs-published"><input type="checkbox"> as published (compat mode)</label>'
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in figure.notes)
    finding = f'<p class="finding">{escape(figure.finding)}</p>' if figure.finding else ""
    alt = f"{figure.title}. {figure.finding or figure.caption}"
    name = escape(figure.name + suffix)
    return (
        f'<figure class="fs-figure card" id="figure-{name}" data-alt="{escape(alt)}">\n'
        f"<h3>{escape(figure.title)}</h3>\n{finding}\n"
        '<div class="fs-figure-legend"></div>\n<div class="fs-chart"></div>\n'
        f'<figcaption><p class="caption">{escape(figure.caption)}</p>{notes}</figcaption>\n'
        f'<div class="fs-tools"><button type="button" data-action="svg">SVG</button>'
        f'<button type="button" data-action="csv">CSV</button>{switch}'
        '<details class="fs-data"><summary>numbers</summary><div class="fs-scroll" tabindex="0"></div></details>'
        "</div>\n"
        f'<script>new floatscope.Figure(document.getElementById("figure-{name}"), '
        f"{script_json(figure.data)});</script>\n"
        "</figure>"
    )


def _making(content: Content) -> str:
    rows = list(_flat(content.manifest))
    table = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows)
    command = f"<h3>To make it again</h3><pre>{escape(content.command)}</pre>" if content.command else ""
    study = f"<h3>The study, as run</h3><pre tabindex='0'>{escape(content.study)}</pre>" if content.study else ""
    manifest = (
        f'<div class="wide"><table><caption>Versions, seeds and hashes</caption><tbody>{table}</tbody></table></div>'
        if rows
        else _missing("There is no manifest.")
    )
    return (
        '<section aria-labelledby="made">\n<h2 id="made">How it was made</h2>\n'
        f'<div class="made"><div>{command}</div><div>{study}</div>{manifest}</div>\n</section>\n</main>\n'
        "<footer><p>Made by floatscope. Everything on this page is inside this one file.</p></footer>"
    )


def _flat(values: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    """Nested entries as one list of names and values."""
    for name, value in values.items():
        path = f"{before} {name}".strip()
        if isinstance(value, Mapping):
            yield from _flat(value, path)
        elif value not in (None, "", [], ()):
            yield path, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _missing(sentence: str) -> str:
    return f'<p class="missing">{escape(sentence)}</p>'
