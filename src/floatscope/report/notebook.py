"""What a notebook shows: a Trace as the player, a Result as its figure, each a piece of HTML that fetches nothing."""

from itertools import count

from floatscope.analysis.results import Result
from floatscope.report.page import figure_html
from floatscope.report.player import asset, escape, player_data, script_json
from floatscope.report.sections import FIGURES
from floatscope.traces import Trace

_numbers = count(1)


def trace_html(trace: Trace) -> str:
    """The player with this trace alone."""
    name = f"floatscope-player-{next(_numbers)}"
    data = script_json(player_data([trace]))
    return (
        f"{_parts('canvas.js', 'player.js')}<p>{escape(repr(trace).partition(', arrays')[0])})</p>"
        f'<div class="floatscope" id="{name}"></div>'
        f'<script>new floatscope.Player(document.getElementById("{name}"), {data});</script>'
    )


def result_html(result: Result) -> str:
    """The figure of the report where there is one, else the main table; below, what could not be computed."""
    build = FIGURES.get(result.name)
    models = result.table["model"].unique(maintain_order=True).to_list() if "model" in result.table.columns else []
    figure = build({result.name: result}, models) if build else None
    if figure is not None and figure.panels:
        drawn = figure_html(figure, f"-{next(_numbers)}")
        return f'{_parts("plots.js", "charts.js")}<div class="floatscope">{drawn}</div>'
    notes = "".join(f"<p>{escape(note)}</p>" for note in result.notes)
    return f"<h3>{escape(result.name)}</h3>{result.table._repr_html_()}{notes}"


def _parts(*scripts: str) -> str:
    """Style and scripts; a second copy in the same notebook does nothing."""
    return f"<style>{asset('components.css')}</style>" + "".join(f"<script>{asset(name)}</script>" for name in scripts)
