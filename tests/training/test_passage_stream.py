"""The stream: one for all forks, prompts as in evaluation, answers that stand in their documents."""

from collections import Counter

import pytest
import torch

import floatscope as fs
from floatscope.training.learner import AdapterLearner
from floatscope.training.passages import PassageStream, Windows, read_data
from floatscope.training.recipe import AdapterRecipe
from floatscope.training.stream import ANSWER, FIRST_EOS, GAP, LATER_EOS, PADDING, PROMPT, TEXT

pytestmark = pytest.mark.slow

RECIPE = AdapterRecipe(batch=4)


@pytest.fixture(scope="module")
def tokenizer(parent):
    return fs.load(parent, check=False).tokenizer


@pytest.fixture(scope="module")
def stream(tokenizer, data_file):
    windows = Windows(tokenizer, 16)
    return PassageStream(read_data([data_file], 12, windows), windows, tokenizer, 0, RECIPE)


def rows_of(stream, steps):
    for step in range(steps):
        batch = stream.at(step)
        assert not len(batch.found)
        for ids, roles, questions in zip(batch.ids, batch.roles, batch.questions, strict=True):
            # Whatever may be masked, and nothing else, has the number of its question: of a text its gap, or all of it.
            assert torch.equal(questions, (roles >= (ANSWER if GAP in roles else TEXT)).long() - 1)
            yield ids, roles


def test_all_forks_see_the_same_batches(parent, data_file):
    streams = []
    for to in ("arm", "dream", "llada"):
        tokenizer = AdapterLearner(parent, to, 2, seed=0).tokenizer
        windows = Windows(tokenizer, 16)
        streams.append(PassageStream(read_data([data_file], 12, windows), windows, tokenizer, 5, RECIPE))
    for step in (0, 1, 17):
        first, *others = (stream.at(step) for stream in streams)
        assert all(torch.equal(first.ids, b.ids) and torch.equal(first.roles, b.roles) for b in others)


def test_a_step_does_not_depend_on_those_before(stream, tokenizer):
    fresh = PassageStream(stream.data, stream.windows, tokenizer, 0, RECIPE)
    assert torch.equal(fresh.at(21).ids, stream.at(21).ids)
    other = PassageStream(stream.data, stream.windows, tokenizer, 1, RECIPE)
    assert other.at(21).ids.shape != fresh.at(21).ids.shape or not torch.equal(other.at(21).ids, fresh.at(21).ids)


def test_kinds_have_their_shares_and_documents_are_one_to_ten(stream, tokenizer):
    kinds, counts, tokens = Counter(), Counter(), Counter()
    for ids, roles in rows_of(stream, 160):
        documents = tokenizer.decode(ids).count("Document ")
        kind = "text" if TEXT in roles else "closed" if documents == 0 else "open"
        kinds[kind] += 1
        counts[documents] += 1
        tokens[kind] += int((roles != PADDING).sum())
    assert abs(tokens["text"] / tokens.total() - 0.5) < 0.05  # half of the tokens
    assert abs(kinds["closed"] / (kinds["closed"] + kinds["open"]) - 0.13) < 0.05
    assert max(counts) == 10 and counts[1] > counts[2] > counts[5]


def test_gaps_stand_at_the_end_at_the_start_and_in_between(stream):
    places, sizes = Counter(), []
    for _, roles in rows_of(stream, 160):
        if TEXT not in roles:
            continue
        own = roles[1 : int((roles != PADDING).sum())].tolist()  # without bos
        gap = [place for place, role in enumerate(own) if role == GAP]
        assert gap == list(range(gap[0], gap[-1] + 1)) if gap else set(own) == {TEXT}
        sizes += [len(gap)] if gap else []
        start, end = own[0] == GAP, own[-1] == GAP
        places["scattered" if not gap else "start" if start else "end" if end else "inside"] += 1
        assert len(gap) <= 0.75 * len(own)
    assert all(abs(count / places.total() - 0.25) < 0.07 for count in places.values()) and len(places) == 4
    assert min(sizes) == 8 and max(sizes) > 40


def test_contexts_grow_from_one_document_to_ten(stream, tokenizer):
    growing = PassageStream(stream.data, stream.windows, tokenizer, 0, AdapterRecipe(batch=4, ramp=64, running=0.0))
    most = {}
    for step in range(80):
        texts = [tokenizer.decode(ids) for ids in growing.at(step).ids]
        most[step // 16] = max(most.get(step // 16, 0), *(text.count("Document ") for text in texts))
    assert most[0] == 1 and all(most[i] <= 1 + 9 * 16 * i // 64 for i in most) and 7 < most[4] <= 10
    assert growing.state == {"documents": 10}


def test_questions_are_prompt_answer_eos_and_the_answer_is_in_the_documents(stream, tokenizer):
    slots = Counter()
    for ids, roles in rows_of(stream, 16):
        if TEXT in roles:
            assert set(roles.tolist()) <= {PADDING, PROMPT, TEXT, GAP} and ids[0] == tokenizer.bos_token_id
            continue
        length = int((roles != PADDING).sum())
        assert roles[:length].tolist() == sorted(roles[:length].tolist())  # prompt, answer, first eos, later eos
        prompt, answer = (tokenizer.decode(ids[roles == role]) for role in (PROMPT, ANSWER))
        assert prompt.startswith("<s>") and prompt.endswith("\nAnswer:") and answer.startswith(" ")
        if "Document 1:" in prompt:
            assert answer.strip() in prompt
        assert (ids[roles >= FIRST_EOS] == tokenizer.eos_token_id).all() and (roles == FIRST_EOS).sum() == 1
        slots[int((roles >= ANSWER).sum())] += 1
    assert min(slots) >= 4 and max(slots) <= 16 and len(slots) > 4
    assert any(LATER_EOS in stream.at(step).roles for step in range(16))


def test_nothing_of_the_held_out_part_is_streamed(stream, tokenizer):
    answers = [f" {sample.answers[0]}" for sample in stream.data.held_out]
    for ids, _ in rows_of(stream, 64):
        text = tokenizer.decode(ids)
        assert not any(f"{answer}," in text or f"{answer}<" in text for answer in answers)
