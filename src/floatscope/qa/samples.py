"""The atoms of question answering: a document and a sample. Reading files and building prompts is left to others."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Document:
    """One text a model may be shown; `gold` says that it carries (part of) the answer."""

    title: str
    text: str
    gold: bool = False


@dataclass(frozen=True)
class Sample:
    """One question with every accepted answer and the documents that go with it, in the order they are shown."""

    id: str
    question: str
    answers: tuple[str, ...]
    documents: tuple[Document, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
