"""Edits of attention: declared by a user, compiled per sample, layer and step to a few plain tensors for the kernel.

What an edit selects is read by `selecting`; where nothing is selected there is no LayerEdit at all, and the unedited
path runs, bit for bit. When edits are compiled, and from which pass picks come, is `editing`'s.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from operator import add, mul
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from floatscope.errors import UserError
from floatscope.probe.selecting import STATES, is_ranked, needs_received, numbers, token_selector
from floatscope.registry import Registry, did_you_mean

Source = Literal["previous", "first", "unedited"]
Moment = Literal["before", "after"]
_PAIRS = re.compile(r"(random\()?\s*(\d+\.\d+(?:\s*,\s*\d+\.\d+)*)\s*\)?")
_RETRIEVAL = re.compile(r"retrieval\((\d+)(?:\s*,\s*(\w+))?\)")
_PICKED = re.compile(r"\b((?:top|anchors)\((\d+)(?:\s*,\s*([^()]*))?\))")


@dataclass(frozen=True)
class LayerEdit:
    """A change of one layer's attention. Each tensor is left out (None) or broadcast over what it lacks."""

    bias: Tensor | None = None
    """Added to the scores before the softmax, float32 [1 or H, 1 or R, K]; -inf blocks."""
    sink: Tensor | None = None
    """1 where one more key, of score 0 and value 0, is seen, else 0: float32 [1 or H, 1 or R, 1]."""
    factor: Tensor | None = None
    """Times the probabilities after the softmax, float32 [1 or H, 1 or R, K]; 0 loses their mass."""
    pinned: Tensor | None = None
    """Keys whose joint mass is held, 0 or 1, float32 [1 or H, 1, K]."""
    mass: Tensor | None = None
    """What it is held at, float32 [1 or H, 1 or R, 1]; nan where it is left as it is."""
    heads: Tensor | None = None
    """Times each head's output, float32 [H, 1 or R]."""
    mean: Tensor | None = None
    """1 where a head's output becomes its mean over all rows of its pass, float32 [H, 1 or R]."""
    passes: Tensor | None = None
    """The number of the pass that each row was computed in, where there were several, int64 [R]."""
    patch: Tensor | None = None
    """1 where the scores are those of the sample's donor, float32 [1 or H, 1 or R]."""
    graft: Tensor | None = None
    """1 where the output is that of the sample's donor, float32 [1 or H, 1 or R]."""

    def to(self, device: torch.device) -> LayerEdit:
        """The same on another device."""
        if device.type == "cpu":
            return self
        given = {part.name: getattr(self, part.name) for part in fields(self)}
        return LayerEdit(**{name: None if one is None else one.to(device) for name, one in given.items()})

    def softmax(self, scores: Tensor, head: int, start: int) -> None:
        """Scores [rows, keys] of a block that begins at row `start` become edited probabilities, in place."""
        bias, sink, factor, pinned, mass = (
            _part(whole, head, start, scores) for whole in (self.bias, self.sink, self.factor, self.pinned, self.mass)
        )
        if bias is not None:
            scores.add_(bias)
        kept = None if sink is None else 1 - sink * (1 - scores.logsumexp(-1, keepdim=True).sigmoid())
        torch.softmax(scores, -1, out=scores)
        if kept is not None:
            scores.mul_(kept)
        if factor is not None:
            scores.mul_(factor)
        if pinned is not None and mass is not None:
            held = (scores * pinned).sum(-1, keepdim=True)  # [rows, 1]
            whole = scores.sum(-1, keepdim=True)
            inside = (mass / held.clamp(min=1e-30)).nan_to_num(1.0)
            outside = ((whole - mass) / (whole - held).clamp(min=1e-30)).nan_to_num(1.0)
            scores.mul_(torch.where(pinned > 0, inside, outside))

    def take_scores(self, scores: Tensor, head: int, start: int, donor: Callable[[], Tensor]) -> None:
        """Scores [rows, keys] of a block become the donor's where these are wanted, in place."""
        if self.patch is None:
            return
        own = self.patch[head if len(self.patch) > 1 else 0]
        rows = (own[start : start + len(scores)] if len(own) > 1 else own) > 0
        if bool(rows.any()):
            scores.copy_(torch.where(rows[:, None], donor(), scores))

    def take_output(self, output: Tensor, donor: Tensor) -> None:
        """Outputs [R, H, d] become the donor's where these are wanted, in place."""
        if self.graft is not None:
            output.copy_(torch.where(self.graft.t()[..., None] > 0, donor, output))

    def change_heads(self, output: Tensor) -> None:
        """Change what the heads give [R, H, d], in place."""
        if self.mean is not None:
            means = output.mean(0, keepdim=True).expand_as(output).clone()
            if self.passes is not None:
                for own in (self.passes == number for number in self.passes.unique()):
                    means[own] = output[own].mean(0)
            output.lerp_(means, self.mean.t()[..., None])
        if self.heads is not None:
            output.mul_(self.heads.t()[..., None])


def _part(whole: Tensor | None, head: int, start: int, like: Tensor) -> Tensor | None:
    if whole is None:
        return None
    own = whole[head if len(whole) > 1 else 0]
    rows, keys = like.shape
    return (own[start : start + rows] if len(own) > 1 else own)[:, :keys]


def joined(edits: Sequence[LayerEdit]) -> LayerEdit | None:
    """Several changes of one layer as one: biases add, factors multiply; None for none."""
    if len(edits) < 2:
        return edits[0] if edits else None
    found: dict[str, Tensor | None] = {}
    for part in fields(LayerEdit):
        given = [tensor for edit in edits if (tensor := getattr(edit, part.name)) is not None]
        if len(given) > 1 and part.name in ("pinned", "mass"):
            raise UserError(
                "One layer can hold the mass of one set of keys: give one pin, or pins of different layers."
            )
        ones = ("sink", "mean", "patch", "graft")
        join = add if part.name == "bias" else torch.maximum if part.name in ones else mul
        found[part.name] = reduce(join, given) if given else None
    return LayerEdit(**found)


@dataclass(frozen=True)
class Selection:
    """What an edit selects at one layer and step: H heads, R rows, K keys."""

    keys: Tensor
    """bool [1 or H, K]."""
    rows: Tensor
    """bool [R]."""
    heads: Tensor
    """bool [H]."""
    seen: Callable[[], Tensor]
    """bool [R, K]: who sees whom without the edit; worked out when it is asked for."""
    own: Tensor
    """Place among the keys of each row's own token, int64 [R]; -1 where it is none of them."""
    mass: Tensor | None
    """Of a pin: the mass of the keys where it is held, float32 [H, R]."""

    @property
    def everywhere(self) -> bool:
        return bool(self.rows.all())

    def over(self, keys: Tensor) -> Tensor:
        """bool [1 or H, 1 or R, K]: these keys for the rows and heads that are selected."""
        found = keys[:, None] if self.everywhere else keys[:, None] & self.rows[:, None]
        return found if bool(self.heads.all()) else found & self.heads[:, None, None]

    def per_row(self) -> Tensor:
        """bool [1 or H, 1 or R]: the rows and heads that are selected."""
        found = self.rows[None, :1] if self.everywhere else self.rows[None]
        return found if bool(self.heads.all()) else found & self.heads[:, None]

    def hide(self, keys: Tensor) -> LayerEdit:
        """-inf on these keys; a row that would have nothing left to see keeps its own token."""
        hidden = self.over(keys)
        seen = self.seen()
        empty = ~(seen & ~hidden).any(-1)  # [1 or H, R]
        if bool(empty.any()):
            hidden = hidden.expand(-1, len(self.rows), -1).clone()
            heads, rows = empty.nonzero(as_tuple=True)
            hidden[heads, rows, self.own[rows]] = False
        return LayerEdit(bias=torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf))


@dataclass(frozen=True)
class Op:
    """What an edit does to what it selects."""

    summary: str
    compile: Callable[[Edit, Selection], LayerEdit]


def _scale(edit: Edit, chosen: Selection) -> LayerEdit:
    if edit.when == "before":
        return LayerEdit(bias=torch.where(chosen.over(chosen.keys), math.log(edit.factor), 0.0))
    return LayerEdit(factor=torch.where(chosen.over(chosen.keys), edit.factor, 1.0))


def _zero(edit: Edit, chosen: Selection) -> LayerEdit:
    return LayerEdit(factor=torch.where(chosen.over(chosen.keys), 0.0, 1.0))


def _pin(edit: Edit, chosen: Selection) -> LayerEdit:
    assert chosen.mass is not None
    mass = chosen.mass.masked_fill(~chosen.per_row().expand(chosen.mass.shape), torch.nan)
    return LayerEdit(pinned=chosen.keys[:, None].float(), mass=mass[..., None])


def _heads(edit: Edit, chosen: Selection) -> LayerEdit:
    rows = chosen.per_row().expand(len(chosen.heads), -1)
    return LayerEdit(mean=rows.float()) if edit.to_mean else LayerEdit(heads=torch.where(rows, edit.factor, 1.0))


def _patch(edit: Edit, chosen: Selection) -> LayerEdit:
    rows = chosen.per_row().float()
    return LayerEdit(graft=rows) if edit.outputs else LayerEdit(patch=rows)


OPS = Registry(
    "edit",
    {
        "block": Op("hide the keys: their attention goes elsewhere", lambda edit, chosen: chosen.hide(chosen.keys)),
        "keep": Op("hide all other keys", lambda edit, chosen: chosen.hide(~chosen.keys)),
        "zero": Op("take their attention away after the softmax: it is lost", _zero),
        "scale": Op("their attention times a factor, before the softmax (then it sums to 1 again) or after", _scale),
        "pin": Op("hold their joint attention at that of the first pass, row by row and head by head", _pin),
        "sink": Op(
            "one more key that all see, of score 0 and value 0",
            lambda edit, chosen: LayerEdit(sink=chosen.per_row()[..., None].float()),
        ),
        "heads": Op("the output of heads times a factor, or their mean over all rows", _heads),
        "patch": Op("rows look where those of another prompt's run look, at the same layer and step", _patch),
    },
)


@dataclass(frozen=True)
class Edit:
    """A declared change of attention: what is done to which keys, seen from which rows, where and when.

    keys and rows are named as in a trace: regions ("bos", "doc 2", "query"), marks ("evidence"), states of slots
    ("answer:masked", "open"), classes of tokens ("class punctuation"), positions ("3-7"). Keys also by rank: "top(3)"
    are those that receive most, "anchors(3)" the same among anchors, "random(3)" are drawn by chance, "random(0.2)" by
    chance until they hold that share of attention, "like(top(3))" by chance and holding as much as those. All are
    joined by and, or, not; a second argument says what is drawn from: "like(top(3), not gold_answer)".
    """

    op: str
    """block, keep, zero, scale, pin, sink, heads or patch."""
    keys: str = "all"
    rows: str = "all"
    layers: str = "all"
    """all, numbers and ranges ("0-5"), shallow, middle, deep."""
    heads: str = "all"
    """all, numbers ("0,3"), single heads as layer.head ("2.0, 5.3"), or as many others beside them, "random(2.0)"; the
    best by a table, "retrieval(8)", which ranks by evidence, or by another of its scores, "retrieval(8, copy)"."""
    steps: str = "all"
    """all, first, last, numbers and ranges, shares of the run ("0-50%")."""
    factor: float = 0.0
    """Of scale and heads."""
    when: Moment = "after"
    """Of scale: before or after the softmax."""
    to_mean: bool = False
    """Of heads: their mean over all rows in place of a factor."""
    outputs: bool = False
    """Of patch: the rows also take up what those of the other run do, not only look where they look."""
    source: Source = "previous"
    """Where picks by rank come from: the step before (at step 0 a pass without edits), always that first pass, or the
    same step of the whole run without edits. A pin holds at the first pass, or step by step at the unedited run."""
    by_head: bool = False
    """Pick for each head by what it gives, not by the mean over heads."""
    seed: int = 0
    """Of what is drawn by chance, beside the sample's own."""
    table: str = ""
    """Of retrieval(...): what `analyze retrieval_heads` wrote, a file or its folder; read at once, into heads."""

    def __post_init__(self) -> None:
        OPS.named(self.op)
        if self.table and (wanted := _RETRIEVAL.search(self.heads)):
            found = best_heads(Path(self.table), int(wanted[1]), wanted[2] or "evidence")
            text = "; ".join(f"{model} = {', '.join(pairs)}" for model, pairs in found.items())
            object.__setattr__(self, "heads", self.heads.replace(wanted[0], text))
        object.__setattr__(self, "table", "")
        for name, known in (("when", get_args(Moment)), ("source", get_args(Source))):
            if getattr(self, name) not in known:
                raise UserError(
                    f"{name}={getattr(self, name)!r} is not known: {did_you_mean(getattr(self, name), known)}."
                )
        for text in (self.keys, self.rows):
            token_selector(text)
        if is_ranked(self.rows):
            raise UserError(f"rows={self.rows!r} are picked by rank, which only keys can be: name them.")
        if not math.isfinite(self.factor) or self.factor < 0 or (self.factor == 0 and self.when == "before"):
            raise UserError(f"factor={self.factor!r} should be a number from 0 up, above 0 before the softmax.")
        if self.outputs and self.op != "patch":
            raise UserError(f"outputs is of the edit patch, and not of {self.op}: leave it out.")
        if self.op in ("block", "zero", "pin") and self.keys == "all":
            raise UserError(f"An edit that {self.op}s all keys leaves nothing to attend to: name some, with keys.")

    @property
    def needs_pass(self) -> bool:
        """Whether a pass without edits has to come first."""
        return self.op == "pin" or needs_received(self.keys)

    @property
    def is_static(self) -> bool:
        """Whether it hides the same keys at every step of a run and does no more."""
        named = f"{self.keys} {self.rows}"
        return self.op in ("block", "keep") and not is_ranked(self.keys) and not any(state in named for state in STATES)

    def controls(self) -> dict[str, Edit]:
        """What to compare it with, by name: edits of the same size that pick by chance; none where none is picked."""
        if picked := _PICKED.search(self.keys):
            call, count, pool = picked[1], picked[2], picked[3]
            inside, spared = (f", {pool}", f"({pool}) and ") if pool else ("", "")
            found = {"as many": f"random({count}{inside})", "as much": f"like({call}{inside})"}
            if self.op == "keep":
                found["most recent"] = f"recent({count}{inside})"
            else:
                found["as much, answer spared"] = f"like({call}, {spared}not gold_answer)"
            return {name: replace(self, keys=self.keys.replace(call, keys)) for name, keys in found.items()}
        if self.keys.startswith("class "):
            return {"as much": replace(self, keys=f"like({self.keys})")}
        if re.fullmatch(r"doc \d+", self.keys):
            return {"another document": replace(self, keys=f"other({self.keys})")}
        if re.search(r"\d\.\d|retrieval", self.heads) and not self.heads.startswith("random"):
            return {"other heads": replace(self, heads=f"random({self.heads})")}
        return {}

    def for_model(self, name: str) -> Edit:
        """The same with the heads of this model, where they were taken from a table."""
        if _RETRIEVAL.search(self.heads):
            raise UserError(f"heads={self.heads!r} are read from a table: give what `analyze retrieval_heads` wrote.")
        if "=" not in self.heads:
            return self
        drawn = self.heads.startswith("random(")
        listed = self.heads.removeprefix("random(").removesuffix(")") if drawn else self.heads
        known = dict(part.strip().rsplit(" = ", 1) for part in listed.split(";"))
        if name not in known:
            raise UserError(f"The table of heads has none of {name}: it knows {', '.join(known)}.")
        return replace(self, heads=f"random({known[name]})" if drawn else known[name])

    def heads_at(self, layer: int, layers: int, heads: int, seed: int) -> Tensor:
        """bool [H]: the heads that are selected in a layer."""
        chosen = torch.zeros(heads, dtype=torch.bool)
        if (pairs := _PAIRS.fullmatch(self.heads)) is None:
            chosen[list(numbers(self.heads, heads, "head"))] = True
            return chosen
        named = [tuple(map(int, pair.split("."))) for pair in pairs[2].split(",")]
        for where, head in named:
            if where >= layers or head >= heads:
                raise UserError(f"There is no head {where}.{head}: the model has {layers} layers of {heads} heads.")
        own = [head for where, head in named if where == layer]
        if pairs[1]:
            others = [head for head in range(heads) if head not in own]
            own = random.Random(seed).sample(others, min(len(own), len(others)))
        chosen[own] = True
        return chosen


def best_heads(table: Path, count: int, score: str) -> dict[str, list[str]]:
    """By model, the heads of the highest score as layer.head, by a table of `analyze retrieval_heads`."""
    import polars as pl

    places = (table, table / "retrieval_heads.parquet", table / "tables" / "retrieval_heads.parquet")
    if (path := next((place for place in places if place.is_file()), None)) is None:
        raise UserError(f"There is no table of heads at {table}: make it with `floatscope analyze retrieval_heads`.")
    try:
        scores = pl.read_parquet(path, glob=False).select("model", "score", "layer", "head", "value")
    except (pl.exceptions.PolarsError, OSError) as error:
        raise UserError(f"{path} is no table of `floatscope analyze retrieval_heads`.") from error
    own = scores.filter(score=score).drop_nulls("value")
    if own.is_empty():
        raise UserError(f"{path} has no score {score!r}: {did_you_mean(score, scores['score'].unique().to_list())}.")
    means = own.group_by("model", "layer", "head", maintain_order=True).agg(pl.col("value").mean())
    best = means.sort("value", descending=True, maintain_order=True).group_by("model", maintain_order=True).head(count)
    found: dict[str, list[str]] = {}
    for model, layer, head in best.sort("model").select("model", "layer", "head").iter_rows():
        found.setdefault(model, []).append(f"{layer}.{head}")
    return found


def read_edit(text: str) -> Edit:
    """An edit in a line: "block anchors(3)", "scale doc 2 by 0.5", "heads 2.0, 5.3", "sink"."""
    op, _, rest = text.strip().partition(" ")
    keys, by, factor = rest.rpartition(" by ")
    if op == "heads":
        return Edit(op, heads=rest.strip() or "all")
    if not by:
        return Edit(op, keys=rest.strip() or "all")
    try:
        return Edit(op, keys=keys.strip(), factor=float(factor))
    except ValueError as error:
        raise UserError(f"The edit {text!r} has no number after by: write it as in scale doc 2 by 0.5.") from error
