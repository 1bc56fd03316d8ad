"""An edit of attention as the kernel knows it: per sample, layer and step, three plain tensors.

What a user declares (which keys, rows, layers, heads, steps) is compiled to this; where nothing is selected there is
no LayerEdit at all, and the unedited path runs, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add, mul
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class LayerEdit:
    """A change of one layer's attention. Each tensor is left out (None) or broadcast over what it lacks."""

    bias: Tensor | None = None
    """Added to the scores before the softmax, float32 [1 or H, 1 or R, K]; -inf blocks."""
    factor: Tensor | None = None
    """Times the probabilities after the softmax, float32 [1 or H, 1 or R, K]; 0 loses their mass."""
    heads: Tensor | None = None
    """Times each head's output, float32 [H]."""

    def add_bias(self, scores: Tensor, head: int, start: int) -> None:
        """Change the scores [rows, keys] of a block that begins at row `start`, in place."""
        if self.bias is not None:
            scores.add_(_part(self.bias, head, start, scores))

    def multiply(self, probabilities: Tensor, head: int, start: int) -> None:
        """Change the probabilities [rows, keys] of a block that begins at row `start`, in place."""
        if self.factor is not None:
            probabilities.mul_(_part(self.factor, head, start, probabilities))


class Edit(Protocol):
    """A declared change of attention; it compiles itself for one sample."""

    def compile(self, layer: int, step: int, rows: Tensor, keys: Tensor, heads: int) -> LayerEdit | None:
        """The change at this layer and step for rows [R] and keys [K] (positions); None where nothing is selected."""
        ...


def joined(edits: Sequence[LayerEdit]) -> LayerEdit | None:
    """Several changes of one layer as one: biases add, factors multiply; None for none."""
    if len(edits) < 2:
        return edits[0] if edits else None
    biases = [edit.bias for edit in edits if edit.bias is not None]
    factors = [edit.factor for edit in edits if edit.factor is not None]
    heads = [edit.heads for edit in edits if edit.heads is not None]
    return LayerEdit(
        reduce(add, biases) if biases else None,
        reduce(mul, factors) if factors else None,
        reduce(mul, heads) if heads else None,
    )


def _part(whole: Tensor, head: int, start: int, like: Tensor) -> Tensor:
    own = whole[head if len(whole) > 1 else 0]
    rows, keys = like.shape
    return (own[start : start + rows] if len(own) > 1 else own)[:, :keys].to(torch.float32)
