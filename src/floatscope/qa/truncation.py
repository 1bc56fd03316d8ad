"""Making documents fit: how many tokens of each stay, and where a text can be cut. No tokenizer here."""

import unicodedata
from collections.abc import Sequence

_JOINER = "\u200d"


def shares(sizes: Sequence[int], room: int) -> list[int]:
    """How much of each size stays so that they add up to `room` at most: the longest are cut first, to one level.

    What the level leaves over goes to the first of those that were cut, one each.
    """
    level, left = 0, room
    order = sorted(sizes)
    for index, size in enumerate(order):
        level = left // (len(order) - index)
        if size > level:
            break
        left -= size
    else:
        return list(sizes)
    over = left - level * sum(size > level for size in sizes)
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
    """Does the character at `place` belong to the one before it (an accent, a skin tone, a joined emoji)?"""
    character = text[place]
    return (
        unicodedata.category(character).startswith("M")
        or _JOINER in (character, text[place - 1])
        or "\U0001f3fb" <= character <= "\U0001f3ff"
    )
