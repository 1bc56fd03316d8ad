"""Tasks: every source gives samples and a pool; the world's samples can be put under every stressor."""

import gzip
import json
import random

import pytest

from floatscope.errors import UserError
from floatscope.qa.guesses import GUESSES
from floatscope.qa.metrics import mentions, score
from floatscope.qa.prompts import build_prompt
from floatscope.qa.stressors import BASELINES, STRESSORS, stress
from floatscope.qa.stressors.noise import NoiseOptions
from floatscope.qa.stressors.placing import PlacingOptions
from floatscope.qa.tasks import POOL_SAMPLES, WORLD_SAMPLES, read_task
from floatscope.qa.world import KINDS, World
from floatscope.qa.world.vocabulary import make_tokenizer

STRESS = {
    "documents": "0,5,8",
    "noise": "0,3",
    "position": "1,8",
    "layout": "all",
    "slots": "8",
    "question": "before,after",
}


def write(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def questions(tmp_path):
    rows = [
        {"question": f"Who made bell {n}?", "answers": [f"maker {n}"], "documents": [{"text": f"Bell {n}: maker {n}."}]}
        for n in range(10, 18)
    ]
    return write(tmp_path / "bells.jsonl", rows)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_world_is_a_task_of_every_kind(kind):
    task = read_task(f"world:{kind}", limit=3, seed=2)
    documents = 0 if KINDS[kind].least == 0 else 5
    assert task.samples == tuple(World(0).samples(kind, 3, split="test", documents=documents, seed=2))
    assert len({sample.id for sample in task.pool.samples}) == len(task.pool.samples)
    others = World(0).samples("rag", 200, split="test", documents=5, seed=3)  # of another seed than the samples
    assert [sample.question for sample in task.pool.samples[3:]] == [sample.question for sample in others]


@pytest.mark.slow
def test_world_alone_is_rag_and_a_number_says_how_many_documents():
    assert read_task("world", limit=2).samples == read_task("world:rag", limit=2).samples
    assert len(read_task("world").samples) == WORLD_SAMPLES
    assert {len(sample.documents) for sample in read_task("world:twohop:8", limit=3).samples} == {8}
    assert read_task("world", limit=9).samples[:4] == read_task("world", limit=4).samples


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rag", "twohop"])
def test_every_stressor_works_on_world_samples(kind):
    """Each condition that suits the kind keeps the gold, adds none, names no subject twice, and stays in the words."""
    tokenizer = make_tokenizer()
    task = read_task(f"world:{kind}", limit=2)
    noise = NoiseOptions(kinds=("random", "topical", "counterfactual"), gold=("kept", "removed"))
    options = {"noise": noise, "position": PlacingOptions(8), "layout": PlacingOptions(8)}
    unsuited = {"rag": "layout", "twohop": "position"}[kind]
    conditions = list(BASELINES)
    for name, values in STRESS.items():
        conditions += STRESSORS[name].conditions(values, options.get(name)) if name != unsuited else ()
    assert {condition.stressor for condition in conditions} == {"baseline", *STRESS} - {unsuited}
    for condition in conditions:
        for sample in task.samples:
            shown = stress(sample, condition, task.pool, seed=0)
            prompt = build_prompt(
                tokenizer, shown.question, shown.documents, shown.answers, placement=condition.placement
            )
            assert tokenizer.unk_token_id not in prompt.ids
            others = [document for document in shown.documents if not document.gold]
            assert not any(mentions(document.text, shown.answers) for document in others)
            if condition.labels.get("kind") != "counterfactual" and condition.labels.get("layout") != "split":
                own = {document.title for document in sample.documents}
                added = [document.title for document in others if document not in sample.documents]
                assert not own & set(added)
            removed = condition.labels.get("gold") == "removed" or not shown.documents
            assert removed or any(mentions(document.text, shown.answers) for document in shown.documents)


@pytest.mark.parametrize("guess", GUESSES)
def test_guesses_work_on_world_samples_and_are_mostly_wrong(guess):
    samples = read_task("world", limit=30).samples
    guess_for = GUESSES[guess](samples)
    guesses = [guess_for(sample, random.Random(0)) for sample in samples]
    assert all(guesses)
    right = sum(score(text, sample.answers)["accuracy"] for text, sample in zip(guesses, samples, strict=True))
    assert right < 25


def test_closed_book_kinds_are_shown_documents_that_do_not_answer():
    task = read_task("world:closed-stable", limit=3)
    (five,) = STRESSORS["documents"].conditions("5")
    for sample in task.samples:
        shown = stress(sample, five, task.pool, seed=0)
        assert len(shown.documents) == 5
        assert not any(mentions(document.text, sample.answers) for document in shown.documents)


def test_a_file_is_a_task_and_a_limit_leaves_the_distractors_alone(questions):
    task, few = read_task(questions), read_task(questions, limit=2)
    assert (len(task.samples), len(few.samples)) == (8, 2)
    assert few.samples == task.samples[:2]
    assert few.pool.documents == task.pool.documents
    assert len(task.pool.documents) == 8 < POOL_SAMPLES


def test_documents_that_mention_an_answer_are_gold_where_the_data_is_silent(questions):
    assert all(document.gold for sample in read_task(questions).samples for document in sample.documents)


def test_documents_are_retrieved_from_a_corpus_and_the_recall_reported(questions, tmp_path):
    rows = [{"title": "", "text": f"Bell {n} was cast by {'maker' if n % 2 else 'hand'} {n}."} for n in range(10, 18)]
    corpus = tmp_path / "corpus.json.gz"
    corpus.write_bytes(gzip.compress(json.dumps(rows).encode()))
    task = read_task(questions, corpus=corpus, retrieve=3)
    assert {len(sample.documents) for sample in task.samples} == {3}
    assert [recall.k for recall in task.recall] == [1, 2, 3]
    # Half of the corpus states the maker; "bell n" is found first.
    assert task.recall[0].answer == pytest.approx(0.5)
    assert task.pool.documents == task.pool.retriever.documents
    assert len(task.pool.documents) == 8
    own = read_task(questions, retrieve=1)
    assert own.recall[0].answer == 1.0 and len(own.recall) == 1
    assert [recall.k for recall in read_task(questions, retrieve=5).recall] == [1, 2, 5]  # its own number once


def test_wrong_records_are_raised_or_kept_as_skipped(tmp_path):
    path = write(tmp_path / "some.jsonl", [{"question": "Who?", "answers": ["A"]}, {"question": 3, "answers": ["B"]}])
    with pytest.raises(UserError, match="line 2"):
        read_task(path)
    task = read_task(path, skip_wrong=True)
    assert len(task.samples) == 1
    assert task.skipped[0].place == "line 2"


@pytest.mark.parametrize(
    ("source", "settings", "match"),
    [
        ("world:twohops", {}, "Unknown kind"),
        ("world:rag:many", {}, "world:KIND:DOCUMENTS"),
        (f"world:rag:{'9' * 5000}", {}, "world:KIND:DOCUMENTS"),
        ("world:rag:30", {}, "at most 24"),
        ("world", {"retrieve": 3}, "its own documents"),
        ("world", {"limit": 0}, "at least one"),
        ("nowhere.jsonl", {}, "no file nowhere.jsonl"),
    ],
)
def test_mistakes_are_sentences(source, settings, match):
    with pytest.raises(UserError, match=match):
        read_task(source, **settings)


def test_an_unknown_retriever_is_a_sentence(questions):
    with pytest.raises(UserError, match="no retriever 'bm52'"):
        read_task(questions, retrieve=1, retriever="bm52")
