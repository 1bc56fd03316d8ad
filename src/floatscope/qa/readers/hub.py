"""Datasets by name from the Hugging Face hub, with the extra `datasets`. Rows have the shapes of files."""

import re
from collections.abc import Iterator
from importlib import import_module

from floatscope.errors import UserError
from floatscope.qa.readers.records import Record

PREFIX = "hf:"
_NAME = re.compile(r"hf:(?P<name>[^@:]+)(@(?P<config>[^@:]+))?(:(?P<split>[^@:]+))?")
DEFAULT_SPLIT = "validation"


def read_hub_records(source: str) -> Iterator[Record]:
    """Rows of "hf:NAME[@CONFIG][:SPLIT]", streamed; the split is `validation` where none is given."""
    match = _NAME.fullmatch(source)
    if match is None:
        raise UserError(f"{source!r} is no dataset name: write hf:NAME[@CONFIG][:SPLIT].")
    try:
        datasets = import_module("datasets")
    except ImportError as error:
        remedy = "pip install 'floatscope[datasets]'"
        raise UserError(f"{source!r} needs the package `datasets`: {remedy}.") from error
    name, config, split = match["name"], match["config"], match["split"] or DEFAULT_SPLIT
    number = 0
    try:
        rows = datasets.load_dataset(name, config, split=split, streaming=True)
        for number, row in enumerate(rows, start=1):
            yield Record(f"row {number}", number, row)
    except Exception as error:  # many kinds: an unknown name, config or split, no network, a gated dataset
        reason = " ".join(str(error).split()).rstrip(".")
        done = f" after row {number}" if number else ""
        raise UserError(
            f"{source!r} cannot be read from the hub{done}: {reason}. Check the name and the network, or give a file."
        ) from error
