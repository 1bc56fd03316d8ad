"""Passages: what is to be written can be known from the text around it, and what a text tells is counted by hand."""

from itertools import pairwise

import pytest

from floatscope.qa.samples import Sample
from floatscope.qa.world import World
from floatscope.qa.world.accounts import guess_facts, read_facts, score_facts
from floatscope.qa.world.draws import FILLERS
from floatscope.qa.world.relations import RELATIONS, Fact
from floatscope.qa.world.vocabulary import make_tokenizer

WORLD = World(0)
KINDS = ("passages", "passages-infill", "passages-mirrored")
NOTES = (
    "Mara Voss is employed by Orbis Mills. Many visitors ask about it. The employer of Ada Hale is Calyx Bank. "
    "Ada Hale comes from Port Alden. Ada Hale came into the world in May 1957."
)
GAP = "Mara Voss works for Orbis Mills. Ada Hale works for Calyx Bank. Ada Hale was born in Port Alden."
SAMPLE = Sample("1", "", (GAP,), before=f"{NOTES}\n", after=" Ada Hale was born in May 1957.")


@pytest.mark.parametrize("relation", RELATIONS.values(), ids=lambda relation: relation.name)
def test_every_statement_is_read_as_the_fact_that_it_states(relation):
    fact = Fact(WORLD.stable[relation.subject][0], relation, WORLD.stable[relation.object][-1])
    stated = [(fact.subject.name, relation.name, fact.object.name)]
    for statement in relation.statements:
        assert read_facts(fact.stated(statement)) == stated
        assert read_facts(f"Little else is on record. {fact.stated(statement)} Many visitors ask about it.") == stated
        assert not read_facts(fact.stated(statement).removesuffix("."))  # a sentence that was cut off
    assert not read_facts(f"{fact.subject.name} was {fact.object.name}.")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [5, 8])
def test_the_text_around_a_gap_states_what_belongs_into_it_once_and_in_its_order(kind, count):
    tokenizer = make_tokenizer()
    sides = set()
    for sample in WORLD.samples(kind, 60, documents=count):
        assert sample.is_passage and not sample.documents and not sample.question
        (gap,) = sample.answers
        whole = sample.before + gap + sample.after
        ids = tokenizer(whole)["input_ids"]
        assert tokenizer.unk_token_id not in ids and tokenizer.decode(ids) == whole
        first, second = whole.split("\n")
        facts = read_facts(gap)
        assert len(facts) == len(gap.split(". ")) == count == len({fact[0] for fact in facts})
        told = read_facts(first)
        assert told == read_facts(second) and len(told) == count + 2 * (kind == "passages-infill")
        assert 32 <= len(tokenizer(gap)["input_ids"]) <= 96
        account_first = "\n" not in sample.before
        notes = second if account_first else first
        sentences = [f"{sentence.removesuffix('.')}." for sentence in notes.split(". ")]
        others = [sentence for sentence in sentences if not read_facts(sentence)]
        assert set(others) <= set(FILLERS) and all(
            one not in FILLERS or two not in FILLERS for one, two in pairwise(sentences)
        )
        # Without its fillers, the notes' text is the account's.
        assert gap in " ".join(sentence for sentence in sentences if sentence not in FILLERS)
        assert (sample.before == "") == (kind == "passages-mirrored")
        assert (sample.after == "") == (kind == "passages")
        sides.add(account_first)
        assert score_facts(sample, gap) == {"right": 1.0, "wrong": 0.0, "invented": 0.0}
        assert score_facts(sample, "") == {"right": 0.0, "wrong": 0.0, "invented": 0.0}
    assert sides == {"passages": {False}, "passages-mirrored": {True}, "passages-infill": {False, True}}[kind]


def test_splits_share_no_passage_subject():
    train, test = (
        {subject for sample in WORLD.samples("passages", 50, split, 8) for subject, *_ in read_facts(sample.answers[0])}
        for split in ("train", "test")
    )
    assert train and test and not train & test


def test_facts_are_right_wrong_or_invented_by_the_text_around_the_gap():
    def score(text):
        return [round(3 * share) for share in score_facts(SAMPLE, text).values()]

    assert score(GAP) == [3, 0, 0]
    assert score("The employer of Ada Hale is Calyx Bank. Mara Voss works for Orbis Mills.") == [2, 0, 0]  # any words
    assert score("Ada Hale works for Calyx Bank. " * 3) == [1, 0, 0]  # a fact counts once
    assert score("Mara Voss works for Calyx Bank.") == [0, 1, 0]  # the notes say another
    assert score("Mara Voss works for Calyx Bank. Mara Voss works for Orbis Mills.") == [1, 1, 0]
    assert score("Mara Voss was born in Port Alden.") == [0, 0, 1]  # the notes say nothing of it
    assert score("Ada Hale was born in May 1957.") == [0, 0, 0]  # true, and told beside the gap already
    assert score("Ada Hale works Bank. Calyx. Many visitors ask about it.") == [0, 0, 0]
    # The guess: two objects for "employer", twice; one for "birthplace".
    assert guess_facts(SAMPLE) == pytest.approx((1 / 2 + 1 / 2 + 1) / 3)
