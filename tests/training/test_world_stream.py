"""The world's stream: contexts that read as prompts do, questions asked once, lessons that end when they are learnt."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from floatscope.qa.world import World
from floatscope.qa.world.accounts import read_facts
from floatscope.qa.world.vocabulary import make_tokenizer
from floatscope.training import world_stream
from floatscope.training.recipe import TwinRecipe
from floatscope.training.stream import ANSWER, FIRST, FIRST_EOS, GAP, HOP, LATER_EOS, PADDING, TEXT
from floatscope.training.world_stream import Lesson, WorldStream, lessons_of

RECIPE = TwinRecipe(steps=12, batch=2, rate=1e-3)


def stream_of(*lessons, batch=4, seed=0):
    return WorldStream(World(0), make_tokenizer(), lessons, seed, batch)


def test_a_sequence_of_the_stream_reads_as_prompts_do():
    tokenizer = make_tokenizer()
    lesson = Lesson(4, {"rag": 1.0}, questions=3, slots=8, unanswerable=0.2, stable=0.2)
    batch, again = (stream_of(lesson).at(3) for _ in range(2))
    assert torch.equal(batch.ids, again.ids)
    for ids, roles in zip(batch.ids, batch.roles, strict=True):
        text = tokenizer.decode(ids[1:][roles[1:] == TEXT])
        assert text.startswith("Document 1: ") and "\nQuestion: " in text and text.endswith("\nAnswer:")
        assert tokenizer.unk_token_id not in ids
        eos = ids == tokenizer.eos_token_id
        assert torch.equal(eos, (roles == FIRST_EOS) | (roles == LATER_EOS))
        assert (roles == ANSWER).sum() >= 2


@pytest.mark.parametrize("slots", [0, 8])
def test_tokens_that_start_an_answer_come_with_the_name_that_the_first_hop_finds(slots):
    tokenizer = make_tokenizer()
    batch = stream_of(Lesson(5, {"twohop": 1.0}, questions=6, slots=slots), batch=8).at(0)
    first = ((batch.roles == FIRST) | (batch.roles == HOP)).nonzero().tolist()
    # Left to right an answer starts with its first token, in slots with any.
    assert (batch.roles == ANSWER).any() == (slots == 0)
    assert len(batch.found) == len(first) and (batch.roles == HOP).any() and (batch.roles == FIRST).any()
    for (row, place), words in zip(first, batch.found.tolist(), strict=True):
        documents = tokenizer.decode(batch.ids[row]).split("\nQuestion")[0]
        assert all(tokenizer.decode([word]) in documents for word in words)
        answer = int(batch.ids[row, place])
        if batch.roles[row, place] == FIRST:  # the answer itself; works begin with "The"
            assert answer in words or tokenizer.decode([answer]) in ("The", "of")
        else:  # the bridge names a document, and it is another name than the answer's
            titles = [line.split(": ")[1].split(". ")[0] for line in documents.splitlines()[0:]]
            named = [title for title in titles if all(tokenizer.decode([word]) in title.split() for word in words)]
            assert named


@pytest.mark.slow
def test_a_question_is_asked_once():
    lesson = Lesson(3, {"binding": 1.0}, questions=10, slots=2, once=True)  # each document has an answer of its own

    def repeated(lesson: Lesson) -> int:
        batch = stream_of(lesson, batch=16).at(0)
        count = 0
        for ids, questions in zip(batch.ids, batch.questions, strict=True):
            answers = [tuple(ids[questions == number].tolist()) for number in range(int(questions.max()) + 1)]
            count += len(answers) - len(set(answers))
        return count

    assert repeated(lesson) == 0 < repeated(replace(lesson, once=False))


@pytest.mark.slow
def test_a_passage_is_notes_and_their_account_with_a_gap_anywhere():
    tokenizer = make_tokenizer()
    stream = stream_of(Lesson(1, {"binding": 1.0}, passages=1.0, slots=1), batch=16)
    layouts, names, eos, bare, sentences = Counter(), Counter(), 0, 0, Counter()
    for step in range(24):
        batch = stream.at(step)
        hinted = iter(batch.found.tolist())
        for ids, roles, questions in zip(batch.ids, batch.roles, batch.questions, strict=True):
            assert ids[0] == tokenizer.bos_token_id and tokenizer.unk_token_id not in ids
            inside = (roles == GAP) | (roles == FIRST)
            assert torch.equal(questions >= 0, inside | (roles == FIRST_EOS) | (roles == LATER_EOS))
            text = tokenizer.decode(ids[1:][(roles[1:] == TEXT) | inside[1:]])
            first, second = (read_facts(part) for part in text.split("\n"))
            assert first == second != []  # told twice, in one order
            gap = inside.nonzero().flatten().tolist()
            line = (ids == tokenizer.convert_tokens_to_ids("\n")).nonzero().item()
            notes_first, numbers = line < gap[0], questions[inside].unique_consecutive().tolist()
            assert numbers == list(range(numbers[0], numbers[-1] + 1))  # a number for each sentence
            told = first[numbers[0] : numbers[-1] + 1]
            names_only = read_facts(tokenizer.decode(ids[inside])) != told
            assert names_only or gap == list(range(gap[0], gap[-1] + 1))  # whole sentences, or one name of each
            for number, fact in zip(numbers, told, strict=True):
                name = tokenizer.decode(ids[inside & (questions == number)])
                assert not names_only or name in (fact[0], fact[2])
                names["subject" if name == fact[0] else "object" if name == fact[2] else "sentence"] += 1
            # Names are answers, with hints, where the notes come before and nothing else is left out.
            assert set(roles[inside].tolist()) == {FIRST if names_only and notes_first else GAP}
            for place in (roles == FIRST).nonzero().flatten().tolist():
                assert ids[place] in next(hinted) or tokenizer.decode([int(ids[place])]) in ("The", "of")
            place = (numbers[0] == 0, numbers[-1] == len(first) - 1)
            layouts[place, notes_first, names_only] += 1
            sentences[len(numbers)] += 1
            bare += place[1] and notes_first and not names_only and FIRST_EOS not in roles
            if FIRST_EOS in roles:
                eos += 1
                assert place[1] and notes_first and not names_only
                assert set(roles[gap[-1] + 2 :].tolist()) <= {LATER_EOS, PADDING}
        assert next(hinted, None) is None
    assert len(layouts) == 16 and min(layouts.values()) > 2 and eos > 30 and 0 < bare < eos / 4  # one slot in nine
    assert set(sentences) == set(range(1, 11)) and set(names) == {"subject", "object", "sentence"}
    assert 0.8 < names["subject"] / names["object"] < 1.25


@pytest.mark.slow
def test_passages_come_at_their_share_and_not_before_a_parent_can_bind():
    batches = [stream_of(*lessons_of("llada", replace(RECIPE, passages=0.3)), batch=16).at(step) for step in range(8)]
    rows = [GAP in row for batch in batches for row in batch.roles]
    assert abs(sum(rows) / len(rows) - 0.3) < 0.12
    lessons = lessons_of("parent", replace(RECIPE, passages=0.3))
    assert [lesson.passages for lesson in lessons] == [0.0] * 3 + [0.3] * 4
    assert [lesson.passages for lesson in lessons_of("llada", replace(RECIPE, passages=0.0))] == [0.0]


def test_all_forks_have_one_lesson_and_a_parent_goes_from_one_document_to_ten():
    assert lessons_of("arm", RECIPE) == lessons_of("dream", RECIPE) == lessons_of("llada", RECIPE)
    (forked,) = lessons_of("arm", RECIPE)
    assert (forked.documents, forked.slots, forked.once, forked.patience) == (10, 32, True, None)
    lessons = lessons_of("parent", RECIPE)
    assert [lesson.documents for lesson in lessons] == [1, 2, 3, 5, 6, 8, 10]
    assert [lesson.patience for lesson in lessons] == [None, None, 400, 400, 120, 120, 120]
    assert [set(lesson.kinds) == {"binding"} for lesson in lessons] == [True] * 3 + [False] * 4


def test_a_lesson_ends_with_a_round_when_it_is_learnt_or_patience_ends(monkeypatch):
    monkeypatch.setattr(world_stream, "WINDOW", 4)
    lessons = Lesson(1, {"binding": 1.0}), Lesson(2, {"binding": 1.0}, patience=9), Lesson(3, {"binding": 1.0})
    stream = stream_of(*lessons, batch=1)
    for step in range(48):
        stream.at(step)
        # All is right in steps 12 to 15 only: learnt when the round of step 16 begins. Then patience of 9 steps is over
        # when that of step 32 begins, not yet at step 24. The third lesson is the last.
        assert stream.told()["documents"] == (1 if step < 16 else 2 if step < 32 else 3)
        stream.hear(1.0 if 12 <= step < 16 else 0.0)
        assert stream.told()["right"] == {12: 0.25, 13: 0.5, 14: 0.75, 15: 1.0}.get(step, 0.0)


def test_a_stream_goes_on_from_its_state():
    lessons = lessons_of("parent", RECIPE)
    whole, resumed = stream_of(*lessons), stream_of(*lessons)
    for step in range(13):
        batch = whole.at(step)
        whole.hear(0.5)
    resumed.state = whole.state
    assert torch.equal(resumed.at(12).ids, batch.ids) and torch.equal(resumed.at(13).ids, whole.at(13).ids)
    assert whole.told() == {"right": 0.5, "documents": 1}


@pytest.mark.slow
def test_more_slots_leave_room_for_fewer_questions():
    """Each question has as many slots, 64 in all at most; without documents twice as many are asked."""
    for kind, most in (("rag", 1), ("closed", 2)):
        counts = Counter()
        stream = stream_of(Lesson(2, {kind: 1.0}, questions=10, slots=32), batch=16)
        for step in range(8):
            for questions in stream.at(step).questions:
                sizes = [int((questions == number).sum()) for number in range(int(questions.max()) + 1)]
                assert len(sizes) == most * min(10, 64 // max(sizes))
                assert len(set(sizes)) == 1 or max(sizes) < 7  # an answer may have more tokens than few slots
                counts[len(sizes)] += 1
        assert len(counts) > 4 and max(counts) == 10 * most and min(counts) == 2 * most


@pytest.mark.slow
def test_some_questions_have_no_answer_and_some_are_about_what_was_learnt():
    tokenizer = make_tokenizer()
    stable = {fact.object.name for fact in World(0).stable_facts}
    told, documents = Counter(), 0
    stream = stream_of(Lesson(3, {"binding": 1.0}, questions=10, unanswerable=0.2, stable=0.1), batch=16)
    for step in range(8):
        batch = stream.at(step)
        for ids, roles, questions in zip(batch.ids, batch.roles, batch.questions, strict=True):
            text = tokenizer.decode(ids[roles == TEXT]).split("\nQuestion")[0]
            documents = max(documents, text.count("Document "))
            for number in range(10):
                answer = tokenizer.decode(ids[(questions == number) & (roles != FIRST_EOS)])
                kind = "none" if answer == "not stated" else "read" if answer in text else "known"
                told[kind] += 1
                assert kind != "known" or answer in stable
    assert documents == 3 and abs(told["none"] / told.total() - 0.2) < 0.05
    assert abs(told["known"] / told.total() - 0.1) < 0.04


def test_a_round_is_cut_by_length_and_its_batches_come_in_any_order():
    stream = stream_of(Lesson(6, {"rag": 1.0}), batch=4)
    ends = []
    for step in range(8):
        sizes = (stream.at(step).roles != PADDING).sum(1)
        ends.append((int(sizes.min()), int(sizes.max())))
    ordered = sorted(ends)
    assert all(before[1] <= after[0] for before, after in pairwise(ordered))  # alike with alike, so little is padded
    assert ends not in (ordered, ordered[::-1])


def test_a_lesson_is_not_learnt_by_a_few_lucky_steps():
    stream = stream_of(Lesson(1, {"binding": 1.0}), Lesson(2, {"binding": 1.0}), batch=1)
    for step in range(40):
        stream.at(step)
        assert stream.told()["documents"] == (1 if step < 32 else 2)  # after 32 steps that were right
        stream.hear(1.0)
