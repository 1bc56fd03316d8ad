"""The kinds of samples that the world makes, as rows, and the making of one. Drawing facts is left to `draws`."""

from dataclasses import dataclass

from floatscope.errors import UserError
from floatscope.qa.samples import Sample
from floatscope.qa.world.accounts import make_passage
from floatscope.qa.world.draws import NOISES, Draw
from floatscope.qa.world.relations import PATHS, UNANSWERABLE

SPLITS = {"train": 0.6, "validation": 0.2, "test": 0.2}
MAX_SAMPLES = 1_000_000
MAX_DOCUMENTS = 24  # the longest 24 documents, a question and 32 slots stay below the twins' 2048 positions
MAX_FACTS = 8  # to be told in a passage, in up to 88 slots


@dataclass(frozen=True)
class Kind:
    """One kind of sample."""

    least: int  # documents that it needs; with 0 it takes none
    placed: bool = False  # has a gold document, whose place can be chosen
    stable: bool = False  # asks about a stable fact; a gold document contradicts it
    noise: str | None = None  # what the other documents are, whatever was asked for
    answer: str | None = None  # in place of the fact's object
    layout: str | None = None  # of a passage; its documents are the facts that are to be told


KINDS: dict[str, Kind] = {
    "binding": Kind(1, placed=True, noise="same"),
    "rag": Kind(1, placed=True),
    "twohop": Kind(2, placed=True),
    "counterfactual": Kind(1, placed=True, stable=True),
    "unanswerable": Kind(1, answer=UNANSWERABLE),
    "stable-noise": Kind(1, stable=True),
    "closed-stable": Kind(0, stable=True),
    "closed-fresh": Kind(0),
    "passages": Kind(5, layout="continue"),
    "passages-infill": Kind(5, layout="infill"),
    "passages-mirrored": Kind(5, layout="mirrored"),
}


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


def make_sample(draw: Draw, plan: SamplePlan, id: str) -> Sample:
    """A sample of any kind; places count from 1."""
    if plan.kind == "twohop":
        return _two_hops(draw, plan, id)
    kind, rng = KINDS[plan.kind], draw.rng
    if kind.layout:
        return make_passage(draw, plan.documents, kind.layout, id, {"kind": plan.kind})
    fact = rng.choice(draw.world.stable_facts) if kind.stable else draw.fact(draw.any_relation())
    place, more = None, {}
    if kind.stable:
        draw.keep(fact.object)  # so that no document holds it
        if kind.placed:
            more["memory"] = fact.object.name
            fact = draw.fact(fact.relation, fact.subject)
    facts = draw.noise(fact, plan.documents - kind.placed, kind.noise or plan.noise)
    if kind.placed:
        rng.shuffle(facts)
        place = plan.gold_position or rng.randint(1, plan.documents)
        facts.insert(place - 1, fact)
        more = {"gold_position": place, **more}
    documents = tuple(draw.document(one, gold=number == place) for number, one in enumerate(facts, 1))
    metadata = {"kind": plan.kind, "relation": fact.relation.name, "subject": fact.subject.name, **more}
    answer = kind.answer or fact.object.name
    return Sample(id, draw.question(fact.relation, fact.subject), (answer,), documents, metadata)


def _two_hops(draw: Draw, plan: SamplePlan, id: str) -> Sample:
    """Noise is of other chains over the same path, answers before bridges, so that relation alone never decides."""
    path = draw.rng.choice(PATHS)
    bridge, answer = draw.chain(path)
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
    bridge_place, answer_place = draw.rng.choice(allowed)
    count = plan.documents - 2
    noise = [fact for _ in range(0, count, 2) for fact in reversed(draw.chain(path))][:count]
    draw.rng.shuffle(noise)
    facts, rest = {bridge_place: bridge, answer_place: answer}, iter(noise)
    documents = tuple(
        draw.document(facts[number], gold=True) if number in facts else draw.document(next(rest)) for number in numbers
    )
    metadata = {
        "kind": plan.kind, "relation": f"{path.first} {path.second}", "subject": bridge.subject.name,
        "bridge": bridge.object.name, "bridge_position": bridge_place, "gold_position": answer_place,
    }  # fmt: skip
    return Sample(id, draw.question(path, bridge.subject), (answer.object.name,), documents, metadata)


def check_plan(plan: SamplePlan, n: int) -> None:
    """Every mistake in the arguments of `World.samples`, each with its remedy."""
    if plan.kind not in KINDS:
        raise UserError(f"Unknown kind of sample {plan.kind!r}; the world makes {', '.join(KINDS)}.")
    if plan.split not in SPLITS:
        raise UserError(f"Unknown split {plan.split!r}; the splits are {', '.join(SPLITS)}.")
    if plan.noise not in NOISES:
        raise UserError(f"Unknown noise {plan.noise!r}; the world makes {', '.join(NOISES)}.")
    if not 1 <= n <= MAX_SAMPLES:
        raise UserError(f"Cannot make {n} samples; ask for one or more, at most {MAX_SAMPLES:,}.")
    kind, k = KINDS[plan.kind], plan.documents
    if kind.layout and not kind.least <= k <= MAX_FACTS:
        raise UserError(
            f"Samples of kind {plan.kind!r} tell {kind.least} to {MAX_FACTS} facts, not {k}: documents is their number."
        )
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
