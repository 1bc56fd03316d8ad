"""A training stream: batches of token ids with roles, by step number. What the examples are is left to its subclasses.

The batch of a step follows from (seed, step) and the stream's state, so a resumed run sees the same stream, and so do
all forks of one seed.
"""

import random
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

# What a token is to the objective. FIRST and HOP are tokens from which an answer in the documents, to a question of one
# and of two hops, can start to be filled in; ANSWER is any other token of an answer. GAP is one of running text that is
# to be written.
PADDING, PROMPT, TEXT, ANSWER, FIRST_EOS, LATER_EOS, FIRST, HOP, GAP = range(9)


@dataclass(frozen=True)
class ExampleBatch:
    """ids, roles and question numbers, each [B, T], padded on the right.

    Tokens with a question number (0 and up, else -1) may be masked; each question is masked by a ratio of its own.
    `found` [N, 2]: for each FIRST and HOP token in reading order, the two words that name what the first hop finds.
    """

    ids: torch.Tensor
    roles: torch.Tensor
    questions: torch.Tensor
    found: torch.Tensor

    @property
    def tokens(self) -> int:
        return int((self.roles != PADDING).sum())


@dataclass
class Example:
    """One row of a batch in the making."""

    ids: list[int] = field(default_factory=list)
    roles: list[int] = field(default_factory=list)
    questions: list[int] = field(default_factory=list)
    found: list[list[int]] = field(default_factory=list)

    def add(self, ids: list[int], role: int, question: int = -1) -> None:
        self.ids += ids
        self.roles += [role] * len(ids)
        self.questions += [question] * len(ids)


class Stream:
    """Batches by step number, cut from rounds of examples that are sorted by length, so that little is padded."""

    name: ClassVar[str]
    """Sets its random numbers apart from those of other streams."""
    per_round: ClassVar[int]
    """How many batches a round has."""

    def __init__(self, seed: int, batch: int, filler: int) -> None:
        """`filler` is the token that examples are padded with."""
        self.seed, self.batch, self.filler = seed, batch, filler
        self.state: dict[str, Any] = {}
        """Whatever a checkpoint must keep of the stream, in plain numbers and lists."""
        self._round: tuple[int, list[ExampleBatch]] = (-1, [])

    def at(self, step: int) -> ExampleBatch:
        """The batch of a step; steps are asked for in order, from any step on."""
        number, index = divmod(step, self.per_round)
        if index == 0:
            self.begin_round(step)
        if self._round[0] != number:
            rng, size = random.Random(f"{self.name} {self.seed} {number}"), self.batch
            drawn = sorted((self.example(rng) for _ in range(self.per_round * size)), key=lambda one: len(one.ids))
            batches = [pack(drawn[start : start + size], self.filler) for start in range(0, len(drawn), size)]
            rng.shuffle(batches)
            self._round = (number, batches)
        return self._round[1][index]

    def example(self, rng: random.Random) -> Example:
        """One row of a batch."""
        raise NotImplementedError

    def begin_round(self, step: int) -> None:
        """Called before a round's first batch: the place to change what follows."""

    def hear(self, right: float) -> None:
        """Called after each step with the share of answer tokens that the model got right."""

    def told(self) -> dict[str, Any]:
        """What the log should say of the stream."""
        return {}


def pack(examples: list[Example], filler: int) -> ExampleBatch:
    """Examples as one batch, padded to the longest."""
    width = max(len(one.ids) for one in examples)

    def padded(part: str, filler: int) -> torch.Tensor:
        rows = [getattr(one, part) for one in examples]
        return torch.tensor([row + [filler] * (width - len(row)) for row in rows])

    found = torch.tensor([words for one in examples for words in one.found], dtype=torch.long).view(-1, 2)
    return ExampleBatch(padded("ids", filler), padded("roles", PADDING), padded("questions", -1), found)


def draw_slots(rng: random.Random, low: int, high: int) -> int:
    """Few slots more often than many: the log of their number is uniform."""
    return round(low * (high / low) ** rng.random())
