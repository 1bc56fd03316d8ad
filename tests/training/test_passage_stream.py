"""The stream: one for all forks, prompts as in evaluation, answers that stand in their documents."""

from collections import Counter

import pytest
import torch

import floatscope as fs
from floatscope.training.learner import AdapterLearner
from floatscope.training.passages import PassageStream, Windows, read_data
from floatscope.training.stream import ANSWER, FIRST_EOS, LATER_EOS, PADDING, PROMPT, TEXT


@pytest.fixture(scope="module")
def tokenizer(parent):
    return fs.load(parent, check=False).tokenizer


@pytest.fixture(scope="module")
def stream(tokenizer, data_file):
    windows = Windows(tokenizer, 16)
    return PassageStream(read_data([data_file], 12, windows), windows, tokenizer, 0, 4)


def rows_of(stream, steps):
    for step in range(steps):
        batch = stream.at(step)
        # Whatever may be masked, and nothing else, has the number of its question.
        assert torch.equal(batch.questions, (batch.roles >= TEXT).long() - 1) and not len(batch.found)
        yield from zip(batch.ids, batch.roles, strict=True)


def test_all_forks_see_the_same_batches(parent, data_file):
    streams = []
    for to in ("arm", "dream", "llada"):
        tokenizer = AdapterLearner(parent, to, 2, seed=0).tokenizer
        windows = Windows(tokenizer, 16)
        streams.append(PassageStream(read_data([data_file], 12, windows), windows, tokenizer, 5, 4))
    for step in (0, 1, 17):
        first, *others = (stream.at(step) for stream in streams)
        assert all(torch.equal(first.ids, b.ids) and torch.equal(first.roles, b.roles) for b in others)


def test_a_step_does_not_depend_on_those_before(stream, tokenizer):
    fresh = PassageStream(stream.data, stream.windows, tokenizer, 0, 4)
    assert torch.equal(fresh.at(21).ids, stream.at(21).ids)
    other = PassageStream(stream.data, stream.windows, tokenizer, 1, 4)
    assert other.at(21).ids.shape != fresh.at(21).ids.shape or not torch.equal(other.at(21).ids, fresh.at(21).ids)


def test_kinds_have_their_shares_and_documents_are_one_to_ten(stream, tokenizer):
    kinds, counts = Counter(), Counter()
    for ids, roles in rows_of(stream, 160):
        text = tokenizer.decode(ids)
        documents = text.count("Document ")
        kinds["text" if TEXT in roles else "closed" if documents == 0 else "open"] += 1
        counts[documents] += 1
    total = sum(kinds.values())
    assert abs(kinds["text"] / total - 0.25) < 0.06 and abs(kinds["closed"] / total - 0.1) < 0.05
    assert max(counts) == 10 and counts[1] > counts[2] > counts[5]


def test_questions_are_prompt_answer_eos_and_the_answer_is_in_the_documents(stream, tokenizer):
    slots = Counter()
    for ids, roles in rows_of(stream, 16):
        if TEXT in roles:
            assert set(roles.tolist()) <= {PADDING, PROMPT, TEXT} and ids[0] == tokenizer.bos_token_id
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
    assert LATER_EOS in stream.at(0).roles.unique() or LATER_EOS in stream.at(1).roles.unique()


def test_nothing_of_the_held_out_part_is_streamed(stream, tokenizer):
    answers = [f" {sample.answers[0]}" for sample in stream.data.held_out]
    for ids, _ in rows_of(stream, 64):
        text = tokenizer.decode(ids)
        assert not any(f"{answer}," in text or f"{answer}<" in text for answer in answers)
