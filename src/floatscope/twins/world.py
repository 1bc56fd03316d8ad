"""The knowledge world: a seeded generator of entities, facts and question-answering samples. It knows no model.

Everything follows from `World(seed)`: which names belong to which split, and the stable facts. Every sample follows
from its own arguments and index, so that sample i is the same whether one asks for ten or for a thousand.

- Entities are people, companies, cities, countries and works, named by a key word and a companion word; dates are values.
- Stable entities have facts that never change: closed-book knowledge. All other names are dealt out to the train,
  validation and test splits; their facts are fresh, drawn anew for each sample, answerable only from its documents.
- Entities of one context differ in their key words (as long as the split has key words left), unless near names are asked for.
"""

import difflib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from floatscope.errors import UserError
from floatscope.qa.samples import Document, Sample
from floatscope.twins.names import NAME_KINDS
from floatscope.twins.relations import FILLERS, PATHS, RELATIONS, UNANSWERABLE, Path, Relation

SPLITS = {"train": 0.6, "validation": 0.2, "test": 0.2}
STABLE_PER_TYPE = 16
MAX_DOCUMENTS = 24  # the longest 24 documents, a question and 32 slots stay below the twins' 2048 positions
NOISES = ("mixed", "same", "near", "topical", "random", "filler", "counterfactual")
_MIXED = (("same", 0.4), ("topical", 0.2), ("random", 0.2), ("filler", 0.2))


@dataclass(frozen=True)
class Entity:
    """A named thing; `key` is the word that tells it apart from others in a context."""

    type: str
    key: str
    companion: str

    @property
    def name(self) -> str:
        return NAME_KINDS[self.type].name(self.key, self.companion)


@dataclass(frozen=True)
class Fact:
    """A relation between two entities, subject and object."""

    subject: Entity
    relation: Relation
    object: Entity


class World:
    """Names, splits and stable facts for one seed; the shipped twins were trained in `World(0)`."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.stable: dict[str, tuple[Entity, ...]] = {}
        self.fresh: dict[str, dict[str, tuple[Entity, ...]]] = {split: {} for split in SPLITS}
        rng = random.Random(f"floatscope world {seed}")
        for kind in NAME_KINDS:
            self._deal_names(kind, rng)
        self.stable_facts: tuple[Fact, ...] = tuple(
            Fact(subject, relation, rng.choice(self.stable[relation.object]))
            for relation in RELATIONS.values()
            for subject in self.stable[relation.subject]
        )
        self._stable_answers = {(fact.subject, fact.relation.name): fact.object for fact in self.stable_facts}

    def _deal_names(self, kind: str, rng: random.Random) -> None:
        """Stable names first, one per key word; the rest goes to the splits. Dates are values: every split has them all."""
        words = NAME_KINDS[kind]
        names = [Entity(kind, key, companion) for key in words.keys for companion in words.companions]
        rng.shuffle(names)
        if kind == "date":
            self.stable[kind] = tuple(names)
            for split in SPLITS:
                self.fresh[split][kind] = tuple(names)
        else:
            first_of_key: dict[str, Entity] = {}
            for entity in names:
                first_of_key.setdefault(entity.key, entity)
            stable = tuple(first_of_key.values())[:STABLE_PER_TYPE]
            self.stable[kind] = stable
            rest = [entity for entity in names if entity not in stable]
            start, share = 0, 0.0
            for split, part in SPLITS.items():
                share += part
                stop = round(share * len(rest))
                self.fresh[split][kind] = tuple(rest[start:stop])
                start = stop

    def entity(self, name: str) -> Entity:
        """The entity of that name, of any type; an unknown name is an error with the nearest known ones."""
        known: dict[str, Entity] = {}
        for pools in (self.stable, *self.fresh.values()):
            for pool in pools.values():
                known.update({entity.name: entity for entity in pool})
        if name not in known:
            close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(close)}?" if close else "see World.stable and World.fresh for the names."
            raise UserError(f"The world with seed {self.seed} has no entity called {name!r}: {hint}")
        return known[name]

    def stable_answer(self, subject: Entity, relation: str) -> Entity:
        """The object of a stable fact, as learnt in training."""
        try:
            return self._stable_answers[subject, relation]
        except KeyError:
            raise UserError(
                f"There is no stable fact {relation!r} about {subject.name!r}; World.stable_facts lists them all."
            ) from None

    def samples(
        self,
        kind: str,
        n: int,
        split: str = "test",
        documents: int = 0,
        seed: int = 0,
        gold_position: int | None = None,
        noise: str = "mixed",
        gap: int | None = None,
        answer_first: bool | None = None,
    ) -> list[Sample]:
        """`n` samples of one kind (see KINDS) with that many documents.

        `gold_position` counts from 1 (for two-hop questions: the place of the answer's document), None for any place.
        `noise` says what the other documents are (NOISES); it is used by rag, stable-noise, counterfactual and unanswerable.
        `gap` is the number of documents between bridge and answer of a two-hop question, `answer_first` their order.
        """
        plan = Plan(kind, split, documents, gold_position, noise, gap, answer_first)
        _check(plan, n)
        made = []
        for index in range(n):
            name = f"{kind}-{split}-{documents}-{seed}-{index}"
            draw = Draw(self, split, random.Random(f"{self.seed}/{name}"))
            made.append(KINDS[kind].make(draw, plan, name))
        return made


@dataclass(frozen=True)
class Plan:
    """What `World.samples` was asked for, checked."""

    kind: str
    split: str
    documents: int
    gold_position: int | None
    noise: str
    gap: int | None
    answer_first: bool | None


@dataclass
class Draw:
    """One context in the making: draws entities and facts that do not collide with those already in it."""

    world: World
    split: str
    rng: random.Random
    used: set[tuple[str, str]] = field(default_factory=set)
    names: set[Entity] = field(default_factory=set)

    def entity(self, kind: str) -> Entity:
        """A fresh entity with a new key word; with a new name only, once the split's key words run out."""
        pool = self.world.fresh[self.split][kind]
        for attempt in range(200):
            entity = self.rng.choice(pool)
            if (kind, entity.key) not in self.used or (attempt >= 100 and entity not in self.names):
                return self.keep(entity)
        raise UserError(f"The {self.split} split has too few {kind} names for one context; ask for fewer documents.")

    def near(self, like: Entity) -> Entity:
        """A fresh entity that shares the key word of `like`; once the split has none left, its companion word."""
        left = [entity for entity in self.world.fresh[self.split][like.type] if entity not in self.names]
        near = [entity for entity in left if entity.key == like.key] or [e for e in left if e.companion == like.companion]
        return self.keep(self.rng.choice(near)) if near else self.entity(like.type)

    def keep(self, entity: Entity) -> Entity:
        self.used.add((entity.type, entity.key))
        self.names.add(entity)
        return entity

    def relation(self, subject: str | None = None, other_than: Sequence[str] = ()) -> Relation | None:
        """Any relation of that subject type, but for those named; None if there is no other."""
        fit = [r for r in RELATIONS.values() if subject in (None, r.subject) and r.name not in other_than]
        return self.rng.choice(fit) if fit else None

    def fact(self, relation: Relation, subject: Entity | None = None) -> Fact:
        subject = subject or self.entity(relation.subject)
        return Fact(subject, relation, self.entity(relation.object))

    def document(self, fact: Fact | None, gold: bool = False, plain: bool = False) -> Document:
        """The fact in a sentence with none to two fillers around it; without a fact, a name and fillers.

        `plain` is for the first lessons: the relation's first statement and nothing else.
        """
        if plain and fact is not None:
            return Document(fact.subject.name, _state(fact, fact.relation.statements[0]), gold)
        extra = self.rng.choices((0, 1, 2), (0.5, 0.35, 0.15))[0]
        if fact is None:
            subject = self.entity(self.rng.choice(("person", "company", "city", "work")))
            return Document(subject.name, " ".join(self.rng.sample(FILLERS, extra + 1)), gold)
        sentences = self.rng.sample(FILLERS, extra)
        sentences.insert(self.rng.randint(0, extra), _state(fact, self.rng.choice(fact.relation.statements)))
        return Document(fact.subject.name, " ".join(sentences), gold)

    def question(self, about: Relation | Path, subject: Entity) -> str:
        return self.rng.choice(about.questions).format(s=subject.name)

    def noise(self, target: Fact, count: int, kind: str) -> list[Fact | None]:
        """Facts that do not answer a question about `target`; None stands for a document of fillers."""
        taken = [target.relation.name]
        return [self._noise_fact(target, kind, taken) for _ in range(count)]

    def _noise_fact(self, target: Fact, kind: str, taken: list[str]) -> Fact | None:
        if kind == "mixed":
            kind = self.rng.choices([name for name, _ in _MIXED], [weight for _, weight in _MIXED])[0]
        if kind == "filler":
            return None
        if kind == "near":
            return self.fact(target.relation, self.near(target.subject))
        if kind == "counterfactual":
            return self.fact(target.relation, target.subject)
        if kind == "topical":  # the same subject under another relation, while there is one
            other = self.relation(target.subject.type, taken)
            if other is not None:
                taken.append(other.name)
                return self.fact(other, target.subject)
        if kind in ("random", "topical"):
            other = self.relation(other_than=(target.relation.name,))
            assert other is not None
            return self.fact(other)
        return self.fact(target.relation)

    def chain(self, path: Path) -> tuple[Fact, Fact]:
        """Two fresh facts in a row: the first one's object is the second one's subject."""
        first = self.fact(RELATIONS[path.first])
        return first, self.fact(RELATIONS[path.second], first.object)

    def chain_noise(self, path: Path, count: int) -> list[Fact | None]:
        """Facts of other chains over the same path, answers before bridges, so that relation alone never decides."""
        facts: list[Fact | None] = []
        while len(facts) < count:
            first, second = self.chain(path)
            facts += [second, first]
        return facts[:count]


def _state(fact: Fact, statement: str) -> str:
    return statement.format(s=fact.subject.name, o=fact.object.name)


def _arrange(
    draw: Draw, gold: Fact, noise: list[Fact | None], position: int | None
) -> tuple[tuple[Document, ...], int]:
    """Documents of the noise in random order with the gold one put at its place (counted from 1)."""
    draw.rng.shuffle(noise)
    place = position or draw.rng.randint(1, len(noise) + 1)
    facts = [*noise[: place - 1], gold, *noise[place - 1 :]]
    return tuple(draw.document(fact, gold=number == place) for number, fact in enumerate(facts, 1)), place


def _binding(draw: Draw, plan: Plan, name: str) -> Sample:
    return _rag(draw, Plan(**{**vars(plan), "noise": "same"}), name)


def _rag(draw: Draw, plan: Plan, name: str) -> Sample:
    relation = draw.relation()
    assert relation is not None
    gold = draw.fact(relation)
    documents, place = _arrange(draw, gold, draw.noise(gold, plan.documents - 1, plan.noise), plan.gold_position)
    return _sample(draw, plan, name, gold, (gold.object.name,), documents, gold_position=place)


def _closed_stable(draw: Draw, plan: Plan, name: str) -> Sample:
    fact = draw.rng.choice(draw.world.stable_facts)
    return _sample(draw, plan, name, fact, (fact.object.name,), ())


def _closed_fresh(draw: Draw, plan: Plan, name: str) -> Sample:
    relation = draw.relation()
    assert relation is not None
    fact = draw.fact(relation)
    return _sample(draw, plan, name, fact, (fact.object.name,), ())


def _unanswerable(draw: Draw, plan: Plan, name: str) -> Sample:
    relation = draw.relation()
    assert relation is not None
    missing = draw.fact(relation)
    documents = tuple(draw.document(fact) for fact in draw.noise(missing, plan.documents, plan.noise))
    return _sample(draw, plan, name, missing, (UNANSWERABLE,), documents)


def _stable_noise(draw: Draw, plan: Plan, name: str) -> Sample:
    fact = draw.rng.choice(draw.world.stable_facts)
    draw.keep(fact.object)
    documents = tuple(draw.document(other) for other in draw.noise(fact, plan.documents, plan.noise))
    return _sample(draw, plan, name, fact, (fact.object.name,), documents)


def _counterfactual(draw: Draw, plan: Plan, name: str) -> Sample:
    fact = draw.rng.choice(draw.world.stable_facts)
    draw.keep(fact.object)
    told = draw.fact(fact.relation, fact.subject)
    documents, place = _arrange(draw, told, draw.noise(told, plan.documents - 1, plan.noise), plan.gold_position)
    answers = (told.object.name,)
    return _sample(draw, plan, name, told, answers, documents, gold_position=place, memory=fact.object.name)


def _twohop(draw: Draw, plan: Plan, name: str) -> Sample:
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


def _hop_places(rng: random.Random, plan: Plan) -> tuple[int, int]:
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
            f"No two-hop layout of {plan.documents} documents has gold_position {plan.gold_position}, gap {plan.gap} and "
            f"answer_first {plan.answer_first} at once; loosen one of them."
        )
    return rng.choice(allowed)


def _sample(
    draw: Draw,
    plan: Plan,
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

    make: Callable[[Draw, Plan, str], Sample]
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


def _check(plan: Plan, n: int) -> None:
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
