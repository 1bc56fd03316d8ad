"""The training stream: contexts of the train split with several questions each, as token ids with roles. No model here.

The batch of a step follows from (seed, step) alone, so a resumed run sees the same stream, and so do all three twins.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerFast

from floatscope.qa.prompts import plain_template
from floatscope.qa.samples import Document
from floatscope.twins.drawing import Draw
from floatscope.twins.facts import Entity, Fact
from floatscope.twins.relations import PATHS, UNANSWERABLE, Path, Relation
from floatscope.twins.tokenizer import BOS_ID, EOS_ID, PAD_ID
from floatscope.twins.world import World

# What a token is to the objective. FIRST and HOP are tokens from which an answer in the documents, to a question of one
# and of two hops, can start to be filled in; ANSWER is any other token of an answer.
PADDING, TEXT, ANSWER, FIRST_EOS, LATER_EOS, FIRST, HOP = range(7)
ROUND = 8  # batches are cut from rounds of this many, sorted by length, so that little is padded
CHAINED = 4  # two-hop contexts hold two chains and more, so that the relation alone does not give the answer


@dataclass(frozen=True)
class Stage:
    """What the stream holds at one step: a point of the curriculum."""

    documents: int  # at most this many
    kinds: dict[str, float]  # weights of binding, rag, twohop, closed
    questions: int  # per context, at most
    slots: int  # answer slots at most; 0: the answer and one eos
    unanswerable: float = 0.0  # share of questions that no document answers
    stable: float = 0.0  # share of questions about stable facts, in contexts with documents
    near: float = 0.0  # share of binding contexts in which two subjects share their key word
    plain: bool = False  # documents of one plain statement
    once: bool = False  # no question twice in a context: to a masked model its answer could stand in sight


@dataclass(frozen=True)
class Batch:
    """ids, roles and question numbers (-1 for text), each [B, T], padded on the right.

    `found` [N, 2]: for each FIRST and HOP token in reading order, the two words that name what the first hop finds.
    """

    ids: torch.Tensor
    roles: torch.Tensor
    questions: torch.Tensor
    found: torch.Tensor

    @property
    def tokens(self) -> int:
        return int((self.roles != PADDING).sum())


@dataclass(frozen=True)
class Ask:
    """A question that can be put to a context, with its answer."""

    about: Relation | Path
    subject: Entity
    answer: str
    found: Entity | None = None  # what the first hop finds in the documents: the answer, or the bridge to it


@dataclass
class Sequence:
    """A context and its questions in the making: token ids, roles, question numbers, words found first."""

    ids: list[int]
    roles: list[int]
    questions: list[int]
    found: list[list[int]]

    def add(self, ids: list[int], role: int, question: int = -1) -> None:
        self.ids += ids
        self.roles += [role] * len(ids)
        self.questions += [question] * len(ids)


class Stream:
    """Batches by step number."""

    def __init__(self, world: World, tokenizer: PreTrainedTokenizerFast, seed: int, batch: int) -> None:
        self.world = world
        self.seed = seed
        self.batch = batch
        self._encode = tokenizer.backend_tokenizer.encode
        self._round: tuple[int, list[Batch]] = (-1, [])

    def at(self, step: int, stage: Stage) -> Batch:
        """The batch of a step. The stage must be the same for all steps of a round."""
        number, index = divmod(step, ROUND)
        if self._round[0] != number:
            self._round = (number, self._make_round(number, stage))
        return self._round[1][index]

    def _make_round(self, number: int, stage: Stage) -> list[Batch]:
        rng = random.Random(f"stream {self.seed} {number}")
        sequences = sorted((self._sequence(rng, stage) for _ in range(ROUND * self.batch)), key=lambda s: len(s.ids))
        batches = [_pack(sequences[i : i + self.batch]) for i in range(0, len(sequences), self.batch)]
        rng.shuffle(batches)
        return batches

    def _sequence(self, rng: random.Random, stage: Stage) -> Sequence:
        draw = Draw(self.world, "train", rng)
        kind = rng.choices(list(stage.kinds), list(stage.kinds.values()))[0]
        documents, asks = context(draw, stage, kind)
        slots = _slots(rng, stage.slots)
        count = min(stage.questions, max(1, 64 // slots)) if slots else stage.questions
        if not documents:
            count *= 2  # closed-book questions are short
        elif stage.once:
            count = min(count, len(set(asks)))
        draws = _draws(rng, asks, stage.once)
        sequence = Sequence([BOS_ID], [TEXT], [-1], [])
        for number in range(count):
            ask = self._choose(rng, stage, asks, draws)
            pieces = plain_template(draw.question(ask.about, ask.subject), documents if number == 0 else ())
            text = "".join(piece.text for piece in pieces)
            sequence.add(self._encode(text if number == 0 else "\n" + text).ids, TEXT)
            self._answer(sequence, ask, slots, number)
        return sequence

    def _answer(self, sequence: Sequence, ask: Ask, slots: int, number: int) -> None:
        answer = self._encode(ask.answer).ids
        if ask.found:
            starts = len(answer) if slots else 1  # slots are filled in any order, plain answers from the left
            sequence.add(answer[:starts], HOP if isinstance(ask.about, Path) else FIRST, number)
            sequence.add(answer[starts:], ANSWER, number)
            sequence.found += starts * [self._encode(f"{ask.found.key} {ask.found.companion}").ids]
        else:
            sequence.add(answer, ANSWER, number)
        fill = max(slots, len(answer)) - len(answer) if slots else 1
        sequence.add([EOS_ID] * min(fill, 1), FIRST_EOS, number)
        sequence.add([EOS_ID] * max(fill - 1, 0), LATER_EOS, number)

    def _choose(self, rng: random.Random, stage: Stage, asks: list[Ask], draws: Iterator[Ask]) -> Ask:
        """Mostly the next question to the documents; some are about stable facts, some have no answer."""
        point = rng.random() if asks or not stage.once else 0.0  # the parent's stream draws one even without documents
        if not asks or point < stage.stable:
            fact = rng.choice(self.world.stable_facts)
            return Ask(fact.relation, fact.subject, fact.object.name)
        if point < stage.stable + stage.unanswerable:
            return _unanswerable(Draw(self.world, "train", rng), asks)
        return next(draws)


def _draws(rng: random.Random, asks: list[Ask], once: bool) -> Iterator[Ask]:
    """What is asked of the documents: with replacement, or each question once, those that stand there often sooner."""
    if once:
        yield from dict.fromkeys(rng.sample(asks, len(asks)))
    while True:
        yield rng.choice(asks)


def _pack(sequences: list[Sequence]) -> Batch:
    width = max(len(sequence.ids) for sequence in sequences)

    def padded(rows: list[list[int]], filler: int) -> torch.Tensor:
        return torch.tensor([row + [filler] * (width - len(row)) for row in rows])

    return Batch(
        padded([sequence.ids for sequence in sequences], PAD_ID),
        padded([sequence.roles for sequence in sequences], PADDING),
        padded([sequence.questions for sequence in sequences], -1),
        torch.tensor([words for sequence in sequences for words in sequence.found]).view(-1, 2),
    )


def _unanswerable(draw: Draw, asks: list[Ask]) -> Ask:
    """A stranger under a relation that is here, or someone who is here under a relation that is not."""
    like = draw.rng.choice(asks)
    if draw.rng.random() < 0.5 or isinstance(like.about, Path):
        return Ask(like.about, draw.entity(like.subject.type), UNANSWERABLE)
    known = [ask.about.name for ask in asks if isinstance(ask.about, Relation) and ask.subject == like.subject]
    relation = draw.relation(like.subject.type, known)
    return Ask(relation, like.subject, UNANSWERABLE) if relation else draw.rng.choice(asks)


def _slots(rng: random.Random, most: int) -> int:
    """Few slots more often than many: the log of their number is uniform from 2 to `most`."""
    return round(2 * (most / 2) ** rng.random()) if most else 0


def context(draw: Draw, stage: Stage, kind: str) -> tuple[tuple[Document, ...], list[Ask]]:
    """Documents of one kind of context, and everything that can be asked of them."""
    rng = draw.rng
    if kind == "closed":
        return (), []
    if kind == "twohop":
        return _chains(draw, rng.randint(min(CHAINED, stage.documents), stage.documents))
    count = rng.randint(1, stage.documents)
    target = draw.fact(draw.any_relation())
    facts: list[Fact | None] = [target]
    if kind == "binding" and count > 1 and rng.random() < stage.near:
        facts += draw.noise(target, 1, "near")
    facts += draw.noise(target, count - len(facts), "same" if kind == "binding" else "mixed")
    rng.shuffle(facts)
    asks = [Ask(fact.relation, fact.subject, fact.object.name, fact.object) for fact in facts if fact is not None]
    return tuple(draw.document(fact, plain=stage.plain) for fact in facts), asks


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
