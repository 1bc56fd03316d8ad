"""The conditions beside which others are read: no documents, gold documents only, a number of documents."""

import dataclasses
import random
from functools import partial

from floatscope.qa.samples import Sample
from floatscope.qa.stressors.condition import Condition, gold_of
from floatscope.qa.stressors.options import StressOptions
from floatscope.qa.stressors.pool import Pool
from floatscope.qa.stressors.ranges import parse_integers


def _no_documents(sample: Sample, rng: random.Random, pool: Pool) -> Sample:
    return dataclasses.replace(sample, documents=())


def _gold_only(sample: Sample, rng: random.Random, pool: Pool) -> Sample:
    return dataclasses.replace(sample, documents=gold_of(sample, None, "the oracle baseline"))


CLOSED_BOOK = Condition("closed-book", "baseline", {}, stream="closed-book", transform=_no_documents)
ORACLE = Condition("oracle", "baseline", {}, stream="oracle", transform=_gold_only)
BASELINES: tuple[Condition, ...] = (CLOSED_BOOK, ORACLE)


def documents_conditions(values: str, options: StressOptions) -> tuple[Condition, ...]:
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
