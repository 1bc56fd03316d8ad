"""What the stressors have in common: how many documents are shown, and where distractors come from."""

from dataclasses import dataclass
from typing import Literal

from floatscope.errors import UserError

NOISE_KINDS = ("random", "topical", "counterfactual")
NOISE_GOLD = ("kept", "removed")


@dataclass(frozen=True)
class StressOptions:
    """Settings shared by the stressors of a study."""

    documents: int = 10
    """Documents shown in the position and layout tests, gold included; "all" goes as far for noise."""
    kinds: tuple[str, ...] = ("topical",)
    """Kinds of noise: random, topical, counterfactual."""
    gold: tuple[str, ...] = ("kept",)
    """Gold documents under noise: kept, removed, or both in turn."""
    distractors: Literal["topical", "random"] = "topical"
    """Where the other documents of the position and layout tests come from."""

    def __post_init__(self) -> None:
        if self.documents < 1:
            raise UserError(f"{self.documents} documents are too few for a stress test: ask for at least 1.")
        _check(self.kinds, NOISE_KINDS, "kind of noise")
        _check(self.gold, NOISE_GOLD, "setting of gold under noise")
        _check((self.distractors,), NOISE_KINDS[:2], "source of distractors")


def _check(values: tuple[str, ...], known: tuple[str, ...], what: str) -> None:
    if wrong := [value for value in values if value not in known]:
        raise UserError(f"There is no {what} {wrong[0]!r}; known are {', '.join(known)}.")
    if not values:
        raise UserError(f"At least one {what} is needed; known are {', '.join(known)}.")
