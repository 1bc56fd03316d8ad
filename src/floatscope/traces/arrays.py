"""The arrays that a trace may hold: each a row with its axes, its type, who makes it and what it costs."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from numpy.typing import NDArray

from floatscope.errors import UserError
from floatscope.registry import Registry, did_you_mean

SHORT_FORMS = {
    "compact": ("compact",),
    "rollout": ("compact", "rollout"),
    "groups": ("compact", "groups"),
    "heads": ("compact", "heads"),
    "matrices": ("compact", "heads", "matrices"),
}
"""Words for sets of arrays: what `keep` may be beside names; each stands for the rows whose `keep` is one of these."""


@dataclass(frozen=True)
class TraceArray:
    """A row of the registry."""

    axes: tuple[str, ...]
    meaning: str
    keep: str = "compact"
    """The short form that first includes it."""
    bytes: int = 2
    """What it costs: bytes per number in a file."""
    maker: str = "probe"
    """Who makes it: the probe, the sampler's steps, or the logits."""

    @property
    def whole(self) -> bool:
        """Whether its numbers are whole; the others are float16 in a file."""
        return self.bytes != 2


def _row(axes: str, meaning: str, keep: str = "compact", bytes: int = 2, maker: str = "probe") -> TraceArray:
    return TraceArray(tuple(axes.split()), meaning, keep, bytes, maker)


_BY_TOKEN, _BY_HEAD, _BY_COMMIT = "step layer token", "qk_step layer head token", "answer layer head"
_BY_CANDIDATE = "step answer candidate"
ARRAYS: Registry[TraceArray] = Registry(
    "array",
    {
        "received": _row(_BY_TOKEN, "column mean of the attention matrix over all rows, head mean"),
        "received_answer": _row(_BY_TOKEN, "the same over rows of the answer; 0 where there are none"),
        "received_masked": _row(_BY_TOKEN, "the same over slots that are still masked"),
        "received_value": _row(_BY_TOKEN, "head mean of received attention times the value's norm"),
        "seen_by": _row("layer token", "how many rows can see the column (last step)", bytes=4),
        "seen_by_step": _row(_BY_TOKEN, "the same at every step, where the steps have other rows", bytes=4),
        "region_attention": _row(
            "step layer head group column",
            "mean over the group's rows of the mass on the column set; 0 for an empty group",
        ),
        "group_rows": _row("step group", "rows in each group", bytes=4),
        "qk": _row(_BY_HEAD, "mean over the rows that see the key of q.k, unscaled"),
        "cos": _row(_BY_HEAD, "mean over the rows that see the key of cos(q, k)"),
        "norm": _row(_BY_HEAD, "mean over the rows that see the key of |q||k|"),
        "key_norm": _row("qk_step layer kv_head token", "norms of the keys"),
        "value_norm": _row("qk_step layer kv_head token", "norms of the values"),
        "commit_keys": _row(f"{_BY_COMMIT} rank", "top keys of the row that filled the slot, at its commit", bytes=4),
        "commit_key_mass": _row(f"{_BY_COMMIT} rank", "their probabilities"),
        "commit_mass": _row(f"{_BY_COMMIT} column", "that row's mass on each column set"),
        "commit_entropy": _row(_BY_COMMIT, "that row's entropy in nats"),
        "rollout": _row(
            "step layer group column",
            "mean over the group's rows of the rollout through the layers up to this one, summed by column set",
            "rollout",
        ),
        "commit_rollout": _row("answer layer column", "the same of the row that filled the slot", "rollout"),
        "tokens": _row("step answer", "token of each slot as the step's forward saw it", bytes=8, maker="steps"),
        "state": _row("step answer", "0 where the slot was masked in that forward, else 1", bytes=1, maker="steps"),
        "candidate_tokens": _row(
            _BY_CANDIDATE, "likeliest tokens of an open slot; -1: not open", bytes=4, maker="logits"
        ),
        "candidate_probability": _row(_BY_CANDIDATE, "their probabilities; -1: not open", maker="logits"),
        "candidate_margin": _row("step answer", "first probability minus the second; -1: not open", maker="logits"),
        "candidate_entropy": _row("step answer", "entropy of all tokens in nats; -1: not open", maker="logits"),
        "candidate_kl": _row(
            "step answer", "KL in nats to the step before; -1: it did not score the slot", maker="logits"
        ),
        "computed": _row("step bound", "first and one past the last row of the forward", bytes=4),
        "layer_index": _row("layer", "which layer of the model each entry is", bytes=4),
        "group_attention": _row("step layer group token", "sums over the group's rows, head mean", "groups"),
        "head_attention": _row("step layer head group token", "sums over the group's rows per head", "heads"),
        "matrix_steps": _row("matrix_step", "steps of the matrices below", "matrices", 4),
        "matrix_layers": _row("matrix_layer", "layers of the matrices below", "matrices", 4),
        "attention": _row("matrix_step matrix_layer matrix_head row token", "full probabilities", "matrices"),
        "queries": _row("matrix_step matrix_layer query_head row dimension", "queries after RoPE", "matrices"),
        "keys": _row("matrix_step matrix_layer kv_head token dimension", "keys after RoPE", "matrices"),
    },
)


class LazyArrays(Mapping[str, NDArray[Any]]):
    """Arrays by name, whose shapes are known before; each is made by `read` on first access and then held."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], read: Callable[[str], NDArray[Any]]) -> None:
        self.shapes, self.read = shapes, read
        self._held: dict[str, NDArray[Any]] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self.shapes:
            raise KeyError(name)
        if name not in self._held:
            self._held[name] = self.read(name)
        return self._held[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes


def kept_arrays(keep: str | Iterable[str]) -> frozenset[str]:
    """The names of arrays that a short form, a name, or several of both stand for."""
    names: set[str] = set()
    for word in (keep,) if isinstance(keep, str) else keep:
        if word in SHORT_FORMS:
            names |= {name for name, row in ARRAYS.items() if row.keep in SHORT_FORMS[word]}
        elif word in ARRAYS:
            names.add(word)
        else:
            known = did_you_mean(str(word), [*SHORT_FORMS, *ARRAYS])
            raise UserError(f"keep={word!r} is no array of a trace: {known}.")
    if not names:
        raise UserError(f"A trace that keeps nothing is none: name arrays, or one of {', '.join(SHORT_FORMS)}.")
    return frozenset(names)


def short_form(names: frozenset[str]) -> str:
    """The word for a set of names where there is one, else the names themselves."""
    return next((word for word in SHORT_FORMS if kept_arrays(word) == names), ", ".join(sorted(names)))


def check_matrices(
    keep: frozenset[str], steps: Sequence[int] | None, step_count: int, layers: Sequence[int] | None, layer_count: int
) -> None:
    """The steps and layers whose matrices are asked for are there to be had."""
    for name, wanted, count in (("matrix_steps", steps, step_count), ("matrix_layers", layers, layer_count)):
        if wanted is None:
            continue
        if "attention" not in keep:
            raise UserError(f"{name} says which matrices to keep: give it with keep='matrices'")
        outside = [one for one in wanted if not isinstance(one, Integral) or not 0 <= one < count]
        if outside or not len(wanted):
            raise UserError(f"{name}={list(wanted)!r} should be whole numbers from 0 to {count - 1}")


def check_memory(matrices: int, heads: int, tokens: int) -> None:
    """Full matrices fit into half of this machine's memory. matrices: how many of each head, over all samples."""
    if not hasattr(os, "sysconf"):
        return  # Windows does not say what it has
    needed, there = matrices * heads * tokens**2 * 4, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there // 2:
        raise UserError(
            f"Full matrices of {tokens} tokens would take {needed / 1e9:.1f} GB, and this machine has "
            f"{there / 1e9:.1f} GB: keep those of fewer steps or layers (matrix_steps, matrix_layers)."
        )
