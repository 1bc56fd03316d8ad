"""The report: one HTML page that opens by double click, with nothing to fetch. It takes tables, Results and Traces.

Where they come from is left to `floatscope.study.reporting`. Parts that are missing leave a sentence in their place.
The page has a policy of its own: only the scripts it was written with may run, and nothing is evaluated or fetched.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from floatscope.analysis import ANALYSES, draw, draw_traces
from floatscope.analysis.drawing import csv_text
from floatscope.analysis.figure import Figure, Theme
from floatscope.analysis.results import Result
from floatscope.report.cards import drawing_library, figure_card, missing_card
from floatscope.report.curves import stress_curves, stress_figure
from floatscope.report.headline import headline_html
from floatscope.report.player import asset, escape, player_data, script_json
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
    missing: Mapping[str, str] = field(default_factory=dict)
    """Analyses that could not be made, with the reason."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    study: str = ""
    """The study as a TOML text."""
    command: str = ""
    """What to type to get the same page."""


def build_page(content: Content) -> str:
    """The whole page as one text."""
    parts = (
        _summary(content),
        _section("table", "What documents add", _headline(content)),
        _section("player", "Watch it denoise", _player(content)),
        _section("figures", "Where attention goes", _figures(page_figures(content))),
        _section("stress", "Under stress", _stress(content)),
        _section("made", "How it was made", _making(content)),
        "</main>\n<footer><p>Made by floatscope. Everything on this page is inside this one file.</p></footer>",
    )
    drawing = [drawing_library()] if "<figure" in "".join(parts) else []
    scripts = [asset("canvas.js"), asset("player.js"), *drawing, asset("figures.js"), asset("page.js")]
    body = '<a class="skip" href="#main">Skip to the content</a>\n' + "\n".join(parts)
    return _document(content.title, body, [asset("theme.js")], scripts)


def figure_page(figure: Figure, theme: Theme = "light") -> str:
    """A page with one figure, in one theme: its card as in the report."""
    script = f'document.documentElement.dataset.theme = "{theme}"; window.floatscope = {{ theme: () => "{theme}" }};'
    card = f"<main>{figure_card(figure)}</main>"
    return _document(figure.title, card, [script], [drawing_library(), asset("figures.js")])


def _document(title: str, body: str, first: Sequence[str], scripts: Sequence[str]) -> str:
    """A page around a body: the scripts that run before it is shown, and those that run after."""
    digests = [hashlib.sha256(text.encode()).digest() for text in (*first, *scripts)]
    hashes = [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
    policy = (
        f"default-src 'none'; script-src {' '.join(hashes)}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n"
        '<link rel="icon" href="data:,">\n'
        f"<style>\n{asset('components.css')}\n{asset('page.css')}</style>\n"
        + "".join(f"<script>{text}</script>\n" for text in first)
        + f'</head>\n<body>\n<div class="floatscope page">\n{body}\n</div>\n'
        + "".join(f"<script>{text}</script>\n" for text in scripts)
        + "</body>\n</html>\n"
    )


def _section(name: str, title: str, body: str) -> str:
    return f'<section aria-labelledby="{name}">\n<h2 id="{name}">{title}</h2>\n{body}</section>'


def _summary(content: Content) -> str:
    links = (("table", "Table 1"), ("player", "Player"), ("figures", "Figures"), ("stress", "Stress"), ("made", "How"))
    # no line break cuts the name of a model at a hyphen; without models nothing matches
    names = "|".join(re.escape(escape(name)) for name in sorted(content.models, key=len, reverse=True)) or "(?!)"
    told = (re.sub(names, r'<span class="name">\g<0></span>', escape(sentence)) for sentence in content.summary)
    sentences = "".join(f"<li>{sentence}</li>" for sentence in told)
    return (
        '<header>\n<div class="top"><nav aria-label="Sections">'
        + "".join(f'<a href="#{name}">{title}</a>' for name, title in links)
        + '</nav><button type="button" id="theme">theme</button></div>\n'
        f"<h1>{escape(content.question)}</h1>\n"
        + (f'<ul class="answer">{sentences}</ul>\n' if sentences else _missing("There are no results to sum up yet."))
        + '</header>\n<main id="main">'
    )


def _headline(content: Content) -> str:
    table = None if content.scores is None else content.scores.filter(stressor="documents")
    if table is None or table.is_empty():
        return _missing("No condition is with and without documents: there is no Table 1.")
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in content.notes)
    guessed = (table["statistic"] == "guess").any()
    guesses = " Guesses that know no model stand below, so that a number can be read." if guessed else ""
    return (
        '<p class="lead">Share of right answers with 95 % intervals, without documents and with them; the gain is '
        f"paired by sample.{guesses}</p>\n"
        f'<div class="card">{headline_html(table, content.models)}{notes}'
        '<div class="fs-tools"><button type="button" data-csv="table-csv" data-name="table-1">CSV</button></div></div>'
        f'<script type="application/json" id="table-csv">{script_json(csv_text(table))}</script>\n'
    )


def _player(content: Content) -> str:
    if not content.traces:
        return _missing("The study kept no traces: there is nothing to play.")
    shown = [trace for trace in content.traces if trace.metadata.get("control", "") in ("", "untrained")]
    return (
        '<p class="lead">One sample, every step. The strip shows all steps of a layer at a glance; below it stands the '
        "canvas itself. A token appears at the step that commits it. The switch shows the same model untrained.</p>\n"
        '<p class="keys"><kbd>space</kbd> play or pause · <kbd>←</kbd> <kbd>→</kbd> step · '
        "<kbd>↑</kbd> <kbd>↓</kbd> layer · <kbd>home</kbd> <kbd>end</kbd> first and last step</p>\n"
        '<div id="player-root"></div>\n'
        f'<script type="application/json" id="player-data">{script_json(player_data(shown))}</script>\n'
    )


Shown = Figure | tuple[str, str, str]
"""A figure, or name, title and reason of one that is missing."""


def page_figures(content: Content) -> list[Shown]:
    """The figures of the page in the order of the registry; pictures of single traces stand before their analysis."""
    shown: list[Shown] = []
    own = [trace.model for trace in content.traces if not trace.metadata.get("control")]
    models = content.models or tuple(dict.fromkeys(own))
    for name, row in ANALYSES.items():
        picture = draw_traces(name, content.traces, models) if own else None
        shown += [picture] if picture is not None else []
        if name in content.results:
            shown.append(draw(name, content.results, content.models))
        elif name in content.missing:
            shown.append((name, row.description, content.missing[name]))
    return shown


def _figures(figures: Sequence[Shown]) -> str:
    if not figures:
        return _missing("The study ran no analyses of traces: there are no figures.")
    lead = (
        "Every figure carries its controls: what even attention, random positions or the untrained model would give. "
        "Names in the legend switch lines off and on; “as published” shows the paper's own computation where it "
        "differs. Layers, heads and steps are counted from 0, as in the tables."
    )
    named = [(one.name, one.title) if isinstance(one, Figure) else one[:2] for one in figures]
    entries = "".join(f'<li><a href="#figure-{escape(name)}">{escape(title)}</a></li>' for name, title in named)
    cards = [figure_card(one) if isinstance(one, Figure) else missing_card(*one) for one in figures]
    contents = f'<nav class="contents" aria-label="Figures"><ol>{entries}</ol></nav>'
    return "\n".join([f'<p class="lead">{lead}</p>', contents, *cards])


def _stress(content: Content) -> str:
    table = None if content.scores is None else stress_curves(content.scores, content.models)
    if table is None or table.is_empty():
        return _missing("The study has no stress conditions: there are no curves.")
    return figure_card(stress_figure(table, content.models))


def _making(content: Content) -> str:
    rows = _flat(content.manifest)
    table = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows)
    command = f"<h3>To make it again</h3><pre>{escape(content.command)}</pre>" if content.command else ""
    study = f"<h3>The study, as run</h3><pre tabindex='0'>{escape(content.study)}</pre>" if content.study else ""
    manifest = (
        f'<div class="wide"><table><caption>Versions, seeds and hashes</caption><tbody>{table}</tbody></table></div>'
        if table
        else _missing("There is no manifest.")
    )
    return f'<div class="made"><div>{command}</div><div>{study}</div>{manifest}</div>\n'


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
