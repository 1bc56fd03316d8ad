"""Traces at hand in the player: a cell of a notebook, or a page of its own."""

from dataclasses import dataclass
from pathlib import Path

from floatscope.errors import UserError
from floatscope.files import replace_text, write_errors
from floatscope.reports.markup import asset
from floatscope.reports.page import document
from floatscope.reports.player import player_data, traces_html
from floatscope.traces import Trace


@dataclass(frozen=True, repr=False)
class TraceView:
    """One or several traces, side by side where they are of the same sample."""

    traces: tuple[Trace, ...]

    def __repr__(self) -> str:
        return f"TraceView of {', '.join(trace.model for trace in self.traces)}"

    def _repr_html_(self) -> str:
        return traces_html(self.traces)

    def save(self, path: str | Path) -> Path:
        """Write a page that opens by double click, with nothing to fetch."""
        path = Path(path)
        scripts = [asset(name) for name in ("run.js", "canvas.js", "player.js", "film.js", "page.js")]
        models = " and ".join(dict.fromkeys(trace.model for trace in self.traces))
        title = f"floatscope: {models}"
        with write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(
            path, document("view.html", title, asset("theme.js"), scripts, played=player_data(self.traces, None))
        )
        return path


def show(*traces: Trace) -> TraceView:
    """The player with these traces: shown by a notebook, saved as a page by `.save(path)`."""
    if not traces or not all(isinstance(trace, Trace) for trace in traces):
        raise UserError("show takes traces, one or several: fs.show(a, b).")
    return TraceView(traces)
