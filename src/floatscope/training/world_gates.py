"""The gates of a twin: closed-book facts, binding, noise and two hops in the world's test split. Training never saw it.

All MDMs are measured with one sampler, which fills the surest slot first; the bars are as old as the plan of the twins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from floatscope.models.model import Model
from floatscope.qa.metrics import exact_match
from floatscope.qa.samples import Sample
from floatscope.qa.world import World
from floatscope.qa.world.relations import RELATIONS, UNANSWERABLE
from floatscope.statistics import mean_interval
from floatscope.training.gates import GateResult, Teller, answer, judge

SLOTS = (8, 32)
BATCH = 50
SPLIT = "test"


@dataclass(frozen=True)
class Gate:
    """One cell: which samples, and what share must be right (None: a harder cell that is only watched)."""

    name: str
    kind: str
    documents: int = 0
    least: float | None = None
    at_most_guess: bool = False
    published: bool = False  # with the sampler of the family as published, not with one slot per step
    settings: dict[str, Any] = field(default_factory=dict)


GATES = (
    Gate("stable facts, closed-book", "closed-stable", least=0.95),
    Gate("fresh facts, closed-book", "closed-fresh", at_most_guess=True),
    Gate("binding, k=3", "binding", 3, 0.95),
    Gate("binding, k=10", "binding", 10, 0.85),
    Gate("RAG with mixed noise, k=10", "rag", 10, 0.85),
    Gate("two-hop, k=5", "twohop", 5, 0.7),
)
HARDER = (
    Gate("binding, k=15", "binding", 15),
    Gate("binding, k=20", "binding", 20),
    Gate("near names, k=5", "rag", 5, settings={"noise": "near"}),
    Gate("two-hop, k=10", "twohop", 10),
    Gate("two-hop, k=10, gap 6", "twohop", 10, settings={"gap": 6}),
    Gate("counterfactual, k=5", "counterfactual", 5),
    Gate("stable facts among noise, k=5", "stable-noise", 5),
    Gate("unanswerable, k=5", "unanswerable", 5),
)
# Dream's own schedule commits the last two slots together, whatever the number of steps.
PUBLISHED = (
    Gate("binding, k=10, Dream's schedule", "binding", 10, published=True),
    Gate("two-hop, k=5, Dream's schedule", "twohop", 5, published=True),
)


def measure(model: Model, n: int, progress: Teller | None = None) -> list[GateResult]:
    """The gates with n samples at each number of slots, the harder cells with half of them at the fewest slots."""
    world = World(0)
    cells = [(gate, n, count) for count in SLOTS for gate in GATES]
    more = PUBLISHED if model.family.name == "dream" else ()
    cells += [(gate, max(1, n // 2), SLOTS[0]) for gate in (*HARDER, *more)]
    results = []
    for done, (gate, count, slots) in enumerate(cells):
        if progress:
            progress(f"{gate.name}, {slots} slots", done, len(cells))
        samples = world.samples(gate.kind, count, split=SPLIT, documents=gate.documents, **gate.settings)
        own = gate.published or model.mask_id is None
        said = answer(model, samples, slots, BATCH, None if own else "llada")
        results.append(judge_answers(gate, slots, samples, said, world))
    return results


def judge_answers(gate: Gate, slots: int, samples: Sequence[Sample], said: Sequence[str], world: World) -> GateResult:
    """Exact matches beside guesses: any name of the answer's type; any that is stated for the relation."""
    right = mean_interval([exact_match(text, sample.answers) for text, sample in zip(said, samples, strict=True)])
    by_type, by_relation = (
        sum(guesses) / len(samples) for guesses in zip(*(guess(sample, world) for sample in samples), strict=True)
    )
    beside: dict[str, float | None] = {"guess_type": by_type, "guess_relation": by_relation}
    passed = right.low <= by_type if gate.at_most_guess else None
    return judge(gate.name, right, beside, gate.least, passed, slots)


def guess(sample: Sample, world: World) -> tuple[float, float]:
    """Chances of a right guess: among all names of the answer's type, and among those stated for the asked relation."""
    relation = RELATIONS[str(sample.metadata["relation"]).split()[-1]]
    stable = sample.metadata["kind"] in ("closed-stable", "stable-noise")
    pool = world.stable[relation.object] if stable else world.fresh[SPLIT][relation.object]
    if sample.answers == (UNANSWERABLE,):
        return 0.0, 0.0
    if sample.documents and not any(sample.answers[0] in document.text for document in sample.documents):
        return 1 / len(pool), 0.0  # whatever is stated is wrong
    stated = 0
    for document in sample.documents:
        for statement in relation.statements:
            before, _, after = statement.partition("{o}")
            before, after = (part.format(s=document.title) for part in (before, after))
            if any(
                s.startswith(before) and s.endswith(after.rstrip(".")) and len(s) > len(before) + len(after)
                for s in (sentence.rstrip(".") for sentence in document.text.split(". "))
            ):
                stated += 1
                break
    return 1 / len(pool), (1 / stated if stated else 1 / len(pool))
