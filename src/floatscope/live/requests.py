"""What the page may ask for: a question, documents, one or two models by name; all of it checked against limits.

Nothing a browser sends is ever a path: models are names of a list that the command line gave. No torch here.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

from floatscope.errors import UserError
from floatscope.qa.samples import Document


@dataclass(frozen=True)
class Limits:
    """The most that one request may ask for; texts are counted in characters. The page is told of them."""

    question: int = 2_000
    documents: int = 24
    title: int = 200
    text: int = 8_000
    answers: int = 8
    answer: int = 2_000
    models: int = 2
    slots: int = 128
    steps: int = 256
    seed: int = 2**31 - 1
    body: int = 262_144
    """Bytes of a request."""
    hidden: int = 64
    """Documents and tokens that are hidden."""
    waiting: int = 8
    """Jobs that may wait behind the one that runs."""
    connections: int = 64
    """Connections that may be open at once."""


LIMITS = Limits()
GAP = "{answer}"
"""Where a text has this, the answer's slots stand in its place; else they follow the question."""


class Refused(UserError):
    """A request that is not served: an HTTP status and a sentence for the page."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class Request:
    """One job, checked."""

    question: str
    documents: tuple[Document, ...]
    answers: tuple[str, ...]
    models: tuple[str, ...]
    slots: int
    steps: int
    seed: int
    hidden: tuple[str, ...] = ()
    """What nobody may look at in a second run beside the first: documents ("doc 2") and positions of tokens ("17")."""


def read_request(body: bytes, models: Collection[str], limits: Limits = LIMITS) -> Request:
    """A request from the JSON text that the page sends; every mistake is Refused with a sentence."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "The request is not valid JSON.") from error
    table = _table(given, "The request", [field.name for field in fields(Request)])
    question = _text(table.get("question"), "The question", limits.question, empty=False)
    documents = _list(table.get("documents", []), "documents", limits.documents)
    if question.count(GAP) > 1 or question == GAP:
        raise Refused(400, f"Write {GAP} once, in a text: the slots stand in its place.")
    if GAP in question and documents:
        raise Refused(400, f"A text with {GAP} is filled as it stands: remove the documents, or put them into it.")
    answers = _list(table.get("answers", []), "right answers", limits.answers)
    chosen = _list(table.get("models"), "models", limits.models)
    if not all(isinstance(name, str) and name in models for name in chosen):
        raise Refused(400, f"There is no such model here: this page serves {', '.join(models)}.")
    if not chosen or len(set(chosen)) < len(chosen):
        raise Refused(400, "Choose one model, or two different ones to compare.")
    return Request(
        question=question,
        documents=tuple(_document(one, number, limits) for number, one in enumerate(documents, 1)),
        answers=tuple(_text(one, "A right answer", limits.answer, empty=False) for one in answers),
        models=tuple(chosen),
        slots=_whole(table.get("slots"), "The number of answer slots", 1, limits.slots),
        steps=_whole(table.get("steps"), "The number of steps", 1, limits.steps),
        seed=_whole(table.get("seed", 0), "The seed", 0, limits.seed),
        hidden=_hidden(table.get("hidden", []), len(documents), limits),
    )


def _hidden(given: Any, documents: int, limits: Limits) -> tuple[str, ...]:
    names = _list(given, "hidden documents and tokens", limits.hidden)
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r"doc \d{1,4}|\d{1,6}", name):
            raise Refused(400, 'What is hidden should be documents ("doc 2") or positions of tokens ("17").')
        if name.startswith("doc") and not 1 <= int(name[4:]) <= documents:
            raise Refused(400, f"There is no document {int(name[4:])} to hide.")
    return tuple(names)


def _document(given: Any, number: int, limits: Limits) -> Document:
    table = _table(given, f"Document {number}", ("title", "text", "gold"))
    gold = table.get("gold", False)
    if not isinstance(gold, bool):
        raise Refused(400, f"Document {number}: gold should be true or false.")
    return Document(
        _text(table.get("title", ""), f"The title of document {number}", limits.title),
        _text(table.get("text"), f"The text of document {number}", limits.text, empty=False),
        gold,
    )


def _table(given: Any, what: str, known: Collection[str]) -> Mapping[str, Any]:
    if not isinstance(given, dict):
        raise Refused(400, f"{what} should be a JSON object with {', '.join(known)}.")
    if unknown := [name for name in given if name not in known]:
        raise Refused(400, f"{what} has an unknown entry {unknown[0][:40]!r}: it takes {', '.join(known)}.")
    return given


def _list(given: Any, what: str, most: int) -> list[Any]:
    if not isinstance(given, list):
        raise Refused(400, f"The {what} should be a list.")
    if len(given) > most:
        raise Refused(400, f"There are {len(given)} {what}: this page takes at most {most}.")
    return given


def _text(given: Any, what: str, most: int, empty: bool = True) -> str:
    # JSON can spell half a surrogate pair, which no tokenizer can read.
    if not isinstance(given, str) or any("\ud800" <= character <= "\udfff" for character in given):
        raise Refused(400, f"{what} should be a text.")
    if len(given) > most:
        raise Refused(400, f"{what} has {len(given):,} characters: this page takes at most {most:,}.")
    if not empty and not given.strip():
        raise Refused(400, f"{what} is empty.")
    return given.strip()


def _whole(given: Any, what: str, least: int, most: int) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not least <= given <= most:
        raise Refused(400, f"{what} should be a whole number from {least} to {most}.")
    return given
