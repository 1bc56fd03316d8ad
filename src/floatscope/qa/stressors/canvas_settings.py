"""Stressors that leave the sample alone: the number of answer slots, and where the question stands."""

from typing import get_args

from floatscope.qa.stressors.condition import Condition
from floatscope.qa.stressors.ranges import parse_integers, parse_names
from floatscope.qa.stressors.stressor import Axis, NoOptions, Stressor
from floatscope.qa.templates import Placement

ALL_SLOTS = (8, 16, 32, 64, 128, 256)


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
