"""Values of TOML and JSON files made into dataclasses: every mistake is one sentence with its key and nearest name.

msgspec checks the types; here its findings become words, and a key of a TOML file gets its line.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
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


def validated(cls: type[T], table: Mapping[str, Any], name: str, where: Key = ()) -> T:
    """The dataclass that a table describes, tables within it included; anything wrong is a Mistake.

    name: what sentences call the whole, such as "a study"; where: the key that the table stands under. A text that a
    list of texts should hold may stand alone; a field's class that has `parse` may be given in its written form.
    """
    here = f"[{where[0]}]" if where else name
    hints = get_type_hints(cls)
    given: dict[str, Any] = {}
    for key, value in table.items():
        if key not in hints:
            raise Mistake(f"There is no key {key!r} in {here}: {did_you_mean(key, hints)}.", *where, key)
        given[key] = _validated_value(hints[key], value, name, (*where, key))
    for part in fields(cls):  # pyright: ignore[reportArgumentType]
        if part.name not in given and part.default is MISSING and part.default_factory is MISSING:
            raise Mistake(f"{here} needs the key {part.name!r}.", *where)
    with mistakes_under(*where):  # what the class itself checks
        return cls(**given)


def _validated_value(hint: Any, value: Any, name: str, where: Key) -> Any:
    """A value as its field holds it."""
    import msgspec

    kinds = get_args(hint)
    table: Any = next((kind for kind in (hint, *kinds) if is_dataclass(kind)), None)
    is_list = get_origin(hint) is tuple
    if table is None:
        if is_list and kinds[0] is str and isinstance(value, str):
            value = [value]
        try:
            return msgspec.convert(value, hint)
        except msgspec.ValidationError as error:
            raise Mistake(f"{where[-1]} should be {_words(hint)}, not {value!r}.", *where) from error
    parse = getattr(table, "parse", None)
    if parse is not None and isinstance(value, str):
        with mistakes_under(*where):
            return parse(value)
    if is_list:
        if not isinstance(value, list) or not all(isinstance(one, dict | table) for one in value):
            raise Mistake(f"{where[-1]} should be tables: write [[{where[-1]}]] before each.", *where)
        tables = enumerate(value)
        return tuple(one if isinstance(one, table) else validated(table, one, name, (*where, i)) for i, one in tables)
    if not isinstance(value, dict):
        wanted = f"a text, not {value!r}" if parse is not None else f"a table: write [{where[-1]}]"
        raise Mistake(f"{where[-1]} should be {wanted}.", *where)
    return validated(table, value, name, where)


@contextmanager
def mistakes_under(*key: str | int) -> Iterator[None]:
    """Mistakes within are about that key, or about keys under it."""
    try:
        yield
    except UserError as error:
        raise Mistake(str(error), *key, *getattr(error, "key", ())) from error


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    text = read_text(path)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits too
        raise UserError(f"{path} is not valid TOML: {error}.") from error


@contextmanager
def mistakes_in(path: Path) -> Iterator[None]:
    """Mistakes within name the file, and of a TOML file the line."""
    try:
        yield
    except Mistake as error:
        if path.suffix != ".toml":
            raise UserError(f"{path}: {error}") from error
        key, lines = error.key, key_lines(read_text(path))
        while key and key not in lines and (*key, 0) not in lines:  # the nearest thing that holds it
            key = key[:-1]
        line = lines.get(key) or lines.get((*key, 0), 1)
        raise UserError(f"{path}, line {line}: {error}") from error


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
    return "a table"
