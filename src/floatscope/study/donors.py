"""Patching as a condition of a study: `floatscope intervene --do "patch outputs"`, `stressor = "patch"` in a file.

A sample's gold documents are exchanged for others of as many tokens. Its right answer is replayed after that, patched
at one layer and step after the other from the run with the gold documents; the control is patched from a run with
still other documents.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from floatscope.canvas import Prompt, document_label, positions
from floatscope.qa.samples import Document, Sample
from floatscope.qa.stressors import STRESSORS, Condition, Pool, Stressor
from floatscope.qa.stressors.ranges import check_documents, parse_names
from floatscope.qa.stressors.stressor import gold_of
from floatscope.statistics import ratio_interval

if TYPE_CHECKING:
    import polars as pl

KINDS = ("patterns", "outputs")
OTHERS = "others"
"""Metadata of a sample: documents that its gold ones may be exchanged for."""
MOST_TOKENS = 4
"""Tokens of an answer that are replayed, each a step."""
_CANDIDATES = 8


@dataclass(frozen=True)
class PatchOptions:
    """What is asked among."""

    documents: int = 5
    """Documents that are shown."""

    def __post_init__(self) -> None:
        check_documents(self.documents)


def patch_conditions(values: str, options: PatchOptions) -> tuple[Condition, ...]:
    """One condition with all kinds: they share the exchanged documents."""
    kinds = parse_names(values, KINDS)
    shown = STRESSORS["documents"].conditions(str(options.documents))[0]
    transform = partial(_with_others, shown=shown.transform)
    name, labels = f"patch/{options.documents}", {"documents": options.documents}
    return (Condition(name, "patch", labels, stream=shown.stream, transform=transform, patch=kinds),)


def _with_others(
    sample: Sample, rng: random.Random, pool: Pool, shown: Callable[[Sample, random.Random, Pool], Sample]
) -> Sample:
    found = shown(sample, rng, pool)
    gold_of(found, None, "patching")
    others = pool.distractors(sample, _CANDIDATES, "random", rng)
    return replace(found, metadata={**found.metadata, OTHERS: others})


STRESSORS.add(
    "patch",
    Stressor(
        name="patch",
        summary="What is patched from the run with the gold documents: patterns, outputs",
        example="patterns,outputs",
        make=patch_conditions,
        labels={"documents": int},
        axis=None,
        options=PatchOptions,
    ),
)


def exchanged(build: Callable[[Sequence[Document]], Prompt], sample: Sample) -> tuple[Prompt, Prompt, Prompt]:
    """The prompt without its gold documents, the prompt as it is, and one without them in another way: donors.

    Of the documents to exchange them for those two are taken that come nearest in length; tokens that are too many are
    cut off, and where there are too few they begin again.
    """
    true = build(sample.documents)
    labels = [document_label(place) for place, document in enumerate(sample.documents, 1) if document.gold]
    built = [
        build([other if document.gold else document for document in sample.documents])
        for other in sample.metadata[OTHERS]
    ]
    found = []
    for made in sorted(built, key=lambda made: abs(len(made.ids) - len(true.ids)))[:2]:
        ids = true.ids.copy()
        for label in labels:
            own, theirs = positions(true.regions, label), positions(made.regions, label)
            ids[own] = np.resize(made.ids[theirs], len(own))
        found.append(replace(true, text=made.text, ids=ids, marks={}))
    return found[0], true, found[1]


def patch_frame(rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """The share of the lost log-probability that each layer and step brings back, beside the control donor's.

    A ratio of means over samples, since single ways may be near 0, with a bootstrap interval; prompt, donor: mean
    log-probabilities. A step counts the samples whose answers are long enough.
    """
    import polars as pl

    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        for kind, told in row["patched"].items():
            groups.setdefault((row["model"], row["task"], row["condition"], kind), []).append(told)
    frames = []
    for (model, task, condition, kind), group in groups.items():
        about = {"model": model, "task": task, "condition": condition, "kind": kind}
        for step in range(max(len(told["patched"][0]) for told in group)):
            own = [told for told in group if step < len(told["patched"][0])]
            prompt, donor = (np.array([told[name] for told in own]) for name in ("prompt", "donor"))  # [n]
            patched, control = (
                np.array([[layer[step] for layer in told[name]] for told in own]) for name in ("patched", "control")
            )  # [n, layer]
            share, null = (ratio_interval(one - prompt[:, None], donor - prompt) for one in (patched, control))
            cells = {"layer": range(len(share.estimate)), "step": step, "value": share.estimate}
            cells |= {"low": share.low, "high": share.high, "n": len(own), "control": null.estimate}
            frames.append(pl.DataFrame(about | cells | {"prompt": prompt.mean(), "donor": donor.mean()}))
    return pl.concat(frames) if frames else pl.DataFrame()
