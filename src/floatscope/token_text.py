"""What kind of token a text is, for any tokenizer: special, whitespace, punctuation, function, number, content.

Knows the marks that tokenizers leave in token texts (BPE space and newline markers, byte tokens, wordpiece
continuations). Which tokens are masked or scaffold is a matter of the canvas and left to `token_classes`.
"""

import re
import unicodedata

_FUNCTION_WORDS = """
    a an the this that these those such same other another each every either neither both all any some no none
    i me my mine myself you your yours yourself yourselves he him his himself she her hers herself it its itself
    we us our ours ourselves they them their theirs themselves one ones
    who whom whose which what when where why how whether
    am is are was were be been being do does did doing done have has had having
    can could may might must shall should will would ought
    not nor n't never
    and or but if then else because as until while although though since unless whereas so than too very just only
    of at by for with about against between into through during before after above below to from up down in out
    on off over under again further once here there also per via upon within without toward towards among across
    s t d ll m o re ve y
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
"""Closed-class words of English: determiners, pronouns, auxiliaries, negation, conjunctions, prepositions,
particles and what remains of contractions. Words that carry content in questions (more, most, first, own) are
not among them."""

_SPECIAL = re.compile(r"<\|.*\|>|<[^<>\s]*>|\[[A-Z_]+[0-9]*\]|<｜.*｜>", re.DOTALL)
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACES = {"Ġ": " ", "▁": " ", "Ċ": "\n", "ĉ": "\t", "č": "\r"}
_NUMBER = re.compile(r"[+-]?\d[\d.,:/%]*(?:st|nd|rd|th)?|[\u0660-\u0669\u06f0-\u06f9\u0966-\u096f]+")
_WITH_GLYPH = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_BYTE_LETTERS = {chr(byte): byte for byte in _WITH_GLYPH} | {
    chr(0x100 + place): byte for place, byte in enumerate(byte for byte in range(256) if byte not in _WITH_GLYPH)
}
"""The letters in which byte-level BPE (GPT-2 and most since) writes bytes: those without a glyph from U+0100 on."""


def plain_text(text: str) -> str:
    """A token's text without the marks of its tokenizer."""
    if byte := _BYTE.fullmatch(text):
        return bytes([int(byte.group(1), 16)]).decode("latin-1")
    if text.startswith("##") and len(text) > 2:
        text = text[2:]
    if not text.isascii() and all(letter in _BYTE_LETTERS for letter in text):
        try:
            return bytes(_BYTE_LETTERS[letter] for letter in text).decode()
        except UnicodeDecodeError:  # part of a letter, or a token of another kind of tokenizer
            pass
    for mark, plain in _SPACES.items():
        text = text.replace(mark, plain)
    return text


STRUCTURAL = ("special", "whitespace", "punctuation", "scaffold")
LEXICAL = ("content", "number")
"""Kinds of classes; function words and masks are neither."""


def text_class(text: str) -> str:
    """special, whitespace, punctuation, function, number or content."""
    if _SPECIAL.fullmatch(text) and not _BYTE.fullmatch(text):
        return "special"
    plain = plain_text(text)
    bare = plain.strip()
    if not plain:
        return "special"  # tokenizers decode control tokens to nothing
    if not bare:
        return "whitespace"
    if all(unicodedata.category(letter)[0] in "PSCZ" for letter in bare):
        return "punctuation"
    if _NUMBER.fullmatch(bare):
        return "number"
    return "function" if bare.lower().strip("'’") in FUNCTION_WORDS else "content"
