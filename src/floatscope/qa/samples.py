"""The atoms of a task: a document and a sample. Reading files and building prompts is left to others."""

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
    """One question with every accepted answer and the documents that go with it, in the order they are shown.

    Or a passage, which asks nothing (its question is empty): its slots begin where `before` ends, and its first answer
    is the text that stood there, so that before + answers[0] + after is the passage, character for character.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    documents: tuple[Document, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    before: str = ""
    after: str = ""

    @property
    def is_passage(self) -> bool:
        """Whether there is a text to fill in, and no question."""
        return bool(self.before or self.after)
