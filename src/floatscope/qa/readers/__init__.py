"""Reading question answering files of many shapes into samples. Retrieval and prompts are left to others.

A shape is a file with a row; this is the place where the rows are listed.
"""

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from floatscope.errors import UserError
from floatscope.qa.readers import hotpotqa, kilt, lost_in_the_middle, ms_marco, paper, plain, squad, triviaqa
from floatscope.qa.readers.fields import WrongField, identity
from floatscope.qa.readers.hub import PREFIX, read_hub_records
from floatscope.qa.readers.records import Record, WrongRecord, read_records
from floatscope.qa.readers.shape import Shape
from floatscope.qa.samples import Sample
from floatscope.registry import Registry

__all__ = ["SHAPES", "Skipped", "read_samples"]

# The last is asked first: a shape stands after those whose looser test its records would pass as well, and so does
# one that is added.
SHAPES: Registry[Shape] = Registry(
    "dataset shape",
    {
        module.SHAPE.name: module.SHAPE
        for module in (plain, kilt, ms_marco, triviaqa, squad, hotpotqa, lost_in_the_middle, paper)
    },
)
DETECTION_RECORDS = 20


@dataclass(frozen=True)
class Skipped:
    """A record that was left out: where it stands in the file and what is wrong with it."""

    source: str
    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.source}, {self.place}: {self.reason}."


def read_samples(
    path: str | Path,
    shape: str | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    limit: int | None = None,
    skipped: list[Skipped] | None = None,
) -> Iterator[Sample]:
    """Samples of a .json or .jsonl file, gzipped or not, or of "hf:NAME[@CONFIG][:SPLIT]", one by one.

    The shape is recognised from the first records unless it is named. A record that cannot be used raises a
    UserError with its place, or with on_error="skip" is left out and put on `skipped` (a warning each where
    no list is given). A file that is damaged as a whole raises in any case, and so does one without a sample.
    """
    if on_error not in ("raise", "skip"):
        raise UserError(f"on_error is {on_error!r}: use 'raise' or 'skip'.")
    if limit is not None and limit < 1:
        raise UserError(f"The limit is {limit}: ask for at least one sample.")
    return islice(_samples(str(path), SHAPES.named(shape) if shape else None, on_error, skipped), limit)


def _samples(
    source: str, shape: Shape | None, on_error: Literal["raise", "skip"], skipped: list[Skipped] | None
) -> Iterator[Sample]:
    name = source if source.startswith(PREFIX) else Path(source).name
    places: dict[str, str] = {}
    for outcome in _outcomes(source, shape):
        if isinstance(outcome, WrongRecord):
            wrong = outcome
        else:
            place, sample = outcome
            if sample.id not in places:
                places[sample.id] = place
                yield sample
                continue
            wrong = WrongRecord(place, f"it has the id {sample.id!r} of {places[sample.id]}")
        report = Skipped(name, wrong.place, wrong.reason)
        if on_error == "raise":
            raise UserError(f"{report} Mend it, or leave such records out with on_error='skip'.")
        if skipped is None:
            warnings.warn(f"Left out: {report}", stacklevel=2)
        else:
            skipped.append(report)
    if not places:
        raise UserError(f"{name} holds no sample that can be used.")


def _outcomes(source: str, shape: Shape | None) -> Iterator[tuple[str, Sample] | WrongRecord]:
    """Each question of the source as (place, sample), or what is wrong with it, in order."""
    records = read_hub_records(source) if source.startswith(PREFIX) else read_records(_existing(source))
    if shape is None:
        head = list(islice(records, DETECTION_RECORDS))
        shape = _detected(head, source)
        yield from _of_shape(head, shape, source)
    yield from _of_shape(records, shape, source)


def _of_shape(
    records: Iterable[Record | WrongRecord], shape: Shape, source: str
) -> Iterator[tuple[str, Sample] | WrongRecord]:
    stem = Path(source).name.split(".")[0]
    for record in records:
        if isinstance(record, WrongRecord):
            yield record
            continue
        place = record.place
        try:
            for index, data in enumerate(shape.questions(record.data), start=1):
                nested = data is not record.data
                place = f"{record.place}, question {index}" if nested else record.place
                fallback = f"{stem}-{record.number}-{index}" if nested else f"{stem}-{record.number}"
                try:
                    yield place, shape.sample(data, identity(data) or fallback)
                except WrongField as error:
                    yield WrongRecord(place, str(error))
        except WrongField as error:
            yield WrongRecord(place, str(error))


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
        found = f"none of its first {len(head)} records is a JSON object ({_first_reason(head)})"
    known = ", ".join(SHAPES)
    raise UserError(f"{source} has no known shape: {found}. Known: {known}; name one to force it.")


def _first_reason(head: list[Record | WrongRecord]) -> str:
    wrong = (record for record in head if isinstance(record, WrongRecord))
    return next((f"{record.place}: {record.reason}" for record in wrong), "nothing there")


def _existing(source: str) -> Path:
    path = Path(source)
    if not path.exists():
        raise UserError(f"There is no file {source}: check its name; a relative path starts where the command runs.")
    if path.is_dir():
        raise UserError(f"{source} is a folder: name a file in it.")
    return path
