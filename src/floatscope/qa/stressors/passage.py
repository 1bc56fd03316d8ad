"""Layouts of a passage: where its slots stand, how much text is shown, in which order and with what they are filled."""

import random
from dataclasses import dataclass, replace
from functools import partial
from typing import cast, get_args

from floatscope.errors import UserError
from floatscope.qa.gaps import Layout
from floatscope.qa.samples import Sample
from floatscope.qa.stressors.pool import Pool
from floatscope.qa.stressors.ranges import parse_names
from floatscope.qa.stressors.stressor import Axis, Condition, Stressor


@dataclass(frozen=True)
class PassageOptions:
    context: int = 0
    """Tokens of text to show around the slots, on both sides together; 0: all there are."""
    longest: int = 0
    """Slots of a gap, at most; 0: as many as an answer has."""
    orders: tuple[str, ...] = ()
    """Orders in which slots commit (confidence, left-to-right, right-to-left, random), a curve for each; default: the
    sampler's own."""
    replay: bool = False
    """Fill in the true text, so that models are compared on the same one; it is scored by its bits."""

    def __post_init__(self) -> None:
        if self.context < 0:
            raise UserError(f"A context of {self.context} tokens cannot be shown: ask for 1 or more, or for 0, all.")
        if self.longest < 0:
            raise UserError(f"A gap of {self.longest} slots cannot be filled: ask for 1 or more.")


def _conditions(values: str, options: PassageOptions) -> tuple[Condition, ...]:
    """One condition per order and layout."""
    shown = f"context-{options.context}" if options.context else ""
    return tuple(
        Condition(
            name="/".join(filter(None, ("passage", layout, shown, order, "replay" * options.replay))),
            stressor="passage",
            labels={"layout": layout, "order": ", ".join(filter(None, (order, "replayed" * options.replay)))},
            stream="passage",
            transform=partial(_require_passage, layout=layout),
            layout=layout,
            context=options.context,
            slots=options.longest or None,
            sampler={"order": order} if order else {},
            replay=options.replay,
        )
        for order in options.orders or ("",)
        for layout in cast("tuple[Layout, ...]", parse_names(values, get_args(Layout)))
    )


def _require_passage(sample: Sample, rng: random.Random, pool: Pool, layout: Layout) -> Sample:
    """The sample, if it has the text that the layout shows; a gap that is cut has some behind it.

    To be mirrored, a paragraph that stands alone before the gap is put behind it: the same text, at the other side.
    """
    if not sample.is_passage:
        raise UserError(f"Sample {sample.id!r} is a question and no passage: give passages:FILE, or leave this out.")
    if layout == "mirrored" and not sample.after and sample.before.endswith("\n"):
        return replace(sample, before="", after="\n" + sample.before.removesuffix("\n"))
    if layout != "mirrored" and not sample.before:
        raise UserError(f"Sample {sample.id!r} has no text before its gap, which the layout {layout!r} shows.")
    if layout != "continue" and not sample.after:
        raise UserError(f"Sample {sample.id!r} has no text after its gap, which the layout {layout!r} shows.")
    return sample


PASSAGE = Stressor(
    name="passage",
    summary="Where the slots of a passage stand: continue, infill, mirrored",
    example="continue,mirrored",
    make=_conditions,
    labels={"layout": str, "order": str},
    axis=Axis("layout", "the slots stand", "{order}"),
    options=PassageOptions,
    passages=True,
)
