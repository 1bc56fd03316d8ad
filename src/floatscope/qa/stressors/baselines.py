"""The baselines, and conditions that set one thing: documents shown, answer slots, the place of the question."""

import random
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

from floatscope.qa.samples import Sample
from floatscope.qa.stressors.pool import Pool
from floatscope.qa.stressors.ranges import check_documents, parse_integers, parse_names
from floatscope.qa.stressors.stressor import Axis, Condition, NoOptions, Stressor, gold_of
from floatscope.qa.templates import Placement

ALL_SLOTS = (8, 16, 32, 64, 128, 256)


def _gold_only(sample: Sample, rng: random.Random, pool: Pool) -> Sample:
    return replace(sample, documents=gold_of(sample, None, "the oracle baseline"))


def _show_documents(sample: Sample, rng: random.Random, pool: Pool, count: int) -> Sample:
    """The first ones as they stand; where there are too few, the gold ones and topical others, shuffled."""
    own = sample.documents
    if len(own) >= count:
        return replace(sample, documents=own[:count])
    gold = tuple(document for document in own if document.gold)
    documents = [*gold, *pool.distractors(sample, count - len(gold), "topical", rng)]
    rng.shuffle(documents)
    return replace(sample, documents=tuple(documents))


CLOSED_BOOK = Condition(
    "closed-book", "baseline", {}, stream="closed-book", transform=partial(_show_documents, count=0)
)
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
            f"documents/{count}",
            "documents",
            {"documents": count},
            stream="documents",
            transform=partial(_show_documents, count=count),
        )
        for count in parse_integers(values, everything=range(options.documents + 1), least=0)
    )


def _slots_conditions(values: str, options: NoOptions) -> tuple[Condition, ...]:
    """One condition per mask count; a range doubles, so that 8..256 is six of them."""
    return tuple(
        Condition(f"slots/{count}", "slots", {"slots": count}, stream="slots", slots=count)
        for count in parse_integers(values, everything=ALL_SLOTS, least=1, doubling=True)
    )


def _question_conditions(values: str, options: NoOptions) -> tuple[Condition, ...]:
    """The question before the documents, after them, or both in turn.

    The label is called `placement`, since the results have the question's text as `question`.
    """
    return tuple(
        Condition(f"question/{place}", "question", {"placement": place}, stream="question", placement=place)
        for place in get_args(Placement)
        if place in parse_names(values, get_args(Placement))
    )


DOCUMENTS = Stressor(
    name="documents",
    summary="Numbers of documents to show, as retrieved",
    example="0,5",
    make=_documents_conditions,
    labels={"documents": int},
    axis=None,
    options=DocumentsOptions,
)
SLOTS = Stressor(
    name="slots",
    summary="Numbers of answer slots, i.e. of masks to fill; a range doubles",
    example="8,32,128",
    make=_slots_conditions,
    labels={"slots": int},
    axis=Axis("slots", "answer slots"),
)
QUESTION = Stressor(
    name="question",
    summary="Where the question stands, before or after the documents",
    example="before,after",
    make=_question_conditions,
    labels={"placement": str},
    axis=Axis("placement", "the question stands"),
)
