"""The baselines, and conditions that set one thing: documents shown, answer slots, the place of the question."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

from floatscope.errors import UserError
from floatscope.qa.samples import Sample
from floatscope.qa.stressors.pool import Pool
from floatscope.qa.stressors.ranges import check_documents, parse_integers, parse_names
from floatscope.qa.stressors.stressor import Axis, Condition, NoOptions, Stressor, gold_of
from floatscope.qa.templates import Placement

ALL_SLOTS = (8, 16, 32, 64, 128, 256)
OWN = "own"
"""In place of a number of documents: those that the sample has, as they are given."""


def _gold_only(sample: Sample, rng: random.Random, pool: Pool) -> Sample:
    return replace(sample, documents=gold_of(sample, None, "the oracle baseline"))


def _show_own(sample: Sample, rng: random.Random, pool: Pool) -> Sample:
    if not sample.documents:
        raise UserError(
            f"Sample {sample.id!r} has no documents of its own: ask without them (--documents 0), or retrieve some "
            "(--corpus and --retrieve)."
        )
    return sample


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
    """So many documents each: RAG as it is run, from 0 (closed-book) up, then a sample's own."""
    parts = [part.strip() for part in values.split(",")]
    numbers = [part for part in parts if part != OWN]
    counts: list[int | None] = []
    if numbers:
        counts += parse_integers(",".join(numbers), everything=range(options.documents + 1), least=0)
    if OWN in parts:
        counts.append(None)
    return tuple(
        Condition(
            f"documents/{OWN if count is None else count}",
            "documents",
            {"documents": count},
            stream="documents",
            transform=_show_own if count is None else partial(_show_documents, count=count),
        )
        for count in counts
    )


def changed_documents(samples: Sequence[Sample], condition: Condition) -> str:
    """What a number of documents does to those that the samples have, in words; nothing where it leaves them alone."""
    count = condition.labels["documents"] if condition.stressor == DOCUMENTS.name else None
    if not isinstance(count, int) or not count:
        return ""
    sizes = [len(sample.documents) for sample in samples]
    told = []
    if fewer := sum(size < count for size in sizes):
        told.append(f"{fewer} have fewer and are shown others beside their gold ones, shuffled")
    if more := sum(size > count for size in sizes):
        told.append(f"{more} have more and are shown their first {count}")
    if not told:
        return ""
    return (
        f"{count} documents are asked for: of {len(sizes)} samples {' and '.join(told)}; {OWN!r} in place of {count} "
        "shows them as they are given."
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
    summary="Numbers of documents to show, as retrieved; own: a sample's own, as they are given",
    example="0,own",
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
    passages=None,
)
QUESTION = Stressor(
    name="question",
    summary="Where the question stands, before or after the documents",
    example="before,after",
    make=_question_conditions,
    labels={"placement": str},
    axis=Axis("placement", "the question stands"),
)
