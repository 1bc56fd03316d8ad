"""The words that select tokens, layers, heads and steps for an edit: "doc 2", "top(3) and not bos", "shallow", "0-50%".

Knows positions and numbers; which tokens a label names is told by a Scene.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, reduce
from typing import Any

import torch
from torch import Tensor

from floatscope.errors import UserError
from floatscope.registry import did_you_mean

STATES = ("answer:masked", "answer:committed", "open")
DEPTHS = ("shallow", "middle", "deep")
_JOINTS = re.compile(r"\s*(\band\b|\bor\b|\bnot\b|[(),])\s*")
_NUMBER = re.compile(r"\d+(?:\.\d*)?|\.\d+")
_POSITIONS = re.compile(r"(\d+)(?:-(\d+))?")
_STEADY = 1e-6
"""A spread below this share of the mean is rounding: no anchor stands out."""


@dataclass(eq=False)
class Scene:
    """What a selector may name on one canvas of T tokens, at one layer and step."""

    sets: Mapping[str, Tensor]
    """bool [T] by name: regions, marks, states of slots, classes of tokens."""
    received: Tensor | None = None
    """Attention that each token received where picks come from, [1 or H, T], rows that sum to 1."""
    seed: int = 0
    """Of what is drawn: another one for every sample, layer and step."""
    present: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    """bool [T]: the tokens that are there at this step; only these are picked."""

    @property
    def tokens(self) -> int:
        """Number of tokens, T."""
        return len(self.present)


Chosen = Callable[[Scene], Tensor]
"""From a scene to bool [1 or H, T]."""


@cache
def token_selector(text: str) -> Chosen:
    """What `text` selects; a mistake in its words is told here, a name that the canvas lacks when it is used.

    Python's own grammar reads it, once names and positions are stood in for: not > and > or, parentheses, calls.
    """
    names: list[str] = []
    parts = [part.strip() for part in _JOINTS.split(text)]
    for place, part in enumerate(parts):
        called = part in _CALLS and parts[place + 1 : place + 2] == ["("]
        if part and not called and not _JOINTS.fullmatch(part) and not _NUMBER.fullmatch(part):
            names.append(part)
            parts[place] = f"_{len(names) - 1}"
    try:
        return _chosen(ast.parse(" ".join(parts).strip(), mode="eval").body, names)
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise UserError(
            f"The selection {text!r} cannot be read: join names of regions, marks or states, positions (3-7), "
            f"{', '.join(f'{name}(...)' for name in _CALLS)} by and, or, not and parentheses."
        ) from error


def _chosen(node: ast.expr, names: list[str]) -> Chosen:
    if isinstance(node, ast.BoolOp):
        parts = [_chosen(part, names) for part in node.values]
        join = torch.logical_and if isinstance(node.op, ast.And) else torch.logical_or
        return lambda scene: reduce(join, [part(scene) for part in parts])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = _chosen(node.operand, names)
        return lambda scene: ~inner(scene) & scene.present
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and 1 <= len(node.args) <= 2:
        name, first = node.func.id, node.args[0]
        if name not in _CALLS:
            word = names[int(name[1:])]
            raise UserError(f"There is no selection {word}(...): {did_you_mean(word, _CALLS)}.")
        what = _chosen(first, names) if name in ("like", "other") else _number(first, name)
        pool = _chosen(node.args[1], names) if len(node.args) == 2 else None
        return lambda scene: _CALLS[name](scene, what, pool)
    if isinstance(node, ast.Name):
        return _named(names[int(node.id[1:])])
    if isinstance(node, ast.Constant):
        return _named(str(node.value))
    raise SyntaxError


def _number(node: ast.expr, name: str) -> float:
    found = float(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, int | float) else 0.0
    if not ((found.is_integer() and found >= 1) or (name == "random" and 0 < found < 1)):
        share = ", or a share of attention between 0 and 1" if name == "random" else ""
        raise UserError(f"{name}(...) should have a number of tokens, from 1 up{share}.")
    return found


def _named(word: str) -> Chosen:
    if span := _POSITIONS.fullmatch(word):
        return lambda scene: _span(scene, int(span[1]), int(span[2] or span[1]))

    def find(scene: Scene) -> Tensor:
        if word == "all":
            return scene.present[None]
        if word not in scene.sets:
            raise UserError(f"There is no {word!r} on this canvas: {did_you_mean(word, ['all', *scene.sets])}.")
        return (scene.sets[word] & scene.present)[None]

    return find


def is_ranked(text: str) -> bool:
    """Whether it picks by received attention or by chance, so that it depends on layer and step."""
    return re.search(rf"\b({'|'.join(_CALLS)})\(", text) is not None


def needs_received(text: str) -> bool:
    """Whether it needs the attention that tokens received before."""
    return re.search(r"\b(top|anchors|like)\(|\brandom\(\s*0?\.", text) is not None


def _span(scene: Scene, first: int, last: int) -> Tensor:
    if last < first or first >= scene.tokens:
        raise UserError(f"There are no tokens {first}-{last} on a canvas of {scene.tokens}: positions count from 0.")
    places = torch.arange(scene.tokens)
    return ((places >= first) & (places <= last) & scene.present)[None]


def _ranked(scene: Scene, count: float, pool: Chosen | None) -> Tensor:
    """The `count` tokens that receive most, of the pool: one set for each row of `received`."""
    received = _received(scene)
    inside = (scene.present if pool is None else pool(scene)).expand(received.shape)
    if count > int(inside.sum(-1).min()):
        raise UserError(f"{int(count)} tokens were to be picked, and there are {int(inside.sum(-1).min())}.")
    best = received.masked_fill(~inside, -1).topk(int(count), dim=-1).indices
    return torch.zeros_like(inside).scatter(1, best, True)


def _anchors(scene: Scene, count: float, pool: Chosen | None) -> Tensor:
    """The same among anchors alone, zscore(3) as analyses find them; fewer where there are fewer."""
    received = _received(scene)
    there = received[:, scene.present]
    mean, deviation = there.mean(-1, keepdim=True), there.std(-1, correction=0, keepdim=True)
    stands_out = (received > mean + 3 * deviation) & (deviation > _STEADY * mean)
    return _ranked(scene, count, pool) & stands_out


def _random(scene: Scene, count: float, pool: Chosen | None) -> Tensor:
    """So many tokens by chance, or as many as it takes to hold a share of the attention."""
    if count >= 1:
        inside = (scene.present[None] if pool is None else pool(scene))[:1]
        if count > int(inside.sum()):
            raise UserError(f"{int(count)} tokens were to be drawn, and there are {int(inside.sum())}.")
        return torch.zeros_like(inside).scatter(1, _drawn(inside, scene.seed)[:, : int(count)], True)
    return _of_mass(scene, torch.full((len(_received(scene)),), count), pool)


def _like(scene: Scene, picked: Chosen, pool: Chosen | None) -> Tensor:
    """Tokens by chance, none of the picked ones, that hold as much attention as those."""
    model = picked(scene).expand(_received(scene).shape)
    return _of_mass(scene, (_received(scene) * model).sum(-1), pool, ~model)


def _of_mass(scene: Scene, mass: Tensor, pool: Chosen | None, others: Tensor | None = None) -> Tensor:
    """Draw until the mass [1 or H] is reached; the last token drawn is left out where that comes nearer."""
    received = _received(scene)
    inside = (scene.present[None] if pool is None else pool(scene)).expand(received.shape)
    inside = inside if others is None else inside & others
    order = _drawn(inside, scene.seed)
    held = (received * inside).gather(1, order)
    before = held.cumsum(-1) - held
    taken = (before + held / 2 <= mass[:, None]) & inside.gather(1, order)
    return torch.zeros_like(inside).scatter(1, order, taken)


def _drawn(inside: Tensor, seed: int) -> Tensor:
    """Places in a random order, those inside first: one order for all rows."""
    noise = torch.rand(inside.shape[-1], generator=torch.Generator().manual_seed(seed))
    return (noise + ~inside).argsort(-1)


def _other(scene: Scene, own: Chosen, pool: Chosen | None) -> Tensor:
    """Another document, of like length and place, for one that is named."""
    chosen = own(scene)[0]
    documents = {name: found for name, found in scene.sets.items() if re.fullmatch(r"doc \d+", name)}
    others = [found for found in documents.values() if bool(found.any()) and not bool((found & chosen).any())]
    if not bool(chosen.any()) or not others:
        raise UserError("There is no other document to take in place of the one that is named.")
    place, size = chosen.nonzero().float().mean(), int(chosen.sum())
    apart = [abs(int(found.sum()) - size) + float((found.nonzero().float().mean() - place).abs()) for found in others]
    return others[apart.index(min(apart))][None]


def _recent(scene: Scene, count: float, pool: Chosen | None) -> Tensor:
    """The last so many tokens of the pool."""
    inside = (scene.present[None] if pool is None else pool(scene))[:1]
    if count > int(inside.sum()):
        raise UserError(f"The last {int(count)} tokens were to be taken, and there are {int(inside.sum())}.")
    return inside & (inside.flip(-1).cumsum(-1).flip(-1) <= count)


def _received(scene: Scene) -> Tensor:
    assert scene.received is not None, "picks by rank need the attention of a pass before"
    return scene.received


_CALLS: dict[str, Callable[[Scene, Any, Chosen | None], Tensor]] = {
    "top": _ranked,
    "anchors": _anchors,
    "random": _random,
    "like": _like,
    "other": _other,
    "recent": _recent,
}


def numbers(text: str, count: int, what: str) -> frozenset[int]:
    """Layers or steps out of `count`: "all", "first", "last", "3", "0-5", "0-50%", layers also "shallow", "deep"."""
    found: set[int] = set()
    for part in (part.strip() for part in text.split(",")):
        if part == "all":
            found |= set(range(count))
        elif part in ("first", "last"):
            found.add(0 if part == "first" else count - 1)
        elif what == "layer" and part in DEPTHS:
            third = DEPTHS.index(part)
            found |= {number for number in range(count) if number * 3 // count == third}
        elif span := re.fullmatch(r"(\d+)(?:-(\d+))?(%?)", part):
            first, last = int(span[1]), int(span[2] or span[1])
            if span[3]:
                found |= {number for number in range(count) if first <= 100 * (number + 0.5) / count <= last}
            else:
                if not first <= last < count:
                    raise UserError(f"There is no {what} {part}: there are {count}, counted from 0.")
                found |= set(range(first, last + 1))
        else:
            raise UserError(
                f"The {what}s {text!r} cannot be read: give all, first, last, numbers (3), ranges (0-5) or shares "
                f"(0-50%){' or ' + ', '.join(DEPTHS) if what == 'layer' else ''}."
            )
    return frozenset(found)
