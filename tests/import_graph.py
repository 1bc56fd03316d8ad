"""Who knows whom in the package, as the code has it: imports anywhere in a file, lazy "module:object" texts, paths."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "floatscope"
ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / PACKAGE
DESIGN = ROOT / "docs" / "design.md"
_ARROW = re.compile(r"^(?P<room>\w+)\s*->\s*(?P<known>[\w, ]+?)(?:\s*without (?P<never>[\w, ]+))?$")


@dataclass(frozen=True, order=True)
class Edge:
    """A file (as src has it) that knows a room, or a package from elsewhere that its room must do without."""

    file: str
    room: str
    known: str


@dataclass(frozen=True)
class Graph:
    """What docs/design.md allows: the ground, for every room those it may know, and packages it must not import."""

    ground: frozenset[str]
    allowed: dict[str, frozenset[str]]
    never: dict[str, frozenset[str]]

    @property
    def rooms(self) -> frozenset[str]:
        return self.ground | self.allowed.keys()


def drawn_graph(text: str) -> Graph:
    """The graph in the block of docs/design.md that begins with ```graph."""
    (block,) = re.findall(r"```graph\n(.*?)```", text, re.S)
    lines = [line.strip() for line in block.splitlines() if line.strip()]
    ground = frozenset(_names(lines[0].partition("=")[2]))
    allowed: dict[str, frozenset[str]] = {}
    never: dict[str, frozenset[str]] = {}
    for line in lines[1:]:
        match = _ARROW.match(line)
        assert match, f"a line of the graph that cannot be read: {line}"
        allowed[match["room"]] = frozenset(_names(match["known"]))
        never[match["room"]] = frozenset(_names(match["never"] or ""))
    every = frozenset(allowed)
    for room, known in allowed.items():
        wide = (known | ground if "ground" in known else known) | (every if "everything" in known else frozenset())
        allowed[room] = wide - {"ground", "everything"}
    return Graph(ground, allowed, never)


def forbidden(source: Path, graph: Graph) -> set[Edge]:
    """Every edge of the code under `source` that the graph does not have."""
    found: set[Edge] = set()
    for path in sorted(source.rglob("*.py")):
        file = path.relative_to(source)
        room = file.parts[0].removesuffix(".py")
        if room == "__init__":  # the composition root names everything
            continue
        for name in mentioned(path, source):
            package, _, rest = name.partition(".")
            known = rest.partition(".")[0] if package == PACKAGE else package
            if package == PACKAGE and known not in ("", room, "__version__"):
                fine = known in (graph.ground if room in graph.ground else graph.allowed.get(room, ()))
                found |= set() if fine else {Edge(str(file), room, known)}
            elif package == PACKAGE and known == "":
                found.add(Edge(str(file), room, PACKAGE))  # the whole package, and so everything
            elif known in graph.never.get(room, ()):
                found.add(Edge(str(file), room, known))
    return found


def mentioned(path: Path, source: Path) -> Iterator[str]:
    """Dotted names that a file knows: imports (within functions and for types too), texts that name modules, paths."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    rooms = {child.stem for child in source.iterdir()}
    here = [PACKAGE, *path.relative_to(source).with_suffix("").parts]
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*here[: len(here) - node.level], *filter(None, [node.module])] if node.level else [node.module]
            yield from (".".join([*map(str, base), alias.name]) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            if match := re.fullmatch(rf"({PACKAGE}(?:\.\w+)+)(?::\w*)?", node.value):
                yield match[1]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and "__file__" in ast.unparse(node):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and part.value in rooms - {here[1]}:
                    yield f"{PACKAGE}.{part.value}"


def _names(text: str) -> list[str]:
    return [name for name in re.split(r"[,\s]+", text) if name]
