"""Prompts with regions: the text a model is shown, rendered once, tokenised once, every token labelled. No torch here.

Regions come from the tokenizer's character offsets of the very text that is run, never from tokenising pieces apart.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.canvas import BOS, QUERY, SCAFFOLD, Region, document_label, regions_from_labels
from floatscope.errors import UserError
from floatscope.qa.samples import Document

SCAFFOLD_WORDS = "Document Question Answer :"
_TEXT = "text"
_TITLE = "title"


@dataclass(frozen=True)
class Piece:
    """A stretch of the prompt's text: its region label and, in documents, which part it is and whether it is gold."""

    text: str
    label: str
    part: str = ""
    gold: bool = False


@dataclass(frozen=True)
class Prompt:
    """What is run: the text, its token ids (bos included), the regions that partition them, and named token sets."""

    text: str
    ids: NDArray[np.int64]
    regions: tuple[Region, ...]
    marks: dict[str, NDArray[np.int64]]


def plain_template(question: str, documents: Sequence[Document]) -> list[Piece]:
    """The one template for all models:

    Document 1: {title}. {text}\\nDocument 2: {title}. {text}\\nQuestion: {question}\\nAnswer:
    """
    pieces: list[Piece] = []
    for number, document in enumerate(documents, 1):
        label = document_label(number)
        pieces.append(Piece(f"Document {number}: ", SCAFFOLD))
        if document.title:
            pieces.append(Piece(f"{document.title}. ", label, _TITLE, document.gold))
        pieces += [Piece(document.text, label, _TEXT, document.gold), Piece("\n", SCAFFOLD)]
    return [*pieces, Piece("Question: ", SCAFFOLD), Piece(question, QUERY), Piece("\nAnswer:", SCAFFOLD)]


def build_prompt(tokenizer: Any, question: str, documents: Sequence[Document], answers: Sequence[str] = ()) -> Prompt:
    """Render, tokenise with offsets, label. `tokenizer` is any fast tokenizer of transformers.

    marks: `evidence`, the text tokens of gold documents (no title); `gold_answer`, the tokens of an answer string
    inside the evidence (literal, any case, at word edges).
    """
    if not question.strip():
        raise UserError("The question is empty; a prompt needs one.")
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(
            f"{type(tokenizer).__name__} gives no character offsets, which regions need; use a fast tokenizer."
        )
    pieces = plain_template(question, documents)
    text = "".join(piece.text for piece in pieces)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    offsets = np.asarray(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2)
    ids = np.asarray(encoded["input_ids"], dtype=np.int64)
    owners = _owners(offsets, np.cumsum([0] + [len(piece.text) for piece in pieces]))
    labels = [pieces[owner].label for owner in owners]
    if tokenizer.bos_token_id is not None:
        ids = np.concatenate([[tokenizer.bos_token_id], ids])
        labels.insert(0, BOS)
    marks = _marks(pieces, owners, offsets, answers)
    shift = len(ids) - len(owners)
    return Prompt(text, ids, regions_from_labels(labels), {name: found + shift for name, found in marks.items()})


def _owners(offsets: NDArray[np.int64], edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each token the piece it overlaps most, the later one on a tie; an empty token goes with where it stands."""
    owners = np.zeros(len(offsets), np.int64)
    last = len(edges) - 2
    for token, (start, stop) in enumerate(offsets):
        first_piece = min(int(np.searchsorted(edges, start, side="right")) - 1, last)
        last_piece = max(min(int(np.searchsorted(edges, stop, side="left")) - 1, last), first_piece)
        candidates = range(first_piece, last_piece + 1)
        owners[token] = max(candidates, key=lambda p: (min(stop, edges[p + 1]) - max(start, edges[p]), p))
    return owners


def _marks(
    pieces: Sequence[Piece], owners: NDArray[np.int64], offsets: NDArray[np.int64], answers: Iterable[str]
) -> dict[str, NDArray[np.int64]]:
    """Positions among the text's tokens; the caller shifts them past bos."""
    evidence = np.array([pieces[owner].part == _TEXT and pieces[owner].gold for owner in owners], dtype=bool)
    spans: list[tuple[int, int]] = []
    start = 0
    for piece in pieces:
        if piece.part == _TEXT and piece.gold:
            spans += [(start + a, start + b) for a, b in find_answers(piece.text, answers)]
        start += len(piece.text)
    answered = np.zeros(len(owners), dtype=bool)
    for first, stop in spans:
        answered |= (offsets[:, 0] < stop) & (offsets[:, 1] > first)
    return {
        "evidence": np.flatnonzero(evidence).astype(np.int64),
        "gold_answer": np.flatnonzero(evidence & answered).astype(np.int64),
    }


def find_answers(text: str, answers: Iterable[str]) -> list[tuple[int, int]]:
    """Character spans where an answer stands in the text, in any case, at word edges."""
    spans: list[tuple[int, int]] = []
    for answer in filter(None, (answer.strip() for answer in answers)):
        pattern = rf"(?<!\w){re.escape(answer)}(?!\w)"
        spans += [match.span() for match in re.finditer(pattern, text, re.IGNORECASE)]
    return spans
