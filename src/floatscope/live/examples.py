"""Samples to start from: questions of the twins' world, and for other models a few about the world we live in."""

import json
import re
from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from floatscope.live.requests import GAP
from floatscope.models.shipped import UNTRAINED
from floatscope.qa.samples import Sample
from floatscope.qa.world import World
from floatscope.reports.markup import asset

TWINS = ("twin-llada", "twin-dream", "twin-arm")
_EACH = 6
_WORLD = (
    ("One document holds the answer", "rag", 5),
    ("The answer takes two documents", "twohop", 4),
    ("The document contradicts what was learnt", "counterfactual", 4),
    ("No document holds the answer", "unanswerable", 4),
    ("From memory, without documents", "closed-stable", 0),
    ("A gap in a passage", "passages-infill", 5),
    ("What stood before these notes", "passages-mirrored", 5),
)


def is_twin(name: str) -> bool:
    """Whether a model knows the words of the twins' world only."""
    return name.removesuffix(f"-{UNTRAINED}") in (*TWINS, "twin-parent")


def sample_groups(models: Collection[str]) -> list[dict[str, Any]]:
    """Groups of samples as the page lists them: everyday ones first where a model can read them."""
    groups = [
        {"name": name, "samples": [_plain(s) for s in World(0).samples(kind, _EACH, documents=documents)]}
        for name, kind, documents in _WORLD
    ]
    everyday = {"name": "Everyday knowledge", "samples": json.loads(asset("everyday.json", "live"))}
    twins = [is_twin(name) for name in models]
    return groups if all(twins) else [everyday, *(groups if any(twins) else [])]


def _plain(sample: Sample) -> dict[str, Any]:
    """A sample as the form has it; a passage with the slots that its gap needs, a slot per word and sign."""
    if sample.is_passage:
        slots = len(re.findall(r"\w+|[^\w\s]", sample.answers[0]))
        text = f"{sample.before}{GAP}{sample.after}"
        return {"question": text, "answers": list(sample.answers), "documents": [], "slots": slots}
    documents = [asdict(document) for document in sample.documents]
    return {"question": sample.question, "answers": list(sample.answers), "documents": documents}
