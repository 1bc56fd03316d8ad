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

from floatscope.canvas import (
    ANSWER,
    BOS,
    QUERY,
    SCAFFOLD,
    Ids,
    Prompt,
    Region,
    document_label,
    regions_from_labels,
    token_ids,
)
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

    @property
    def labels(self) -> list[str]:
        """The region of each token."""
        return [self.pieces[owner].label for owner in self.owners]

    @property
    def answered(self) -> bool:
        """Whether the answer is a text and not a number of slots."""
        return any(piece.label == ANSWER and piece.part == TEXT for piece in self.pieces)

    def piece_of(self, number: int) -> int:
        """Index of the piece that is the text of a document, counted from 1."""
        label = document_label(number)
        return next(place for place, p in enumerate(self.pieces) if p.label == label and p.part == TEXT)

    def text_of(self, number: int) -> Ids:
        """Tokens of the text of a document, counted from 1."""
        return np.flatnonzero(self.owners == self.piece_of(number))

    def left_out(self, number: int, shown: "_Tokens") -> int:
        """How many tokens of a document's text do not end within what is shown of it."""
        piece, kept = self.piece_of(number), shown.pieces[shown.piece_of(number)].text
        if kept == self.pieces[piece].text:
            return 0
        return int((self.offsets[self.text_of(number), 1] > self.edges[piece] + len(kept)).sum())


def build_prompt(
    tokenizer: Any,
    question: str,
    documents: Sequence[Document | str],
    answers: Sequence[str] = (),
    *,
    template: Template | None = None,
    placement: Placement | None = None,
    raw: bool = False,
    room: int | None = None,
    slots: int | str | None = None,
) -> Prompt:
    """Render, tokenise with offsets, label. `tokenizer` is any fast tokenizer of transformers, or a model that has one.

    documents: one that is a text alone has no title.
    template: from `read_template`; default: the one template for all models.
    placement: the question before or after the documents; default: as the template has it.
    raw: leave the tokenizer's chat template aside, if it has one.
    room: the most tokens the prompt may have beside its slots. Documents are cut to fit, the longest first, and `cut`
    says by how much.
    slots: how many answer slots stand where the template has {answer}; without it they follow the text, as many as the
    sampler fills. Or the text that is to stand in them, for `replay`, at {answer} or after the text.

    marks: `evidence`, the text tokens of gold documents (no title); `gold_answer`, the tokens of an answer string
    inside the evidence (literal, any case, at word edges).
    """
    if not question.strip():
        raise UserError("The question is empty; a prompt needs one.")
    tokenizer = _fast(tokenizer)
    template = template or read_template("default")
    if template.has_answer and slots is None:
        raise UserError(f"The template {template.name} has {{answer}}: say how many slots stand there, as in slots=32.")
    chat = not raw and bool(getattr(tokenizer, "chat_template", None))
    before, after = ([], []) if chat else surroundings(tokenizer)
    answer = _answer(tokenizer, slots) if template.has_answer or isinstance(slots, str) else None

    shown = [Document("", one) if isinstance(one, str) else one for one in documents]

    def tokens_of(shown: Sequence[Document]) -> _Tokens:
        pieces = template.pieces(question, shown, placement, answer)
        pieces = _in_chat(tokenizer, pieces) if chat else pieces
        if answer is not None and not template.has_answer:
            pieces = [*pieces, answer]
        return _tokenise(tokenizer, pieces)

    full = tokens = tokens_of(shown)
    if before and len(tokens.ids) and tokens.ids[0] == before[0]:
        before = []  # the template has its own
    if room is not None:
        space = room - len(before) - len(after) + full.labels.count(ANSWER)
        tokens = full if len(full.ids) <= space else _fitted(full, shown, space, tokens_of)
    prompt = _prompt(tokenizer, tokens, before, after, not template.has_answer)
    return replace(
        prompt,
        marks={name: found + len(before) for name, found in _marks(tokens, answers).items()},
        cut=tuple(full.left_out(number, tokens) for number in range(1, len(shown) + 1)),
        sentences=_sentences(tokens, len(shown), len(before)),
    )


def build_canvas(tokenizer: Any, before: Any, slots: Any, after: Any = "") -> Prompt:
    """A canvas whose answer slots stand between two texts; either may be empty, so that they stand at an end.

    tokenizer: a fast tokenizer of transformers, or a model that has one; may be None where token ids are given.
    before, after: texts, or token ids. A text gets the tokens that the tokenizer puts around one, such as bos; ids are
    taken as they are.
    slots: how many; or what is to stand in them, a text or token ids, which `replay` fills in. Texts are tokenised as
    one, so that the slots are tokens of the very text that is run.

    The texts around the slots are the region "query" and the marks "before" and "after".
    """
    tokenizer, known = getattr(tokenizer, "tokenizer", tokenizer), isinstance(slots, str) or np.ndim(slots) > 0
    written = {isinstance(part, str) for part in ([before, slots, after] if known else [before, after]) if len(part)}
    lead, trail = [], []
    if True in written:
        if False in written:
            raise UserError("A canvas is made of texts or of token ids, not of both: tokenize the texts first.")
        tokenizer = _fast(tokenizer)
        lead, trail = surroundings(tokenizer)
        pieces = [Piece(before or "", QUERY), _answer(tokenizer, slots), Piece(after or "", QUERY)]
        tokens = _tokenise(tokenizer, pieces)
    else:
        parts = [token_ids(part) if len(part) else np.zeros(0, np.int64) for part in (before, after)]
        parts.insert(1, token_ids(slots) if known else np.zeros(_slot_count(slots), np.int64))
        owners = np.repeat(np.arange(3), [len(part) for part in parts])
        pieces = [Piece("", QUERY), Piece("", ANSWER, TEXT if known else ""), Piece("", QUERY)]
        tokens = _Tokens(pieces, np.concatenate(parts), np.zeros((0, 2), np.int64), owners, np.zeros(0, np.int64))
    sides = {name: np.flatnonzero(tokens.owners == piece) for name, piece in (("before", 0), ("after", 2))}
    marks = {name: found + len(lead) for name, found in sides.items() if len(found)}
    return replace(_prompt(tokenizer, tokens, lead, trail, at_end=False), marks=marks)


def text_prompt(tokenizer: Any, text: str) -> Prompt:
    """A text as it stands, without template or chat markup; it gets the tokens that the tokenizer puts around one."""
    if not text:
        raise UserError("the prompt is empty: give a text of at least one letter")
    tokenizer = _fast(tokenizer)
    lead, trail = surroundings(tokenizer)
    tokens = _tokenise(tokenizer, [Piece(text, QUERY)])
    return _prompt(tokenizer, tokens, lead if tokens.ids[0] not in lead else [], trail, at_end=False)


def _fast(tokenizer: Any) -> Any:
    """The tokenizer that was given, or that of a model, if it can tell offsets."""
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
    if tokenizer is None:
        raise UserError(
            "The model has no tokenizer beside its weights, so text cannot be read: give token ids, or add "
            "tokenizer.json."
        )
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(
            f"{type(tokenizer).__name__} gives no character offsets, which regions need; use a fast tokenizer."
        )
    return tokenizer


def _slot_count(slots: Any) -> int:
    if not isinstance(slots, int | np.integer) or isinstance(slots, bool) or slots < 1:
        raise UserError(f"slots={slots!r}: a canvas needs at least one answer slot, a whole number of them.")
    return int(slots)


def _answer(tokenizer: Any, slots: Any) -> Piece:
    """What stands in the text where the slots are: the text they are to hold, or a special token for each.

    A special token parts the text before it from the text after it, as a slot does: neither is tokenised as if the
    other followed at once, or as if it stood alone.
    """
    if isinstance(slots, str):
        if not slots.strip():
            raise UserError("The text that is to stand in the slots is empty: write it, or give a number of slots.")
        return Piece(slots, ANSWER, TEXT)
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    if not special:
        raise UserError("The tokenizer has no special tokens, so slots cannot stand inside of a text: give token ids.")
    return Piece((tokenizer.mask_token or special[0]) * _slot_count(slots), ANSWER)


def _prompt(tokenizer: Any, tokens: _Tokens, lead: Sequence[int], trail: Sequence[int], at_end: bool) -> Prompt:
    """The tokens between those that go around a text; an answer `at_end` follows them all."""
    labels = tokens.labels
    starts = (getattr(tokenizer, "bos_token_id", None), getattr(tokenizer, "cls_token_id", None))
    if labels and labels[0] != ANSWER and tokens.ids[0] in starts:
        labels[0] = BOS
    place = labels.index(ANSWER) if at_end and ANSWER in labels else len(labels)
    labels = [*[BOS] * len(lead), *labels[:place], *[SCAFFOLD] * len(trail), *labels[place:]]
    ids = np.concatenate([lead, tokens.ids[:place], trail, tokens.ids[place:]]).astype(np.int64)
    slots = np.flatnonzero(np.array(labels) == ANSWER)
    if tokens.answered and not len(slots):
        raise UserError("The text that is to stand in the slots has no token of its own: give more of it.")
    shown = [piece.text for piece in tokens.pieces if tokens.answered or piece.label != ANSWER]
    return Prompt(
        text="".join(shown),
        ids=np.where(np.array(labels) == ANSWER, 0, ids),
        regions=regions_from_labels(labels),
        slots=slots if len(slots) else None,
        answer=ids[slots] if tokens.answered else None,
    )


def unknown_tokens(tokenizer: Any, prompt: Prompt) -> int:
    """How many tokens of the text stand for something that is not in the tokenizer's vocabulary."""
    unknown = tokenizer.unk_token_id
    if unknown is None or unknown in (tokenizer.bos_token_id, tokenizer.eos_token_id):  # it knows every byte
        return 0
    text = prompt.ids if prompt.slots is None else np.delete(prompt.ids, prompt.slots)
    return int(np.count_nonzero(text == unknown))


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
    if not mark or rendered not in (lead + content + trail, lead + content.strip() + trail):
        raise UserError(
            "The tokenizer's chat template changes the text of the prompt, so its regions would be unknown: run it raw."
        )
    inside = list(pieces)
    if rendered != lead + content + trail:  # some templates trim what is said
        for strip, order in ((str.lstrip, range(len(inside))), (str.rstrip, reversed(range(len(inside))))):
            for place in order:
                inside[place] = replace(inside[place], text=strip(inside[place].text))
                if inside[place].text:
                    break
    return [Piece(lead, SCAFFOLD), *inside, Piece(trail, SCAFFOLD)]


def _render(tokenizer: Any, content: str) -> str:
    message = [{"role": "user", "content": content}]
    try:
        return tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # templates are programs of the checkpoint's author: jinja errors of every kind
        raise UserError(f"The tokenizer's chat template fails ({error}): run the prompt raw.") from error


def _tokenise(tokenizer: Any, pieces: list[Piece]) -> _Tokens:
    """The text that is run, as tokens of its pieces.

    Special tokens that are words of a document, a question or an answer ("<eos>", "<|mdm_mask|>"), not markup, are
    spelt. A blank before slots is left to them where the tokenizer writes it into the word that follows.
    """
    place = next((place for place, piece in enumerate(pieces) if piece.label == ANSWER and piece.part != TEXT), 0)
    lead = pieces[place - 1].text if place else ""
    alone, continued = (_encode(tokenizer, lead + word)[0] for word in ("", "a"))
    if lead.endswith(" ") and not np.array_equal(alone, continued[: len(alone)]):
        pieces = [*pieces[: place - 1], replace(pieces[place - 1], text=lead[:-1]), *pieces[place:]]
    text = "".join(piece.text for piece in pieces)
    edges = np.cumsum([0] + [len(piece.text) for piece in pieces])
    ids, offsets = _encode(tokenizer, text)
    owners = _owners(offsets, edges)
    special = {number: token.content for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    for token in np.flatnonzero(np.isin(ids, list(special)))[::-1]:
        start, stop = offsets[token]
        piece = pieces[owners[token]]
        words = piece.label != SCAFFOLD and (piece.label != ANSWER or piece.part == TEXT)
        if words and text[start:stop].strip() == special[int(ids[token])]:
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
        shown = list(documents)
        for place, size in enumerate(shares(sizes, aim)):
            if size < sizes[place]:  # up to where the first token that is too much begins
                piece, start = full.piece_of(place + 1), full.offsets[full.text_of(place + 1)[size], 0]
                stop = max(0, int(start - full.edges[piece]))
                shown[place] = replace(shown[place], text=cut_text(full.pieces[piece].text, stop))
        tokens = tokens_of(shown)
        if len(tokens.ids) <= space:
            return tokens
        aim -= len(tokens.ids) - space  # tokens at the new end of a text can be other ones, and more
    needed = len(tokens_of([replace(document, text="") for document in documents]).ids) - space
    raise UserError(
        f"The prompt is {needed} tokens too long even without the texts of its documents: there is room for {space} "
        "tokens; ask for fewer answer slots or documents, or shorten the question."
    )


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
    while 0 < stop < len(text) and (
        unicodedata.category(text[stop]).startswith("M")  # an accent
        or "\u200d" in (text[stop], text[stop - 1])  # an emoji after a joiner
        or "\U0001f3fb" <= text[stop] <= "\U0001f3ff"  # a skin tone
    ):
        stop -= 1
    return text[:stop].rstrip()


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
