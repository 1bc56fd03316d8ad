"""What the knowledge world is made of: names, relations, facts. Which there are is data, in world.toml.

Which names exist in a split is left to `world`.
"""

import tomllib
from dataclasses import dataclass
from importlib.resources import files

import msgspec


@dataclass(frozen=True)
class NameKind:
    """How names of one entity type are made: `pattern` over a key word and a companion word.

    The key word tells entities of one context apart: two of them never share it, unless a near name is asked for.
    """

    pattern: str
    keys: tuple[str, ...]
    companions: tuple[str, ...]


@dataclass(frozen=True)
class Relation:
    """`statements` are sentences about {s} (subject) and {o} (object); `questions` ask for {o}."""

    name: str
    subject: str
    object: str
    statements: tuple[str, ...]
    questions: tuple[str, ...]


@dataclass(frozen=True)
class Path:
    """Two relations in a row: the object of `first` (the bridge) is the subject of `second`."""

    first: str
    second: str
    questions: tuple[str, ...]


_DATA = tomllib.loads(files("floatscope.qa.world").joinpath("world.toml").read_text(encoding="utf-8"))
NAME_KINDS: dict[str, NameKind] = {
    kind: NameKind(row["pattern"], tuple(row["keys"].split()), tuple(row["companions"].split()))
    for kind, row in _DATA["names"].items()
}
RELATIONS: dict[str, Relation] = {row["name"]: msgspec.convert(row, Relation) for row in _DATA["relations"]}
PATHS: tuple[Path, ...] = msgspec.convert(_DATA["paths"], tuple[Path, ...])
FILLERS: tuple[str, ...] = tuple(_DATA["fillers"])
UNANSWERABLE: str = _DATA["unanswerable"]


@dataclass(frozen=True)
class Entity:
    """A named thing; `key` is the word that tells it apart from others in a context."""

    type: str
    key: str
    companion: str

    @property
    def name(self) -> str:
        return NAME_KINDS[self.type].pattern.format(key=self.key, companion=self.companion)


@dataclass(frozen=True)
class Fact:
    """A relation between two entities, subject and object."""

    subject: Entity
    relation: Relation
    object: Entity

    @property
    def plain(self) -> str:
        """The fact in its plainest words."""
        return self.stated(self.relation.statements[0])

    def stated(self, statement: str) -> str:
        """One of the relation's statements about this subject and object."""
        return statement.format(s=self.subject.name, o=self.object.name)
