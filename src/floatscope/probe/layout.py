"""What the probe counts for one canvas at one step: which rows are computed over which keys, and what is summed.

Rows may be fewer than keys (a block of slots over a cache); both are positions on the canvas, ascending.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Fixed for one forward, shared by all layers. R rows, K keys, G groups, C column sets, N open rows."""

    rows: Tensor
    """Position of each computed row, int64 [R]."""
    keys: Tensor
    """Position of each key, int64 [K]."""
    groups: Tensor
    """Group of each row, int64 [R]."""
    group_count: int
    """Number of groups, G."""
    columns: Tensor
    """Membership of keys in column sets, float32 [K, C]; sets may overlap."""
    open_rows: Tensor
    """Places among the R rows of those that may fill a slot at this step, int64 [N], ascending."""
    top: int = 8
    """How many of the strongest keys are kept for each open row."""

    @classmethod
    def whole(cls, groups: Tensor, group_count: int, columns: Tensor, open_rows: Tensor, top: int = 8) -> Layout:
        """All positions of a canvas as rows and as keys."""
        positions = torch.arange(len(groups), device=groups.device)
        return cls(positions, positions, groups, group_count, columns, open_rows, top)

    @cached_property
    def is_whole(self) -> bool:
        """Whether row i and key i are the same position, for all of them."""
        return self.rows is self.keys or torch.equal(self.rows, self.keys)

    @cached_property
    def group_rows(self) -> Tensor:
        """How many rows each group has, int64 [G]."""
        return torch.bincount(self.groups, minlength=self.group_count)

    @property
    def host(self) -> Layout:
        """The same as it was before `to`: what is read of it costs no wait."""
        return self.__dict__.get("_host", self)

    def to(self, device: torch.device) -> Layout:
        """The same on another device; kept, since every layer asks."""
        if self.groups.device == device:
            return self
        moved: dict[torch.device, Layout] = self.__dict__.setdefault("_moved", {})
        if device not in moved:
            names = ("rows", "keys", "groups", "columns", "open_rows")
            sent = {name: getattr(self, name).to(device, non_blocking=True) for name in (*names, "group_rows")}
            known = {"_host": self, "is_whole": self.is_whole, "group_rows": sent.pop("group_rows")}
            moved[device] = replace(self, **sent)
            moved[device].__dict__.update(known)  # so that nothing of it is worked out over there
        return moved[device]

    def keys_until(self, row: int) -> int:
        """How many keys stand at or before the position of this row, by its place among the R rows."""
        return row + 1 if self.is_whole else int(torch.searchsorted(self.keys, self.rows[row], right=True))

    def blocks(self, size: int) -> Sequence[RowBlock]:
        """The rows cut into blocks of at most `size`, with what each block adds to which group."""
        cache: dict[int, tuple[RowBlock, ...]] = self.__dict__.setdefault("_blocks", {})
        if size not in cache:
            starts = range(0, len(self.rows), size)
            cache[size] = tuple(self._block(start, min(start + size, len(self.rows))) for start in starts)
        return cache[size]

    def _block(self, start: int, stop: int) -> RowBlock:
        inside = ((self.open_rows >= start) & (self.open_rows < stop)).nonzero()[:, 0]
        local = self.open_rows[inside] - start
        keys = self.keys_until(stop - 1)
        return RowBlock(start, stop, keys, self.groups[start:stop], _as_slice(inside), _as_slice(local))


def _as_slice(places: Tensor) -> slice | Tensor:
    """A slice where the places are neighbours, as answer slots are: copies without an index."""
    if len(places) and int(places[-1] - places[0]) + 1 == len(places):
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


@dataclass(frozen=True)
class RowBlock:
    """A run of computed rows: the groups in it, and the open rows that fall into it."""

    start: int
    stop: int
    keys: int
    """Keys at or before the block's last row: all that a causal block can see."""
    groups: Tensor
    """Group of each row of the block."""
    open_rows: slice | Tensor
    """Places of the block's open rows in Layout.open_rows."""
    local: slice | Tensor
    """The same rows, counted from the block's start."""

    @cached_property
    def members(self) -> tuple[slice | Tensor, Tensor]:
        """The P groups present, and one-hot membership of the rows in them, float32 [P, rows]."""
        present = self.groups.unique()
        return _as_slice(present), (self.groups[None] == present[:, None]).float()
