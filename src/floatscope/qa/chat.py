"""The chat markup around a prompt, from the tokenizer's own chat template. Regions are left to `prompts`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from floatscope.canvas import SCAFFOLD
from floatscope.errors import UserError
from floatscope.qa.templates import Piece

_MARK = "\ue000content\ue001"  # characters for private use: no chat template has them


def has_chat_template(tokenizer: Any) -> bool:
    return bool(getattr(tokenizer, "chat_template", None))


def in_chat(tokenizer: Any, pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces as one turn of the user, with the markup before and after it as scaffold.

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
