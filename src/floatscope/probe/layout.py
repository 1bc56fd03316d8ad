"""What the probe counts for one canvas at one step: groups of query rows, sets of key columns, rows of interest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Fixed for one forward, shared by all layers. T rows, G groups, C column sets, N rows of interest."""

    groups: Tensor
    """Group of each row, int64 [T]."""
    group_count: int
    """Number of groups, G."""
    columns: Tensor
    """Membership of keys in column sets, float32 [T, C]; sets may overlap."""
    rows: Tensor
    """Rows of interest, int64 [N], ascending."""
    top: int = 8
    """How many of the strongest keys are kept for each row of interest."""

    @property
    def tokens(self) -> int:
        """Number of rows, T."""
        return len(self.groups)

    @cached_property
    def group_rows(self) -> Tensor:
        """How many rows each group has, int64 [G]."""
        return torch.bincount(self.groups, minlength=self.group_count)

    def to(self, device: torch.device) -> Layout:
        """The same on another device; kept, since every layer asks."""
        if self.groups.device == device:
            return self
        moved: dict[torch.device, Layout] = self.__dict__.setdefault("_moved", {})
        if device not in moved:
            groups, columns, rows = (t.to(device) for t in (self.groups, self.columns, self.rows))
            moved[device] = replace(self, groups=groups, columns=columns, rows=rows)
        return moved[device]

    def blocks(self, size: int) -> Sequence[RowBlock]:
        """The rows cut into blocks of at most `size`, with what each block adds to which group."""
        cache: dict[int, tuple[RowBlock, ...]] = self.__dict__.setdefault("_blocks", {})
        if size not in cache:
            starts = range(0, self.tokens, size)
            cache[size] = tuple(self._block(start, min(start + size, self.tokens)) for start in starts)
        return cache[size]

    def _block(self, start: int, stop: int) -> RowBlock:
        ids = self.groups[start:stop]
        inside = ((self.rows >= start) & (self.rows < stop)).nonzero()[:, 0]
        return RowBlock(start, stop, ids, _as_slice(inside), _as_slice(self.rows[inside] - start))


def _as_slice(places: Tensor) -> slice | Tensor:
    """A slice where the places are neighbours, as answer slots are: copies without an index."""
    if len(places) and int(places[-1] - places[0]) + 1 == len(places):
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


@dataclass(frozen=True)
class RowBlock:
    """A run of query rows: the groups in it, and the rows of interest that fall into it."""

    start: int
    stop: int
    groups: Tensor
    """Group of each row of the block."""
    interest: slice | Tensor
    """Places of the block's rows of interest in Layout.rows."""
    local: slice | Tensor
    """The same rows, counted from the block's start."""

    @cached_property
    def members(self) -> tuple[slice | Tensor, Tensor]:
        """The P groups present, and one-hot membership of the rows in them, float32 [P, rows]."""
        present = self.groups.unique()
        return _as_slice(present), (self.groups[None] == present[:, None]).float()
