"""Tasks: one source of samples and the pool of distractors that goes with it. Running them is left to others.

A source is a file in one of the readers' shapes, "hf:NAME" (a dataset of the hub), "passages:" and either of these for
the texts in them, or "world[:KIND[:DOCUMENTS]]".
"""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from floatscope.errors import UserError
from floatscope.qa.corpus import documents_of, read_corpus
from floatscope.qa.readers import WrongRecord, read_samples
from floatscope.qa.retrieval import Recall, attach, make_retriever, mark_gold, recall_at
from floatscope.qa.samples import Sample
from floatscope.qa.stressors.pool import Pool
from floatscope.qa.world import KINDS, World

WORLD, PASSAGES = "world", "passages:"
WORLD_SAMPLES = 200
WORLD_DOCUMENTS = 5
POOL_SAMPLES = 3000
"""A file's first samples give the distractors, however few of them are asked: a limit does not change the others."""


@dataclass(frozen=True)
class Task:
    """Samples to answer, and where their distractors come from."""

    samples: tuple[Sample, ...]
    pool: Pool
    recall: tuple[Recall, ...] = ()
    """How good the retrieval was, at 1, 2, 5, 10 ... documents, where documents were retrieved."""
    skipped: tuple[WrongRecord, ...] = ()
    """Records of the source that could not be used, where that was allowed."""


def read_task(
    source: str,
    *,
    limit: int | None = None,
    seed: int = 0,
    shape: str | None = None,
    skip_wrong: bool = False,
    corpus: str | Path | None = None,
    retrieve: int | None = None,
    retriever: str = "bm25",
) -> Task:
    """The samples of a source and their pool.

    limit: the first so many samples; default: all of a file, 200 of the world.
    seed: which samples the world makes.
    shape: as in `read_samples`. skip_wrong: leave out records that cannot be used, instead of raising.
    corpus: a file or folder of documents for distractors and retrieval; default: the documents of the samples.
    retrieve: so many documents from the corpus in place of the samples' own, found by `retriever`: "bm25", "dense" or
    "dense:MODEL".

    In data that nowhere says which documents are gold, those that mention an answer are.
    """
    if limit is not None and limit < 1:
        raise UserError(f"The limit is {limit}: ask for at least one sample.")
    if source == WORLD or source.startswith(f"{WORLD}:"):
        return _world_task(source, limit, seed, corpus, retrieve)
    if source.startswith(PASSAGES):
        if shape is not None or corpus is not None or retrieve is not None:
            raise UserError("Passages are read as texts: leave out the shape, the corpus and the retrieval for them.")
        source, shape = source.removeprefix(PASSAGES), "passage"
    skipped: list[WrongRecord] = []
    stream = read_samples(source, shape, skipped if skip_wrong else None)
    if shape == "passage":
        stream = _different(stream)
    read = list(islice(stream, min(max(limit or 0, POOL_SAMPLES), sys.maxsize)))
    samples = read[:limit] if limit is not None else [*read, *stream]
    documents = read_corpus(corpus) if corpus is not None else documents_of(read)
    if retrieve is None:
        return Task(tuple(_with_gold(samples)), Pool(_with_gold(read), documents), (), tuple(skipped))
    index = make_retriever(retriever, documents)
    found = list(attach(samples, index, retrieve))
    recall = recall_at(samples, found, [*(k for k in (1, 2, 5, 10, 20, 50, 100) if k < retrieve), retrieve])
    return Task(tuple(_with_gold(found)), Pool(read, retriever=index), tuple(recall), tuple(skipped))


def _world_task(source: str, limit: int | None, seed: int, corpus: str | Path | None, retrieve: int | None) -> Task:
    """Samples of the test split; distractors come from them and from others of the same split."""
    if corpus is not None or retrieve is not None:
        raise UserError("The world brings its own documents: leave out the corpus and the retrieval for it.")
    _, kind, count = (*source.split(":", 2), "", "")[:3]
    kind = kind or "rag"
    if count and not re.fullmatch("[0-9]{1,9}", count):
        raise UserError(f"{source!r} cannot be read at {count!r}: write world:KIND:DOCUMENTS, such as world:rag:10.")
    takes_documents = kind not in KINDS or KINDS[kind].least > 0
    documents = int(count) if count else WORLD_DOCUMENTS * takes_documents
    world = World(0)  # the world of the shipped twins
    samples = tuple(world.samples(kind, limit or WORLD_SAMPLES, documents=documents, seed=seed))
    others = world.samples("rag", WORLD_SAMPLES, documents=WORLD_DOCUMENTS, seed=seed + 1)
    others = [replace(other, id=f"pool-{other.id}") for other in others]
    return Task(samples, Pool((*samples, *others), same_title=False))


def _different(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Each passage once: questions may share their documents."""
    seen: set[tuple[str, ...]] = set()
    for sample in samples:
        text = (sample.before, *sample.answers, sample.after)
        if text not in seen:
            seen.add(text)
            yield sample


def _with_gold(samples: Sequence[Sample]) -> Iterable[Sample]:
    marked = any(document.gold for sample in samples for document in sample.documents)
    return samples if marked else map(mark_gold, samples)
