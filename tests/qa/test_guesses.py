"""Guesses without a model, on samples where they can be told by hand."""

import random

from floatscope.qa.guesses import GUESSES, most_common_answer, nearest_sentence, other_answer
from floatscope.qa.samples import Document, Sample

SAMPLES = [
    Sample(
        "1", "Where is the blue gate?", ("north",), (Document("", "Gates rust. The blue gate is north. It is old."),)
    ),
    Sample("2", "Where is the well?", ("south",)),
    Sample("3", "Where is the barn?", ("south",)),
    Sample("4", "Where is nothing?", ()),
]


def test_most_common_answer_leaves_the_sample_out() -> None:
    rng = random.Random(0)
    assert most_common_answer(SAMPLES)(SAMPLES[0], rng) == "south"
    assert most_common_answer(SAMPLES)(SAMPLES[1], rng) == "north"  # one each is left, the first counts
    assert most_common_answer(SAMPLES[1:2])(SAMPLES[1], rng) == ""


def test_other_answer_is_never_the_samples_own() -> None:
    drawn = {other_answer(SAMPLES)(SAMPLES[0], random.Random(seed)) for seed in range(20)}
    assert drawn == {"south"}


def test_nearest_sentence_shares_most_words() -> None:
    assert nearest_sentence(SAMPLES)(SAMPLES[0], random.Random(0)) == "The blue gate is north"
    assert nearest_sentence(SAMPLES)(SAMPLES[1], random.Random(0)) == ""


def test_other_answers_are_drawn_from_all_others_and_differ_from_draw_to_draw() -> None:
    samples = [Sample(str(number), "?", (f"answer {number}", "second")) for number in range(4)]
    drawn = [other_answer(samples)(samples[0], random.Random(seed)) for seed in range(60)]
    assert set(drawn) == {"answer 1", "answer 2", "answer 3"}
    rng = random.Random(0)
    assert len({other_answer(samples)(samples[0], rng) for _ in range(20)}) == 3


def test_guesses_by_name() -> None:
    told = {name: [guess(SAMPLES)(sample, random.Random(1)) for sample in SAMPLES] for name, guess in GUESSES.items()}
    assert told["most-common-answer"] == ["south", "north", "north", "south"]
    assert told["nearest-sentence"] == ["The blue gate is north", "", "", ""]
    assert told["other-answer"][0] == "south" and set(told["other-answer"]) <= {"north", "south"}
    assert all(other_answer([sample])(sample, random.Random(1)) == "" for sample in SAMPLES)
    assert list(told) == ["most-common-answer", "other-answer", "nearest-sentence"]


def test_the_quick_count_is_the_plain_one_for_any_answers() -> None:
    """Against counting all others for every sample, with ties, single answers and samples without one."""
    for seed in range(200):
        rng = random.Random(seed)
        answers = [rng.choice(["a", "b", "c", ""]) for _ in range(rng.randrange(1, 9))]
        samples = [Sample(str(number), "?", (answer,) if answer else ()) for number, answer in enumerate(answers)]
        guess, draw = most_common_answer(samples), other_answer(samples)
        for number, sample in enumerate(samples):
            others = [answer for place, answer in enumerate(answers) if place != number and answer]
            assert guess(sample, rng) == max(others, key=others.count, default="")
            assert draw(sample, random.Random(seed)) == (random.Random(seed).choice(others) if others else "")


def test_the_nearest_sentence_is_sought_in_all_documents_and_the_first_of_equals_is_taken() -> None:
    documents = (Document("", "A well is old. The red gate."), Document("", "The red barn is north. The red well."))
    guess = nearest_sentence([])
    found = {question: guess(Sample("s", question, (), documents), random.Random(0)) for question in
             ("Where is the red barn?", "red?", "zebra")}  # fmt: skip
    assert found == {
        "Where is the red barn?": "The red barn is north",
        "red?": "The red gate.",
        "zebra": "A well is old",
    }
