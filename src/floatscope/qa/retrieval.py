"""Finding documents for a question: search, attaching to samples, recall, distractors. Files: see readers.

A retriever is anything with `documents` and `search`; BM25 is here, the dense one is in `dense`.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from floatscope.cache import cached
from floatscope.errors import UserError
from floatscope.qa.corpus import content_hash
from floatscope.qa.metrics import mentions_normalised, normalise
from floatscope.qa.samples import Document, Sample

Exclude = Callable[[Document], bool]


@dataclass(frozen=True)
class Hit:
    """A document that was found, its place in the corpus, and its score for the question."""

    document: Document
    index: int
    score: float


class Retriever(Protocol):
    """What finds documents: its corpus, and a search in it."""

    @property
    def documents(self) -> Sequence[Document]: ...

    def search(self, question: str, k: int, exclude: Exclude | None = None) -> list[Hit]: ...


class ScoringRetriever(ABC):
    """Search by one score per document; ties go to the document that stands first in the corpus."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self.documents: tuple[Document, ...] = tuple(documents)
        if not self.documents:
            raise UserError("A retriever needs at least one document to search in.")

    @abstractmethod
    def scores(self, question: str) -> NDArray[np.float32]:
        """One score per document of the corpus."""

    def search(self, question: str, k: int, exclude: Exclude | None = None) -> list[Hit]:
        """The k best documents, best first, none that `exclude` is true of; fewer if the corpus ends."""
        scores = self.scores(question)
        hits: list[Hit] = []
        seen = 0
        size = min(len(scores), max(64, 4 * k))
        while len(hits) < k and seen < len(scores):
            ranking = _best(scores, size)
            for index in ranking[seen:]:
                document = self.documents[index]
                if exclude is None or not exclude(document):
                    hits.append(Hit(document, int(index), float(scores[index])))
                if len(hits) == k:
                    break
            seen, size = len(ranking), min(len(scores), 4 * len(ranking))
        return hits


class BM25Retriever(ScoringRetriever):
    """BM25 as in Lucene (k1 1.5, b 0.75, English stop words) over titles and texts, with a cached index."""

    def __init__(self, documents: Iterable[Document]) -> None:
        super().__init__(documents)
        import bm25s

        key = content_hash(self.documents, "bm25", bm25s.__version__)
        self._index = cached("bm25", key, _load_index, self._build_index, _save_index)

    def scores(self, question: str) -> NDArray[np.float32]:
        words = _words([question])[0]
        return self._index.get_scores(words) if words else np.zeros(len(self.documents), np.float32)

    def _build_index(self) -> Any:
        import bm25s

        index = bm25s.BM25()
        words = _words([f"{document.title} {document.text}" for document in self.documents])
        index.index(words, show_progress=False)
        return index


@dataclass(frozen=True)
class Recall:
    """What is among the first k documents.

    `answer`: the share of samples where one of them mentions an answer. `gold`: the mean share of the gold
    documents that are among them, over the samples that have any (None where no sample has).
    """

    k: int
    answer: float
    gold: float | None
    n: int


@dataclass(frozen=True)
class Distractors:
    """Documents free of every answer, best first, and how many were passed over for mentioning one."""

    documents: tuple[Document, ...]
    dropped: int


def attach(samples: Iterable[Sample], retriever: Retriever, k: int) -> Iterator[Sample]:
    """Each sample with the k documents retrieved for its question in place of its own.

    One with the text of one of its gold documents is gold; where it has none, nothing is (see `mark_gold`).
    """
    if k < 1:
        raise UserError(f"{k} documents to retrieve are too few: ask for at least 1.")
    for sample in samples:
        gold = {normalise(document.text) for document in sample.documents if document.gold}
        documents = tuple(
            dataclasses.replace(hit.document, gold=bool(gold) and _normal_text(hit.document.text) in gold)
            for hit in retriever.search(sample.question, k)
        )
        yield dataclasses.replace(sample, documents=documents)


def mark_gold(sample: Sample) -> Sample:
    """For data that does not say which documents are gold: those that mention an answer."""
    is_gold = mentions_answer(sample)
    documents = (dataclasses.replace(document, gold=is_gold(document)) for document in sample.documents)
    return dataclasses.replace(sample, documents=tuple(documents))


def recall_at(samples: Sequence[Sample], attached: Sequence[Sample], ks: Iterable[int]) -> list[Recall]:
    """How good the retrieval was: the samples as they were read, and the same with what was attached."""
    if len(samples) != len(attached) or not samples:
        raise UserError(f"Recall compares the same samples: {len(samples)} were read, {len(attached)} have documents.")
    answers, golds = [], []
    for before, after in zip(samples, attached, strict=True):
        has_answer = mentions_answer(before)
        answers.append([has_answer(document) for document in after.documents])
        wanted = {normalise(document.text) for document in before.documents if document.gold}
        if wanted:
            golds.append((len(wanted), [_normal_text(document.text) for document in after.documents], wanted))
    return [
        Recall(
            k,
            answer=float(np.mean([any(flags[:k]) for flags in answers])),
            gold=float(np.mean([len(wanted & set(texts[:k])) / n for n, texts, wanted in golds])) if golds else None,
            n=len(samples),
        )
        for k in ks
    ]


def find_distractors(sample: Sample, retriever: Retriever, k: int, exclude: Exclude | None = None) -> Distractors:
    """The k best documents that are none of the sample's own and mention none of its answers."""
    own = {_normal_text(document.text) for document in sample.documents}
    has_answer = mentions_answer(sample)
    dropped = 0

    def unfit(document: Document) -> bool:
        nonlocal dropped
        if _normal_text(document.text) in own or (exclude is not None and exclude(document)):
            return True
        if has_answer(document):
            dropped += 1
            return True
        own.add(_normal_text(document.text))  # it is taken now: a corpus may hold the same text twice
        return False

    hits = retriever.search(sample.question, k, unfit)
    return Distractors(tuple(dataclasses.replace(hit.document, gold=False) for hit in hits), dropped)


def mentions_answer(sample: Sample) -> Exclude:
    """A test of documents: is an answer of the sample in the title or the text?"""
    answers = [normalise(answer) for answer in sample.answers]
    return lambda document: mentions_normalised(_normal_text(f"{document.title} | {document.text}"), answers)


@lru_cache(maxsize=100_000)
def _normal_text(text: str) -> str:
    """`normalise`, remembered: the same documents are looked at for many questions."""
    return normalise(text)


def _best(scores: NDArray[np.float32], size: int) -> NDArray[np.intp]:
    """Indices of the `size` highest scores and of all that tie with the last, best first, ties by index."""
    least = np.partition(scores, len(scores) - size)[len(scores) - size]
    candidates = np.flatnonzero(scores >= least)
    return candidates[np.argsort(-scores[candidates], kind="stable")]


def _words(texts: list[str]) -> list[list[str]]:
    import bm25s

    words = bm25s.tokenize(texts, stopwords="en", return_ids=False, show_progress=False)
    return list(words)  # pyright: ignore[reportReturnType]


def _load_index(folder: Path) -> Any:
    import bm25s

    return bm25s.BM25.load(folder, show_progress=False)


def _save_index(index: Any, folder: Path) -> None:
    index.save(folder, show_progress=False)
