"""From a device to the host in one copy per step, which nobody waits for until its numbers are read.

Knows tensors by name; nothing of what they mean.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

Held = dict[str, Tensor]


class Landing:
    """Tensors on their way: through one pinned buffer that every step uses again."""

    def __init__(self) -> None:
        self._pinned = torch.empty(0, dtype=torch.uint8)
        self._due: list[tuple[Tensor, int]] = []  # where a tensor goes on the host, and its first byte in the buffer
        self._sent: torch.cuda.Event | None = None

    def send(self, held: Iterable[Held]) -> None:
        """Put tensors of the host, which `land` fills, in place of those on a device; the copy begins, and goes on."""
        self.land()
        leaving = [(own, name, one) for own in held for name, one in own.items() if self.leaves(one)]
        if not leaving:
            return
        device = leaving[0][2].device
        whole = torch.cat([one.to(device).contiguous().view(-1).view(torch.uint8) for *_, one in leaving])
        if len(self._pinned) < len(whole):
            self._pinned = torch.empty(len(whole), dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._pinned[: len(whole)].copy_(whole, non_blocking=True)
        if device.type == "cuda":
            self._sent = torch.cuda.Event()
            self._sent.record(torch.cuda.current_stream(device))
        start = 0
        for own, name, one in leaving:
            own[name] = torch.empty(one.shape, dtype=one.dtype)
            self._due.append((own[name], start))
            start += one.nbytes

    def leaves(self, one: Tensor) -> bool:
        """Whether it is to be copied: what is on the host already stays as it is."""
        return one.device.type != "cpu"

    def land(self) -> None:
        """Wait for what was sent and put it where it goes."""
        if self._sent is not None:
            self._sent.synchronize()
            self._sent = None
        for target, start in self._due:
            target.view(-1).view(torch.uint8).copy_(self._pinned[start : start + target.nbytes])
        self._due.clear()
