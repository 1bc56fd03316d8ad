"""Prompts with regions: the text a model is shown, rendered once, tokenised once, every token labelled. No torch here.

Regions come from the tokenizer's character offsets of the very text that is run, never from tokenising pieces apart.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.canvas import BOS, SCAFFOLD, Ids, Prompt, document_label, regions_from_labels
from floatscope.errors import UserError
from floatscope.qa.chat import has_chat_template, in_chat
from floatscope.qa.samples import Document
from floatscope.qa.templates import TEXT, Piece, Placement, Template, read_template
from floatscope.qa.truncation import cut_text, shares

SCAFFOLD_WORDS = "Document Question Answer :"


@dataclass(frozen=True)
class _Tokens:
    """The text's own tokens, without those that the tokenizer puts around it."""

    pieces: list[Piece]
    ids: Ids
    offsets: NDArray[np.int64]
    owners: Ids
    """Index of the piece that each token belongs to."""
    edges: NDArray[np.int64]
    """Where each piece begins in the text, and where the last ends."""

    def piece_of(self, number: int) -> int:
        """Index of the piece that is the text of a document, counted from 1."""
        label = document_label(number)
        return next(place for place, p in enumerate(self.pieces) if p.label == label and p.part == TEXT)

    def text_of(self, number: int) -> Ids:
        """Tokens of the text of a document, counted from 1."""
        return np.flatnonzero(self.owners == self.piece_of(number))


def plain_template(question: str, documents: Sequence[Document]) -> list[Piece]:
    """The one template for all models, in pieces:

    Document 1: {title}. {text}\\nDocument 2: {title}. {text}\\nQuestion: {question}\\nAnswer:
    """
    return read_template("default").pieces(question, documents)


def build_prompt(
    tokenizer: Any,
    question: str,
    documents: Sequence[Document],
    answers: Sequence[str] = (),
    *,
    template: Template | None = None,
    placement: Placement | None = None,
    raw: bool = False,
    room: int | None = None,
) -> Prompt:
    """Render, tokenise with offsets, label. `tokenizer` is any fast tokenizer of transformers.

    template: from `read_template`; default: the one template for all models.
    placement: the question before or after the documents; default: as the template has it.
    raw: leave the tokenizer's chat template aside, if it has one.
    room: the most tokens the prompt may have. Documents are cut to fit, the longest first, and `cut` says by how much.

    marks: `evidence`, the text tokens of gold documents (no title); `gold_answer`, the tokens of an answer string
    inside the evidence (literal, any case, at word edges).
    """
    if not question.strip():
        raise UserError("The question is empty; a prompt needs one.")
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(
            f"{type(tokenizer).__name__} gives no character offsets, which regions need; use a fast tokenizer."
        )
    template = template or read_template("default")
    chat = has_chat_template(tokenizer) and not raw
    before, after = ([], []) if chat else surroundings(tokenizer)

    def tokens_of(shown: Sequence[Document]) -> _Tokens:
        pieces = template.pieces(question, shown, placement)
        return _tokenise(tokenizer, in_chat(tokenizer, pieces) if chat else pieces)

    tokens, cut = tokens_of(documents), (0,) * len(documents)
    if before and len(tokens.ids) and tokens.ids[0] == before[0]:
        before = []  # the template has its own
    if room is not None and len(tokens.ids) > (space := room - len(before) - len(after)):
        shown = _fitted(tokens, documents, space, tokens_of)
        full, tokens = tokens, tokens_of(shown)
        numbers = range(1, len(documents) + 1)
        cut = tuple(max(0, len(full.text_of(number)) - len(tokens.text_of(number))) for number in numbers)
    labels = [tokens.pieces[owner].label for owner in tokens.owners]
    if labels and tokens.ids[0] in _starts(tokenizer):
        labels[0] = BOS
    return Prompt(
        text="".join(piece.text for piece in tokens.pieces),
        ids=np.concatenate([before, tokens.ids, after]).astype(np.int64),
        regions=regions_from_labels([*[BOS] * len(before), *labels, *[SCAFFOLD] * len(after)]),
        marks={name: found + len(before) for name, found in _marks(tokens, answers).items()},
        cut=cut,
    )


def _starts(tokenizer: Any) -> tuple[int | None, ...]:
    return tokenizer.bos_token_id, tokenizer.cls_token_id


def surroundings(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The tokens that go before and after a text: what the tokenizer itself adds, else its bos.

    [SEP] and its kin stay, since a masked language model knows texts with them only; an eos after a prompt does not.
    """
    added = tokenizer("x")["input_ids"]
    bare = tokenizer("x", add_special_tokens=False)["input_ids"]
    if len(added) > len(bare):
        start = next(place for place in range(len(added)) if added[place : place + len(bare)] == bare)
        return added[:start], added[start + len(bare) :] if tokenizer.cls_token_id is not None else []
    unwanted = tokenizer.init_kwargs.get("add_bos_token") is False
    return [] if tokenizer.bos_token_id is None or unwanted else [tokenizer.bos_token_id], []


def _tokenise(tokenizer: Any, pieces: list[Piece]) -> _Tokens:
    text = "".join(piece.text for piece in pieces)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    offsets = np.asarray(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2)
    ids = np.asarray(encoded["input_ids"], dtype=np.int64)
    edges = np.cumsum([0] + [len(piece.text) for piece in pieces])
    owners = _owners(offsets, edges)
    for token in _impostors(tokenizer, ids, [pieces[owner].label for owner in owners], offsets, text)[::-1]:
        start, stop = offsets[token]
        spelt = tokenizer(
            text[start:stop], add_special_tokens=False, return_offsets_mapping=True, split_special_tokens=True
        )
        ids = np.concatenate([ids[:token], spelt["input_ids"], ids[token + 1 :]]).astype(np.int64)
        own = np.asarray(spelt["offset_mapping"], dtype=np.int64).reshape(-1, 2) + start
        offsets = np.concatenate([offsets[:token], own, offsets[token + 1 :]])
        owners = _owners(offsets, edges)
    return _Tokens(pieces, ids, offsets, owners, edges)


def _impostors(tokenizer: Any, ids: Ids, labels: Sequence[str], offsets: NDArray[np.int64], text: str) -> list[int]:
    """Special tokens that are words of a document or a question ("<eos>", "<|mdm_mask|>"), not markup."""
    special = {number: token.content for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return [
        place
        for place, number in enumerate(ids.tolist())
        if number in special
        and labels[place] != SCAFFOLD
        and text[offsets[place, 0] : offsets[place, 1]].strip() == special[number]
    ]


def _fitted(
    full: _Tokens, documents: Sequence[Document], space: int, tokens_of: Callable[[Sequence[Document]], _Tokens]
) -> list[Document]:
    """The documents with their texts cut at token edges so that the prompt has `space` tokens at most."""
    numbers = range(1, len(documents) + 1)
    sizes = [len(full.text_of(number)) for number in numbers]
    aim = sum(sizes) - (len(full.ids) - space)
    while aim >= 0:
        kept = shares(sizes, aim)
        shown = [
            replace(document, text=_first_tokens(full, number, size)) if size < whole else document
            for number, document, size, whole in zip(numbers, documents, kept, sizes, strict=True)
        ]
        excess = len(tokens_of(shown).ids) - space
        if excess <= 0:
            return shown
        aim -= excess  # tokens at the new end of a text can be other ones, and more
    needed = len(tokens_of([replace(document, text="") for document in documents]).ids) - space
    raise UserError(
        f"The prompt is {needed} tokens too long even without the texts of its documents: there is room for {space} "
        "tokens; ask for fewer answer slots or documents, or shorten the question."
    )


def _first_tokens(tokens: _Tokens, number: int, size: int) -> str:
    """The text of a document up to where the first token that is too much begins."""
    piece = tokens.piece_of(number)
    stop = tokens.offsets[tokens.text_of(number)[size], 0] - tokens.edges[piece]
    return cut_text(tokens.pieces[piece].text, max(0, int(stop)))


def _owners(offsets: NDArray[np.int64], edges: NDArray[np.int64]) -> Ids:
    """For each token the piece it overlaps most, the later one on a tie; an empty token goes with where it stands."""
    last = len(edges) - 2
    first_piece = np.minimum(np.searchsorted(edges, offsets[:, 0], side="right") - 1, last)
    last_piece = np.maximum(np.minimum(np.searchsorted(edges, offsets[:, 1], side="left") - 1, last), first_piece)
    owners = first_piece.astype(np.int64)
    for token in np.flatnonzero(first_piece != last_piece):
        start, stop = offsets[token]
        candidates = range(first_piece[token], last_piece[token] + 1)
        owners[token] = max(candidates, key=lambda p: (min(stop, edges[p + 1]) - max(start, edges[p]), p))
    return owners


def _marks(tokens: _Tokens, answers: Iterable[str]) -> dict[str, Ids]:
    """Positions among the text's tokens; the caller shifts them past bos."""
    gold = [piece.part == TEXT and piece.gold for piece in tokens.pieces]
    evidence = np.array([gold[owner] for owner in tokens.owners], dtype=bool)
    answered = np.zeros(len(evidence), dtype=bool)
    for piece, start, is_gold in zip(tokens.pieces, tokens.edges[:-1], gold, strict=True):
        for first, stop in find_answers(piece.text, answers) if is_gold else ():
            answered |= (tokens.offsets[:, 0] < start + stop) & (tokens.offsets[:, 1] > start + first)
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
