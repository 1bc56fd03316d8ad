"""Position: the one gold document at each place among distractors that stay the same."""

import dataclasses
import random
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from floatscope.errors import UserError
from floatscope.qa.samples import Document, Sample
from floatscope.qa.stressors.condition import Condition, gold_of
from floatscope.qa.stressors.pool import Pool
from floatscope.qa.stressors.ranges import check_documents, check_names, parse_integers
from floatscope.qa.stressors.stressor import Axis, Stressor

Distractors = Literal["topical", "random"]


@dataclass(frozen=True)
class PlacingOptions:
    """Options of the stressors that put gold documents among others."""

    documents: int = 10
    """Documents shown, gold included."""
    distractors: Distractors = "topical"
    """Where the other documents come from."""

    def __post_init__(self) -> None:
        check_documents(self.documents)
        check_names((self.distractors,), get_args(Distractors), "source of distractors")


def _conditions(values: str, options: PlacingOptions) -> tuple[Condition, ...]:
    """One condition per place, counted from 0; "all" is every place."""
    count = options.documents
    places = parse_integers(values, everything=range(count), least=0)
    if too_high := [place for place in places if place >= count]:
        raise UserError(f"There is no place {too_high[0]} among {count} documents: places are 0 to {count - 1}.")
    return tuple(
        Condition(
            name=f"position/{count}/{place}",
            stressor="position",
            labels={"place": place, "documents": count},
            stream="position",
            transform=partial(_place_gold, place=place, count=count, source=options.distractors),
        )
        for place in places
    )


def other_documents(sample: Sample, count: int, source: str, rng: random.Random, pool: Pool) -> tuple[Document, ...]:
    """Distractors to fill up with, the same for all conditions of a stream."""
    if source == "random":
        return pool.random_documents(sample, count, rng)
    return pool.topical_documents(sample, count)


def _place_gold(sample: Sample, rng: random.Random, pool: Pool, place: int, count: int, source: str) -> Sample:
    (gold,) = gold_of(sample, 1, "the position test")
    others = other_documents(sample, count - 1, source, rng, pool)
    return dataclasses.replace(sample, documents=(*others[:place], gold, *others[place:]))


POSITION = Stressor(
    name="position",
    summary="Places of the gold document, counted from 0",
    example="all",
    make=_conditions,
    labels={"place": int, "documents": int},
    axis=Axis("place", "place of the gold document, from 0", "among {documents} documents"),
    options=PlacingOptions,
    gold_documents=1,
)
