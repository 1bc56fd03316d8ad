"""Where distractors and wrong answers come from: a corpus, its index, the answers of other samples."""

import random
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TypeVar

from floatscope.errors import UserError
from floatscope.qa.corpus import documents_of
from floatscope.qa.metrics import mentions, normalise
from floatscope.qa.retrieval import BM25Retriever, Retriever, can_distract, find_distractors, mentions_answer
from floatscope.qa.samples import Document, Sample

T = TypeVar("T")
QUESTION_WORDS = ("who", "whom", "whose", "where", "when", "what", "which", "why", "how")


class Pool:
    """Documents that can stand beside a sample's gold ones, none of which mentions an answer of it.

    They come from `corpus`, or from all documents of `samples` where none is given. With same_title=False
    none shares its title with a document of the sample: for generated worlds, where another sample's document
    on the same subject would contradict this one's.
    """

    def __init__(
        self,
        samples: Iterable[Sample],
        corpus: Sequence[Document] | None = None,
        retriever: Retriever | None = None,
        same_title: bool = True,
    ) -> None:
        self.samples = tuple(samples)
        self.same_title = same_title
        if retriever is not None:
            self.documents: Sequence[Document] = retriever.documents
            self.retriever = retriever
        else:
            self.documents = tuple(corpus) if corpus is not None else documents_of(self.samples)

    @cached_property
    def retriever(self) -> Retriever:
        """BM25 over the documents, built when first asked for."""
        return BM25Retriever(self.documents)

    def distractors(self, sample: Sample, count: int, source: str, rng: random.Random) -> tuple[Document, ...]:
        """So many documents that are "random", or "topical": the sample's own distractors first, as its data ranks
        them, then the best for its question. More of them begin with the same ones."""
        if source == "random":
            found = _draw(self.documents, count, can_distract(sample, self.same_title), rng)
        else:
            has_answer = mentions_answer(sample)
            own = [document for document in sample.documents if not document.gold and not has_answer(document)]
            missing = count - len(own) if self.documents else 0
            more = find_distractors(sample, self.retriever, missing, self.same_title) if missing > 0 else ()
            found = (*own[:count], *more)
        if len(found) < count:
            raise UserError(
                f"Sample {sample.id!r} needs {count} distractors, but of {len(self.documents)} documents "
                f"only {len(found)} can be used: give a larger corpus or ask for fewer."
            )
        return tuple(Document(document.title, document.text) for document in found)

    def wrong_answers(self, sample: Sample, count: int, rng: random.Random) -> tuple[str, ...]:
        """Answers of other samples of the same kind, none of which contains or is part of a right one."""
        shown = " ".join(document.text for document in sample.documents if document.gold)

        def fit(answer: str) -> bool:
            right = any(mentions(answer, [other]) or mentions(other, [answer]) for other in sample.answers)
            return not right and not mentions(shown, [answer])

        kind, wider = _answer_kinds(sample)
        found = _draw(self._answers.get(kind, ()), count, fit, rng)
        if len(found) < count:
            found += _draw(self._answers.get(wider, ()), count - len(found), lambda a: a not in found and fit(a), rng)
        if len(found) < count:
            raise UserError(
                f"Sample {sample.id!r} needs {count} wrong answers of its kind ({wider}), the others have "
                f"{len(found)}: use more samples or a lower level."
            )
        return found

    @cached_property
    def _answers(self) -> dict[str, tuple[str, ...]]:
        """First answers by kind, each once."""
        groups: dict[str, dict[str, str]] = {}
        for sample in self.samples:
            if sample.answers and (key := normalise(sample.answers[0])):
                for kind in _answer_kinds(sample):
                    groups.setdefault(kind, {}).setdefault(key, sample.answers[0])
        return {kind: tuple(answers.values()) for kind, answers in groups.items()}


def _draw(items: Sequence[T], count: int, fit: Callable[[T], bool], rng: random.Random) -> tuple[T, ...]:
    """Up to `count` different fit items at random; a higher count begins with what a lower one gives."""
    seen: set[int] = set()
    found: list[T] = []
    while len(found) < count and len(seen) < len(items):
        index = rng.randrange(len(items))
        if index not in seen:
            seen.add(index)
            if fit(items[index]):
                found.append(items[index])
    return tuple(found)


def _answer_kinds(sample: Sample) -> tuple[str, str]:
    """What a wrong answer shares with a right one to be believed, narrow and wide: the relation asked for, or
    the question word and how the answer is written; then the latter alone."""
    answer = sample.answers[0] if sample.answers else ""
    wide = "name" if answer[:1].isupper() else "phrase"
    if any(character.isdigit() for character in answer):
        wide = "number"
    if relation := sample.metadata.get("relation"):
        return f"relation {relation}", wide
    words = normalise(sample.question).split()
    return f"{next((word for word in words if word in QUESTION_WORDS), 'no')} question, {wide}", wide
