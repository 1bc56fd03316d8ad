"""The conditions beside which others are read: no documents, gold documents only, a number of documents."""

import dataclasses
import random
from dataclasses import dataclass
from functools import partial

from floatscope.qa.samples import Sample
from floatscope.qa.stressors.condition import Condition, gold_of
from floatscope.qa.stressors.pool import Pool
from floatscope.qa.stressors.ranges import check_documents, parse_integers
from floatscope.qa.stressors.stressor import Stressor


def _no_documents(sample: Sample, rng: random.Random, pool: Pool) -> Sample:
    return dataclasses.replace(sample, documents=())


def _gold_only(sample: Sample, rng: random.Random, pool: Pool) -> Sample:
    return dataclasses.replace(sample, documents=gold_of(sample, None, "the oracle baseline"))


CLOSED_BOOK = Condition("closed-book", "baseline", {}, stream="closed-book", transform=_no_documents)
ORACLE = Condition("oracle", "baseline", {}, stream="oracle", transform=_gold_only)
BASELINES: tuple[Condition, ...] = (CLOSED_BOOK, ORACLE)


@dataclass(frozen=True)
class DocumentsOptions:
    documents: int = 10
    """How far the value "all" goes."""

    def __post_init__(self) -> None:
        check_documents(self.documents)


def _documents_conditions(values: str, options: DocumentsOptions) -> tuple[Condition, ...]:
    """So many documents each: RAG as it is run, from 0 (closed-book) up."""
    return tuple(
        Condition(
            name=f"documents/{count}",
            stressor="documents",
            labels={"documents": count},
            stream="documents",
            transform=partial(_show_documents, count=count),
        )
        for count in parse_integers(values, everything=range(options.documents + 1), least=0)
    )


def _show_documents(sample: Sample, rng: random.Random, pool: Pool, count: int) -> Sample:
    """The first ones as they stand; where there are too few, the gold ones and topical others, shuffled."""
    own = sample.documents
    if len(own) >= count:
        return dataclasses.replace(sample, documents=own[:count])
    gold = tuple(document for document in own if document.gold)
    documents = [*gold, *pool.topical_documents(sample, count - len(gold))]
    rng.shuffle(documents)
    return dataclasses.replace(sample, documents=tuple(documents))


DOCUMENTS = Stressor(
    name="documents",
    summary="Numbers of documents to show, as retrieved",
    example="0,5",
    make=_documents_conditions,
    labels={"documents": int},
    axis=None,
    options=DocumentsOptions,
)
