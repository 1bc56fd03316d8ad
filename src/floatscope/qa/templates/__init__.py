"""Templates: the words around question and documents, as text files; rendering keeps where every character is from.

The built-in ones are the .txt files beside this one, in the language of a user's own (docs/howto/prompts.md):
{documents} ... {number} [{title}. ] {text} ... {otherwise} ... {/documents}, {question}, {answer}, {before} ...
{/before}, {after} ... {/after}. A section's tag that stands alone on its line takes the line with it.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Literal

from floatscope.canvas import QUERY, SCAFFOLD, document_label
from floatscope.errors import UserError
from floatscope.files import read_text
from floatscope.qa.samples import Document

Placement = Literal["before", "after"]
TEXT, TITLE = "text", "title"

_SECTIONS = ("documents", "otherwise", "before", "after")
_FIELDS = {
    **dict.fromkeys(("question", "answer"), ("", "before", "after")),
    **dict.fromkeys(("number", "title", "text"), ("documents",)),
}
"""Fields, with the sections in which they mean something."""
_ALONE = re.compile(r"(?m)^[ \t]*(\{(?:/?documents|otherwise|/?before|/?after)\})[ \t]*\n")
_TOKEN = re.compile(
    r"\[(?P<lead>[^\[\]{}]*)\{title\}(?P<trail>[^\[\]{}]*)\]|(?P<brace>\{\{|\}\})|\{(?P<tag>[^{}]*)\}|(?P<stray>[{}])"
)


@dataclass(frozen=True)
class Piece:
    """A stretch of the prompt's text: its region label and, in documents, which part it is and whether it is gold."""

    text: str
    label: str
    part: str = ""
    gold: bool = False


@dataclass(frozen=True)
class _Item:
    """What a template has at one place: literal text (`lead`) or a field with what comes and goes with it."""

    section: str
    field: str = ""
    lead: str = ""
    trail: str = ""


@dataclass(frozen=True)
class Template:
    """A template that was read: `pieces` gives the text of a prompt, stretch by stretch."""

    name: str
    items: tuple[_Item, ...]
    placements: tuple[Placement, ...]
    """Where the question can stand, seen from the documents; the first is where it stands if nothing is said."""

    @property
    def has_answer(self) -> bool:
        """Whether it says where the slots of the answer stand; else they follow the text."""
        return any(item.field == "answer" for item in self.items)

    def pieces(
        self,
        question: str,
        documents: Sequence[Document],
        placement: Placement | None = None,
        answer: Piece | None = None,
    ) -> list[Piece]:
        """The prompt's text in order; neighbours that are scaffold are one piece. `answer` stands at {answer}."""
        placement = placement or self.placements[0]
        if placement not in self.placements:
            raise UserError(
                f"The template {self.name} has the question {self.placements[0]} the documents only: write it in "
                "{before} ... {/before} and {after} ... {/after} to have both."
            )
        merged: list[Piece] = []
        for piece in self._render({"question": Piece(question, QUERY), "answer": answer}, documents, placement):
            if merged and piece.label == merged[-1].label == SCAFFOLD:
                piece = Piece(merged.pop().text + piece.text, SCAFFOLD)
            merged.append(piece)
        return merged

    def _render(
        self, fields: Mapping[str, Piece | None], documents: Sequence[Document], placement: Placement
    ) -> Iterator[Piece]:
        for section, group in groupby(self.items, key=lambda item: item.section):
            items = tuple(group)
            if section == "documents":
                for number, document in enumerate(documents, 1):
                    label = document_label(number)
                    for item in items:
                        if item.field == "title":
                            if document.title:
                                yield Piece(f"{item.lead}{document.title}{item.trail}", label, TITLE, document.gold)
                        elif item.field == "text":
                            yield Piece(document.text, label, TEXT, document.gold)
                        else:
                            yield Piece(str(number) if item.field else item.lead, SCAFFOLD)
            elif section in ("", placement) or (section == "otherwise" and not documents):
                for item in items:
                    yield fields.get(item.field) or Piece(item.lead, SCAFFOLD)


def read_template(name: str, family: str = "") -> Template:
    """`default`, `paper` (the one for models of that family), or the path of a text file."""
    if name in ("default", "paper"):
        return _built_in("paper-llada" if (name, family) == ("paper", "llada") else name)
    path = Path(name)
    if not os.path.isfile(path):
        raise UserError(f"There is no template {name!r}: use default, paper, or the path of a text file.")
    return parse_template(read_text(path), path.name)


@lru_cache
def _built_in(name: str) -> Template:
    return parse_template(read_text(Path(__file__).parent / f"{name}.txt"), name)


def parse_template(text: str, name: str) -> Template:
    """A template from its text; line ends at the end of the file are no part of it."""
    plain = _ALONE.sub(r"\1", text.replace("\r\n", "\n") + "\n").rstrip("\n")
    items: list[_Item] = []
    section, end = "", 0
    for match in _TOKEN.finditer(plain):
        items.append(_Item(section, lead=plain[end : match.start()]))
        end = match.end()
        if match["brace"]:
            items.append(_Item(section, lead=match["brace"][0]))
        elif match["stray"]:
            line = plain[: match.start()].rpartition("\n")[2] + plain[match.start() :].partition("\n")[0]
            raise _wrong(
                name, f"has a brace that belongs to no field in {line!r}; write {{{{ or }}}} for the character"
            )
        elif match["tag"] is None:
            items.append(_field(name, section, "title", match["lead"], match["trail"]))
        elif match["tag"].removeprefix("/") in _SECTIONS:
            section = _enter(name, section, match["tag"])
        else:
            items.append(_field(name, section, match["tag"]))
    items.append(_Item(section, lead=plain[end:]))
    if section:
        raise _wrong(name, f"opens {{{section}}} and does not close it")
    kept = tuple(item for item in items if item.field or item.lead)
    return Template(name, kept, _placements(name, kept))


def _field(name: str, section: str, field: str, lead: str = "", trail: str = "") -> _Item:
    if field not in _FIELDS:
        known = ", ".join(f"{{{known}}}" for known in (*_SECTIONS, *_FIELDS))
        raise _wrong(name, f"has a field {{{field}}} that does not exist; there are {known}")
    if section not in _FIELDS[field]:
        where = f"inside {{{section}}}" if section else "outside of {documents}"
        raise _wrong(name, f"has {{{field}}} {where}, where it means nothing")
    return _Item(section, field, lead, trail)


def _enter(name: str, section: str, tag: str) -> str:
    """The section that a tag leads to."""
    if tag == "otherwise" and section == "documents":
        return "otherwise"
    if tag.startswith("/") and tag != "/otherwise" and tag[1:] == section.replace("otherwise", "documents"):
        return ""
    if section == "" and not tag.startswith("/") and tag != "otherwise":
        return tag
    where = f"inside {{{section}}}" if section else "where no section is open"
    raise _wrong(name, f"has {{{tag}}} {where}")


def _placements(name: str, items: Sequence[_Item]) -> tuple[Placement, ...]:
    """Both where both sections ask; else where the last question stands."""
    texts = sum(item.field == "text" for item in items)
    if texts != 1:
        raise _wrong(
            name, f"has {texts} places for a document's {{text}}: write one, in {{documents}} ... {{/documents}}"
        )
    if any(sum(i.field == "answer" and i.section in ("", where) for i in items) > 1 for where in ("before", "after")):
        raise _wrong(name, "has {answer} more than once: the slots stand in one place")
    asking = [place for place, item in enumerate(items) if item.field == "question"]
    if not asking:
        raise _wrong(name, "has no {question}")
    sections = {items[place].section for place in asking}
    for section in ("before", "after"):
        if section in {item.section for item in items} - sections:
            raise _wrong(name, f"has no {{question}} inside {{{section}}}")
    if {"before", "after"} <= sections:
        return "after", "before"
    documents = next(place for place, item in enumerate(items) if item.section == "documents")
    return ("after",) if asking[-1] > documents else ("before",)


def _wrong(name: str, what: str) -> UserError:
    return UserError(f"The template {name} {what}.")
