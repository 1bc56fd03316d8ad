"""The numbers of a training run, of a twin and of an adapter, and the learning rate that follows from them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from floatscope.errors import UserError


@dataclass(frozen=True)
class Recipe:
    """What the trainer and the objective need to know of every run."""

    steps: int
    batch: int  # sequences per step
    rate: float  # peak learning rate
    warmup: int  # steps until it is reached
    floor: float  # the learning rate falls to this share of its peak ...
    horizon: int = 0  # ... by this step; 0: the last one
    cooldown: int = 0  # over so many steps at the end it falls to nothing on top of that
    clip: float = 1.0  # largest norm of the gradient
    decay: float = 0.0  # weight decay
    text: float = 0.05  # weight of a token of text; one of an answer weighs 1
    whole: float = 0.0  # share of sequences that are masked as a whole
    hint: float = 0.0  # weight of the hints

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "rank", "held_out"):
            if getattr(self, name, 1) < 1:
                raise UserError(f"{name} is {getattr(self, name)}: use at least 1.")


@dataclass(frozen=True)
class TwinRecipe(Recipe):
    """A twin in the knowledge world."""

    warmup: int = 50
    floor: float = 0.05
    decay: float = 0.05
    text: float = 0.1
    whole: float = 0.15
    hint: float = 1.0
    patience: int = 120  # a lesson of many documents ends at the latest after so many steps ...
    hopping: int = 400  # ... and that of two hops after so many


@dataclass(frozen=True)
class AdapterRecipe(Recipe):
    """An adapter, on questions with passages."""

    steps: int = 150
    batch: int = 8
    rate: float = 1e-3
    warmup: int = 20
    floor: float = 0.1
    rank: int = 16  # of the adapter's matrices
    window: int = 40  # tokens of a document
    held_out: int = 400  # questions that are not trained on


_FORK = TwinRecipe(steps=1000, batch=16, rate=1.5e-3, horizon=1300, cooldown=300)
RECIPES = {"parent": TwinRecipe(steps=3100, batch=16, rate=3e-3), "arm": _FORK, "dream": _FORK, "llada": _FORK}
"""The shipped twins' recipes, by twin."""


def rate_at(step: int, recipe: Recipe) -> float:
    """Linear warmup, then a cosine down to the floor, and a linear cooldown."""
    if step < recipe.warmup:
        return recipe.rate * (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, (recipe.horizon or recipe.steps) - recipe.warmup)
    left = min(1.0, (recipe.steps - step) / recipe.cooldown) if recipe.cooldown else 1.0
    return recipe.rate * left * (recipe.floor + (1 - recipe.floor) * 0.5 * (1 + math.cos(math.pi * done)))
