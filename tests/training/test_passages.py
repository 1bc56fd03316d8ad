"""Training data: nothing leaks into the held-out part, windows hold the answer, files without answers are refused."""

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import floatscope as fs
from floatscope.errors import UserError
from floatscope.qa.metrics import mentions, normalise
from floatscope.qa.readers import read_samples
from floatscope.qa.samples import Document, Sample
from floatscope.training.passages import Windows, held_out_samples, read_data, write_samples


@pytest.fixture(scope="module")
def tokenizer(parent):
    return fs.load(parent, check=False).tokenizer


@pytest.fixture(scope="module")
def windows(tokenizer):
    return Windows(tokenizer, 16)


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_no_passage_and_no_question_is_in_both_parts(rows, windows, tmp_path):
    shared = [{**rows[i], "question": f"another question {i}"} for i in range(0, 60, 2)]  # on the same passages
    twice = [{**rows[0], "documents": rows[1]["documents"], "answers": rows[1]["answers"]}]  # the same question again
    own = {
        **rows[2],
        "documents": rows[2]["documents"] + [{**rows[j]["documents"][0], "gold": False} for j in range(60)],
    }
    data = read_data([written(tmp_path / "all.jsonl", [*rows, *shared, *twice, own])], 12, windows)
    held, train = ({normalise(s.documents[0].text) for s in part} for part in (data.held_out, data.train))
    assert not held & train
    assert not held & {normalise(passage.text) for passage in data.passages}
    assert not {s.question for s in data.held_out} & {s.question for s in data.train}
    assert 12 <= len(data.held_out) <= 14 and train <= {normalise(passage.text) for passage in data.passages}


def test_no_version_of_a_held_out_passage_is_trained_on(rows, windows, tmp_path):
    """The same text under another title, a passage with another beginning, and a second gold passage."""
    first = read_data([written(tmp_path / "first.jsonl", rows)], 12, windows)
    held, train = first.held_out[0], first.train[0]
    second = {"title": "Again", "text": f"{held.answers[0]} is a place, {'far away ' * 9}and old.", "gold": True}
    beside = {held.question: [second], train.question: [{**second, "gold": False}]}  # a distractor in training
    doubled = [{**row, "documents": [*row["documents"], *beside.get(row["question"], [])]} for row in rows]
    plain = read_data([written(tmp_path / "plain.jsonl", doubled)], 12, windows)
    versions = []
    for number, row in enumerate(rows):
        (document,) = row["documents"]
        text = document["text"] if number % 2 else "Once upon a time " + document["text"]
        changed = {**document, "title": f"{document['title']} again", "text": text}
        versions.append({**row, "question": f"{row['question']} {number}", "documents": [changed]})
    data = read_data([written(tmp_path / "versions.jsonl", [*rows, *versions])], 40, windows)
    assert 0 < len(data.held_out) < 40 and len(plain.held_out) == 12
    for part in (plain, data):
        trained = [normalise(d.text) for d in (*part.passages, *(s.documents[0] for s in part.train))]
        for sample in part.held_out:
            words = normalise(sample.documents[0].text).split()
            runs = [" ".join(words[i : i + 13]) for i in range(len(words) - 12)]
            assert runs and not any(run in text for run in runs for text in trained)
    assert held.question in {s.question for s in plain.held_out}
    assert second["text"] not in {p.text for p in plain.passages}


def test_the_held_out_part_follows_from_passages_alone(rows, windows, tmp_path):
    turned = written(tmp_path / "turned.jsonl", rows[::-1])
    straight = written(tmp_path / "straight.jsonl", rows)
    first, second = (read_data([file], 12, windows) for file in (straight, turned))
    assert {s.question for s in first.held_out} == {s.question for s in second.held_out}


def test_every_window_holds_the_answer_and_is_no_longer_than_asked(data_file, windows):
    data = read_data([data_file], 12, windows)
    starts = set()
    for sample in data.train:
        for seed in range(5):
            document, answer = windows.gold(sample, random.Random(seed))
            assert mentions(document.text, sample.answers) and answer in document.text
            assert document.text in sample.documents[0].text and document.gold
            assert windows.tokens(f" {document.text}") <= 16 + 2
            starts.add(document.text.index(answer) * 4 // len(document.text))
    assert starts >= {0, 1, 2}  # anywhere in the window, not always in the middle


@pytest.mark.slow
@given(
    st.lists(st.sampled_from(["a", "bb", "river", "Oslo,", "1,234"]), min_size=1, max_size=60), st.randoms(), st.data()
)
def test_a_window_is_whole_words_around_its_span(windows, words, rng, drawn):
    text = " ".join(words)
    place = drawn.draw(st.integers(0, len(words) - 1))
    start = len(" ".join(words[:place])) + (place > 0)
    span = (start, start + len(words[place]))
    window = windows.cut(text, rng, span)
    assert f" {window} " in f" {text} " and words[place] in window.split()
    assert len(windows.cut(text, rng).split()) >= 1
    if windows.tokens(text) <= 8:
        assert window == text


def test_distractors_are_training_passages_without_an_answer(data_file, windows):
    data = read_data([data_file], 12, windows)
    for sample in data.train[:10]:
        found = data.distractors(sample)
        assert len(found) == 9 and all(not mentions(d.text, sample.answers) and not d.gold for d in found)
        assert {d.text for d in found} <= {passage.text for passage in data.passages}


def test_held_out_samples_can_be_read_again(data_file, windows, tmp_path):
    data = read_data([data_file], 12, windows)
    samples = held_out_samples(data, windows)
    write_samples(samples, tmp_path / "held_out.jsonl")
    again = tuple(read_samples(tmp_path / "held_out.jsonl"))
    assert [replace(s, metadata={}) for s in again] == [replace(s, metadata={}) for s in samples]
    assert samples == held_out_samples(read_data([data_file], 12, windows), windows)
    assert all(mentions(s.documents[0].text, s.answers) for s in samples)


@pytest.mark.parametrize("shared", [12, 13])
@pytest.mark.parametrize("at_end", [True, False])
def test_thirteen_words_in_a_row_anywhere_are_too_many_in_common(windows, tmp_path, shared, at_end):
    same = [f"word{n}" for n in range(shared)]
    rows = []
    for name in ("Ada", "Ida"):
        own = [name, *(f"{name}{n}" for n in range(15))]
        text = " ".join(own + same if at_end else same + own)
        rows.append({"question": f"who is {name}", "answers": [name], "documents": [{"text": text, "gold": True}]})
    file = written(tmp_path / "two.jsonl", rows)
    if shared < 13:
        assert len(read_data([file], 1, windows).held_out) == 1
        return
    with pytest.raises(UserError, match="Every held-out passage shares words"):
        read_data([file], 1, windows)


def test_an_answer_that_is_too_long_is_not_trained_on(windows):
    long = " ".join(["river"] * 20)
    sample = Sample("1", "what", (long, "Oslo"), (Document("", f"it was {long} in Oslo then", True),))
    assert [sample.documents[0].text[a:b] for a, b in windows.spans(sample, sample.documents[0])] == ["Oslo"]
    assert windows.spans(replace(sample, answers=(long,)), sample.documents[0]) == []


def test_ids_of_several_files_do_not_clash(rows, windows, tmp_path):
    files = [written(tmp_path / f"{n}.jsonl", [{**r, "id": str(i)} for i, r in enumerate(rows[n::2])]) for n in (0, 1)]
    data = read_data(files, 12, windows)
    ids = [sample.id for sample in (*data.train, *data.held_out)]
    assert len(set(ids)) == len(ids) == 60 and set(data.files) == {"0.jsonl", "1.jsonl"}


def test_data_that_cannot_be_trained_on_is_refused_in_a_sentence(rows, windows, tmp_path):
    bare = written(tmp_path / "bare.jsonl", [{"question": "who", "answers": ["Ada"]}])
    with pytest.raises(UserError, match=r"None of the 1 questions in bare\.jsonl has a gold passage"):
        read_data([bare], 1, windows)
    wrong = written(tmp_path / "wrong.jsonl", [{**rows[0], "answers": ["nowhere to be found"]}])
    with pytest.raises(UserError, match="give data with answers"):
        read_data([wrong], 1, windows)
    with pytest.raises(UserError, match="at least one file"):
        read_data([], 1, windows)
    with pytest.raises(UserError, match="no known shape"):
        read_data([written(tmp_path / "none.jsonl", [{"question": "who", "documents": []}] * 2)], 1, windows)
    with pytest.raises(UserError, match="too few to hold out 60"):
        read_data([written(tmp_path / "few.jsonl", rows)], 60, windows)
    (tmp_path / "more").mkdir()
    with pytest.raises(UserError, match="same name"):
        read_data([bare, written(tmp_path / "more" / "bare.jsonl", rows)], 1, windows)
    with pytest.raises(UserError, match="shares words with a training passage"):
        read_data([written(tmp_path / "one.jsonl", [{**rows[0], "documents": [{**rows[0]["documents"][0], "title": t}],
                                                     "question": t} for t in "ab"])], 1, windows)  # fmt: skip
    with pytest.raises(UserError, match="window of 3 tokens"):
        Windows(None, 3)
