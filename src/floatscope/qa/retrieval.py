"""Finding documents for a question: BM25 and dense search, attaching to samples, recall, distractors."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.cache import cached
from floatscope.errors import UserError
from floatscope.qa.corpus import content_hash
from floatscope.qa.metrics import mentions, normalise
from floatscope.qa.samples import Document, Sample

Test = Callable[[Document], bool]
Encode = Callable[[Sequence[str]], NDArray[np.float32]]
DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"


class Retriever(ABC):
    """Search by one score per document; ties go to the document that stands first in the corpus."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self.documents: tuple[Document, ...] = tuple(documents)
        if not self.documents:
            raise UserError("A retriever needs at least one document to search in.")

    @abstractmethod
    def scores(self, question: str) -> NDArray[np.float32]:
        """One score per document of the corpus."""

    def search(self, question: str, k: int, fit: Test | None = None) -> list[Document]:
        """The k best documents, best first, of those that are `fit`; fewer if the corpus ends."""
        ranked = (self.documents[index] for index in _ranked(self.scores(question), max(64, 4 * k)))
        return list(islice(filter(fit, ranked) if fit else ranked, k))


class BM25Retriever(Retriever):
    """BM25 as in Lucene (k1 1.5, b 0.75, English stop words) over titles and texts, with a cached index."""

    def __init__(self, documents: Iterable[Document]) -> None:
        super().__init__(documents)
        bm25s: Any = import_module("bm25s")  # heavy
        key = content_hash(self.documents, "bm25", bm25s.__version__)
        load = partial(bm25s.BM25.load, show_progress=False)
        save = partial(bm25s.BM25.save, show_progress=False)
        self._index = cached("bm25", key, load, self._build_index, save)

    def scores(self, question: str) -> NDArray[np.float32]:
        words = _words([question])[0]
        return self._index.get_scores(words) if words else np.zeros(len(self.documents), np.float32)

    def _build_index(self) -> Any:
        import bm25s

        index = bm25s.BM25()
        words = _words([f"{document.title} {document.text}" for document in self.documents])
        index.index(words, show_progress=False)
        return index


class DenseRetriever(Retriever):
    """Cosine similarity of embeddings (extra `dense`); those of the corpus are cached by content and model name.

    `encode` maps texts to vectors: an encoder of one's own in place of the library's, under the name `model`.
    """

    def __init__(self, documents: Iterable[Document], model: str = DEFAULT_MODEL, encode: Encode | None = None) -> None:
        super().__init__(documents)
        self._encode = encode or _encoder(model)
        key = content_hash(self.documents, "dense", model)
        self._vectors = cached("dense", key, _load_vectors, self._embed_documents, _save_vectors)

    def scores(self, question: str) -> NDArray[np.float32]:
        return self._vectors @ self._embed([question])[0]

    def _embed_documents(self) -> NDArray[np.float32]:
        return self._embed([f"{document.title} {document.text}".strip() for document in self.documents])

    def _embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.asarray(self._encode(texts), dtype=np.float32)
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def make_retriever(name: str, documents: Iterable[Document]) -> Retriever:
    """The retriever called "bm25", "dense" or "dense:MODEL"."""
    kind, _, model = name.partition(":")
    if name == "bm25":
        return BM25Retriever(documents)
    if kind == "dense":
        return DenseRetriever(documents, model or DEFAULT_MODEL)
    raise UserError(f"There is no retriever {name!r}: use bm25, dense or dense:MODEL.")


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


def attach(samples: Iterable[Sample], retriever: Retriever, k: int) -> Iterator[Sample]:
    """Each sample with the k documents retrieved for its question in place of its own.

    One with the text of one of its gold documents is gold; where it has none, nothing is (see `mark_gold`).
    """
    if k < 1:
        raise UserError(f"{k} documents to retrieve are too few: ask for at least 1.")
    for sample in samples:
        gold = {normalise(document.text) for document in sample.documents if document.gold}
        documents = tuple(
            replace(document, gold=normalise(document.text) in gold)
            for document in retriever.search(sample.question, k)
        )
        yield replace(sample, documents=documents)


def mark_gold(sample: Sample) -> Sample:
    """For data that does not say which documents are gold: those that mention an answer."""
    is_gold = mentions_answer(sample)
    documents = (replace(document, gold=is_gold(document)) for document in sample.documents)
    return replace(sample, documents=tuple(documents))


def recall_at(samples: Sequence[Sample], attached: Sequence[Sample], ks: Iterable[int]) -> list[Recall]:
    """How good the retrieval was: the samples as they were read, and the same with what was attached."""
    answers, golds = [], []
    for before, after in zip(samples, attached, strict=True):
        has_answer = mentions_answer(before)
        answers.append([has_answer(document) for document in after.documents])
        wanted = {normalise(document.text) for document in before.documents if document.gold}
        if wanted:
            golds.append((len(wanted), [normalise(document.text) for document in after.documents], wanted))
    return [
        Recall(
            k,
            answer=float(np.mean([any(flags[:k]) for flags in answers])),
            gold=float(np.mean([len(wanted & set(texts[:k])) / n for n, texts, wanted in golds])) if golds else None,
            n=len(samples),
        )
        for k in ks
    ]


def find_distractors(sample: Sample, retriever: Retriever, k: int, same_title: bool = True) -> tuple[Document, ...]:
    """The k best documents that can distract from the sample's own, best first."""
    found = retriever.search(sample.question, k, can_distract(sample, same_title))
    return tuple(replace(document, gold=False) for document in found)


def can_distract(sample: Sample, same_title: bool = True) -> Test:
    """A test to ask of one document after the other: it is none of the sample's own, nor one that came before, and
    mentions none of its answers. With same_title=False it has no title of the sample's own either."""
    taken = {normalise(document.text) for document in sample.documents}
    titles = set() if same_title else {normalise(document.title) for document in sample.documents}
    has_answer = mentions_answer(sample)

    def fit(document: Document) -> bool:
        text = normalise(document.text)
        if text in taken or normalise(document.title) in titles or has_answer(document):
            return False
        taken.add(text)  # a corpus may hold the same text twice
        return True

    return fit


def mentions_answer(sample: Sample) -> Test:
    """A test of documents: is an answer of the sample in the title or the text?"""
    return lambda document: mentions(f"{document.title} {document.text}", sample.answers)


def _ranked(scores: NDArray[np.float32], size: int) -> Iterator[int]:
    """Indices by score, best first, ties by index; after the first `size` the rest is sorted if asked for."""
    size = min(size, len(scores))
    least = np.partition(scores, len(scores) - size)[len(scores) - size]
    for wanted in (scores >= least, scores < least):
        some = np.flatnonzero(wanted)
        yield from some[np.argsort(-scores[some], kind="stable")].tolist()


def _words(texts: list[str]) -> list[list[str]]:
    import bm25s

    words = bm25s.tokenize(texts, stopwords="en", return_ids=False, show_progress=False)
    return list(words)  # pyright: ignore[reportReturnType]


def _encoder(model: str) -> Encode:
    try:
        library = import_module("sentence_transformers")
    except ImportError as error:
        sentence = "Dense retrieval needs the package `sentence-transformers`: pip install 'floatscope[dense]'."
        raise UserError(sentence) from error
    encoder = library.SentenceTransformer(model)
    return lambda texts: encoder.encode(list(texts), convert_to_numpy=True, show_progress_bar=False)


def _load_vectors(folder: Path) -> NDArray[np.float32]:
    return np.load(folder / "vectors.npy", allow_pickle=False)


def _save_vectors(vectors: NDArray[np.float32], folder: Path) -> None:
    folder.mkdir(parents=True)
    np.save(folder / "vectors.npy", vectors)
