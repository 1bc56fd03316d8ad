"""Corpora from files and samples, their hash, and the cache that indices live in."""

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from floatscope.cache import cache_folder, cached
from floatscope.errors import UserError
from floatscope.qa.corpus import content_hash, documents_of, read_corpus
from floatscope.qa.samples import Document, Sample

ENTRIES = [{"title": "One", "text": "First text."}, {"text": "Zweiter — Text."}, {"title": "", "contents": "x"}]
DOCUMENTS = (Document("One", "First text."), Document("", "Zweiter — Text."), Document("", "x"))


@pytest.mark.parametrize("compress", [False, True])
def test_corpus_of_lines_and_of_one_list(tmp_path: Path, compress: bool) -> None:
    for name, text in (("c.jsonl", "\n".join(map(json.dumps, ENTRIES))), ("c.json", json.dumps(ENTRIES, indent=1))):
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if compress else text.encode())
        assert read_corpus(path) == DOCUMENTS


def test_corpus_of_text_files(tmp_path: Path) -> None:
    """Folders within are read too; a first line that ends in a colon is the title, else the file's name is."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "b.txt").write_text("A bell:\nAnna cast it.\n")
    (tmp_path / "deep" / "a.md").write_text("Two lines.\nBoth: text.")
    (tmp_path / "photo.png").write_bytes(b"\x89")
    assert read_corpus(tmp_path) == (Document("A bell", "Anna cast it."), Document("a", "Two lines.\nBoth: text."))
    (tmp_path / "b.txt").write_text(" \n")
    with pytest.raises(UserError, match=r"b\.txt is empty"):
        read_corpus(tmp_path)
    with pytest.raises(UserError, match=r"holds no \.txt or \.md file"):
        (tmp_path / "none").mkdir()
        read_corpus(tmp_path / "none")


def test_wrong_corpus_is_a_sentence_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    for line, sentence in (('{"title": "only"}', "line 2: it has no field `text` or `contents`"), ("{", "line 2")):
        path.write_text(json.dumps(ENTRIES[0]) + "\n" + line)
        with pytest.raises(UserError, match=sentence):
            read_corpus(path)
    path.write_text("[]")
    with pytest.raises(UserError, match="no document"):
        read_corpus(path)
    with pytest.raises(UserError, match="no corpus file"):
        read_corpus(tmp_path / "none.jsonl")


def test_documents_of_samples_come_once_and_lose_their_gold() -> None:
    gold, other = Document("g", "gold", gold=True), Document("o", "other")
    samples = [Sample("1", "q", ("a",), (other, gold)), Sample("2", "q", ("a",), (Document("g", "gold"),))]
    assert documents_of(samples) == (other, Document("g", "gold"))


def test_hash_follows_content_order_and_settings() -> None:
    base = content_hash(DOCUMENTS, "bm25")
    assert base == content_hash([Document(d.title, d.text, gold=True) for d in DOCUMENTS], "bm25")
    others = [
        content_hash(DOCUMENTS, "dense"),
        content_hash(DOCUMENTS[::-1], "bm25"),
        content_hash(DOCUMENTS[:2], "bm25"),
        content_hash([Document("On", "eFirst text."), *DOCUMENTS[1:]], "bm25"),
    ]
    assert len({base, *others}) == 5


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLOATSCOPE_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("FLOATSCOPE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_folder() == tmp_path / "x" / "floatscope"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_folder() == Path.home() / "Library" / "Caches" / "floatscope"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cache_folder() == tmp_path / "local" / "floatscope" / "Cache"


class Counted:
    """An array that is saved as a file, and how often it was built."""

    def __init__(self) -> None:
        self.built = 0

    def get(self) -> np.ndarray:
        return cached("test", "key", self.load, self.build, self.save)

    def build(self) -> np.ndarray:
        self.built += 1
        return np.arange(5)

    @staticmethod
    def load(folder: Path) -> np.ndarray:
        return np.load(folder / "a.npy")

    @staticmethod
    def save(value: np.ndarray, folder: Path) -> None:
        folder.mkdir()
        np.save(folder / "a.npy", value)


def test_cache_builds_once_and_mends_damage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLOATSCOPE_CACHE", str(tmp_path))
    counted = Counted()
    for _ in range(2):
        assert counted.get().tolist() == [0, 1, 2, 3, 4]
    assert counted.built == 1
    file = tmp_path / "test" / "key" / "a.npy"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.warns(UserWarning, match="damaged"):
        assert counted.get().tolist() == [0, 1, 2, 3, 4]
    assert counted.get().tolist() == [0, 1, 2, 3, 4]
    assert counted.built == 2
    assert [path.name for path in (tmp_path / "test").iterdir()] == ["key"]


def test_cache_that_cannot_be_written_only_warns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FLOATSCOPE_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="could not be cached"):
        assert Counted().get().tolist() == [0, 1, 2, 3, 4]
