"""The stream of passages: closed-book questions, questions with documents, and running text."""

from __future__ import annotations

import random
from typing import Any

from floatscope.qa.prompts import build_prompt, surroundings
from floatscope.qa.samples import Document, Sample
from floatscope.training.passages import Data, Windows
from floatscope.training.stream import ANSWER, FIRST_EOS, LATER_EOS, PROMPT, TEXT, Example, Stream, draw_slots

CLOSED, RUNNING = 0.1, 0.25  # shares of closed-book questions and of running text; the rest has documents
DOCUMENTS = range(1, 11)
SLOTS = (4, 16)
LENGTHS = (64, 128)  # tokens of running text


class PassageStream(Stream):
    """Training questions of the data, and its passages."""

    name = "adapting"
    per_round = 16

    def __init__(self, data: Data, windows: Windows, tokenizer: Any, seed: int, batch: int) -> None:
        super().__init__(seed, batch, int(tokenizer.eos_token_id))
        self.data, self.windows, self.tokenizer = data, windows, tokenizer
        self._bos = surroundings(tokenizer)[0]
        self._distractors: dict[str, tuple[Document, ...]] = {}

    def example(self, rng: random.Random) -> Example:
        """A question or a piece of running text."""
        kind = rng.random()
        if kind < RUNNING:
            return self.running_text(rng.choice(self.data.passages), rng)
        sample = rng.choice(self.data.train)
        gold, answer = self.windows.gold(sample, rng)
        documents: list[Document] = []
        if kind >= RUNNING + CLOSED:
            count = rng.choices(DOCUMENTS, [1 / k for k in DOCUMENTS])[0]
            documents = self._beside(sample, rng, count - 1)
            documents.insert(rng.randint(0, len(documents)), gold)
        return self.question(sample, documents, answer, draw_slots(rng, *SLOTS))

    def _beside(self, sample: Sample, rng: random.Random, count: int) -> list[Document]:
        """The best distractors of a question, in any order, each cut anywhere; fewer where there are no more."""
        if count and sample.id not in self._distractors:
            self._distractors[sample.id] = self.data.distractors(sample)
        found = [self.windows.any(document, rng) for document in self._distractors.get(sample.id, ())[:count]]
        rng.shuffle(found)
        return found

    def question(self, sample: Sample, documents: list[Document], answer: str, slots: int) -> Example:
        """The prompt that evaluation uses, then the answer and eos up to the number of slots, at least one."""
        example = Example()
        example.add(build_prompt(self.tokenizer, sample.question, documents, raw=True).ids.tolist(), PROMPT)
        ids = self.tokenizer(f" {answer}", add_special_tokens=False)["input_ids"]
        example.add(ids, ANSWER, 0)
        example.add([self.filler], FIRST_EOS, 0)
        example.add([self.filler] * (slots - len(ids) - 1), LATER_EOS, 0)
        return example

    def running_text(self, passage: Document, rng: random.Random) -> Example:
        """A piece of a passage, any token of which may be masked."""
        text = self.windows.cut(passage.text, rng, size=rng.randint(*LENGTHS))
        example = Example()
        example.add(self._bos, PROMPT)
        example.add(self.tokenizer(text, add_special_tokens=False)["input_ids"], TEXT, 0)
        return example
