"""The code keeps to the graph that docs/design.md draws, and the checker sees every way to break it."""

import pytest

from tests.import_graph import DESIGN, SOURCE, Edge, drawn_graph, forbidden

GRAPH = drawn_graph(DESIGN.read_text(encoding="utf-8"))


def test_no_edge_breaks_the_graph():
    broken = [f"src/floatscope/{edge.file} must not know {edge.known}" for edge in forbidden(SOURCE, GRAPH)]
    assert broken == []


def test_every_room_is_drawn_and_the_drawing_has_no_circle():
    names = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in SOURCE.rglob("*.py")}
    assert names - {"__init__"} == GRAPH.rooms
    left = {room: set(known) - GRAPH.ground for room, known in GRAPH.allowed.items() if room != "cli"}
    while left:
        free = [room for room, known in left.items() if not known & left.keys()]
        assert free, f"a circle among {', '.join(left)}"
        for room in free:
            del left[room]
    assert all("cli" not in known for room, known in GRAPH.allowed.items() if room != "cli")


@pytest.mark.parametrize(
    ("file", "line", "known"),
    [
        ("analysis/a.py", "from floatscope.reports.page import Content", "reports"),
        ("analysis/a.py", "def f():\n    from floatscope.reports import page", "reports"),
        ("analysis/a.py", "if TYPE_CHECKING:\n    import floatscope.study.plan", "study"),
        ("analysis/a.py", 'ROW = "floatscope.reports.figures:flow"', "reports"),
        ("analysis/a.py", 'ROW = lambda name: f"floatscope.reports.figures:{name}"', "reports"),
        ("analysis/deep/a.py", "from ...models import loading", "models"),
        ("analysis/a.py", "def f():\n    import torch", "torch"),
        ("analysis/a.py", "import floatscope as fs", "floatscope"),
        ("analysis/a.py", "from floatscope import load", "load"),
        ("models/a.py", 'from pathlib import Path\nF = Path(__file__).parents[1] / "training" / "weights"', "training"),
        ("files.py", "from floatscope.qa import samples", "qa"),
        ("tracing.py", "from floatscope.study import plan", "study"),
    ],
)  # fmt: skip
def test_a_planted_edge_is_seen(tmp_path, file, line, known):
    for room in GRAPH.rooms:
        (tmp_path / f"{room}.py").touch()
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{line}\n")
    assert {(edge.file, edge.known) for edge in forbidden(tmp_path, GRAPH)} == {(file, known)}


def test_what_is_drawn_is_allowed(tmp_path):
    allowed = {
        "analysis/a.py": '"""See `floatscope.reports`."""\nfrom floatscope.traces import Trace\nimport altair',
        "study/a.py": 'from floatscope import __version__\nX = "floatscope.tracing:trace"',
        "cli/a.py": "from floatscope.study.plan import Study",
        "__init__.py": "import floatscope.study.plan",
    }  # fmt: skip
    for file, text in allowed.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(f"{text}\n")
    assert forbidden(tmp_path, GRAPH) == set()
    (tmp_path / "study" / "a.py").write_text("from floatscope.cli import studies\n")
    assert forbidden(tmp_path, GRAPH) == {Edge("study/a.py", "study", "cli")}
