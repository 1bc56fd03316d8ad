"""Samples to start from: questions of the twins' world, and for other models a few about the world we live in."""

from collections.abc import Collection
from typing import Any

from floatscope.models.shipped import UNTRAINED
from floatscope.qa.samples import Document, Sample
from floatscope.qa.world import World

TWINS = ("twin-llada", "twin-dream", "twin-arm")
_EACH = 6
_WORLD = (
    ("One document holds the answer", "rag", 5),
    ("The answer takes two documents", "twohop", 4),
    ("The document contradicts what was learnt", "counterfactual", 4),
    ("No document holds the answer", "unanswerable", 4),
    ("From memory, without documents", "closed-stable", 0),
)
_EVERYDAY = (
    Sample(
        "everyday-1",
        "Which river flows through the capital of Austria?",
        ("Danube",),
        (
            Document("Graz", "Graz is the second largest city of Austria. It lies on the river Mur."),
            Document("Vienna", "Vienna is the capital of Austria. The river Danube flows through the city.", True),
            Document("Prague", "Prague is the capital of the Czech Republic. It lies on the river Vltava."),
        ),
    ),
    Sample(
        "everyday-2",
        "Who was the first person to walk on the Moon?",
        ("Neil Armstrong", "Armstrong"),
        (
            Document("Gagarin", "In April 1961 Yuri Gagarin became the first person to travel into space."),
            Document("Apollo 8", "In December 1968 the crew of Apollo 8 flew around the Moon without landing."),
            Document("Apollo 11", "On 20 July 1969 Neil Armstrong was the first person to walk on the Moon.", True),
        ),
    ),
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
    everyday = {"name": "Everyday knowledge", "samples": [_plain(sample) for sample in _EVERYDAY]}
    return groups if all(map(is_twin, models)) else [everyday, *groups]


def _plain(sample: Sample) -> dict[str, Any]:
    return {
        "question": sample.question,
        "answers": list(sample.answers),
        "documents": [{"title": d.title, "text": d.text, "gold": d.gold} for d in sample.documents],
    }
