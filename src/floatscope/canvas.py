"""Regions: labelled token spans that partition a canvas, in order. Where they come from is left to `qa.prompts`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

BOS = "bos"
SCAFFOLD = "scaffold"
QUERY = "query"
ANSWER = "answer"


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


def positions(regions: Sequence[Region], label: str) -> NDArray[np.int64]:
    """All token positions under a label, ascending; empty where the label does not occur."""
    spans = [np.arange(region.start, region.stop) for region in regions if region.label == label]
    return np.concatenate(spans).astype(np.int64) if spans else np.zeros(0, np.int64)


def with_answer(regions: Sequence[Region], slots: int) -> tuple[Region, ...]:
    """The canvas of a prompt: its regions, then `slots` answer tokens."""
    start = regions[-1].stop if regions else 0
    return (*regions, Region(ANSWER, start, start + slots))
