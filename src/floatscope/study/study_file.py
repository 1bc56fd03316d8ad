"""Studies as TOML files: reading with the key, the line and the nearest name of every mistake, and writing."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from floatscope.errors import UserError
from floatscope.qa.stressors import STRESSORS
from floatscope.study.plan import Curve, ModelPlan, PlanError, PromptPlan, Study, TaskPlan, nearest

T = TypeVar("T")
Key = tuple[str | int, ...]
SHIPPED = Path(__file__).parent / "studies"
PARTS: dict[str, type] = {"models": ModelPlan, "tasks": TaskPlan, "conditions": Curve}
_HEADER = re.compile(r"^\s*\[(\[?)\s*([^\]]+?)\s*\]")
_KEY = re.compile(r"^\s*([A-Za-z0-9_.\-]+|\"[^\"]+\")\s*=")


def find_study(name: str | Path) -> Path:
    """The file of a study: a path, or the name of one that comes with the package."""
    path = Path(name)
    if path.suffix == ".toml":
        if not path.is_file():
            raise UserError(f"There is no study file {path}.")
        return path
    known = {file.stem: file for file in sorted(SHIPPED.glob("*.toml"))}
    if str(name) not in known:
        raise UserError(f"There is no study {str(name)!r}: {nearest(str(name), known)}; or give a .toml file.")
    return known[str(name)]


def read_study(path: str | Path) -> Study:
    """The study of a TOML file; every mistake is a sentence with its line."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"The study {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"The study {path} is not UTF-8 text.") from error
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path.name} is not valid TOML: {error}.") from error
    try:
        return _study(data)
    except PlanError as error:
        raise UserError(f"{path.name}, line {_line(key_lines(text), error.key)}: {error}") from error


def write_study(study: Study) -> str:
    """The study as TOML text, all values written out; `read_study` gives the same study again."""
    lines = [f"{name} = {_value(value)}" for name, value in _plain(study).items() if name not in PARTS]
    for key in PARTS:
        for part in getattr(study, key):
            lines += ["", f"[[{key}]]", *(f"{name} = {_value(value)}" for name, value in _plain(part).items())]
    return "\n".join(lines) + "\n"


def key_lines(text: str) -> dict[Key, int]:
    """The line of every table and of every key that begins a line, by path: ("models", 1, "dtype") -> 12."""
    lines: dict[Key, int] = {}
    table: Key = ()
    counts: dict[str, int] = {}
    depth = 0
    for number, line in enumerate(text.splitlines(), 1):
        bare = re.sub(r'"(\\.|[^"\\])*"|\'[^\']*\'|#.*', lambda m: "#" if m[0].startswith("#") else '""', line)
        if depth == 0 and (header := _HEADER.match(line)):
            name = header[2].strip()
            first, *rest = name.split(".")
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


def _study(data: dict[str, Any]) -> Study:
    given = dict(data)
    for key, cls in PARTS.items():
        tables = given.get(key, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise PlanError(f"{key} should be tables: write [[{key}]] before each.", key)
        read = _curve if cls is Curve else partial(_part, cls)
        given[key] = tuple(read(table, (key, number)) for number, table in enumerate(tables))
    if "prompt" in given:
        if not isinstance(given["prompt"], dict):
            raise PlanError("prompt should be a table: write [prompt].", "prompt")
        given["prompt"] = _part(PromptPlan, given["prompt"], ("prompt",))
    return _part(Study, given, ())


def _curve(table: Mapping[str, Any], where: Key) -> Curve:
    """A curve: the keys that every curve has, and its stressor's options.

    Options of other stressors say nothing here: older versions wrote all of them into the study of a run.
    """
    if "stressor" not in table:
        raise PlanError(f"{_table_name(where)} needs the key 'stressor'.", *where)
    options = {name: get_type_hints(row.options) for name, row in STRESSORS.items()}
    name = _typed(table["stressor"], str, "stressor", (*where, "stressor"))
    if name not in options:  # told first, since it decides which keys there are
        raise PlanError(f"There is no stressor {name!r}: {nearest(name, options)}.", *where, "stressor")
    own = options[name]
    others = {key for hints in options.values() for key in hints} - own.keys()
    hints = get_type_hints(Curve)
    del hints["options"]
    values = _values({key: value for key, value in table.items() if key not in others}, hints | own, where)
    given = {key: values.pop(key) for key in own if key in values}
    return _made(Curve, values | {"options": given}, where)


def _part(cls: type[T], table: Mapping[str, Any], where: Key) -> T:
    """One dataclass from one table."""
    return _made(cls, _values(table, get_type_hints(cls), where), where)


def _values(table: Mapping[str, Any], hints: Mapping[str, Any], where: Key) -> dict[str, Any]:
    """The values of a table: known keys of the right type."""
    for key in table:
        if key not in hints:
            raise PlanError(f"There is no key {key!r} in {_table_name(where)}: {nearest(key, hints)}.", *where, key)
    return {key: _typed(value, hints[key], key, (*where, key)) for key, value in table.items()}


def _made(cls: type[T], values: Mapping[str, Any], where: Key) -> T:
    """The dataclass of these values: none missing, and what the class itself checks."""
    for part in fields(cls):  # pyright: ignore[reportArgumentType]
        if part.name not in values and part.default is MISSING and part.default_factory is MISSING:
            raise PlanError(f"{_table_name(where)} needs the key {part.name!r}.", *where)
    try:
        return cls(**values)
    except PlanError as error:
        raise PlanError(str(error), *where, *error.key) from error


def _table_name(where: Key) -> str:
    return f"[{where[0]}]" if where else "a study"


def _typed(value: Any, hint: Any, key: str, where: Key) -> Any:
    """The value as its field has it, or a sentence."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for kind in kinds:
        origin = get_origin(kind)
        if origin is tuple and isinstance(value, list | tuple):
            inner = get_args(kind)[0]
            return tuple(item if inner in PARTS.values() else _typed(item, inner, key, where) for item in value)
        if origin is tuple and isinstance(value, str) and get_args(kind)[0] is str:
            return (value,)  # one name without its brackets
        if origin is Mapping and isinstance(value, dict):
            return value
        if origin is Literal and value in get_args(kind):
            return value
        if kind is str and key == "values" and isinstance(value, list | int) and not isinstance(value, bool):
            return ",".join(map(str, value)) if isinstance(value, list) else str(value)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if isinstance(kind, type) and isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
            return value
    raise PlanError(f"{key} should be {' or '.join(map(_kind_name, kinds))}, not {value!r}.", *where)


def _kind_name(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false", NoneType: "left out"}
    return names.get(kind) or ("a list" if get_origin(kind) is tuple else "a table")


def _plain(part: Any) -> dict[str, Any]:
    """Field values that a file can hold; what is None is left out."""
    values = {field.name: getattr(part, field.name) for field in fields(part)}
    if isinstance(part, Curve):
        values |= values.pop("options")
    return {name: value for name, value in values.items() if value is not None and value != {}}


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, PromptPlan):
        value = _plain(value)
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_name(key)} = {_value(item)}' for key, item in value.items())} }}"
    return repr(value)


def _name(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)
