"""The plain shape, to be written by hand: question, answers, documents of {title, text, gold}."""

from typing import Any

from floatscope.qa.readers.fields import Data, WrongField, first_of, flag_of, some_answers, text_of, title_of
from floatscope.qa.readers.shape import Shape
from floatscope.qa.samples import Document, Sample

QUESTION = ("question", "query")
ANSWERS = ("answers", "answer")


def _matches(data: Data) -> bool:
    return any(name in data for name in QUESTION) and any(name in data for name in ANSWERS)


def _document(value: Any) -> Document:
    """A bare text is a document without a title."""
    if isinstance(value, str) and value.strip():
        return Document("", value.strip())
    if isinstance(value, dict):
        return Document(title_of(value, "title"), text_of(value, "text"), flag_of(value, "gold"))
    raise WrongField("an entry of `documents` is neither a text nor an object with a `text`")


def _sample(data: Data, id: str) -> Sample:
    documents = data.get("documents") or []
    if not isinstance(documents, list):
        raise WrongField("its field `documents` is not a list")
    metadata = data.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise WrongField("its field `metadata` is not an object")
    answers = some_answers(first_of(data, *ANSWERS), ANSWERS)
    return Sample(id, text_of(data, *QUESTION), answers, tuple(map(_document, documents)), metadata)


SHAPE = Shape(
    name="plain",
    summary="plain JSONL: question, answers, documents[] of title, text, gold",
    matches=_matches,
    sample=_sample,
)
