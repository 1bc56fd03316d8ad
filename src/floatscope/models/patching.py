"""Patching: which layers and steps carry an answer, by rows that follow another prompt's run at one of them.

Prompt and donor are replayed with the same answer in one batch, so that no attention matrix is ever kept.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.canvas import Prompt, token_ids
from floatscope.errors import UserError
from floatscope.models.likelihood import replayed
from floatscope.models.model import Model
from floatscope.probe.edits import Edit


@dataclass(frozen=True, eq=False)
class Patched:
    """Log-probabilities of one answer, in nats."""

    prompt: float
    """After the prompt as it is."""
    donor: float
    """After the donor as it is."""
    patched: NDArray[np.float64]
    """[layer, step]: after the prompt, where this layer at this step follows the donor."""

    @property
    def recovered(self) -> NDArray[np.float64]:
        """[layer, step]: the share of the way from the prompt to the donor; nan where there is no way to go."""
        way = self.donor - self.prompt
        return (self.patched - self.prompt) / (way if abs(way) > 1e-9 else np.nan)


def patch(
    model: Model,
    prompt: Prompt,
    donor: Prompt,
    answer: Any,
    *,
    slots: int | None = None,
    rows: str = "open",
    heads: str = "all",
    outputs: bool = False,
    batch: int = 16,
    seed: int = 0,
) -> Patched:
    """Replay the answer (token ids) after a prompt, once for each layer and step that is patched from the donor's run.

    donor: a prompt of as many tokens, such as the same one with its gold document, where the prompt has another.
    slots: answer slots; default: as many as the answer has tokens.
    rows, heads: what is patched, as in `fs.Edit`; by default the rows that may fill a slot.
    outputs: the rows also take up what the donor's do, and not only look where these look.
    batch: how many replays run at once, beside those of prompt and donor.
    """
    tokens = token_ids(answer)
    if len(prompt.ids) != len(donor.ids):
        raise UserError(
            f"The donor has {len(donor.ids)} tokens and the prompt {len(prompt.ids)}: exchange texts of equal length."
        )
    length = len(tokens) if slots is None else slots
    if length < len(tokens):
        raise UserError(f"The answer has {len(tokens)} tokens and there are {length} slots: ask for more.")
    cells = [(layer, step) for layer in range(model.layers) for step in range(len(tokens))]
    whole, ends = np.empty((model.layers, len(tokens))), (0.0, 0.0)
    for start in range(0, len(cells), batch):
        part = cells[start : start + batch]
        edits = [
            [Edit("patch", rows=rows, heads=heads, layers=str(layer), steps=str(step), outputs=outputs)]
            for layer, step in part
        ]
        size = len(part) + 2
        found = replayed(
            model,
            [donor, *[prompt] * (size - 1)],
            [tokens] * size,
            length,
            [seed] * size,
            [[], [], *edits],
            dict.fromkeys(range(2, size), 0),
        )
        theirs, own, *values = (one["log_probability"] for one in found)
        ends = own, theirs
        for (layer, step), value in zip(part, values, strict=True):
            whole[layer, step] = value
    return Patched(*ends, whole)
