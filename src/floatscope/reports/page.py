"""The report: one HTML page that opens by double click, with nothing to fetch. It takes tables, Results and Traces.

Where they come from is left to `floatscope.study.reporting`. Parts that are missing leave a sentence at the end.
The page has a policy of its own: only the scripts it was written with may run, and nothing is evaluated or fetched.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import polars as pl

from floatscope.analysis import ANALYSES, draw, draw_traces
from floatscope.analysis.drawing import csv_text
from floatscope.analysis.figure import Figure, Theme
from floatscope.analysis.results import Result
from floatscope.reports.answers import samples_data
from floatscope.reports.cards import UNTRAINED, drawing_library, figure_card
from floatscope.reports.curves import edit_curves, edit_figure, patch_figure, stress_curves, stress_figure
from floatscope.reports.headline import headline_html
from floatscope.reports.markup import asset, render
from floatscope.reports.player import player_data
from floatscope.reports.rules import Rule
from floatscope.reports.sources import source_figure, source_tables
from floatscope.reports.tables import readings
from floatscope.traces import Trace

_ANSWERS = ("all", "right", "wrong")


@dataclass(frozen=True)
class Content:
    """What a page shows, as plain parts; an empty part leaves its section out, and a sentence at the end says so."""

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
    units: pl.DataFrame | None = None
    """Every answered question, as `study.failures.unit_frame` gives them: the list of samples."""
    attribution: pl.DataFrame | None = None
    """How far each method of attribution can be believed, as `Run.attribution` gives it."""
    patched: pl.DataFrame = field(default_factory=pl.DataFrame)
    """What patches bring back of the answers, as `Run.patched` gives it."""
    rules: tuple[Rule, ...] = ()
    """What counts as present, for the verdicts below the curves of edits."""
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
    table = curves = edited = likely = pl.DataFrame()
    if content.scores is not None:
        table = content.scores.filter(stressor="documents")
        curves = stress_curves(content.scores, content.models)
        edited = edit_curves(content.scores, content.models)
        likely = edit_curves(content.scores, content.models, "log_probability")
    told = content.attribution
    sources = None if told is None or told.is_empty() else source_figure(told, content.models)
    pictures, figures = trace_pictures(content), page_figures(content)
    likelihoods = partial(edit_figure, metric="log_probability")
    stress = [] if curves.is_empty() else [stress_figure(curves, content.models)]
    changed = ((edited, edit_figure), (likely, likelihoods), (content.patched, patch_figure))
    edits = [drawn(points, content.models) for points, drawn in changed if not points.is_empty()]
    played = [trace for trace in content.traces if trace.metadata.get("control", "") in ("", "untrained")]
    shown = (*pictures, *figures, *stress, *edits, sources)
    drawing = [drawing_library()] if any(isinstance(one, Figure) for one in shown) else []
    return document(
        "report.html",
        content.title,
        asset("theme.js"),
        [
            *(asset(name) for name in ("run.js", "canvas.js", "player.js", "film.js", "samples.js")),
            *drawing,
            *(asset(name) for name in ("figures.js", "page.js")),
        ],
        content=content,
        sentences=_unbroken(content),
        headline="" if table.is_empty() else headline_html(table, content.models),
        headline_csv=csv_text(table),
        guessed=not table.is_empty() and "guess" in table["statistic"],
        played=player_data(played) if played else None,
        samples=None
        if content.units is None or content.units.is_empty()
        else samples_data(content.units, content.models),
        card=partial(figure_card, control=_control(content.traces)),
        sources=sources,
        source_tables={} if told is None else {answers: source_tables(told, answers) for answers in _ANSWERS},
        pictures=pictures,
        figures=figures,
        stress=stress,
        edits=edits,
        readings=None if content.scores is None or edited.is_empty() else readings(content.scores, content.rules),
        manifest=list(_flat(content.manifest)),
    )


def figure_page(figure: Figure, theme: Theme = "light") -> str:
    """A page with one figure, in one theme: its card as in the report."""
    first = f'document.documentElement.dataset.theme = "{theme}"; window.floatscope = {{ theme: () => "{theme}" }};'
    scripts = [drawing_library(), asset("figures.js")]
    return document("document.html", figure.title, first, scripts, body=figure_card(figure))


def document(template: str, title: str, first: str, scripts: list[str], **values: Any) -> str:
    """A page whose policy allows the script that runs before it is shown, those that run after, and no other."""
    digests = [hashlib.sha256(text.encode()).digest() for text in (first, *scripts)]
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    styles = f"{asset('components.css')}\n{asset('page.css')}"
    return render(template, title=title, hashes=hashes, styles=styles, first=first, scripts=scripts, **values)


def _unbroken(content: Content) -> list[list[str]]:
    """The summary in pieces; every second one, a model or a number with its unit, must not be broken over two lines."""
    names = [re.escape(name) for name in sorted(content.models, key=len, reverse=True)]
    whole = re.compile("|".join([*names, r"[\d.+−]*\d(?: %)?(?: \[[^\]]*\])?"]).join("()"))
    return [whole.split(sentence) for sentence in content.summary]


def _control(traces: Iterable[Trace]) -> str:
    """What the controls of the models themselves are called: of forks, whose parent is trained, "before the fork"."""
    known = [trace.metadata for trace in traces if trace.metadata.get("control") == UNTRAINED]
    names = dict.fromkeys(str(one.get("control_name") or UNTRAINED) for one in known)
    return " or ".join(names) or UNTRAINED


class Missing(NamedTuple):
    """The place of a figure that could not be made."""

    name: str
    title: str
    reason: str


def trace_pictures(content: Content) -> list[Figure]:
    """What stands at the top of the page: the pictures that analyses have of single traces."""
    own = [trace.model for trace in content.traces if not trace.metadata.get("control")]
    models = content.models or tuple(dict.fromkeys(own))
    found = (draw_traces(name, content.traces, models) for name in ANALYSES) if own else ()
    return [picture for picture in found if picture is not None]


def page_figures(content: Content) -> list[Figure | Missing]:
    """The figures of the page in the order of the registry."""
    shown: list[Figure | Missing] = []
    for name, row in ANALYSES.items():
        if name in content.results:
            shown.append(draw(name, content.results, content.models))
        elif name in content.missing:
            shown.append(Missing(name, row.description[:1].upper() + row.description[1:], content.missing[name]))
    return shown


def _flat(values: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    """Nested entries as one list of names and values."""
    for name, value in values.items():
        path = f"{before} {name}".strip()
        if isinstance(value, Mapping):
            yield from _flat(value, path)
        elif value not in (None, "", [], ()):
            yield path, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
