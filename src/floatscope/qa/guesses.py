"""What one scores without a model: guesses beside which an accuracy can be read."""

import random
from collections import Counter
from collections.abc import Callable, Sequence

from floatscope.qa.metrics import normalise
from floatscope.qa.samples import Sample

Guess = Callable[[Sample, Sequence[Sample], random.Random], str]


def most_common_answer(sample: Sample, samples: Sequence[Sample], rng: random.Random) -> str:
    """The answer that is right most often for the other samples; of equals the first."""
    counts: Counter[str] = Counter()
    for other in samples:
        if other.id != sample.id and other.answers:
            counts[other.answers[0]] += 1
    return counts.most_common(1)[0][0] if counts else ""


def other_answer(sample: Sample, samples: Sequence[Sample], rng: random.Random) -> str:
    """The answer of another sample, drawn at random."""
    others = [other for other in samples if other.id != sample.id and other.answers]
    return others[rng.randrange(len(others))].answers[0] if others else ""


def nearest_sentence(sample: Sample, samples: Sequence[Sample], rng: random.Random) -> str:
    """The sentence of the documents that shares most words with the question."""
    wanted = set(normalise(sample.question).split())
    sentences = [sentence for document in sample.documents for sentence in document.text.split(". ")]
    return max(sentences, key=lambda sentence: len(wanted & set(normalise(sentence).split())), default="")


GUESSES: dict[str, Guess] = {
    "most-common-answer": most_common_answer,
    "other-answer": other_answer,
    "nearest-sentence": nearest_sentence,
}
