"""The training stream: closed-book questions, questions with documents, and running text, as token ids with roles.

The batch of a step follows from (seed, step) alone, so a resumed run sees the same stream, and so do all three forks.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch

from floatscope.adapting.data import Data, Windows
from floatscope.qa.prompts import build_prompt, surroundings
from floatscope.qa.samples import Document, Sample

PADDING, PROMPT, TEXT, ANSWER, FIRST_EOS, LATER_EOS = range(6)  # what a token is to the objective
ROUND = 16  # batches are cut from rounds of this many, sorted by length, so that little is padded
CLOSED, RUNNING = 0.1, 0.25  # shares of closed-book questions and of running text; the rest has documents
MOST_DOCUMENTS = 10
SLOTS = (4, 16)
LENGTHS = (64, 128)  # tokens of running text


@dataclass(frozen=True)
class Batch:
    """ids and roles, each [B, T], padded on the right."""

    ids: torch.Tensor
    roles: torch.Tensor

    @property
    def tokens(self) -> int:
        return int((self.roles != PADDING).sum())


Row = tuple[list[int], list[int]]
"""ids and roles of one sequence."""


class Stream:
    """Batches by step number."""

    def __init__(self, data: Data, windows: Windows, tokenizer: Any, eos_id: int, seed: int, batch: int) -> None:
        self.data, self.windows, self.tokenizer = data, windows, tokenizer
        self.eos_id, self.seed, self.batch = eos_id, seed, batch
        self._bos = surroundings(tokenizer)[0]
        self._distractors: dict[str, tuple[Document, ...]] = {}
        self._round: tuple[int, list[Batch]] = (-1, [])

    def at(self, step: int) -> Batch:
        number, index = divmod(step, ROUND)
        if self._round[0] != number:
            self._round = (number, self._make_round(number))
        return self._round[1][index]

    def _make_round(self, number: int) -> list[Batch]:
        rng = random.Random(f"adapting {self.seed} {number}")
        rows = sorted((self._row(rng) for _ in range(ROUND * self.batch)), key=lambda row: len(row[0]))
        batches = [pack(rows[i : i + self.batch], self.eos_id) for i in range(0, len(rows), self.batch)]
        rng.shuffle(batches)
        return batches

    def _row(self, rng: random.Random) -> Row:
        kind = rng.random()
        if kind < RUNNING:
            return self.running_text(rng.choice(self.data.passages), rng)
        sample = rng.choice(self.data.train)
        gold, answer = self.windows.gold(sample, rng)
        documents: list[Document] = []
        if kind >= RUNNING + CLOSED:
            documents = self._beside(sample, rng, _count(rng) - 1)
            documents.insert(rng.randint(0, len(documents)), gold)
        return self.question(sample, documents, answer, _slots(rng))

    def _beside(self, sample: Sample, rng: random.Random, count: int) -> list[Document]:
        """The best distractors of a question, in any order, each cut anywhere; fewer where there are no more."""
        if count and sample.id not in self._distractors:
            self._distractors[sample.id] = self.data.distractors(sample)
        found = [self.windows.any(document, rng) for document in self._distractors.get(sample.id, ())[:count]]
        rng.shuffle(found)
        return found

    def question(self, sample: Sample, documents: list[Document], answer: str, slots: int) -> Row:
        """The prompt that evaluation uses, then the answer and eos up to the number of slots, at least one."""
        prompt = build_prompt(self.tokenizer, sample.question, documents, raw=True).ids.tolist()
        ids = self.tokenizer(f" {answer}", add_special_tokens=False)["input_ids"]
        eos = max(slots - len(ids), 1)
        roles = [PROMPT] * len(prompt) + [ANSWER] * len(ids) + [FIRST_EOS] + [LATER_EOS] * (eos - 1)
        return prompt + ids + [self.eos_id] * eos, roles

    def running_text(self, passage: Document, rng: random.Random) -> Row:
        text = self.windows.cut(passage.text, rng, size=rng.randint(*LENGTHS))
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return [*self._bos, *ids], [PROMPT] * len(self._bos) + [TEXT] * len(ids)


def pack(rows: list[Row], filler: int) -> Batch:
    width = max(len(ids) for ids, _ in rows)
    return Batch(
        torch.tensor([ids + [filler] * (width - len(ids)) for ids, _ in rows]),
        torch.tensor([roles + [PADDING] * (width - len(roles)) for _, roles in rows]),
    )


def _count(rng: random.Random) -> int:
    """Documents of a question: P(k) ~ 1/k."""
    numbers = range(1, MOST_DOCUMENTS + 1)
    return rng.choices(numbers, [1 / k for k in numbers])[0]


def _slots(rng: random.Random) -> int:
    """Few slots more often than many: the log of their number is uniform."""
    low, high = SLOTS
    return round(low * (high / low) ** rng.random())
