"""Values of TOML and JSON files made into dataclasses: every mistake is one sentence with its key and nearest name.

msgspec checks the types; here its findings become words, and a key of a TOML file gets its line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from floatscope.errors import UserError
from floatscope.files import read_text
from floatscope.registry import did_you_mean

T = TypeVar("T")
Key = tuple[str | int, ...]
_HEADER = re.compile(r"^\s*\[(\[?)\s*([^\]]+?)\s*\]")
_KEY = re.compile(r"^\s*([A-Za-z0-9_.\-]+|\"[^\"]+\")\s*=")


class Mistake(UserError):
    """A wrong value, with the path of the key it is about, so that the line of a file can be named."""

    def __init__(self, sentence: str, *key: str | int) -> None:
        super().__init__(sentence)
        self.key: Key = key


def validated(cls: type[T], table: Mapping[str, Any], name: str) -> T:
    """The dataclass that a table describes, tables within it included; anything wrong is a Mistake.

    name: what sentences call the whole, such as "a study". A text that a list of texts should hold may stand alone;
    a field's class that has `parse` may be given in its written form.
    """
    import msgspec

    given = _with_known_keys(cls, table, name, ())
    try:
        return msgspec.convert(given, cls)
    except msgspec.ValidationError as error:
        place = re.search(r" - at `\$(.*)`$", str(error))
        where: Key = tuple(
            int(number) if number else key
            for key, number in re.findall(r"\.(\w+)|\[(\d+)\]", place[1] if place else "")
        )
        cause = error.__cause__
        if isinstance(cause, UserError):  # what the class itself checks
            raise Mistake(str(cause), *where, *getattr(cause, "key", ())) from cause
        if missing := re.search(r"missing required field `(\w+)`", str(error)):
            raise Mistake(f"{_called(name, where)} needs the key {missing[1]!r}.", *where) from error
        raise _wrong_type(cls, given, where) from error


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(read_text(path))
    except (ValueError, RecursionError) as error:  # a number of thousands of digits too
        raise UserError(f"{path} is not valid TOML: {error}.") from error


@contextmanager
def mistakes_in(path: Path) -> Iterator[None]:
    """Mistakes within name the file, and of a TOML file the line."""
    try:
        yield
    except Mistake as error:
        line = f", line {_line(key_lines(read_text(path)), error.key)}" if path.suffix == ".toml" else ""
        raise UserError(f"{path}{line}: {error}") from error


def key_lines(text: str) -> dict[Key, int]:
    """The line of every table and of every key that begins a line, by path: ("models", 1, "dtype") -> 12."""
    lines: dict[Key, int] = {}
    table: Key = ()
    counts: dict[str, int] = {}
    depth = 0
    for number, line in enumerate(text.splitlines(), 1):
        bare = re.sub(r'"(\\.|[^"\\])*"|\'[^\']*\'|#.*', lambda m: "#" if m[0].startswith("#") else '""', line)
        if depth == 0 and (header := _HEADER.match(line)):
            first, *rest = header[2].strip().split(".")
            if header[1] and not rest:
                counts[first] = counts.get(first, -1) + 1
            table = (first, counts[first], *rest) if first in counts else (first, *rest)
            lines.setdefault(table, number)
        elif depth == 0 and (key := _KEY.match(line)):
            lines.setdefault((*table, *key[1].strip('"').split(".")), number)
        if not _HEADER.match(line):
            depth = max(0, depth + sum(bare.count(c) for c in "[{") - sum(bare.count(c) for c in "]}"))
    return lines


def _line(lines: Mapping[Key, int], key: Key) -> int:
    """The line of a key, or of the nearest thing that holds it."""
    while key and key not in lines and (*key, 0) not in lines:
        key = key[:-1]
    return lines.get(key) or lines.get((*key, 0), 1)


def _with_known_keys(cls: Any, table: Mapping[str, Any], name: str, where: Key) -> dict[str, Any]:
    """The table, its keys checked, as msgspec leaves unknown ones out; written forms parsed."""
    hints = get_type_hints(cls)
    given: dict[str, Any] = {}
    for key, value in table.items():
        here = (*where, key)
        if key not in hints:
            raise Mistake(f"There is no key {key!r} in {_called(name, where)}: {did_you_mean(key, hints)}.", *here)
        kind: Any = hints[key]
        parse = getattr(kind, "parse", None)
        held: Any = get_args(kind)[0] if get_origin(kind) is tuple else None
        if held is str and isinstance(value, str):
            value = [value]
        elif is_dataclass(held) and isinstance(value, list):
            value = [
                _with_known_keys(held, one, name, (*here, number)) if isinstance(one, dict) else one
                for number, one in enumerate(value)
            ]
        elif is_dataclass(kind) and isinstance(value, dict):
            value = _with_known_keys(kind, value, name, here)
        elif isinstance(value, str) and parse is not None:
            try:
                value = parse(value)
            except UserError as error:
                raise Mistake(str(error), *here) from error
        given[key] = value
    return given


def _called(name: str, where: Key) -> str:
    return f"[{where[0]}]" if where else name


def _wrong_type(cls: Any, value: Any, where: Key) -> Mistake:
    """What the field should hold that a path leads to or into."""
    hint, field, at = cls, "", 0
    for place, part in enumerate(where):
        if isinstance(part, str) and is_dataclass(hint):
            hint, value, field, at = get_type_hints(hint)[part], value[part], part, place
        elif isinstance(part, int) and is_dataclass(held := get_args(hint)[0]) and place + 1 < len(where):
            hint, value = held, value[part]
    if is_dataclass(hint) and not hasattr(hint, "parse"):
        return Mistake(f"{field} should be a table: write [{field}].", *where[: at + 1])
    if is_dataclass(next(iter(get_args(hint)), None)):
        return Mistake(f"{field} should be tables: write [[{field}]] before each.", *where[: at + 1])
    return Mistake(f"{field} should be {_words(hint)}, not {value!r}.", *where[: at + 1])


def _words(hint: Any, many: bool = False) -> str:
    """A type as a sentence has it."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in (str, int, float, bool):
        one, more = {
            str: ("a text", "texts"),
            int: ("a whole number", "whole numbers"),
            float: ("a number", "numbers"),
            bool: ("true or false", "true or false"),
        }[hint]
        return more if many else one
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin in (tuple, list):
        return f"a list of {_words(inner[0], many=True)}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a table" if inner[1] is Any else f"a table of {_words(inner[1], many=True)}"
    if isinstance(inner, Sequence) and inner:  # a union
        return " or ".join(_words(kind, many) for kind in inner if kind is not NoneType)
    return "a text" if hasattr(hint, "parse") else "a table"
