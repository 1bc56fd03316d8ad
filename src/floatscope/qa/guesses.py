"""What one scores without a model: guesses beside which an accuracy can be read."""

import random
from collections.abc import Callable, Sequence

from floatscope.qa.metrics import normalise
from floatscope.qa.samples import Sample

Guess = Callable[[Sample, random.Random], str]
"""What is guessed for a sample."""


def most_common_answer(samples: Sequence[Sample]) -> Guess:
    """The answer that is right most often for the other samples; of equals the first."""
    places: dict[str, list[int]] = {}
    for place, sample in enumerate(samples):
        if sample.answers:
            places.setdefault(sample.answers[0], []).append(place)
    place_of = {sample.id: place for place, sample in enumerate(samples)}
    ranked = sorted(places, key=lambda answer: (-len(places[answer]), places[answer][0]))

    def guess(sample: Sample, rng: random.Random) -> str:
        """Without the sample itself its answer is counted once less; no other answer moves."""
        own = places[sample.answers[0]] if sample.answers else []
        best = next((answer for answer in ranked if places[answer] is not own), "")
        if len(own) < 2:
            return best
        first = own[1] if own[0] == place_of[sample.id] else own[0]
        ahead = not best or (1 - len(own), first) < (-len(places[best]), places[best][0])
        return sample.answers[0] if ahead else best

    return guess


def other_answer(samples: Sequence[Sample]) -> Guess:
    """The answer of another sample, drawn at random."""
    answered = [sample for sample in samples if sample.answers]
    place_of = {sample.id: place for place, sample in enumerate(answered)}

    def guess(sample: Sample, rng: random.Random) -> str:
        own = place_of.get(sample.id, len(answered))
        others = len(answered) - (own < len(answered))
        if not others:
            return ""
        drawn = rng.randrange(others)
        return answered[drawn + (drawn >= own)].answers[0]

    return guess


def nearest_sentence(samples: Sequence[Sample]) -> Guess:
    """The sentence of the documents that shares most words with the question."""

    def guess(sample: Sample, rng: random.Random) -> str:
        wanted = set(normalise(sample.question).split())
        sentences = [sentence for document in sample.documents for sentence in document.text.split(". ")]
        return max(sentences, key=lambda sentence: len(wanted & set(normalise(sentence).split())), default="")

    return guess


GUESSES: dict[str, Callable[[Sequence[Sample]], Guess]] = {
    "most-common-answer": most_common_answer,
    "other-answer": other_answer,
    "nearest-sentence": nearest_sentence,
}
