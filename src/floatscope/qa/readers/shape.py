"""What a dataset shape is: how to recognise a record of it and how to make a sample of one."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from floatscope.qa.readers.fields import Data
from floatscope.qa.samples import Sample


def whole(data: Data) -> Iterable[Data]:
    """A record that is one question."""
    return (data,)


@dataclass(frozen=True)
class Shape:
    """One way in which question answering data is written down."""

    name: str
    summary: str
    matches: Callable[[Data], bool]
    """Does this record look like the shape? Asked of the first records of a file."""
    sample: Callable[[Data, str], Sample]
    """A record and the id to give it become a sample; raises WrongField."""
    questions: Callable[[Data], Iterable[Data]] = whole
    """The records of single questions in a record of the file (a SQuAD article holds many)."""
