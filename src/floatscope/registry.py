"""One registry for whatever goes by name: families, samplers, readers, detectors, stressors, analyses, engines.

A row is a small frozen dataclass that carries everything the rest of the project needs of a member; what is heavy in it
is a lazy "module:object", loaded by `load_object` when it is first used. A file that adds rows of your own is named in
the variable FLOATSCOPE_EXTENSIONS and is run before any registry is read, here and in every worker process.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Generic, TypeVar

from floatscope.errors import UserError

EXTENSIONS = "FLOATSCOPE_EXTENSIONS"
"""Variable of the environment: Python files that add rows, separated as in PATH."""
ELSEWHERE: dict[str, str] = {}
"""What a room may ask for without knowing who does it, as "module:object": "load" of a model's name, "prompt" of
a text, "player" and "heatmap" of a trace. The package's root fills it."""
Row = TypeVar("Row")
_extended: set[str] = set()


class Registry(Mapping[str, Row], Generic[Row]):
    """Rows by name, in the order they were added."""

    def __init__(self, kind: str, rows: Mapping[str, Row]) -> None:
        """`kind` is what error sentences call a member: "sampler", "analysis"."""
        self.kind = kind
        self._rows = dict(rows)

    def add(self, name: str, row: Row) -> None:
        """Add a member; a name that is taken is refused."""
        if name in self._rows:
            raise UserError(f"There is a {self.kind} {name!r} already: choose another name.")
        self._rows[name] = row

    def named(self, name: str) -> Row:
        """The row of this name, or a sentence that names the nearest one."""
        if name not in self:
            raise UserError(f"There is no {self.kind} {name!r}: {did_you_mean(str(name), self)}.")
        return self[name]

    def __contains__(self, name: object) -> bool:
        run_extensions()
        return isinstance(name, str) and name in self._rows

    def __getitem__(self, name: str) -> Row:
        run_extensions()
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        run_extensions()
        return iter(tuple(self._rows))

    def __len__(self) -> int:
        run_extensions()
        return len(self._rows)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error sentence, without its full stop: the nearest known name, if any, and all that are known."""
    names = list(known)
    close = get_close_matches(word, names, n=1, cutoff=0.5)
    return f"{f'did you mean {close[0]!r}? ' if close else ''}Known are {', '.join(names)}"


def load_object(given: Any) -> Any:
    """What "package.module:object" names; anything else as it is."""
    if not isinstance(given, str):
        return given
    module, _, name = given.partition(":")
    return getattr(import_module(module), name)


def run_extensions() -> None:
    """Run the files that FLOATSCOPE_EXTENSIONS names, each once per process.

    Each is a module of its own, which stays: help is read from its source, and its classes can be pickled.
    """
    for path in filter(None, os.environ.get(EXTENSIONS, "").split(os.pathsep)):
        if path in _extended:
            continue
        _extended.add(path)  # before it runs: it reads registries itself
        if not os.path.isfile(path):
            raise UserError(f"{EXTENSIONS} names {path}, which is no file: correct the variable or unset it.")
        name = f"floatscope_extension_{Path(path).stem}"
        spec = spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise UserError(f"{EXTENSIONS} names {path}, which is no Python file: its name should end in .py.")
        sys.modules[name] = module = module_from_spec(spec)
        spec.loader.exec_module(module)
