"""Position: the one gold document at each place among distractors that stay the same."""

import dataclasses
import random
from functools import partial

from floatscope.errors import UserError
from floatscope.qa.samples import Document, Sample
from floatscope.qa.stressors.condition import Condition, gold_of
from floatscope.qa.stressors.options import StressOptions
from floatscope.qa.stressors.pool import Pool
from floatscope.qa.stressors.ranges import parse_integers


def conditions(values: str, options: StressOptions) -> tuple[Condition, ...]:
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
