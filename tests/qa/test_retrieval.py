"""BM25 against its formula written out, search with exclusions, attaching, recall, distractors, the dense retriever."""

import math
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatscope.errors import UserError
from floatscope.qa.metrics import mentions
from floatscope.qa.retrieval import (
    BM25Retriever,
    DenseRetriever,
    Retriever,
    attach,
    find_distractors,
    mark_gold,
    recall_at,
)
from floatscope.qa.samples import Document, Sample

CORPUS = (
    Document("Copper mine", "Copper mine north shaft collapsed twice."),
    Document("Silver mine", "Silver mine north gallery opened, silver everywhere."),
    Document("Harbour", "Ships unload copper copper copper grain."),
    Document("Orchard", "Apples grow slowly."),
    Document("Shaft", "Engineer Dora Quist designed north shaft."),
)
SAMPLE = Sample(
    "s",
    "Who designed the north shaft of the copper mine?",
    ("Dora Quist",),
    (Document("Shaft", "Engineer Dora Quist designed north shaft.", gold=True),),
)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("FLOATSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def bm25_by_hand(question: str, k1: float = 1.5, b: float = 0.75) -> list[float]:
    """Lucene's: sum over words of ln(1 + (N - df + 0.5)/(df + 0.5)) tf / (tf + k1 (1 - b + b len/mean len))."""
    texts = [re.findall(r"\w\w+", f"{d.title} {d.text}".lower()) for d in CORPUS]
    mean = sum(map(len, texts)) / len(texts)
    scores = []
    for words in texts:
        score, counts = 0.0, Counter(words)
        for word in question.split():
            df = sum(word in other for other in texts)
            idf = math.log(1 + (len(texts) - df + 0.5) / (df + 0.5))
            tf = counts[word]
            score += idf * tf / (tf + k1 * (1 - b + b * len(words) / mean))
        scores.append(score)
    return scores


def test_bm25_scores_follow_the_formula() -> None:
    question = "north shaft copper mine"  # no stop words, none in the corpus either
    assert BM25Retriever(CORPUS).scores(question) == pytest.approx(bm25_by_hand(question), rel=1e-5)


def test_search_ranks_excludes_and_ends_with_the_corpus() -> None:
    retriever = BM25Retriever(CORPUS)
    expected = np.argsort(-np.array(bm25_by_hand("north shaft copper mine")), kind="stable")
    hits = retriever.search("north shaft copper mine", 5)
    assert hits == [CORPUS[index] for index in expected]
    without = retriever.search("north shaft copper mine", 2, fit=lambda document: "shaft" not in document.text)
    assert without == [CORPUS[index] for index in expected if "shaft" not in CORPUS[index].text][:2]
    assert len(retriever.search("copper", 99)) == 5
    assert retriever.search("copper", 99, fit=lambda document: False) == []


@pytest.mark.parametrize("question", ["", "the of", "zebra", "?!", "É"])
def test_questions_without_a_known_word_get_documents_in_corpus_order(question: str) -> None:
    assert BM25Retriever(CORPUS).search(question, 3) == list(CORPUS[:3])


class Fixed(Retriever):
    """A retriever whose scores are given."""

    def __init__(self, values: list[int]) -> None:
        super().__init__([Document("", str(index)) for index in range(len(values))])
        self.values = np.array(values, np.float32)

    def scores(self, question: str) -> np.ndarray:
        return self.values


@pytest.mark.slow
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=400),
    st.integers(1, 30),
    st.sets(st.integers(0, 399), max_size=390),
)
def test_search_is_a_stable_sort_without_the_excluded(values: list[int], k: int, out: set[int]) -> None:
    hits = Fixed(values).search("", k, fit=lambda document: int(document.text) not in out)
    order = sorted(range(len(values)), key=lambda index: (-values[index], index))
    assert [int(document.text) for document in hits] == [index for index in order if index not in out][:k]


def test_index_is_cached_by_content(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = BM25Retriever(CORPUS)
    monkeypatch.setattr(BM25Retriever, "_build_index", lambda self: pytest.fail("built twice"))
    again = BM25Retriever([Document(d.title, d.text, gold=True) for d in CORPUS])
    assert np.array_equal(first.scores(SAMPLE.question), again.scores(SAMPLE.question))
    assert len(list((own_cache / "bm25").iterdir())) == 1


def test_damaged_index_is_built_anew(own_cache: Path) -> None:
    scores = BM25Retriever(CORPUS).scores(SAMPLE.question)
    for file in (own_cache / "bm25").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:5])
    with pytest.warns(UserWarning, match="damaged"):
        assert np.array_equal(BM25Retriever(CORPUS).scores(SAMPLE.question), scores)


def test_attach_takes_the_best_and_keeps_known_gold() -> None:
    (attached,) = attach([SAMPLE], BM25Retriever(CORPUS), 3)
    hits = BM25Retriever(CORPUS).search(SAMPLE.question, 3)
    assert [d.text for d in attached.documents] == [hit.text for hit in hits]
    assert [d.gold for d in attached.documents] == [hit.title == "Shaft" for hit in hits]
    (unmarked,) = attach([Sample("s", SAMPLE.question, SAMPLE.answers)], BM25Retriever(CORPUS), 3)
    assert not any(d.gold for d in unmarked.documents)
    assert [d.gold for d in mark_gold(unmarked).documents] == [d.gold for d in attached.documents]


def test_recall_by_hand() -> None:
    def sample(*texts: str, gold: tuple[str, ...] = ()) -> Sample:
        return Sample("x", "q", ("Oslo",), tuple(Document("", text, gold=text in gold) for text in texts))

    read = [sample("A", "B", gold=("A", "B")), sample("C", gold=("C",)), sample()]
    attached = [sample("x", "b.", "A"), sample("Oslo!", "y", "z"), sample("x", "in Oslo")]
    first, second, third = recall_at(read, attached, (1, 2, 3))
    assert (first.answer, first.gold) == (pytest.approx(1 / 3), 0)
    assert (second.answer, second.gold) == (pytest.approx(2 / 3), pytest.approx((1 / 2 + 0) / 2))
    assert (third.answer, third.gold, third.n) == (pytest.approx(2 / 3), pytest.approx((1 + 0) / 2), 3)
    assert recall_at([sample()], [sample("Oslo")], [1])[0].gold is None


def test_distractors_mention_no_answer() -> None:
    corpus = (*CORPUS, Document("Dora Quist", "She hated copper and the north shaft."), CORPUS[0])
    found = find_distractors(SAMPLE, BM25Retriever(corpus), 3)
    assert len(found) == 3
    assert len(set(found)) == 3  # a text that stands twice in the corpus is taken once
    assert not any(mentions(f"{d.title} {d.text}", SAMPLE.answers) or d.gold for d in found)
    everything = find_distractors(SAMPLE, BM25Retriever(corpus), 99)
    assert {d.title for d in everything} == {"Copper mine", "Silver mine", "Harbour", "Orchard"}


def test_wrong_arguments_are_sentences() -> None:
    with pytest.raises(UserError, match="at least one document"):
        BM25Retriever([])
    with pytest.raises(UserError, match="at least 1"):
        list(attach([SAMPLE], BM25Retriever(CORPUS), 0))


def letters(texts) -> np.ndarray:
    return np.array([[text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts], float)


def test_dense_retriever_ranks_by_cosine(own_cache: Path) -> None:
    retriever = DenseRetriever(CORPUS, model="letters", encode=letters)
    vectors = letters([f"{d.title} {d.text}" for d in CORPUS])
    question = letters([SAMPLE.question])[0]
    cosines = vectors @ question / np.linalg.norm(vectors, axis=1) / np.linalg.norm(question)
    assert retriever.search(SAMPLE.question, 5) == [CORPUS[index] for index in np.argsort(-cosines)]
    calls: list[int] = []

    def counting(texts) -> np.ndarray:
        calls.append(len(texts))
        return letters(texts)

    again = DenseRetriever(CORPUS, model="letters", encode=counting)
    assert again.scores(SAMPLE.question) == pytest.approx(cosines, rel=1e-5)
    assert calls == [1]  # the corpus came from the cache
    assert len(list((own_cache / "dense").iterdir())) == 1
    DenseRetriever(CORPUS, model="capitals", encode=counting)  # another encoder's vectors are its own
    assert calls == [1, len(CORPUS)] and len(list((own_cache / "dense").iterdir())) == 2


def test_dense_retriever_without_the_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(UserError, match=r"floatscope\[dense\]"):
        DenseRetriever(CORPUS)
