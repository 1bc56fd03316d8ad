"""Placing gold documents among distractors that stay the same: the position of one, the layout of two-hop evidence."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

from floatscope.errors import UserError
from floatscope.qa.retrieval import mentions_answer
from floatscope.qa.samples import Document, Sample
from floatscope.qa.stressors.pool import Pool
from floatscope.qa.stressors.ranges import check_documents, check_names, parse_integers, parse_names
from floatscope.qa.stressors.stressor import Axis, Condition, Stressor, gold_of

Source = Literal["topical", "random"]
LEAST_DOCUMENTS = {"gap": 2, "order": 2, "split": 2, "duplicated": 4}
"""The layouts: how far apart, in which order, in one document or two, once or repeated."""
EVIDENCE = {
    "order": {"bridge-first": "ba", "answer-first": "ab"},
    "split": {"apart": "ba", "joined": "j"},
    "duplicated": {"none": "ba", "bridge": "bab", "answer": "aba", "both": "baba"},
}
"""The documents of a layout's values: bridge, answer, the two joined. Copies take the place of distractors."""


@dataclass(frozen=True)
class PlacingOptions:
    """Options of the stressors that put gold documents among others."""

    documents: int = 10
    """Documents shown, gold included."""
    distractors: Source = "topical"
    """Where the other documents come from."""

    def __post_init__(self) -> None:
        check_documents(self.documents)
        check_names((self.distractors,), get_args(Source), "source of distractors")


def _positions(values: str, options: PlacingOptions) -> tuple[Condition, ...]:
    """One condition per place, counted from 1; "all" is every place."""
    count = options.documents
    places = parse_integers(values, everything=range(1, count + 1), least=1)
    if too_high := [place for place in places if place > count]:
        raise UserError(f"There is no place {too_high[0]} among {count} documents: places are 1 to {count}.")
    return tuple(
        Condition(
            name=f"position/{count}/{place}",
            stressor="position",
            labels={"place": place, "documents": count},
            stream="position",
            transform=partial(_place_gold, place=place - 1, options=options),
        )
        for place in places
    )


def _place_gold(sample: Sample, rng: random.Random, pool: Pool, place: int, options: PlacingOptions) -> Sample:
    (gold,) = gold_of(sample, 1, "the position test")
    return _among_others(sample, {place: gold}, options, rng, pool)


def _layouts(values: str, options: PlacingOptions) -> tuple[Condition, ...]:
    """The conditions of each layout that is named: gap, order, split, duplicated, or all."""
    count = options.documents
    return tuple(
        Condition(
            name=f"layout/{count}/{layout}/{value}",
            stressor="layout",
            labels={"layout": layout, "value": value, "documents": count},
            stream="layout",
            transform=partial(_lay_out, letters=letters, places=places, options=options),
        )
        for layout in parse_names(values, LEAST_DOCUMENTS)
        for value, letters, places in _arrangements(layout, count)
    )


def _arrangements(layout: str, count: int) -> list[tuple[str, str, Sequence[int]]]:
    """Values of a layout, each with its evidence by letter and the places that this takes."""
    if count < LEAST_DOCUMENTS[layout]:
        raise UserError(f"The layout {layout!r} needs at least {LEAST_DOCUMENTS[layout]} documents, not {count}.")
    if layout == "gap":  # distractors between the two, kept in the middle: none, then doubling, up to first and last
        most = count - 2
        gaps = sorted({0, most, *(1 << power for power in range(most.bit_length()))})
        return [(str(gap), "ba", ((most - gap) // 2, (most + gap) // 2 + 1)) for gap in gaps]
    return [
        (value, letters, [(2 * i + 1) * count // (2 * len(letters)) for i in range(len(letters))])  # spread evenly
        for value, letters in EVIDENCE[layout].items()
    ]


def _lay_out(
    sample: Sample, rng: random.Random, pool: Pool, letters: str, places: Sequence[int], options: PlacingOptions
) -> Sample:
    """The bridge is the gold document that does not state the answer; where this does not decide, the first one."""
    bridge, answer = gold_of(sample, 2, "the layout of two-hop evidence")
    has_answer = mentions_answer(sample)
    if has_answer(bridge) and not has_answer(answer):
        bridge, answer = answer, bridge
    title = ", ".join(dict.fromkeys(filter(None, (bridge.title, answer.title))))
    evidence = {"b": bridge, "a": answer, "j": Document(title, f"{bridge.text} {answer.text}", gold=True)}
    placed = {place: evidence[letter] for place, letter in zip(places, letters, strict=True)}
    return _among_others(sample, placed, options, rng, pool)


def _among_others(
    sample: Sample, placed: dict[int, Document], options: PlacingOptions, rng: random.Random, pool: Pool
) -> Sample:
    """The documents at their places, the rest filled up with distractors, the same for all conditions of a stream."""
    others = iter(pool.distractors(sample, options.documents - len(placed), options.distractors, rng))
    places = range(options.documents)
    return replace(sample, documents=tuple(placed[place] if place in placed else next(others) for place in places))


POSITION = Stressor(
    name="position",
    summary="Places of the gold document, counted from 1",
    example="all",
    make=_positions,
    labels={"place": int, "documents": int},
    axis=Axis("place", "place of the gold document", "among {documents} documents"),
    options=PlacingOptions,
    gold_documents=1,
)
LAYOUT = Stressor(
    name="layout",
    summary="Layouts of two-hop evidence: gap, order, split, duplicated",
    example="gap,order",
    make=_layouts,
    labels={"layout": str, "value": str, "documents": int},
    axis=Axis("value", "layout", "{layout}"),
    options=PlacingOptions,
    gold_documents=2,
)
