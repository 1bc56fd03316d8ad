"""The kinds of samples that the world makes, one function and one row each. Drawing facts is left to `drawing`."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from floatscope.errors import UserError
from floatscope.qa.samples import Document, Sample
from floatscope.qa.world.draws import NOISES, Draw
from floatscope.qa.world.facts import Fact
from floatscope.qa.world.relations import PATHS, UNANSWERABLE

SPLITS = {"train": 0.6, "validation": 0.2, "test": 0.2}
MAX_DOCUMENTS = 24  # the longest 24 documents, a question and 32 slots stay below the twins' 2048 positions


@dataclass(frozen=True)
class SamplePlan:
    """What `World.samples` was asked for, checked."""

    kind: str
    split: str
    documents: int
    gold_position: int | None
    noise: str
    gap: int | None
    answer_first: bool | None


def _arrange(
    draw: Draw, gold: Fact, noise: list[Fact | None], position: int | None
) -> tuple[tuple[Document, ...], int]:
    """Documents of the noise in random order with the gold one put at its place (counted from 1)."""
    draw.rng.shuffle(noise)
    place = position or draw.rng.randint(1, len(noise) + 1)
    facts = [*noise[: place - 1], gold, *noise[place - 1 :]]
    return tuple(draw.document(fact, gold=number == place) for number, fact in enumerate(facts, 1)), place


def _binding(draw: Draw, plan: SamplePlan, name: str) -> Sample:
    return _rag(draw, replace(plan, noise="same"), name)


def _rag(draw: Draw, plan: SamplePlan, name: str) -> Sample:
    gold = draw.fact(draw.any_relation())
    documents, place = _arrange(draw, gold, draw.noise(gold, plan.documents - 1, plan.noise), plan.gold_position)
    return _sample(draw, plan, name, gold, (gold.object.name,), documents, gold_position=place)


def _closed_stable(draw: Draw, plan: SamplePlan, name: str) -> Sample:
    fact = draw.rng.choice(draw.world.stable_facts)
    return _sample(draw, plan, name, fact, (fact.object.name,), ())


def _closed_fresh(draw: Draw, plan: SamplePlan, name: str) -> Sample:
    fact = draw.fact(draw.any_relation())
    return _sample(draw, plan, name, fact, (fact.object.name,), ())


def _unanswerable(draw: Draw, plan: SamplePlan, name: str) -> Sample:
    missing = draw.fact(draw.any_relation())
    documents = tuple(draw.document(fact) for fact in draw.noise(missing, plan.documents, plan.noise))
    return _sample(draw, plan, name, missing, (UNANSWERABLE,), documents)


def _stable_noise(draw: Draw, plan: SamplePlan, name: str) -> Sample:
    fact = draw.rng.choice(draw.world.stable_facts)
    draw.keep(fact.object)
    documents = tuple(draw.document(other) for other in draw.noise(fact, plan.documents, plan.noise))
    return _sample(draw, plan, name, fact, (fact.object.name,), documents)


def _counterfactual(draw: Draw, plan: SamplePlan, name: str) -> Sample:
    fact = draw.rng.choice(draw.world.stable_facts)
    draw.keep(fact.object)
    told = draw.fact(fact.relation, fact.subject)
    documents, place = _arrange(draw, told, draw.noise(told, plan.documents - 1, plan.noise), plan.gold_position)
    answers = (told.object.name,)
    return _sample(draw, plan, name, told, answers, documents, gold_position=place, memory=fact.object.name)


def _twohop(draw: Draw, plan: SamplePlan, name: str) -> Sample:
    path = draw.rng.choice(PATHS)
    bridge, answer = draw.chain(path)
    bridge_place, answer_place = _hop_places(draw.rng, plan)
    noise = draw.chain_noise(path, plan.documents - 2)
    draw.rng.shuffle(noise)
    facts = {bridge_place: bridge, answer_place: answer}
    rest = iter(noise)
    documents = tuple(
        draw.document(facts[number], gold=True) if number in facts else draw.document(next(rest))
        for number in range(1, plan.documents + 1)
    )
    metadata = {
        "kind": plan.kind, "relation": f"{path.first} {path.second}", "subject": bridge.subject.name,
        "bridge": bridge.object.name, "bridge_position": bridge_place, "gold_position": answer_place,
    }  # fmt: skip
    return Sample(name, draw.question(path, bridge.subject), (answer.object.name,), documents, metadata)


def _hop_places(rng: random.Random, plan: SamplePlan) -> tuple[int, int]:
    """Places of the bridge and the answer, counted from 1, drawn evenly from those that the plan allows."""
    numbers = range(1, plan.documents + 1)
    allowed = [
        (bridge, answer)
        for bridge in numbers
        for answer in numbers
        if bridge != answer
        and plan.gold_position in (None, answer)
        and plan.gap in (None, abs(bridge - answer) - 1)
        and plan.answer_first in (None, answer < bridge)
    ]
    if not allowed:
        raise UserError(
            f"No two-hop layout of {plan.documents} documents has gold_position {plan.gold_position}, gap {plan.gap} "
            f"and answer_first {plan.answer_first} at once; loosen one of them."
        )
    return rng.choice(allowed)


def _sample(
    draw: Draw,
    plan: SamplePlan,
    name: str,
    fact: Fact,
    answers: tuple[str, ...],
    documents: tuple[Document, ...],
    **more: object,
) -> Sample:
    metadata = {"kind": plan.kind, "relation": fact.relation.name, "subject": fact.subject.name, **more}
    return Sample(name, draw.question(fact.relation, fact.subject), answers, documents, metadata)


@dataclass(frozen=True)
class Kind:
    """One kind of sample: how it is made, how many documents it needs at least, whether it takes any."""

    make: Callable[[Draw, SamplePlan, str], Sample]
    least: int
    placed: bool  # has a gold document whose place can be chosen


KINDS: dict[str, Kind] = {
    "binding": Kind(_binding, 1, True),
    "rag": Kind(_rag, 1, True),
    "twohop": Kind(_twohop, 2, True),
    "counterfactual": Kind(_counterfactual, 1, True),
    "unanswerable": Kind(_unanswerable, 1, False),
    "stable-noise": Kind(_stable_noise, 1, False),
    "closed-stable": Kind(_closed_stable, 0, False),
    "closed-fresh": Kind(_closed_fresh, 0, False),
}


def check_plan(plan: SamplePlan, n: int) -> None:
    """Every mistake in the arguments of `World.samples`, each with its remedy."""
    if plan.kind not in KINDS:
        raise UserError(f"Unknown kind of sample {plan.kind!r}; the world makes {', '.join(KINDS)}.")
    if plan.split not in SPLITS:
        raise UserError(f"Unknown split {plan.split!r}; the splits are {', '.join(SPLITS)}.")
    if plan.noise not in NOISES:
        raise UserError(f"Unknown noise {plan.noise!r}; the world makes {', '.join(NOISES)}.")
    if n < 1:
        raise UserError(f"Cannot make {n} samples; ask for one or more.")
    kind, k = KINDS[plan.kind], plan.documents
    if k < kind.least:
        raise UserError(f"Samples of kind {plan.kind!r} need at least {kind.least} documents, not {k}.")
    if kind.least == 0 and k != 0:
        raise UserError(f"Samples of kind {plan.kind!r} are closed-book and take no documents, not {k}.")
    if k > MAX_DOCUMENTS:
        raise UserError(f"{k} documents are more than the twins' context holds; ask for at most {MAX_DOCUMENTS}.")
    if plan.gold_position is not None and not (kind.placed and 1 <= plan.gold_position <= k):
        raise UserError(
            f"gold_position {plan.gold_position} does not fit samples of kind {plan.kind!r} with {k} documents; "
            "it counts from 1 up to the number of documents, where there is a gold one."
        )
    if (plan.gap is not None or plan.answer_first is not None) and plan.kind != "twohop":
        raise UserError(f"gap and answer_first belong to samples of kind 'twohop', not {plan.kind!r}.")
