"""One context in the making: entities, facts and noise that do not collide. Questions are left to others."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from floatscope.errors import UserError
from floatscope.qa.samples import Document
from floatscope.qa.world.relations import FILLERS, RELATIONS, Entity, Fact, Path, Relation

if TYPE_CHECKING:
    from floatscope.qa.world.world import World

NOISES = ("mixed", "same", "near", "topical", "random", "filler", "counterfactual")
_MIXED = {"same": 0.4, "topical": 0.2, "random": 0.2, "filler": 0.2}


@dataclass
class Draw:
    """One context in the making: draws entities and facts that do not collide with those already in it."""

    world: "World"
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
        near = [entity for entity in left if entity.key == like.key]
        near = near or [entity for entity in left if entity.companion == like.companion]
        return self.keep(self.rng.choice(near)) if near else self.entity(like.type)

    def keep(self, entity: Entity) -> Entity:
        self.used.add((entity.type, entity.key))
        self.names.add(entity)
        return entity

    def any_relation(self) -> Relation:
        return self.rng.choice(list(RELATIONS.values()))

    def relation(self, subject: str, other_than: Sequence[str]) -> Relation | None:
        """Any relation of that subject type, but for those named; None if there is no other."""
        fit = [r for r in RELATIONS.values() if subject == r.subject and r.name not in other_than]
        return self.rng.choice(fit) if fit else None

    def fact(self, relation: Relation, subject: Entity | None = None) -> Fact:
        subject = subject or self.entity(relation.subject)
        return Fact(subject, relation, self.entity(relation.object))

    def document(self, fact: Fact | None, gold: bool = False, plain: bool = False) -> Document:
        """The fact in a sentence with none to two fillers around it; without a fact, a name and fillers.

        `plain` is for the first lessons: the relation's first statement and nothing else.
        """
        if plain and fact is not None:
            return Document(fact.subject.name, fact.plain, gold)
        extra = self.rng.choices((0, 1, 2), (0.5, 0.35, 0.15))[0]
        if fact is None:
            subject = self.entity(self.rng.choice(("person", "company", "city", "work")))
            return Document(subject.name, " ".join(self.rng.sample(FILLERS, extra + 1)), gold)
        sentences = self.rng.sample(FILLERS, extra)
        sentences.insert(self.rng.randint(0, extra), fact.stated(self.rng.choice(fact.relation.statements)))
        return Document(fact.subject.name, " ".join(sentences), gold)

    def question(self, about: Relation | Path, subject: Entity) -> str:
        return self.rng.choice(about.questions).format(s=subject.name)

    def noise(self, target: Fact, count: int, kind: str) -> list[Fact | None]:
        """Facts that do not answer a question about `target`; None stands for a document of fillers."""
        taken = [target.relation.name]
        return [self._noise_fact(target, kind, taken) for _ in range(count)]

    def _noise_fact(self, target: Fact, kind: str, taken: list[str]) -> Fact | None:
        if kind == "mixed":
            kind = self.rng.choices(list(_MIXED), list(_MIXED.values()))[0]
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
            return self.fact(self.rng.choice([r for r in RELATIONS.values() if r != target.relation]))
        return self.fact(target.relation)

    def story(self, count: int) -> list[Fact]:
        """A fact about each of so many subjects of one type."""
        kind = self.any_relation().subject
        relations = [relation for relation in RELATIONS.values() if relation.subject == kind]
        return [self.fact(self.rng.choice(relations), self.entity(kind)) for _ in range(count)]

    def notes(self, facts: Sequence[Fact]) -> str:
        """The facts in their plainest words, a filler before some of them."""
        sentences = []
        for fact in facts:
            sentences += [*self.rng.sample(FILLERS, self.rng.randint(0, 1)), fact.plain]
        return " ".join(sentences)

    def chain(self, path: Path) -> tuple[Fact, Fact]:
        """Two fresh facts in a row: the first one's object is the second one's subject."""
        first = self.fact(RELATIONS[path.first])
        return first, self.fact(RELATIONS[path.second], first.object)
