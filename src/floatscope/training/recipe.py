"""The numbers of a training run, of a twin and of an adapter, and the learning rate that follows from them.

The text under a field is its help on the command line.
"""

import math
from dataclasses import asdict, dataclass

from floatscope.errors import UserError

COUNTS = ("steps", "batch", "rank", "held_out")
SHARES = ("floor", "full", "whole", "passages", "running")


@dataclass(frozen=True)
class Recipe:
    """What the trainer and the objective need to know of every run."""

    steps: int
    """Batches to train on."""
    batch: int
    """Sequences per step."""
    rate: float
    """Peak learning rate."""
    warmup: int
    """Steps until it is reached."""
    floor: float
    """The learning rate falls to this share of its peak ..."""
    horizon: int = 0
    """... by this step; 0: the last one."""
    cooldown: int = 0
    """Over so many steps at the end it falls to nothing on top of that."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    decay: float = 0.0
    """Weight decay."""
    text: float = 0.05
    """Weight of a token of text; one of an answer weighs 1."""
    gap: float = 0.2
    """Weight of a token of running text that is to be written."""
    full: float = 0.5
    """Share of sequences in which every slot is masked, as decoding starts."""
    whole: float = 0.0
    """Share of sequences that are masked as a whole."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            least, most = int(name in COUNTS), 1 if name in SHARES else math.inf
            if not least <= value <= most or value == math.inf:
                raise UserError(f"{name} is {value}: use at least {least}{', at most 1' * (most == 1)}.")


@dataclass(frozen=True)
class TwinRecipe(Recipe):
    """A twin in the knowledge world."""

    warmup: int = 50
    floor: float = 0.05
    decay: float = 0.05
    text: float = 0.1
    gap: float = 0.3
    whole: float = 0.15
    hint: float = 1.0
    """Weight of the hints."""
    muon: bool = True
    """Muon for the matrices of the layers; without it AdamW for all weights."""
    passages: float = 0.2
    """Share of sequences that are passages to write; of a parent's, once it knows how to bind."""
    patience: int = 120
    """A lesson of many documents ends at the latest after so many steps ..."""
    hopping: int = 400
    """... and that of two hops after so many."""


@dataclass(frozen=True)
class AdapterRecipe(Recipe):
    """An adapter, on questions with passages."""

    steps: int = 150
    batch: int = 8
    rate: float = 1e-3
    warmup: int = 20
    floor: float = 0.1
    rank: int = 16
    """Of the adapter's matrices."""
    window: int = 40
    """Tokens that a document is cut to."""
    held_out: int = 400
    """Questions to measure on, not trained on; none of their gold passages is trained on either."""
    running: float = 0.5
    """Share of tokens that are running text, to be continued and infilled."""
    ramp: int = 0
    """Steps over which the documents of a question grow from one to ten; 0: up to ten from the first step on."""


_FORK = TwinRecipe(steps=1000, batch=16, rate=1.5e-3, horizon=1300, cooldown=300)
RECIPES = {"parent": TwinRecipe(steps=3100, batch=16, rate=3e-3), "arm": _FORK, "dream": _FORK, "llada": _FORK}
"""The twins' recipes, by twin."""


def rate_at(step: int, recipe: Recipe) -> float:
    """Linear warmup, then a cosine down to the floor, and a linear cooldown."""
    if step < recipe.warmup:
        return recipe.rate * (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, (recipe.horizon or recipe.steps) - recipe.warmup)
    left = min(1.0, (recipe.steps - step) / recipe.cooldown) if recipe.cooldown else 1.0
    return recipe.rate * left * (recipe.floor + (1 - recipe.floor) * 0.5 * (1 + math.cos(math.pi * done)))
