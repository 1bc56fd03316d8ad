"""The stream of the knowledge world: contexts of its train split with several questions each, in lessons."""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedTokenizerFast

from floatscope.qa.samples import Document
from floatscope.qa.templates import read_template
from floatscope.qa.world import World
from floatscope.qa.world.draws import Draw
from floatscope.qa.world.kinds import MAX_FACTS
from floatscope.qa.world.relations import PATHS, UNANSWERABLE, Entity, Fact, Path, Relation
from floatscope.qa.world.vocabulary import BOS_ID, EOS_ID, PAD_ID
from floatscope.training.recipe import TwinRecipe
from floatscope.training.stream import ANSWER, FIRST, FIRST_EOS, GAP, HOP, LATER_EOS, TEXT, Example, Stream, draw_slots

CHAINED = 4  # two-hop contexts hold two chains and more, so that the relation alone does not give the answer
PASS, WINDOW = 0.9, 32  # a lesson ends when this share of answer tokens was right over so many steps
DOCUMENTS = (1, 2, 3, 5, 6, 8, 10)  # at most so many, in the lessons of a parent
BINDING = 3  # up to this many documents, contexts ask for binding only
HOPPING = 5  # up to this many, mostly for two hops
_HOPS = {"binding": 0.11, "rag": 0.11, "twohop": 0.7, "closed": 0.08}
_MIX = {"binding": 0.3, "rag": 0.3, "twohop": 0.32, "closed": 0.08}
_FORKED = {"binding": 0.28, "rag": 0.26, "twohop": 0.32, "closed": 0.14}


@dataclass(frozen=True)
class Lesson:
    """What the stream holds for a while."""

    documents: int  # at most this many
    kinds: dict[str, float]  # weights of binding, rag, twohop, closed
    questions: int = 10  # per context, at most
    slots: int = 0  # answer slots at most; 0: the answer and one eos
    unanswerable: float = 0.0  # share of questions that no document answers
    stable: float = 0.0  # share of questions about stable facts, in contexts with documents
    near: float = 0.0  # share of binding contexts in which two subjects share their key word
    plain: bool = False  # documents of one plain statement
    passages: float = 0.0  # share of sequences that are passages to write
    once: bool = False  # no question twice in a context: to a masked model its answer could stand in sight
    patience: int | None = None  # it ends at the latest after so many steps; None: only when it is learnt


def lessons_of(twin: str, recipe: TwinRecipe) -> tuple[Lesson, ...]:
    """The lessons of a parent; the one lesson of its forks."""
    if twin != "parent":
        mixed = Lesson(DOCUMENTS[-1], _FORKED, slots=32, unanswerable=0.05, stable=0.05, near=0.2, once=True)
        return (replace(mixed, passages=recipe.passages),)
    lessons = []
    for count in DOCUMENTS:
        patience = None if count < BINDING else recipe.hopping if count <= HOPPING else recipe.patience
        if count <= BINDING:  # learn to copy and to bind before anything else
            lessons.append(Lesson(count, {"binding": 1.0}, plain=True, patience=patience))
        else:
            mix = _HOPS if count <= HOPPING else _MIX
            mixed = Lesson(count, mix, unanswerable=0.05, stable=0.05, near=0.15, patience=patience)
            lessons.append(replace(mixed, passages=recipe.passages))
    return tuple(lessons)


@dataclass(frozen=True)
class Ask:
    """A question that can be put to a context, with its answer."""

    about: Relation | Path
    subject: Entity
    answer: str
    found: Entity | None = None  # what the first hop finds in the documents: the answer, or the bridge to it


class WorldStream(Stream):
    """Lessons of the world, one after the other; the next begins with a round."""

    name = "stream"
    per_round = 8

    def __init__(
        self, world: World, tokenizer: PreTrainedTokenizerFast, lessons: Sequence[Lesson], seed: int, batch: int
    ) -> None:
        super().__init__(seed, batch, PAD_ID)
        self.world, self.lessons = world, lessons
        self._encode = tokenizer.backend_tokenizer.encode
        # The lesson, the step at which it began, and the shares of right answer tokens since then.
        self.state = {"lesson": 0, "since": 0, "recent": []}

    @property
    def lesson(self) -> Lesson:
        return self.lessons[self.state["lesson"]]

    def begin_round(self, step: int) -> None:
        """Go on to the next lesson when this one is learnt, or patience with it ends."""
        recent, patience = self.state["recent"], self.lesson.patience
        learnt = len(recent) == WINDOW and sum(recent) / WINDOW > PASS
        waited = patience is not None and step - self.state["since"] >= patience
        if self.state["lesson"] < len(self.lessons) - 1 and (learnt or waited):
            self.state = {"lesson": self.state["lesson"] + 1, "since": step, "recent": []}

    def hear(self, right: float) -> None:
        self.state["recent"] = [*self.state["recent"], right][-WINDOW:]

    def told(self) -> dict[str, Any]:
        """The share of right answer tokens in the last WINDOW steps of this lesson, and its documents."""
        recent = self.state["recent"]
        return {"right": round(sum(recent) / max(1, len(recent)), 4), "documents": self.lesson.documents}

    def example(self, rng: random.Random) -> Example:
        """A context, and questions to it with their answers; or a passage."""
        lesson, draw = self.lesson, Draw(self.world, "train", rng)
        if lesson.passages and rng.random() < lesson.passages:
            return self._passage(draw)
        kind = rng.choices(list(lesson.kinds), list(lesson.kinds.values()))[0]
        documents, asks = context(draw, lesson, kind)
        slots = draw_slots(rng, 2, lesson.slots) if lesson.slots else 0
        count = min(lesson.questions, max(1, 64 // slots)) if slots else lesson.questions
        if not documents:
            count *= 2  # closed-book questions are short
        elif lesson.once:
            count = min(count, len(set(asks)))
        draws = _draws(rng, asks, lesson.once)
        example = Example()
        example.add([BOS_ID], TEXT)
        for number in range(count):
            # Mostly the next question to the documents; some are about stable facts, some have no answer. The parent's
            # stream draws a point even without documents.
            point = rng.random() if asks or not lesson.once else 0.0
            if not asks or point < lesson.stable:
                fact = rng.choice(self.world.stable_facts)
                ask = Ask(fact.relation, fact.subject, fact.object.name)
            elif point < lesson.stable + lesson.unanswerable:
                ask = _unanswerable(Draw(self.world, "train", rng), asks)
            else:
                ask = next(draws)
            question, shown = draw.question(ask.about, ask.subject), documents if number == 0 else ()
            pieces = read_template("default").pieces(question, shown)
            text = "".join(piece.text for piece in pieces)
            example.add(self._encode(text if number == 0 else "\n" + text).ids, TEXT)
            answer = self._encode(ask.answer).ids
            role = ANSWER if ask.found is None else HOP if isinstance(ask.about, Path) else FIRST
            self._name(example, answer, ask.found, role, number)
            self._fill(example, max(slots, len(answer)) - len(answer) if slots else 1, number)
        return example

    def _passage(self, draw: Draw) -> Example:
        """Notes and their account, before or after them, with a gap of whole sentences anywhere in it.

        Each sentence of the gap is masked by a ratio of its own. In half of the passages only one name of each sentence
        is left out; it is an answer where the notes that hold it come before. Eos follow a gap at the end of the text,
        as slots may be left there.
        """
        rng = draw.rng
        story = draw.story(rng.randint(1, MAX_FACTS + 2))
        start = rng.randrange(len(story)) if rng.random() < 0.5 else 0
        stop = rng.randint(start + 1, len(story)) if rng.random() < 0.5 else len(story)
        notes, line = self._encode(draw.notes(story)).ids, self._encode("\n").ids
        notes_first, names_only = rng.random() < 0.5, rng.random() < 0.5
        example = Example()
        example.add([BOS_ID, *(notes + line if notes_first else [])], TEXT)
        for number, fact in enumerate(story):
            inside, left_out = start <= number < stop, rng.choice(("{s}", "{o}"))
            for part in re.split(r"({[so]})", fact.relation.statements[0]):
                entity = {"{s}": fact.subject, "{o}": fact.object}.get(part)
                ids = self._encode(part if entity is None else entity.name).ids
                if not inside or (names_only and part != left_out):
                    example.add(ids, TEXT)
                else:  # with its whole sentence masked, a name cannot be known and is no answer
                    self._name(example, ids, entity, FIRST if names_only and notes_first else GAP, number)
        if not notes_first:
            example.add(line + notes, TEXT)
        elif stop == len(story) and not names_only:
            self._fill(example, draw_slots(rng, 1, 32) - 1, stop - 1)
        return example

    def _name(self, example: Example, ids: list[int], found: Entity | None, role: int, number: int) -> None:
        """A name that answers; tokens that it can start with, if FIRST or HOP, come with what the first hop finds."""
        if role in (FIRST, HOP) and found is not None:
            starts = len(ids) if self.lesson.slots else 1  # slots are filled in any order, plain answers from the left
            example.add(ids[:starts], role, number)
            example.add(ids[starts:], ANSWER, number)
            example.found += starts * [self._encode(f"{found.key} {found.companion}").ids]
        else:
            example.add(ids, role, number)

    def _fill(self, example: Example, left: int, number: int) -> None:
        """Eos in the slots that are left over."""
        example.add([EOS_ID] * min(left, 1), FIRST_EOS, number)
        example.add([EOS_ID] * max(left - 1, 0), LATER_EOS, number)


def _draws(rng: random.Random, asks: list[Ask], once: bool) -> Iterator[Ask]:
    """What is asked of the documents: with replacement, or each question once, those that stand there often sooner."""
    if once:
        yield from dict.fromkeys(rng.sample(asks, len(asks)))
    while True:
        yield rng.choice(asks)


def _unanswerable(draw: Draw, asks: list[Ask]) -> Ask:
    """A stranger under a relation that is here, or someone who is here under a relation that is not."""
    like = draw.rng.choice(asks)
    if draw.rng.random() < 0.5 or isinstance(like.about, Path):
        return Ask(like.about, draw.entity(like.subject.type), UNANSWERABLE)
    known = [ask.about.name for ask in asks if isinstance(ask.about, Relation) and ask.subject == like.subject]
    relation = draw.relation(like.subject.type, known)
    return Ask(relation, like.subject, UNANSWERABLE) if relation else draw.rng.choice(asks)


def context(draw: Draw, lesson: Lesson, kind: str) -> tuple[tuple[Document, ...], list[Ask]]:
    """Documents of one kind of context, and everything that can be asked of them."""
    rng = draw.rng
    if kind == "closed":
        return (), []
    if kind == "twohop":
        return _chains(draw, rng.randint(min(CHAINED, lesson.documents), lesson.documents))
    count = rng.randint(1, lesson.documents)
    target = draw.fact(draw.any_relation())
    facts: list[Fact | None] = [target]
    if kind == "binding" and count > 1 and rng.random() < lesson.near:
        facts += draw.noise(target, 1, "near")
    facts += draw.noise(target, count - len(facts), "same" if kind == "binding" else "mixed")
    rng.shuffle(facts)
    asks = [Ask(fact.relation, fact.subject, fact.object.name, fact.object) for fact in facts if fact is not None]
    return tuple(draw.document(fact, plain=lesson.plain) for fact in facts), asks


def _chains(draw: Draw, count: int) -> tuple[tuple[Document, ...], list[Ask]]:
    """Chains over one path, an odd document being half of one; each chain is asked hop by hop and through."""
    path = draw.rng.choice(PATHS)
    chains = [draw.chain(path) for _ in range(max(1, count // 2))]
    facts = [fact for chain in chains for fact in chain]
    asks = [Ask(fact.relation, fact.subject, fact.object.name, fact.object) for fact in facts]
    asks += 3 * [Ask(path, first.subject, second.object.name, first.object) for first, second in chains]
    if count > len(facts):
        facts.append(draw.chain(path)[1])
    draw.rng.shuffle(facts)
    return tuple(draw.document(fact) for fact in facts), asks
