"""Scores of a predicted answer against the accepted ones: accuracy, exact match, token F1. No models here."""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from floatscope.qa.samples import Document

_ARTICLES = re.compile(r"\b(a|an|the)\b")
SHORT = 3
"""Answers no longer than this ("no", "2", "US") count as mentioned only where they are whole words."""


class _Punctuation(dict[int, int | None]):
    """A table for str.translate that removes punctuation, filled as characters are met."""

    def __missing__(self, code: int) -> int | None:
        character = chr(code)
        remove = character in string.punctuation or unicodedata.category(character).startswith("P")
        self[code] = None if remove else code
        return self[code]


_PUNCTUATION = _Punctuation()


@lru_cache(maxsize=100_000)  # the same documents are looked at for many questions
def normalise(text: str) -> str:
    """SQuAD's normalisation: lower case, no punctuation, no articles, single spaces.

    On ASCII this is SQuAD's to the letter. Beyond it, characters are composed (NFC), so that one spelling has
    one form, and typographic punctuation goes as its ASCII kin does: "O’Brien" and "O'Brien" are one answer.
    """
    plain = unicodedata.normalize("NFC", text).lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def accuracy(prediction: str, answers: Iterable[str]) -> float:
    """1 if a normalised answer is a substring of the normalised prediction (the paper's measure)."""
    return _best(prediction, answers, lambda found, answer: float(answer in found))


def exact_match(prediction: str, answers: Iterable[str]) -> float:
    """1 if the normalised prediction is a normalised answer."""
    return _best(prediction, answers, lambda found, answer: float(answer == found))


def f1(prediction: str, answers: Iterable[str]) -> float:
    """Harmonic mean of precision and recall over the normalised words, for the best of the answers."""
    return _best(prediction, answers, _token_f1)


def standing(prediction: str, documents: Sequence[Document]) -> list[int]:
    """The documents, counted from 1, whose title and text have the normalised prediction as whole words in a row."""
    found = normalise(prediction)
    texts = (f" {normalise(f'{one.title} {one.text}')} " for one in documents)
    return [number for number, text in enumerate(texts, 1) if found and f" {found} " in text]


METRICS: dict[str, Callable[[str, Iterable[str]], float]] = {"accuracy": accuracy, "em": exact_match, "f1": f1}
PASSAGE_METRICS = ("recovered", "common", "bits", "right", "wrong", "invented")
"""Scores of passages: tokens recovered and what is said beside it (`qa.gaps.score_gap`), and bits per token."""

OUTCOMES = ("log_probability", "bound", "kl", "removed")
"""What is measured of a model under an edit beside its answer: `models.likelihood` says what each is."""

SIGNALS = ("support", "confidence", "entropy")
"""What is told of an answer whose documents were hidden: is it from nowhere?"""


def score(prediction: str, answers: Iterable[str]) -> dict[str, float]:
    """Every metric of one prediction by name, each between 0 and 1."""
    accepted = tuple(answers)
    return {name: metric(prediction, accepted) for name, metric in METRICS.items()}


def mentions(text: str, answers: Iterable[str]) -> bool:
    """Does the text contain an answer, both normalised? Then a model could copy it and be right.

    An answer of which nothing is left then is in no text.
    """
    padded = f" {normalise(text)} "
    wanted = filter(None, map(normalise, answers))
    return any((answer if len(answer) > SHORT else f" {answer} ") in padded for answer in wanted)


def _best(prediction: str, answers: Iterable[str], compare: Callable[[str, str], float]) -> float:
    """The maximum over answers. A question without an answer (SQuAD 2) wants an empty prediction.

    An answer that normalises to nothing ("A", "The", "?") would be in every prediction: it is compared as it
    stands, but for case and spaces.
    """
    found = normalise(prediction)
    accepted = tuple(answers)
    if not accepted:
        return float(not found)
    best = 0.0
    for answer in accepted:
        wanted = normalise(answer)
        best = max(best, compare(found, wanted) if wanted else float(_folded(prediction) == _folded(answer)))
    return best


def _folded(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).lower().split())


def _token_f1(found: str, wanted: str) -> float:
    found_words, wanted_words = found.split(), wanted.split()
    shared = sum((Counter(found_words) & Counter(wanted_words)).values())
    # 2PR / (P + R) with P = shared / |found| and R = shared / |wanted|
    return 2 * shared / (len(found_words) + len(wanted_words))
