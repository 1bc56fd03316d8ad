"""What a notebook shows of a Trace: the player, as a piece of HTML that fetches nothing. Figures show themselves."""

from itertools import count

from floatscope.report.player import asset, escape, player_data, script_json
from floatscope.traces import Trace

_numbers = count(1)


def trace_html(trace: Trace) -> str:
    """The player with this trace alone; a second copy of its scripts in the same notebook does nothing."""
    name = f"floatscope-player-{next(_numbers)}"
    data = script_json(player_data([trace]))
    scripts = "".join(f"<script>{asset(part)}</script>" for part in ("canvas.js", "player.js"))
    return (
        f"<style>{asset('components.css')}</style>{scripts}<p>{escape(repr(trace).partition(', arrays')[0])})</p>"
        f'<div class="floatscope" id="{name}"></div>'
        f'<script>new floatscope.Player(document.getElementById("{name}"), {data});</script>'
    )
