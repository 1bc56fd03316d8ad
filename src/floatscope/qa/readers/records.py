"""Records of JSON and JSON Lines files, gzipped or not, with their places. Shapes know what they mean."""

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from floatscope.errors import UserError

GZIP_MAGIC = b"\x1f\x8b"
POINTER_HEAD = b"version https://git-lfs"
LINE_SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
CONTAINER_KEYS = ("data", "Data")


@dataclass(frozen=True)
class Record:
    """One JSON object of a file; `place` says where it stands ("line 3", "item 3"), `number` only the 3."""

    place: str
    number: int
    data: Mapping[str, Any]


@dataclass(frozen=True)
class WrongRecord:
    """A record that cannot be used: where it stands and what is wrong with it."""

    place: str
    reason: str


def read_records(path: Path) -> Iterator[Record | WrongRecord]:
    """The objects of a file in order; a line that is none comes as a WrongRecord, a damaged file raises.

    Content decides, not the name: a file whose first line is a JSON object is JSON Lines, unless that object
    is the whole document (SQuAD and TriviaQA wrap their items in one).
    """
    try:
        lines = _lines(path)
        number, first = next(lines, (0, b""))
        if not first:
            raise UserError(f"{path} is empty: give a file with at least one JSON object.")
        if first.startswith(POINTER_HEAD):
            raise UserError(f"{path} is a Git LFS pointer, not the data: run `git lfs pull` at its source.")
        head = _parse(first)
        if isinstance(head, dict) and not _is_container(head):
            yield Record(f"line {number}", number, head)
            yield from _line_records(lines)
        elif isinstance(head, dict):
            yield from _document_records(head, path)
        else:
            yield from _whole_file(path)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is a damaged or cut-off gzip file ({error}): fetch it again.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error


def _whole_file(path: Path) -> Iterator[Record | WrongRecord]:
    """A file whose first line is no object: a document over many lines, or lines of which some are wrong."""
    try:
        document = json.loads(b"\n".join(line for _, line in _lines(path, keep_blank=True)))
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8.") from error
    except json.JSONDecodeError as error:
        if not path.name.endswith(LINE_SUFFIXES) and not _has_object_line(path):
            place = f"line {error.lineno}, column {error.colno}"
            raise UserError(f"{path} is not valid JSON: {error.msg} at {place}.") from error
        yield from _line_records(_lines(path))
    else:
        yield from _document_records(document, path)


def _document_records(document: Any, path: Path) -> Iterator[Record | WrongRecord]:
    for number, item in enumerate(_items(document, path), start=1):
        place = f"item {number}"
        if isinstance(item, dict):
            yield Record(place, number, item)
        else:
            yield WrongRecord(place, f"it is a JSON {type(item).__name__}, not an object")


def _items(document: Any, path: Path) -> list[Any]:
    if isinstance(document, list):
        return document
    if isinstance(document, dict):
        for key in CONTAINER_KEYS:
            if isinstance(document.get(key), list):
                return document[key]
        if _is_columns(document):
            return _rows_of_columns(document)
        return [document]
    kind = type(document).__name__
    raise UserError(f"{path} holds a single JSON {kind}: give a list of objects or one object per line.")


def _is_container(value: dict[str, Any]) -> bool:
    return any(isinstance(value.get(key), list) for key in CONTAINER_KEYS) or _is_columns(value)


def _is_columns(value: dict[str, Any]) -> bool:
    """MS MARCO ships its items by column: {"query": {"0": ..., "1": ...}, "answers": {"0": ...}, ...}."""
    columns = list(value.values())
    return (
        len(columns) > 1
        and all(isinstance(column, dict) and column for column in columns)
        and "query" in value
        and all(key in value["query"] for key in columns[0])
    )


def _rows_of_columns(columns: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: column[key] for name, column in columns.items() if key in column} for key in columns["query"]]


def _line_records(lines: Iterator[tuple[int, bytes]]) -> Iterator[Record | WrongRecord]:
    for number, line in lines:
        place = f"line {number}"
        try:
            value = json.loads(line)
        except UnicodeDecodeError as error:
            yield WrongRecord(place, f"it is not UTF-8 text (byte {error.start} of the line)")
        except json.JSONDecodeError as error:
            yield WrongRecord(place, f"it is not valid JSON ({error.msg} at column {error.colno})")
        except RecursionError:
            yield WrongRecord(place, "its JSON is nested too deeply")
        else:
            if isinstance(value, dict):
                yield Record(place, number, value)
            else:
                yield WrongRecord(place, f"it is a JSON {type(value).__name__}, not an object")


def _has_object_line(path: Path) -> bool:
    return any(isinstance(_parse(line), dict) for _, line in _lines(path))


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _lines(path: Path, keep_blank: bool = False) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers from 1, without a byte order mark; blank ones only where asked for."""
    with _open(path) as stream:
        for number, line in enumerate(stream, start=1):
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            line = line.strip()
            if line or keep_blank:
                yield number, line


def _open(path: Path) -> BinaryIO:
    with path.open("rb") as stream:
        compressed = stream.read(2) == GZIP_MAGIC
    return cast(BinaryIO, gzip.open(path, "rb")) if compressed else path.open("rb")
