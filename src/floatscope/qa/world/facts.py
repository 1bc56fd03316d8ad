"""What the knowledge world is made of: entities and facts. Which there are is left to `world`."""

from dataclasses import dataclass

from floatscope.qa.world.names import NAME_KINDS
from floatscope.qa.world.relations import Relation


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

    def stated(self, statement: str) -> str:
        """One of the relation's statements about this subject and object."""
        return statement.format(s=self.subject.name, o=self.object.name)
