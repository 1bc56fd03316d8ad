"""Reading question answering files of many shapes into samples. Retrieval and prompts are left to others."""

import os
import warnings
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from floatscope.errors import UserError
from floatscope.qa.readers.fields import Noted, WrongField, identity
from floatscope.qa.readers.records import (
    HUB,
    Record,
    WrongRecord,
    read_hub_records,
    read_paragraphs,
    read_records,
    source_name,
)
from floatscope.qa.readers.shapes import LEAST_WORDS, SHAPES, Shape
from floatscope.qa.samples import Sample

__all__ = ["SHAPES", "Shape", "WrongRecord", "read_samples"]

DETECTION_RECORDS = 20


def read_samples(
    path: str | Path, shape: str | None = None, skipped: list[WrongRecord] | None = None
) -> Iterator[Sample]:
    """Samples of a .json or .jsonl file, gzipped or not, or of "hf:NAME[@CONFIG][:SPLIT]", one by one.

    The shape is recognised from the first records unless it is named. A record that cannot be used raises a
    UserError with its place; where a list `skipped` is given it is put there and left out. A file that is damaged as
    a whole raises in any case, and so does one without a sample.
    """
    source, found = str(path), False
    for outcome in _outcomes(source, SHAPES.named(shape) if shape else None):
        if isinstance(outcome, Sample):
            found = True
            yield outcome
        elif skipped is None:
            raise UserError(f"{outcome} Mend it, or leave such records out with --skip-wrong.")
        else:
            skipped.append(outcome)
    if not found:
        raise UserError(f"{source_name(source)} holds no sample that can be used.")


def _outcomes(source: str, shape: Shape | None) -> Iterator[Sample | WrongRecord]:
    """Each question of the source as a sample, or what is wrong with it, in order."""
    name, stem = source_name(source), Path(source).name.split(".")[0]
    if source.startswith(HUB):
        records = read_hub_records(source)
    elif not os.path.exists(source):  # which takes any text for a path, however wrong
        raise UserError(f"There is no file {source}: check its name; a relative path starts where the command runs.")
    elif os.path.isdir(source):
        raise UserError(f"{source} is a folder: name a file in it.")
    elif shape is SHAPES["passage"] and ".json" not in Path(source).name:
        records = read_paragraphs(Path(source), LEAST_WORDS)
    else:
        records = read_records(Path(source))
    if shape is None:
        head = list(islice(records, DETECTION_RECORDS))
        shape, records = _detected(head, source), chain(head, records)
    places: dict[str, str] = {}
    told = False
    for record in records:
        if isinstance(record, WrongRecord):
            yield record
            continue
        place, suffix = record.place, ""
        try:
            for index, data in enumerate(shape.questions(record.data), start=1):
                if data is not record.data:
                    place, suffix = f"{record.place}, question {index}", f"-{index}"
                try:
                    noted = Noted(data)
                    sample = shape.sample(noted, identity(data) or f"{stem}-{record.number}{suffix}")
                    if sample.id in places:
                        raise WrongField(f"it has the id {sample.id!r} of {places[sample.id]}")
                    places[sample.id] = place
                    if not (told or sample.documents or sample.is_passage) and noted.unread:
                        told = True
                        unread = ", ".join(f"`{field}`" for field in noted.unread)
                        warnings.warn(
                            f"{name}, {place}: read as the shape {shape.name!r}, it has no documents, and nothing was "
                            f"read of its fields {unread}. The shape says which fields are read: {shape.summary}.",
                            stacklevel=2,
                        )
                    yield sample
                except WrongField as error:
                    yield WrongRecord(name, place, str(error))
        except WrongField as error:  # of the record around the questions
            yield WrongRecord(name, place, str(error))


def _detected(head: list[Record | WrongRecord], source: str) -> Shape:
    good = [record for record in head if isinstance(record, Record)]
    for record in good:
        for shape in reversed(tuple(SHAPES.values())):
            if shape.matches(record.data):
                return shape
    if good:
        keys = ", ".join(f"`{key}`" for key in list(good[0].data)[:8])
        found = f"its first object has the fields {keys or 'of no name'}"
    else:
        wrong = (record for record in head if isinstance(record, WrongRecord))
        reason = next((f"{record.place}: {record.reason}" for record in wrong), "nothing there")
        found = f"none of its first {len(head)} records is a JSON object ({reason})"
    raise UserError(f"{source} has no known shape: {found}. Known: {', '.join(SHAPES)}; name one to force it.")
