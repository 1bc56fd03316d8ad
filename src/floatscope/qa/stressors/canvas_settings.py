"""Stressors that leave the sample alone: the number of answer slots, and where the question stands."""

from typing import get_args

from floatscope.qa.stressors.condition import Condition
from floatscope.qa.stressors.options import StressOptions
from floatscope.qa.stressors.ranges import parse_integers, parse_names
from floatscope.qa.templates import Placement

ALL_SLOTS = (8, 16, 32, 64, 128, 256)


def slots_conditions(values: str, options: StressOptions) -> tuple[Condition, ...]:
    """One condition per mask count; a range doubles, so that 8..256 is six of them."""
    return tuple(
        Condition(f"slots/{count}", "slots", {"slots": count}, stream="slots", slots=count)
        for count in parse_integers(values, everything=ALL_SLOTS, least=1, doubling=True)
    )


def question_conditions(values: str, options: StressOptions) -> tuple[Condition, ...]:
    """The question before the documents, after them, or both in turn."""
    return tuple(
        Condition(f"question/{place}", "question", {"question": place}, stream="question", question=place)
        for place in get_args(Placement)
        if place in parse_names(values, get_args(Placement))
    )
