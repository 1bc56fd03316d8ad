"""Metrics against hand-computed cases, and SQuAD's normalisation written out independently for ASCII text."""

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatscope.qa.metrics import METRICS, accuracy, exact_match, f1, mentions, normalise, score


def squad_by_hand(text: str) -> str:
    """Word by word: drop punctuation characters, then words that are articles."""
    kept = "".join(character for character in text.lower() if character not in set(string.punctuation))
    return " ".join(word for word in kept.split() if word not in {"a", "an", "the"})


@given(st.text(alphabet=string.ascii_letters + string.digits + string.punctuation + " \t\n", max_size=60))
def test_normalisation_is_that_of_squad_on_ascii(text: str) -> None:
    assert normalise(text) == squad_by_hand(text)


@given(st.text(max_size=40))
def test_normalised_text_has_no_outer_or_double_spaces(text: str) -> None:
    assert not re.search(r"^\s|\s$|\s\s", normalise(text))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("The Quick, brown FOX!", "quick brown fox"),
        ("U.S.A.", "usa"),
        ("a an the", ""),
        ("theatre and anthem", "theatre and anthem"),
        ("Ro\u0308ntgen", "r\u00f6ntgen"),
        ("O\u2019Brien \u2013 \u201cBob\u201d", "obrien bob"),
        ("\u00bfQu\u00e9?", "qu\u00e9"),
        ("東京。", "東京"),
        ("50 €", "50 €"),
    ],
)
def test_normalise(raw: str, expected: str) -> None:
    assert normalise(raw) == expected


CASES = [
    # prediction, answers, accuracy, exact match, F1
    ("Paris", ("Paris",), 1, 1, 1),
    ("The answer is Paris.", ("Paris",), 1, 0, 2 * (1 / 3) * 1 / (1 / 3 + 1)),  # "answer is paris": P 1/3, R 1
    ("York", ("New York",), 0, 0, 2 * 1 * 0.5 / 1.5),
    ("new new york", ("New York",), 1, 0, 2 * (2 / 3) * 1 / (2 / 3 + 1)),  # the second "new" matches nothing
    ("york new", ("New York",), 0, 0, 1),
    ("1925", ("25",), 1, 0, 0),  # a substring, as the paper counts, yet no shared word
    ("cat", ("dog", "cat"), 1, 1, 1),
    ("London", ("Paris", "Rome"), 0, 0, 0),
    ("", ("Paris",), 0, 0, 0),
    ("...", ("Paris",), 0, 0, 0),
    ("Vitamin A", ("A",), 0, 0, 0),  # "A" is nothing once normalised: only the very same answer will do
    (" a ", ("A",), 1, 1, 1),
    ("", ("The",), 0, 0, 0),
    ("?", ("?",), 1, 1, 1),
    ("", (), 1, 1, 1),  # no answer exists: silence is right
    ("Paris", (), 0, 0, 0),
    ("Wilhelm Conrad Ro\u0308ntgen", ("R\u00f6ntgen",), 1, 0, 0.5),
    ("東京", ("東京",), 1, 1, 1),
]


@pytest.mark.parametrize(("prediction", "answers", "acc", "em", "token_f1"), CASES)
def test_hand_computed(prediction: str, answers: tuple[str, ...], acc: float, em: float, token_f1: float) -> None:
    assert accuracy(prediction, answers) == acc
    assert exact_match(prediction, answers) == em
    assert f1(prediction, answers) == pytest.approx(token_f1)
    scores = score(prediction, iter(answers))
    assert scores == {"accuracy": acc, "em": em, "f1": pytest.approx(token_f1)}


words = st.lists(st.sampled_from(["the", "red", "blue", "stone", "x", "É"]), max_size=5).map(" ".join)


@pytest.mark.slow
@given(words, st.lists(words, min_size=1, max_size=3))
def test_more_answers_never_hurt_and_an_exact_match_is_perfect(prediction: str, answers: list[str]) -> None:
    for metric in METRICS.values():
        assert 0 <= metric(prediction, answers) <= 1
        assert metric(prediction, answers) == max(metric(prediction, [answer]) for answer in answers)
    if exact_match(prediction, answers):
        assert accuracy(prediction, answers) == 1
        assert f1(prediction, answers) == 1


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        ("It rained in North Goa.", "north goa", True),
        ("The joints ache.", "the joint", True),
        ("It was 1925.", "2", False),  # short answers count as whole words only
        ("It was 2.", "2", True),
        ("Nothing at all", "no", False),
        ("It happened yesterday.", "yes", False),  # three characters are short
        ("Oh yes, it did.", "yes", True),
        ("Four seasons", "four", True),
        ("Fourteen seasons", "four", True),  # four are not
        ("anything", "A", False),
        ("", "x", False),
    ],
)
def test_mentions(text: str, answer: str, expected: bool) -> None:
    assert mentions(text, [answer]) is expected
    assert mentions(text, ["unheard of", answer]) is expected
    assert mentions(text, []) is False
