"""A dense retriever behind the interface of `retrieval`, with the extra `dense` (sentence-transformers)."""

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from floatscope.cache import cached
from floatscope.errors import UserError
from floatscope.qa.corpus import content_hash
from floatscope.qa.retrieval import ScoringRetriever
from floatscope.qa.samples import Document

Encode = Callable[[Sequence[str]], NDArray[np.float32]]
DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"


class DenseRetriever(ScoringRetriever):
    """Cosine similarity of embeddings; those of the corpus are cached on disk by content and model name.

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


def _encoder(model: str) -> Encode:
    try:
        library = import_module("sentence_transformers")
    except ImportError as error:
        remedy = "pip install 'floatscope[dense]'"
        raise UserError(f"Dense retrieval needs the package `sentence-transformers`: {remedy}.") from error
    encoder = library.SentenceTransformer(model)
    return lambda texts: encoder.encode(list(texts), convert_to_numpy=True, show_progress_bar=False)


def _load_vectors(folder: Path) -> NDArray[np.float32]:
    return np.load(folder / "vectors.npy", allow_pickle=False)


def _save_vectors(vectors: NDArray[np.float32], folder: Path) -> None:
    folder.mkdir(parents=True)
    np.save(folder / "vectors.npy", vectors)
