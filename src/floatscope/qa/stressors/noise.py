"""Noise: distractors beside the gold documents or in their place, by kind and number."""

import random
import re
import unicodedata
from dataclasses import dataclass, replace
from functools import partial

from floatscope.errors import UserError
from floatscope.qa.metrics import SHORT, normalise
from floatscope.qa.prompts import find_answers
from floatscope.qa.retrieval import mentions_answer
from floatscope.qa.samples import Document, Sample
from floatscope.qa.stressors.pool import Pool
from floatscope.qa.stressors.ranges import check_documents, check_names, parse_integers
from floatscope.qa.stressors.stressor import Axis, Condition, Stressor, gold_of


@dataclass(frozen=True)
class NoiseOptions:
    kinds: tuple[str, ...] = ("topical",)
    """Kinds of distractors: random, topical, counterfactual."""
    gold: tuple[str, ...] = ("kept",)
    """Gold documents: kept, removed, or both in turn."""
    documents: int = 10
    """How far the value "all" goes."""

    def __post_init__(self) -> None:
        check_documents(self.documents)
        check_names(self.kinds, ("random", "topical", "counterfactual"), "kind of noise")
        check_names(self.gold, ("kept", "removed"), "setting of gold under noise")


def _conditions(values: str, options: NoiseOptions) -> tuple[Condition, ...]:
    """One condition per kind, per gold kept or removed, per number of distractors."""
    return tuple(
        Condition(
            name=f"noise/{kind}/gold-{gold}/{level}",
            stressor="noise",
            labels={"kind": kind, "gold": gold, "level": level},
            stream=f"noise/{kind}",
            transform=partial(_add_noise, kind=kind, keep_gold=gold == "kept", level=level),
        )
        for kind in options.kinds
        for gold in options.gold
        for level in parse_integers(values, everything=range(options.documents + 1), least=0)
    )


def _add_noise(sample: Sample, rng: random.Random, pool: Pool, kind: str, keep_gold: bool, level: int) -> Sample:
    """Gold and distractors, sorted by a random key of each, so that a level differs from the next by one
    document and nothing else moves.
    """
    keys = random.Random(rng.getrandbits(64))
    gold = gold_of(sample, None, "noise beside kept gold documents") if keep_gold else ()
    if level == 0:
        distractors = ()
    elif kind == "counterfactual":
        distractors = _counterfactuals(sample, level, rng, pool)
    else:
        distractors = pool.distractors(sample, level, kind, rng)
    gold_keys = [keys.random() for document in sample.documents if document.gold]
    keyed = [*zip(gold_keys, gold, strict=False), *((keys.random(), document) for document in distractors)]
    return replace(sample, documents=tuple(document for _, document in sorted(keyed, key=lambda p: p[0])))


def _counterfactuals(sample: Sample, count: int, rng: random.Random, pool: Pool) -> tuple[Document, ...]:
    """Copies of the gold documents that state an answer, each with a wrong one instead; none is gold."""
    has_answer = mentions_answer(sample)
    sources = [document for document in gold_of(sample, None, "counterfactual noise") if has_answer(document)]
    if not sources:
        raise UserError(f"Sample {sample.id!r} has no gold document that states an answer, so none can be changed.")
    made = []
    for number, wrong in enumerate(pool.wrong_answers(sample, count, rng)):
        source = sources[number % len(sources)]
        changed = Document(_swap(source.title, sample, wrong), _swap(source.text, sample, wrong))
        if has_answer(changed):
            raise UserError(
                f"Sample {sample.id!r} has an answer in its gold document in a spelling that cannot be "
                "replaced: add that spelling to its answers."
            )
        made.append(changed)
    return tuple(made)


def _swap(text: str, sample: Sample, wrong: str) -> str:
    """Every answer in the text replaced; of spans that overlap ("North Goa", "North") the whole.

    Whatever `mentions` finds has to go, so the answer's words are also looked for without their articles and
    inside of longer words ("the joint" in "joints").
    """
    text = unicodedata.normalize("NFC", text)
    spans = find_answers(text, sample.answers)
    for words in filter(None, (normalise(answer).split() for answer in sample.answers)):
        edge = r"\b" if len(" ".join(words)) <= SHORT else r"\w*"
        between = r"(?:\W|\b(?:an?|the)\b)+"
        pattern = edge + between.join(map(re.escape, words)) + edge
        spans += [match.span() for match in re.finditer(pattern, text, re.IGNORECASE)]
    pieces, end = [], 0
    for start, stop in sorted(spans):
        if start >= end:
            pieces += [text[end:start], wrong]
        end = max(end, stop)
    return "".join([*pieces, text[end:]])


NOISE = Stressor(
    name="noise",
    summary="Numbers of distractors",
    example="0..10",
    make=_conditions,
    labels={"kind": str, "gold": str, "level": int},
    axis=Axis("level", "distractors", "{kind} distractors, gold {gold}"),
    options=NoiseOptions,
)
