"""Who may see whom on a canvas: bidirectional, causal, block_causal(k), active_block(k). Nothing of the logit shift."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from floatscope.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["bidirectional", "causal", "block_causal", "active_block"]


@dataclass(frozen=True)
class Visibility:
    """`block_causal` rows see their own block and all earlier ones; blocks are counted from canvas position 0.

    `active_block` rows are causal, but for those of the block of slots that is filled now, which see all of it; blocks
    are counted from the first slot.
    """

    kind: Kind
    block: int | None = None

    def __post_init__(self) -> None:
        if ("block" in self.kind) != (self.block is not None and self.block >= 1):
            raise UserError(
                f"visibility {self.kind} with block {self.block}: block_causal(k) and active_block(k) have a block of "
                "k >= 1, others none"
            )

    def __str__(self) -> str:
        return f"{self.kind}({self.block})" if self.block else self.kind

    @classmethod
    def parse(cls, text: str) -> Visibility:
        """Read the written form, as in `block_causal(4)`."""
        match = re.fullmatch(r"(bidirectional|causal|block_causal|active_block)(?:\((\d+)\))?", text.strip())
        if match is None:
            raise UserError(
                f"unknown visibility {text!r}: use bidirectional, causal, block_causal(k) or active_block(k)"
            )
        kind, block = match.groups()
        return cls(cast(Kind, kind), int(block) if block else None)

    def mask(self, tokens: int, pads: Tensor, slots: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Bool [B, 1, T, T], True where row i may see column j; left pads see and are seen by nobody else.

        A pad row sees itself, so that no row of the softmax is empty. slots: for active_block, the first slot and the
        first open one of each sample, as columns [B]; without them nothing is active.
        """
        import torch

        position = torch.arange(tokens, device=pads.device)[None] - pads[:, None]  # [B, T], negative on pads
        rows, columns = position[:, :, None], position[:, None, :]  # [B, T, 1], [B, 1, T]
        visible = (rows >= 0) & (columns >= 0)  # [B, T, T]
        if self.kind != "bidirectional":  # causal blocks are of one token
            block = self.block if self.kind == "block_causal" and self.block else 1
            before = rows // block >= columns // block
            if slots is not None and self.block:
                first, opened = ((place - pads)[:, None, None] for place in slots)
                together = (rows - first) // self.block == (columns - first) // self.block
                active = (rows - first) // self.block >= (opened - first) // self.block
                before |= together & active & (columns >= first)
            visible &= before
        itself = torch.eye(tokens, dtype=torch.bool, device=pads.device)
        return (visible | itself)[:, None]


BIDIRECTIONAL = Visibility("bidirectional")
CAUSAL = Visibility("causal")
