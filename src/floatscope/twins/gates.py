"""The gates: what a twin must be able to do, measured with one sampler for all MDMs, beside what guessing gives.

Training is left to `training`; the bars are those that the twins were planned with, and a miss is printed as a miss.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from floatscope.decoding import AutoregressiveSampler, DreamSampler, LLaDASampler, generate
from floatscope.models.model import Model
from floatscope.qa.metrics import exact_match
from floatscope.qa.prompts import build_prompt
from floatscope.qa.samples import Sample
from floatscope.statistics import mean_interval
from floatscope.twins.relations import RELATIONS, UNANSWERABLE
from floatscope.twins.world import World

SLOTS = (8, 32)
BATCH = 50


@dataclass(frozen=True)
class Gate:
    """One cell: which samples, and what share must be right (None: a harder cell that is only watched)."""

    name: str
    kind: str
    documents: int = 0
    least: float | None = None
    at_most_guess: bool = False
    published: bool = False  # with the sampler of the family as published, not with one slot a step
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


@dataclass(frozen=True)
class GateResult:
    """Exact matches with their interval, beside guesses: any name of the type; any that is stated for the relation."""

    gate: str
    slots: int
    n: int
    right: float
    low: float
    high: float
    guess_type: float
    guess_relation: float
    least: float | None
    passed: bool | None


def measure(
    model: Model,
    gates: Sequence[Gate] = GATES,
    n: int = 500,
    slots: Sequence[int] = SLOTS,
    world: World | None = None,
    split: str = "test",
) -> list[GateResult]:
    """Every gate at every number of slots."""
    world = world or World(0)
    results = []
    for gate in gates:
        samples = world.samples(gate.kind, n, split=split, documents=gate.documents, **gate.settings)
        for count in slots:
            answers = answer(model, samples, count, gate.published)
            results.append(_result(gate, count, samples, answers, world, split))
    return results


def answer(model: Model, samples: Sequence[Sample], slots: int, published: bool = False) -> list[str]:
    """What the model says to each sample, up to its first eos; an MDM fills one slot a step, the surest first."""
    tokenizer: Any = model.tokenizer
    sampler: Any
    if model.mask_id is None:
        sampler = AutoregressiveSampler(length=slots)
    elif published and model.family.name == "dream":
        sampler = DreamSampler(steps=slots, length=slots)
    else:
        sampler = LLaDASampler(steps=slots, length=slots)
    prompts = [build_prompt(tokenizer, sample.question, sample.documents).ids for sample in samples]
    texts = []
    for start in range(0, len(prompts), BATCH):
        done = generate(model, prompts[start : start + BATCH], sampler)
        for generation in done if isinstance(done, list) else [done]:
            ids = generation.answer.tolist()
            stop = ids.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in ids else len(ids)
            texts.append(tokenizer.decode(ids[:stop]))
    return texts


def _result(
    gate: Gate, slots: int, samples: Sequence[Sample], answers: Sequence[str], world: World, split: str
) -> GateResult:
    right = mean_interval([exact_match(text, sample.answers) for text, sample in zip(answers, samples, strict=True)])
    by_type, by_relation = (
        sum(guesses) / len(samples) for guesses in zip(*(_guess(s, world, split) for s in samples), strict=True)
    )
    passed: bool | None = None
    if gate.least is not None:
        passed = right.estimate >= gate.least
    elif gate.at_most_guess:
        passed = right.low <= by_type
    return GateResult(
        gate.name, slots, len(samples), round(right.estimate, 4), round(right.low, 4), round(right.high, 4),
        round(by_type, 4), round(by_relation, 4), gate.least, passed,
    )  # fmt: skip


def _guess(sample: Sample, world: World, split: str) -> tuple[float, float]:
    """Chances of a right guess: among all names of the answer's type, and among those stated for the asked relation."""
    relation = RELATIONS[str(sample.metadata["relation"]).split()[-1]]
    stable = sample.metadata["kind"] in ("closed-stable", "stable-noise")
    pool = world.stable[relation.object] if stable else world.fresh[split][relation.object]
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


def table(results: Sequence[GateResult]) -> str:
    """The results as a Markdown table."""
    lines = [
        "| gate | slots | n | right (95% interval) | guess: type | guess: relation | bar | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        bar = f"{r.least:.2f}" if r.least is not None else ("guess" if r.passed is not None else "")
        verdict = {True: "met", False: "missed", None: ""}[r.passed]
        lines.append(
            f"| {r.gate} | {r.slots} | {r.n} | {r.right:.3f} ({r.low:.3f} to {r.high:.3f}) | {r.guess_type:.3f} | "
            f"{r.guess_relation:.3f} | {bar} | {verdict} |"
        )
    return "\n".join(lines)
