"""Prompts with regions: the text a model is shown, rendered once, tokenised once, every token labelled. No torch here.

Regions come from the tokenizer's character offsets of the very text that is run, never from tokenising pieces apart.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.canvas import ANSWER, BOS, SCAFFOLD, Ids, Prompt, Region, document_label, regions_from_labels, token_ids
from floatscope.errors import UserError
from floatscope.qa.samples import Document
from floatscope.qa.templates import TEXT, Piece, Placement, Template, read_template

_SENTENCE_END = re.compile(r"[.!?]+[\"')\]\u201d\u2019]*\s+(?=[\"'(\[\u201c\u2018]*[^\W_a-z])")
"""What ends a sentence: a stop, then blanks, then anything but a small letter."""
_MARK = "\ue000content\ue001"  # characters for private use: no chat template has them


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
    chat = not raw and bool(getattr(tokenizer, "chat_template", None))
    before, after = ([], []) if chat else surroundings(tokenizer)

    def tokens_of(shown: Sequence[Document]) -> _Tokens:
        pieces = template.pieces(question, shown, placement)
        return _tokenise(tokenizer, _in_chat(tokenizer, pieces) if chat else pieces)

    full = tokens = tokens_of(documents)
    if before and len(tokens.ids) and tokens.ids[0] == before[0]:
        before = []  # the template has its own
    if room is not None and len(tokens.ids) > (space := room - len(before) - len(after)):
        tokens = _fitted(full, documents, space, tokens_of)
    labels = [tokens.pieces[owner].label for owner in tokens.owners]
    if labels and tokens.ids[0] in (tokenizer.bos_token_id, tokenizer.cls_token_id):
        labels[0] = BOS
    return Prompt(
        text="".join(piece.text for piece in tokens.pieces),
        ids=np.concatenate([before, tokens.ids, after]).astype(np.int64),
        regions=regions_from_labels([*[BOS] * len(before), *labels, *[SCAFFOLD] * len(after)]),
        marks={name: found + len(before) for name, found in _marks(tokens, answers).items()},
        cut=tuple(max(0, len(full.text_of(n)) - len(tokens.text_of(n))) for n in range(1, len(documents) + 1)),
        sentences=_sentences(tokens, len(documents), len(before)),
    )


def build_canvas(before: Any, slots: int, after: Any = "", *, tokenizer: Any = None) -> Prompt:
    """A canvas whose answer slots stand between two texts; either may be empty, so that they stand at an end.

    before, after: texts, for which the tokenizer is needed, or token ids. Texts get the tokens that the tokenizer puts
    around them, such as bos; ids are taken as they are. Regions: bos, `before`, `answer`, `after`.
    """
    if slots < 1:
        raise UserError(f"slots={slots}: a canvas needs at least one answer slot.")
    texts = [part for part in (before, after) if isinstance(part, str) and part]
    if texts and tokenizer is None:
        raise UserError(f"{texts[0]!r} is a text: give the tokenizer too, or token ids.")
    own = [_encode(tokenizer, part)[0] if isinstance(part, str) and part else part for part in (before, after)]
    first, last = (token_ids(part).tolist() if len(part) else [] for part in own)
    lead, trail = surroundings(tokenizer) if texts else ([], [])
    labels = [*[BOS] * len(lead), *["before"] * len(first), *[ANSWER] * slots, *["after"] * len(last)]
    ids = np.array([*lead, *first, *[0] * slots, *last, *trail], np.int64)
    place = len(lead) + len(first)
    regions = regions_from_labels([*labels, *[SCAFFOLD] * len(trail)])
    return Prompt(" ".join(texts), ids, regions, slots=np.arange(place, place + slots))


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


def _in_chat(tokenizer: Any, pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces as one turn of the user, with the markup of the tokenizer's chat template around it as scaffold.

    The result is checked against what the chat template makes of the text itself.
    """
    lead, mark, trail = _render(tokenizer, _MARK).partition(_MARK)
    content = "".join(piece.text for piece in pieces)
    rendered = _render(tokenizer, content)
    if mark and rendered == lead + content + trail:
        inside = list(pieces)
    elif mark and rendered == lead + content.strip() + trail:  # some templates trim what is said
        inside = _trimmed(pieces)
    else:
        raise UserError(
            "The tokenizer's chat template changes the text of the prompt, so its regions would be unknown: run it raw."
        )
    return [Piece(lead, SCAFFOLD), *inside, Piece(trail, SCAFFOLD)]


def _render(tokenizer: Any, content: str) -> str:
    message = [{"role": "user", "content": content}]
    try:
        return tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # templates are programs of the checkpoint's author: jinja errors of every kind
        raise UserError(f"The tokenizer's chat template fails ({error}): run the prompt raw.") from error


def _trimmed(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces without white space at the two ends of their text."""
    kept = list(pieces)
    for strip, order in ((str.lstrip, range(len(kept))), (str.rstrip, reversed(range(len(kept))))):
        for place in order:
            kept[place] = replace(kept[place], text=strip(kept[place].text))
            if kept[place].text:
                break
    return kept


def _tokenise(tokenizer: Any, pieces: list[Piece]) -> _Tokens:
    """Special tokens that are words of a document or a question ("<eos>", "<|mdm_mask|>"), not markup, are spelt."""
    text = "".join(piece.text for piece in pieces)
    edges = np.cumsum([0] + [len(piece.text) for piece in pieces])
    ids, offsets = _encode(tokenizer, text)
    owners = _owners(offsets, edges)
    special = {number: token.content for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    for token in np.flatnonzero(np.isin(ids, list(special)))[::-1]:
        start, stop = offsets[token]
        if pieces[owners[token]].label != SCAFFOLD and text[start:stop].strip() == special[int(ids[token])]:
            spelt, own = _encode(tokenizer, text[start:stop], split_special_tokens=True)
            ids = np.concatenate([ids[:token], spelt, ids[token + 1 :]])
            offsets = np.concatenate([offsets[:token], own + start, offsets[token + 1 :]])
            owners = _owners(offsets, edges)
    return _Tokens(pieces, ids, offsets, owners, edges)


def _encode(tokenizer: Any, text: str, **options: Any) -> tuple[Ids, NDArray[np.int64]]:
    """Token ids and where each begins and ends in the text."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, **options)
    offsets = np.asarray(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2)
    return np.asarray(encoded["input_ids"], dtype=np.int64), offsets


def _fitted(
    full: _Tokens, documents: Sequence[Document], space: int, tokens_of: Callable[[Sequence[Document]], _Tokens]
) -> _Tokens:
    """The tokens of the prompt with its documents cut at token edges, so that there are `space` at most."""
    sizes = [len(full.text_of(number)) for number in range(1, len(documents) + 1)]
    aim = sum(sizes) - (len(full.ids) - space)
    while aim >= 0:
        shown = [
            replace(document, text=_first_tokens(full, number, size)) if size < sizes[number - 1] else document
            for number, (document, size) in enumerate(zip(documents, shares(sizes, aim), strict=True), 1)
        ]
        tokens = tokens_of(shown)
        if len(tokens.ids) <= space:
            return tokens
        aim -= len(tokens.ids) - space  # tokens at the new end of a text can be other ones, and more
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


def shares(sizes: Sequence[int], room: int) -> list[int]:
    """How much of each size stays so that they add up to `room` at most: the longest are cut first, to one level.

    What the level leaves over goes to the first of those that were cut, one each.
    """

    def total(level: int) -> int:
        return sum(min(size, level) for size in sizes)

    level = bisect_right(range(max(sizes, default=0) + 1), room, key=total) - 1
    over = room - total(level)
    kept = []
    for size in sizes:
        extra = int(size > level and over > 0)
        over -= extra
        kept.append(min(size, level + extra))
    return kept


def cut_text(text: str, stop: int) -> str:
    """The first `stop` characters, fewer where that would part a character from its marks, no space at the end."""
    while 0 < stop < len(text) and _continues(text, stop):
        stop -= 1
    return text[:stop].rstrip()


def _continues(text: str, place: int) -> bool:
    """Does the character at `place` belong to the one before it (an accent, a skin tone, an emoji after a joiner)?"""
    character = text[place]
    return (
        unicodedata.category(character).startswith("M")
        or "\u200d" in (character, text[place - 1])
        or "\U0001f3fb" <= character <= "\U0001f3ff"
    )


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


def _sentences(tokens: _Tokens, documents: int, shift: int) -> tuple[Region, ...]:
    """The sentences of each document's text as runs of its tokens, `shift` tokens further on; a token that reaches into
    a sentence belongs to it."""
    found = []
    for number in range(1, documents + 1):
        piece, own = tokens.piece_of(number), tokens.text_of(number)
        stops = tokens.offsets[own, 1] - tokens.edges[piece]
        ends = [match.end() for match in _SENTENCE_END.finditer(tokens.pieces[piece].text)]
        cuts = np.unique([0, *np.searchsorted(stops, ends, side="right"), len(own)])
        first = shift + (own[0] if len(own) else 0)
        found += [Region(document_label(number), int(a + first), int(b + first)) for a, b in pairwise(cuts)]
    return tuple(found)


def find_answers(text: str, answers: Iterable[str]) -> list[tuple[int, int]]:
    """Character spans where an answer stands in the text, in any case, at word edges."""
    spans: list[tuple[int, int]] = []
    for answer in filter(None, (answer.strip() for answer in answers)):
        pattern = rf"(?<!\w){re.escape(answer)}(?!\w)"
        spans += [match.span() for match in re.finditer(pattern, text, re.IGNORECASE)]
    return spans
