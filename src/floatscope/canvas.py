"""The canvas: token ids, labelled regions that partition them, and the Prompt it starts from. No torch here.

Where regions come from is left to `qa.prompts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.errors import UserError

BOS = "bos"
SCAFFOLD = "scaffold"
QUERY = "query"
ANSWER = "answer"
MASKED, COMMITTED = 0, 1
"""States of an answer slot: still to be filled, or a token."""

Ids = NDArray[np.int64]


def document_label(number: int) -> str:
    """The label of the document shown as number `number`, counted from 1."""
    return f"doc {number}"


@dataclass(frozen=True)
class Region:
    """The tokens `start` to `stop` (exclusive) under one label; several spans of a canvas may share a label."""

    label: str
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def regions_from_labels(labels: Iterable[str]) -> tuple[Region, ...]:
    """One label per token becomes spans: neighbours with equal labels are merged."""
    regions: list[Region] = []
    start = 0
    for label, run in groupby(labels):
        stop = start + sum(1 for _ in run)
        regions.append(Region(label, start, stop))
        start = stop
    return tuple(regions)


def positions(regions: Sequence[Region], label: str) -> Ids:
    """All token positions under a label, ascending; empty where the label does not occur."""
    spans = [np.arange(region.start, region.stop) for region in regions if region.label == label]
    return np.concatenate(spans).astype(np.int64) if spans else np.zeros(0, np.int64)


def group_labels(region_labels: Iterable[str]) -> tuple[str, ...]:
    """The groups of query rows that belong to region labels: the answer is split by the state of its slots."""
    split = {ANSWER: (f"{ANSWER}:masked", f"{ANSWER}:committed")}
    return tuple(group for label in region_labels for group in split.get(label, (label,)))


@dataclass(frozen=True, eq=False)
class Prompt:
    """What a model is shown: token ids (bos included), the regions that partition them, and named token sets.

    Its answer slots stand where `slots` says, under the region "answer"; while `slots` is None they are to follow the
    text, as many as a sampler fills.

    Ids and marks may come as anything that numpy reads; they are kept as int64 arrays. A prompt that does not hold
    together is refused when it is made.
    """

    text: str
    ids: Ids
    """[P]"""
    regions: tuple[Region, ...]
    """One after the other, without gaps."""
    marks: dict[str, Ids] = field(default_factory=dict)
    """Token positions under names of their own, such as the evidence; ascending, and they may overlap regions."""
    cut: tuple[int, ...] = ()
    """For each document, the tokens of its text that did not fit and were left out."""
    slots: Ids | None = None
    """Positions of the answer slots, ascending; the ids there are of no meaning."""
    answer: Ids | None = None
    """The tokens that belong into the slots, where they are known; `replay` fills them in."""
    sentences: tuple[Region, ...] = ()
    """The sentences of each document, under its label."""

    def __post_init__(self) -> None:
        ids = token_ids(self.ids)
        marks = {name: np.unique(np.asarray(given)) for name, given in self.marks.items()}
        slots, answer = (None if given is None else token_ids(given) for given in (self.slots, self.answer))
        stop = 0
        for region in self.regions:
            if region.start != stop or region.stop <= region.start:
                raise UserError(
                    f"region {region.label!r} is {region.start}..{region.stop} where one from {stop} on was expected: "
                    "regions follow each other without gaps, and none is empty"
                )
            if not region.label or (region.label == ANSWER and slots is None) or ":" in region.label:
                raise UserError(
                    f"a region of the prompt cannot be called {region.label!r}: {ANSWER!r} is where its slots are, "
                    "and ':' divides its rows by state"
                )
            stop = region.stop
        if stop != len(ids):
            raise UserError(f"the regions of the prompt end at {stop}, and it has {len(ids)} tokens")
        if slots is not None and slots.tolist() != positions(self.regions, ANSWER).tolist():
            raise UserError(f"the slots of the prompt are not the tokens of its region {ANSWER!r}: make them the same")
        for name, found in marks.items():
            if name in (ANSWER, *(region.label for region in self.regions)):
                raise UserError(f"mark {name!r} has the name of a region: call it something else")
            if found.size and (found.dtype.kind not in "iu" or found[0] < 0 or found[-1] >= len(ids)):
                raise UserError(f"mark {name!r} should hold token positions from 0 to {len(ids) - 1}")
        if answer is not None and (slots is None or len(answer) != len(slots)):
            raise UserError("the answer of the prompt has another number of tokens than slots: make them the same")
        marks = {name: found.astype(np.int64) for name, found in marks.items()}
        kept = {"ids": ids, "regions": tuple(self.regions), "marks": marks, "slots": slots, "answer": answer}
        for name, value in kept.items():
            object.__setattr__(self, name, value)

    @classmethod
    def bare(cls, ids: Any, bos_id: int | None = None) -> Prompt:
        """Token ids of which nothing else is known: all are query, after the bos token where they begin with it."""
        ids = token_ids(ids)
        started = len(ids) > 1 and ids[0] == bos_id
        return cls("", ids, regions_from_labels([BOS if started else QUERY, *[QUERY] * (len(ids) - 1)]))

    def with_slots(self, length: int) -> Prompt:
        """The whole canvas: `length` slots after the text, or those that are in place, which must be as many."""
        if self.slots is None:
            ids = np.concatenate([self.ids, np.zeros(length, np.int64)])
            regions = (*self.regions, Region(ANSWER, len(self.ids), len(ids)))
            return replace(self, ids=ids, regions=regions, slots=np.arange(len(self.ids), len(ids)))
        if len(self.slots) != length:
            raise UserError(
                f"The prompt has {len(self.slots)} answer slots and the sampler fills {length}: make them equal."
            )
        return self

    def without_slots(self, last: int) -> Prompt:
        """The canvas without its last so many slots, which were not filled."""
        assert self.slots is not None
        if not last:
            return self
        kept = len(self.ids) - last  # an answer that ends early stands at the end of its canvas
        regions = (*self.regions[:-1], Region(ANSWER, self.regions[-1].start, kept))
        return replace(self, ids=self.ids[:kept], regions=regions, slots=self.slots[:-last])


def token_ids(given: Any) -> Ids:
    """One sequence of token ids [T], from a list, a numpy array or a torch tensor, [T] or [1, T]."""
    try:
        array = np.asarray(given.detach().cpu() if hasattr(given, "detach") else given)
    except ValueError as error:  # a ragged list
        raise UserError("the prompt is not one sequence of token ids: give each prompt its own list") from error
    if array.ndim == 2 and array.shape[0] == 1:
        array = array[0]
    if array.size == 0:
        raise UserError("the prompt is empty: give at least one token, such as the bos token")
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.min() < 0:
        raise UserError(
            f"the prompt must be one sequence of token ids, whole numbers from 0 up, got {array.dtype} of shape "
            f"{list(array.shape)}: tokenize text first"
        )
    return array.astype(np.int64)
