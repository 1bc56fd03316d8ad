"""What a method gives: a score per answer token and document, sentence and token; and the result a user gets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from floatscope.attribution.case import Array, Case
from floatscope.canvas import Region


@dataclass(frozen=True, eq=False)
class Scores:
    """n answer tokens, D documents, S sentences, T tokens of the canvas."""

    documents: Array
    """[n, D]"""
    sentences: Array
    """[n, S]"""
    tokens: Array
    """[n, T]"""
    spread: bool = False
    """Whether only documents were scored, and their sentences and tokens have equal parts of that."""

    @classmethod
    def of_tokens(cls, case: Case, tokens: Array) -> Scores:
        """From scores of tokens [n, T], which add up."""
        kept = np.zeros_like(tokens)
        for span in case.documents.values():
            kept[:, span] = tokens[:, span]
        spans = np.stack([tokens[:, span].sum(1) for span in case.spans], 1)
        return cls(spans[:, : len(case.documents)], spans[:, len(case.documents) :], kept)

    @classmethod
    def of_spans(cls, case: Case, documents: Array, sentences: Array | None = None) -> Scores:
        """From scores of documents [n, D] and of sentences [n, S]; what is not known is spread evenly over tokens."""
        tokens = np.zeros((len(documents), len(case.canvas.ids)))
        count = len(case.documents)
        spans, known = (case.spans[:count], documents) if sentences is None else (case.spans[count:], sentences)
        for span, scores in zip(spans, known.T, strict=True):
            tokens[:, span] += scores[:, None] / max(len(span), 1)
        if sentences is not None:
            return cls(documents, sentences, tokens)
        spread = np.stack([tokens[:, span].sum(1) for span in case.spans[count:]], 1)
        return cls(documents, spread, tokens, spread=True)


@dataclass(frozen=True, eq=False)
class Attribution:
    """Where an answer came from, by one method. Larger: more of it; of causal methods in nats."""

    method: str
    answer: str
    documents: Array
    """A score per document, in the prompt's order."""
    sentences: Array
    """A score per sentence of `sentence_spans`."""
    tokens: Array
    """A score per token of the canvas; 0 outside the documents."""
    by_token: Scores
    """The same for every token of the answer."""
    answer_tokens: tuple[str, ...]
    """These tokens as the tokenizer spells them."""
    sentence_spans: tuple[Region, ...]
    """Where each sentence stands on the canvas, under its document's label."""
    sequences: int
    """Sequences that were run for it, beside those of the answer."""
    support: float | None = None
    """Fall of the answer's log-probability, in nats, when all documents are hidden; None where it was not asked for."""

    @property
    def top(self) -> int:
        """Place of the document with the highest score."""
        return int(self.documents.argmax())

    def __repr__(self) -> str:
        scores = ", ".join(f"doc {number}: {score:.3g}" for number, score in enumerate(self.documents, 1))
        return f"Attribution({self.answer!r} by {self.method}: {scores}; {self.sequences} sequences)"
