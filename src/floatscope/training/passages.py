"""What an adapter is trained and measured on: questions with gold passages, split in two, windows, their stream."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from floatscope.errors import UserError
from floatscope.files import file_hash
from floatscope.qa.corpus import documents_of
from floatscope.qa.metrics import normalise
from floatscope.qa.prompts import build_prompt, find_answers, surroundings
from floatscope.qa.readers import read_samples
from floatscope.qa.retrieval import BM25Retriever, find_distractors
from floatscope.qa.samples import Document, Sample
from floatscope.training.recipe import AdapterRecipe
from floatscope.training.stream import ANSWER, FIRST_EOS, GAP, LATER_EOS, PROMPT, TEXT, Example, Stream, draw_slots

HELD_OUT, WHOLE = "held_out.jsonl", "passages.jsonl"
LONGEST_ANSWER = 15  # tokens: with its eos it fits the most slots that the stream has
DISTRACTORS = 9
OVERLAP = 13  # words in a row that no held-out passage shares with training
CLOSED = 0.13  # share of closed-book questions; the rest have documents
DOCUMENTS = 10
SLOTS = (4, 16)
LENGTHS = (64, 192)  # tokens of running text ...
GAPS = (8, 96)  # ... and of what is to be written of it, at most three quarters
PLACES = ("end", "start", "anywhere", "scattered")  # of the gap; scattered: any token may be masked
TRIED = 64  # examples of each kind that tell how long they are


@dataclass(frozen=True)
class Data:
    """Training questions and held-out ones, each with its one gold passage, whole; and every passage to train on."""

    train: tuple[Sample, ...]
    held_out: tuple[Sample, ...]
    passages: tuple[Document, ...]
    """Of the training questions; none is a gold passage of a held-out one."""
    files: dict[str, str]
    """SHA-256 of each file, by its name."""
    _found: dict[str, tuple[Document, ...]] = field(default_factory=dict)

    @cached_property
    def retriever(self) -> BM25Retriever:
        return BM25Retriever(self.passages)

    def distractors(self, sample: Sample) -> tuple[Document, ...]:
        """The training passages nearest to a question that hold none of its answers, best first; searched once."""
        if sample.id not in self._found:
            self._found[sample.id] = find_distractors(sample, self.retriever, DISTRACTORS)
        return self._found[sample.id]


def read_data(files: Sequence[str | Path], held_out: int, windows: Windows) -> Data:
    """Questions of the files that can be trained on, about `held_out` of them set apart.

    A few more where they share a passage, fewer where a passage overlaps with one that is trained on.
    Which ones follows from the gold passages alone, so all forks and seeds hold out the same.
    """
    if not files:
        raise UserError("There is no data to train on: give at least one file of questions with gold passages.")
    if len({_name(file) for file in files}) < len(files):
        raise UserError("Two data files have the same name, by which their questions are told apart: rename one.")
    every = [
        replace(sample, id=f"{_name(file)}:{sample.id}") if len(files) > 1 else sample
        for file in files
        for sample in read_samples(file, skipped=[])  # those that cannot be read are left out
    ]
    samples = []
    for sample in every:  # each with its first gold passage that holds an answer short enough to train on
        gold = next((one for one in sample.documents if one.gold and windows.spans(sample, one)), None)
        samples += [] if gold is None else [replace(sample, documents=(gold,))]
    if not samples:
        raise UserError(
            f"None of the {len(every)} questions in {', '.join(map(_name, files))} has a gold passage that holds one "
            "of its answers, which training needs: give data with answers and with passages, some of them marked gold."
        )
    train, held = split(samples, held_out)
    kept, apart = ({sample.id for sample in part} for part in (train, held))
    golds = (document for sample in every if sample.id in apart for document in sample.documents if document.gold)
    secret = {normalise(document.text) for document in golds}
    trained = documents_of(sample for sample in every if sample.id in kept)
    passages = tuple(passage for passage in trained if normalise(passage.text) not in secret)
    seen = (*passages, *(sample.documents[0] for sample in train))
    known = {run for document in seen for run in _runs(document.text)}  # data may hold versions of one page
    clean = tuple(sample for sample in held if known.isdisjoint(_runs(sample.documents[0].text)))
    if not clean:
        raise UserError("Every held-out passage shares words with a training passage: give data with other passages.")
    hashes = {_name(file): file_hash(Path(file)) if Path(file).is_file() else "from the hub" for file in files}
    return Data(train, clean, passages, hashes)


def _runs(text: str) -> set[str]:
    """Every OVERLAP words in a row; of a shorter text, the whole."""
    words = normalise(text).split()
    return {" ".join(words[start : start + OVERLAP]) for start in range(max(1, len(words) - OVERLAP + 1))}


def split(samples: Sequence[Sample], held_out: int) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    """Training and held-out samples, by hash of the gold passage; neither a passage nor a question is in both."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        gold = sample.documents[0]
        text = f"{normalise(gold.title)}\x1f{normalise(gold.text)}"
        groups.setdefault(hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(), []).append(sample)
    held: list[Sample] = []
    rest: list[Sample] = []
    for key in sorted(groups):
        (held if len(held) < held_out else rest).extend(groups[key])
    asked = {normalise(sample.question) for sample in held}
    train = tuple(sample for sample in rest if normalise(sample.question) not in asked)
    if not train:
        raise UserError(
            f"{len(samples)} usable questions are too few to hold out {held_out} and train on others: "
            "give more data or a smaller --held-out."
        )
    return train, tuple(held)


def _name(file: str | Path) -> str:
    return str(file) if str(file).startswith("hf:") else Path(file).name


class Windows:
    """Cuts passages to about `size` tokens at word edges: around an answer, or anywhere."""

    def __init__(self, tokenizer: Any, size: int) -> None:
        if size < 8:
            raise UserError(
                f"A window of {size} tokens is too small to hold an answer and words around it: use 8 or more."
            )
        self.size = size
        self._tokenizer = tokenizer
        self._known: dict[str, tuple[list[tuple[int, int]], np.ndarray]] = {}

    def spans(self, sample: Sample, document: Document) -> list[tuple[int, int]]:
        """Where the sample's answer stands in the document: the first of its answers that does and is not too long."""
        most = min(LONGEST_ANSWER, self.size)
        for answer in sample.answers:
            found = find_answers(document.text, [answer])
            if found and all(self.tokens(f" {document.text[start:stop]}") <= most for start, stop in found):
                return found
        return []

    def gold(self, sample: Sample, rng: random.Random) -> tuple[Document, str]:
        """The gold passage cut around one place of the answer, and the answer as it is written there."""
        document = sample.documents[0]
        start, stop = rng.choice(self.spans(sample, document))
        return replace(document, text=self.cut(document.text, rng, (start, stop))), document.text[start:stop]

    def tokens(self, text: str) -> int:
        return len(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def cut(self, text: str, rng: random.Random, span: tuple[int, int] | None = None, size: int | None = None) -> str:
        """As many whole words of a text as fit, around the characters of `span` if given; each place is as likely.

        A window that would reach past an end of the text stops there and is no shorter for it.
        """
        size = size or self.size
        words, before = self._words(text)
        if not words:
            return ""
        latest = int(np.searchsorted(before, before[-1] - size))  # a later start would leave room at the end
        if span is None:
            start = last = rng.randint(0, min(latest, len(words) - 1))
        else:
            first = max(i for i, (start, _) in enumerate(words) if start <= span[0])
            last = min(i for i, (_, stop) in enumerate(words) if stop >= span[1])
            earliest = min(int(np.searchsorted(before, before[last + 1] - size)), first)
            start = rng.randint(earliest, max(earliest, min(first, latest)))
        stop = max(last + 1, int(np.searchsorted(before, before[start] + size, side="right")) - 1)
        return text[words[start][0] : words[stop - 1][1]]

    def _words(self, text: str) -> tuple[list[tuple[int, int]], np.ndarray]:
        """Character spans of the words [W], and how many tokens end before each [W + 1]."""
        if text not in self._known:
            words = [match.span() for match in re.finditer(r"\S+", text)]
            offsets = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
            ends = np.asarray([max(stop - 1, start) for start, stop in offsets])
            edges = np.asarray([start for start, _ in words[1:]])
            owners = np.searchsorted(edges, ends, side="right")
            counts = np.bincount(owners, minlength=len(words))
            self._known[text] = words, np.concatenate([[0], np.cumsum(counts)])
        return self._known[text]


class PassageStream(Stream):
    """Training questions of the data, and its passages."""

    name = "adapting"
    per_round = 16

    def __init__(self, data: Data, windows: Windows, tokenizer: Any, seed: int, recipe: AdapterRecipe) -> None:
        super().__init__(seed, recipe.batch, int(tokenizer.eos_token_id))
        self.data, self.windows, self.tokenizer, self.recipe = data, windows, tokenizer, recipe
        self._bos = surroundings(tokenizer)[0]
        self.state = {"documents": DOCUMENTS}
        rng = random.Random("lengths")
        text, asked = (sum(len(make(rng).ids) for _ in range(TRIED)) for make in (self._running_text, self._question))
        weights = (1 - recipe.running) * text, recipe.running * asked
        self._running = weights[1] / sum(weights)  # share of sequences that gives the share of tokens

    def begin_round(self, step: int) -> None:
        if self.recipe.ramp:
            self.state["documents"] = min(DOCUMENTS, 1 + (DOCUMENTS - 1) * step // self.recipe.ramp)

    def example(self, rng: random.Random) -> Example:
        return self._running_text(rng) if rng.random() < self._running else self._question(rng)

    def _question(self, rng: random.Random) -> Example:
        """The prompt that evaluation uses, then the answer and eos up to the number of slots, at least one."""
        sample = rng.choice(self.data.train)
        gold, answer = self.windows.gold(sample, rng)
        documents: list[Document] = []
        if rng.random() >= CLOSED:
            counts = range(1, self.state["documents"] + 1)
            others = rng.choices(counts, [1 / k for k in counts])[0] - 1
            nearest = self.data.distractors(sample)[:others] if others else ()
            documents = [replace(one, text=self.windows.cut(one.text, rng)) for one in nearest]
            rng.shuffle(documents)
            documents.insert(rng.randint(0, len(documents)), gold)
        example = Example()
        example.add(build_prompt(self.tokenizer, sample.question, documents, raw=True).ids.tolist(), PROMPT)
        ids = self.tokenizer(f" {answer}", add_special_tokens=False)["input_ids"]
        example.add(ids, ANSWER, 0)
        example.add([self.filler], FIRST_EOS, 0)
        example.add([self.filler] * (draw_slots(rng, *SLOTS) - len(ids) - 1), LATER_EOS, 0)
        return example

    def _running_text(self, rng: random.Random) -> Example:
        """A piece of a passage with a gap to be written: at its end, at its start or in between."""
        text = self.windows.cut(rng.choice(self.data.passages).text, rng, size=rng.randint(*LENGTHS))
        ids, place = self.tokenizer(text, add_special_tokens=False)["input_ids"], rng.choice(PLACES)
        example = Example()
        example.add(self._bos, PROMPT)
        if place == "scattered":
            example.add(ids, TEXT, 0)
            return example
        size = min(draw_slots(rng, *GAPS), max(1, len(ids) * 3 // 4))
        start = {"end": len(ids) - size, "start": 0}.get(place, rng.randint(0, len(ids) - size))
        example.add(ids[:start], TEXT)
        example.add(ids[start : start + size], GAP, 0)
        example.add(ids[start + size :], TEXT)
        return example


def held_out_samples(data: Data, windows: Windows) -> tuple[Sample, ...]:
    """The held-out questions with their gold passages cut to windows, the same in every run."""
    return tuple(
        replace(sample, documents=(windows.gold(sample, random.Random(f"held out {sample.id}"))[0],))
        for sample in data.held_out
    )


def write_samples(samples: Iterable[Sample], path: Path) -> None:
    """As JSON lines in the plain shape, which `read_samples` reads."""
    with path.open("w", encoding="utf-8") as file:
        for sample in samples:
            row = {name: asdict(sample)[name] for name in ("id", "question", "answers", "documents")}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
