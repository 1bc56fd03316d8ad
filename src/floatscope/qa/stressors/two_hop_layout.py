"""Layout of two-hop evidence: how far apart, in which order, in one document or two, once or repeated.

The bridge is the gold document that does not state the answer; where this does not decide, the first one.
"""

import dataclasses
import random
from collections.abc import Callable, Sequence
from functools import partial

from floatscope.errors import UserError
from floatscope.qa.retrieval import mentions_answer
from floatscope.qa.samples import Document, Sample
from floatscope.qa.stressors.condition import Condition, gold_of
from floatscope.qa.stressors.pool import Pool
from floatscope.qa.stressors.position import PlacingOptions, other_documents
from floatscope.qa.stressors.ranges import parse_names
from floatscope.qa.stressors.stressor import Axis, Stressor

Evidence = list[tuple[int, Document]]
"""Gold documents with the places they take, ascending."""
Arrange = Callable[[Document, Document, int], Evidence]


def _conditions(values: str, options: PlacingOptions) -> tuple[Condition, ...]:
    """The conditions of each layout that is named: gap, order, split, duplicated, or all."""
    return tuple(
        Condition(
            name=f"layout/{options.documents}/{layout}/{value}",
            stressor="layout",
            labels={"layout": layout, "value": value, "documents": options.documents},
            stream="layout",
            transform=partial(_lay_out, arrange=arrange, count=options.documents, source=options.distractors),
        )
        for layout in parse_names(values, LAYOUTS)
        for value, arrange in LAYOUTS[layout](options.documents).items()
    )


def _lay_out(sample: Sample, rng: random.Random, pool: Pool, arrange: Arrange, count: int, source: str) -> Sample:
    bridge, answer = hops(sample)
    evidence = dict(arrange(bridge, answer, count))
    others = iter(other_documents(sample, count - len(evidence), source, rng, pool))
    documents = tuple(evidence[place] if place in evidence else next(others) for place in range(count))
    return dataclasses.replace(sample, documents=documents)


def hops(sample: Sample) -> tuple[Document, Document]:
    """The two gold documents: the bridge, and the one with the answer."""
    first, second = gold_of(sample, 2, "the layout of two-hop evidence")
    has_answer = mentions_answer(sample)
    return (second, first) if has_answer(first) and not has_answer(second) else (first, second)


def _gaps(count: int) -> dict[str, Arrange]:
    """Distractors between the two, the pair kept in the middle: none, then doubling, up to first and last."""
    _check_count(count, 2, "gap")
    most = count - 2
    gaps = sorted({0, most, *(1 << power for power in range(most.bit_length()) if 1 << power <= most)})
    return {str(gap): partial(_apart, gap=gap) for gap in gaps}


def _orders(count: int) -> dict[str, Arrange]:
    _check_count(count, 2, "order")
    return {
        "bridge-first": partial(_repeated, pattern="ba"),
        "answer-first": partial(_repeated, pattern="ab"),
    }


def _splits(count: int) -> dict[str, Arrange]:
    """Two documents, or their texts one after the other in a single one; the number of documents stays."""
    _check_count(count, 2, "split")
    return {"apart": partial(_repeated, pattern="ba"), "joined": _joined}


def _duplications(count: int) -> dict[str, Arrange]:
    """Copies take the place of distractors."""
    _check_count(count, 4, "duplicated")
    patterns = {"none": "ba", "bridge": "bab", "answer": "aba", "both": "baba"}
    return {name: partial(_repeated, pattern=pattern) for name, pattern in patterns.items()}


LAYOUTS: dict[str, Callable[[int], dict[str, Arrange]]] = {
    "gap": _gaps,
    "order": _orders,
    "split": _splits,
    "duplicated": _duplications,
}


def _apart(bridge: Document, answer: Document, count: int, gap: int) -> Evidence:
    start = (count - 2 - gap) // 2
    return [(start, bridge), (start + gap + 1, answer)]


def _repeated(bridge: Document, answer: Document, count: int, pattern: str) -> Evidence:
    """Documents by letter (b, a), spread evenly over the places."""
    return _spread([bridge if letter == "b" else answer for letter in pattern], count)


def _joined(bridge: Document, answer: Document, count: int) -> Evidence:
    title = ", ".join(dict.fromkeys(filter(None, (bridge.title, answer.title))))
    return _spread([Document(title, f"{bridge.text} {answer.text}", gold=True)], count)


def _spread(documents: Sequence[Document], count: int) -> Evidence:
    return [((2 * i + 1) * count // (2 * len(documents)), document) for i, document in enumerate(documents)]


def _check_count(count: int, least: int, layout: str) -> None:
    if count < least:
        raise UserError(f"The layout {layout!r} needs at least {least} documents, not {count}.")


LAYOUT = Stressor(
    name="layout",
    summary="Layouts of two-hop evidence: gap, order, split, duplicated",
    example="gap,order",
    make=_conditions,
    labels={"layout": str, "value": str, "documents": int},
    axis=Axis("value", "layout", "{layout}"),
    options=PlacingOptions,
    gold_documents=2,
)
