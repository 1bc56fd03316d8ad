"""Records of JSON and JSON Lines files, gzipped or not, and of the hub, with their places. Shapes read them."""

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, cast

from floatscope.errors import UserError
from floatscope.files import read_text, refuse_device

LINE_SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
HUB = "hf:"
_HUB_NAME = re.compile(r"hf:(?P<name>[^@:]+)(@(?P<config>[^@:]+))?(:(?P<split>[^@:]+))?")


@dataclass(frozen=True)
class Record:
    """One JSON object of a source; `place` says where it stands ("line 3", "item 3"), `number` only the 3."""

    place: str
    number: int
    data: Mapping[str, Any]


@dataclass(frozen=True)
class WrongRecord:
    """A record that cannot be used: where it stands and what is wrong with it."""

    source: str
    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.source}, {self.place}: {self.reason}."


def source_name(source: str) -> str:
    """What messages call a source: the name of its file, or the hub's."""
    return source if source.startswith(HUB) else Path(source).name


def read_records(path: Path) -> Iterator[Record | WrongRecord]:
    """The objects of a file in order; a line that is none comes as a WrongRecord, a damaged file raises.

    Content decides, not the name: a file whose first line is a JSON object is JSON Lines, unless that object
    is the whole document (SQuAD and TriviaQA wrap their items in one).
    """
    try:
        _, first = next(_lines(path), (0, b""))
        if not first:
            raise UserError(f"{path} is empty: give a file with at least one JSON object.")
        if first.startswith(b"version https://git-lfs"):
            raise UserError(f"{path} is a Git LFS pointer, not the data: run `git lfs pull` at its source.")
        document, _ = _parsed(first)
        by_line = isinstance(document, dict) and _wrapped(document) is None
        if not isinstance(document, dict):  # a document over many lines, or lines of which the first is wrong
            document, wrong = _parsed(b"\n".join(line for _, line in _lines(path, keep_blank=True)))
            objects = (isinstance(_parsed(line)[0], dict) for _, line in _lines(path))
            by_line = bool(wrong) and (path.name.endswith(LINE_SUFFIXES) or any(objects))
            if wrong and not by_line:
                raise UserError(f"{path} {wrong}.")
        if by_line:
            for number, line in _lines(path):
                yield _record(path, "line", number, *_parsed(line))
            return
        items = _wrapped(document) if isinstance(document, dict) else document
        if not isinstance(items, list | None):
            kind = type(document).__name__
            raise UserError(f"{path} holds a single JSON {kind}: give a list of objects or one object per line.")
        for number, item in enumerate([document] if items is None else items, start=1):
            yield _record(path, "item", number, item)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is a damaged or cut-off gzip file ({error}): fetch it again.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error


def read_paragraphs(path: Path, words: int) -> Iterator[Record]:
    """The paragraphs of a text with so many words at least; blank lines stand between them."""
    for number, text in enumerate(re.split(r"\n\s*\n", read_text(path).strip()), start=1):
        if len(text.split()) >= words:
            yield Record(f"paragraph {number}", number, {"text": text})


def read_hub_records(source: str) -> Iterator[Record]:
    """Rows of "hf:NAME[@CONFIG][:SPLIT]", streamed; the split is `validation` where none is given."""
    match = _HUB_NAME.fullmatch(source)
    if match is None:
        raise UserError(f"{source!r} is no dataset name: write hf:NAME[@CONFIG][:SPLIT].")
    try:
        datasets = import_module("datasets")
    except ImportError as error:
        raise UserError(f"{source!r} needs the package `datasets`: pip install 'floatscope[datasets]'.") from error
    number = 0
    try:
        rows = datasets.load_dataset(
            match["name"], match["config"], split=match["split"] or "validation", streaming=True
        )
        for number, row in enumerate(rows, start=1):
            yield Record(f"row {number}", number, row)
    except Exception as error:  # many kinds: an unknown name, config or split, no network, a gated dataset
        reason = " ".join(str(error).split()).rstrip(".")
        done = f" after row {number}" if number else ""
        raise UserError(
            f"{source!r} cannot be read from the hub{done}: {reason}. Check the name and the network, or give a file."
        ) from error


def _wrapped(document: dict[str, Any]) -> list[Any] | None:
    """The items that a document is a wrapper of, or None where it is an item itself.

    MS MARCO ships its items by column: {"query": {"0": ..., "1": ...}, "answers": {"0": ...}, ...}.
    """
    for key in ("data", "Data"):
        if isinstance(document.get(key), list):
            return document[key]
    columns = list(document.values())
    if "query" not in document or len(columns) < 2 or not all(isinstance(one, dict) and one for one in columns):
        return None
    if not all(key in document["query"] for key in columns[0]):
        return None
    return [{name: column[key] for name, column in document.items() if key in column} for key in document["query"]]


def _record(path: Path, kind: str, number: int, value: Any, wrong: str = "") -> Record | WrongRecord:
    if isinstance(value, dict):
        return Record(f"{kind} {number}", number, value)
    wrong = wrong or f"is a JSON {type(value).__name__}, not an object"
    return WrongRecord(path.name, f"{kind} {number}", f"it {wrong}")


def _parsed(data: bytes) -> tuple[Any, str]:
    """A JSON value; or None, and what the data is instead.

    Half a surrogate pair, which JSON can spell and no tokenizer and no file takes, becomes a question mark.
    """
    try:
        found = json.loads(data)
        if b"\\ud" in data.lower() or b"\xed" in data:
            found = json.loads(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"))
        return found, ""
    except UnicodeDecodeError as error:
        return None, f"is not UTF-8 text (byte {error.start}): save it as UTF-8"
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if b"\n" in data else ""
        return None, f"is not valid JSON: {error.msg} at {line}column {error.colno}"
    except ValueError as error:  # a number of thousands of digits
        return None, f"is not valid JSON: {error}"
    except RecursionError:
        return None, "is not valid JSON: it is nested too deeply"


def _lines(path: Path, keep_blank: bool = False) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers from 1, without a byte order mark; blank ones only where asked for."""
    refuse_device(path)
    with path.open("rb") as stream:
        compressed = stream.read(2) == b"\x1f\x8b"
    with cast(BinaryIO, gzip.open(path)) if compressed else path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            line = line.strip()
            if line or keep_blank:
                yield number, line
