"""The training stream: contexts of the train split with several questions each, as token ids with roles. No model here.

The batch of a step follows from (seed, step) alone, so a resumed run sees the same stream, and so do all three twins.
"""

import random
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

# What a token is to the objective.
PADDING, TEXT, ANSWER, FIRST_EOS, LATER_EOS = range(5)
CHAINS = 3  # two-hop chains in a context, at most; other documents are noise
ROUND = 8  # batches are cut from rounds of this many, sorted by length, so that little is padded


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


@dataclass(frozen=True)
class Batch:
    """ids, roles and question numbers (-1 for text), each [B, T], padded on the right."""

    ids: torch.Tensor
    roles: torch.Tensor
    questions: torch.Tensor

    @property
    def tokens(self) -> int:
        return int((self.roles != PADDING).sum())


@dataclass(frozen=True)
class Ask:
    """A question that can be put to a context, with its answer."""

    about: Relation | Path
    subject: Entity
    answer: str


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
        sequences = sorted((self._sequence(rng, stage) for _ in range(ROUND * self.batch)), key=lambda s: len(s[0]))
        batches = [self._pack(sequences[i : i + self.batch]) for i in range(0, len(sequences), self.batch)]
        rng.shuffle(batches)
        return batches

    def _pack(self, sequences: list[tuple[list[int], list[int], list[int]]]) -> Batch:
        width = max(len(ids) for ids, _, _ in sequences)

        def padded(which: int, filler: int) -> torch.Tensor:
            return torch.tensor([s[which] + [filler] * (width - len(s[which])) for s in sequences])

        return Batch(padded(0, PAD_ID), padded(1, PADDING), padded(2, -1))

    def _sequence(self, rng: random.Random, stage: Stage) -> tuple[list[int], list[int], list[int]]:
        """A context and its questions: ids, roles, question numbers."""
        draw = Draw(self.world, "train", rng)
        kind = rng.choices(list(stage.kinds), list(stage.kinds.values()))[0]
        documents, asks = context(draw, stage, kind)
        slots = _slots(rng, stage.slots)
        count = min(stage.questions, max(1, 48 // slots)) if slots else stage.questions
        if not documents:
            count *= 2  # closed-book questions are short
        ids, roles, numbers = [BOS_ID], [TEXT], [-1]

        def add(new: list[int], role: int, number: int = -1) -> None:
            ids.extend(new)
            roles.extend([role] * len(new))
            numbers.extend([number] * len(new))

        for number in range(count):
            ask = self._choose(rng, stage, asks, bool(documents))
            pieces = plain_template(draw.question(ask.about, ask.subject), documents if number == 0 else ())
            text = "".join(piece.text for piece in pieces)
            add(self._encode(text if number == 0 else "\n" + text).ids, TEXT)
            answer = self._encode(ask.answer).ids
            add(answer, ANSWER, number)
            fill = max(slots, len(answer)) - len(answer) if slots else 1
            add([EOS_ID] * min(fill, 1), FIRST_EOS, number)
            add([EOS_ID] * max(fill - 1, 0), LATER_EOS, number)
        return ids, roles, numbers

    def _choose(self, rng: random.Random, stage: Stage, asks: list[Ask], documents: bool) -> Ask:
        """Questions are drawn with replacement; some are about stable facts, some have no answer."""
        point = rng.random()
        if not documents or point < stage.stable:
            fact = rng.choice(self.world.stable_facts)
            return Ask(fact.relation, fact.subject, fact.object.name)
        if point < stage.stable + stage.unanswerable:
            return _unanswerable(Draw(self.world, "train", rng), asks)
        return rng.choice(asks)


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
    count = rng.randint(1, stage.documents)
    facts: list[Fact | None] = []
    asks: list[Ask] = []
    if kind == "twohop":
        path = rng.choice(PATHS)
        chains = [draw.chain(path) for _ in range(min(CHAINS, max(1, count // 2)))]
        asks = [Ask(path, first.subject, second.object.name) for first, second in chains] * 2
        facts = [fact for chain in chains for fact in chain]
        facts += draw.noise(chains[0][0], max(0, count - len(facts)), "random")
    else:
        target = draw.fact(draw.any_relation())
        facts = [target]
        if kind == "binding" and count > 1 and rng.random() < stage.near:
            facts += draw.noise(target, 1, "near")
        facts += draw.noise(target, count - len(facts), "same" if kind == "binding" else "mixed")
    rng.shuffle(facts)
    asks += [Ask(fact.relation, fact.subject, fact.object.name) for fact in facts if fact is not None]
    return tuple(draw.document(fact, plain=stage.plain) for fact in facts), asks
