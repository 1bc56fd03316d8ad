"""Every shape is read from a hand-made file as one would read it; wrong data is named by its place."""

import gzip
import json
import sys
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest

from floatscope.errors import UserError
from floatscope.qa.corpus import read_corpus
from floatscope.qa.readers import SHAPES, Shape, WrongRecord, read_samples
from floatscope.qa.samples import Document, Sample
from floatscope.qa.templates import read_template

FIXTURES = Path(__file__).parent / "fixtures"

LITM_GOLD = Document("Salt caves", "Ilse Brandt mapped the salt caves.", gold=True)
MILL = Document("Hollow Creek", "Hollow Creek was settled by millers in 1790.", gold=True)
HOTPOT = Sample(
    "h1",
    "In which town was the maker of the Quill clock born?",
    ("Marrow",),
    (
        Document("Quill clock", "The Quill clock was made by Anna Petrel. It still runs.", gold=True),
        Document("Sundial", "A sundial has no wheels."),
        Document("Anna Petrel", "Anna Petrel made clocks. She was born in Marrow.", gold=True),
    ),
    {"type": "bridge", "level": "hard", "gold_titles": ("Quill clock", "Anna Petrel")},
)
TRIVIA = Sample(
    "t1",
    "Which river runs through Pellingham?",
    ("River Ombre", "Ombre", "The Ombre"),
    (Document("Rivers of the north", "The Ombre runs through Pellingham."),),
)
MARCO = Sample(
    "501",
    "what is a gannow",
    ("A small cart", "A gannow is a small cart."),
    (Document("", "Carts have wheels."), Document("", "A gannow is a small cart for hay.", gold=True)),
    {"type": "DESCRIPTION"},
)

EXPECTED: dict[str, tuple[str, list[Sample]]] = {
    "paper.jsonl": (
        "paper",
        [
            Sample(
                "p1",
                "Who keeps the lamp of Orrin Bay?",
                ("Tessa Vane", "T. Vane"),
                (
                    Document("Orrin Bay", "The lamp of Orrin Bay is kept by Tessa Vane."),
                    Document("", "Lamps need oil."),
                ),
            ),
            Sample("p2", "How many steps has the tower?", ("212",), (Document("", "The tower has 212 steps."),)),
            Sample("paper-3", "What colour is the door?", ("grün", "green")),
        ],
    ),
    "lost_in_the_middle.jsonl": (
        "lost-in-the-middle",
        [
            Sample(
                "lost_in_the_middle-1",
                "who mapped the salt caves",
                ("Ilse Brandt",),
                (
                    LITM_GOLD,
                    Document("Salt", "Salt is mined in many places. Ilse Brandt liked it."),
                    Document("Caves", "Caves are dark."),
                ),
            ),
            Sample(
                "lost_in_the_middle-2",
                "when did the bridge open",
                ("1911", "in 1911"),
                (Document("Bridge", "It opened in 1911.", gold=True), Document("Ferry", "It closed.")),
            ),
        ],
    ),
    "squad.json": (
        "squad",
        [
            Sample("s1", "Who settled Hollow Creek?", ("millers",), (MILL,)),
            Sample(
                "s2",
                "Who burned Hollow Creek?",
                (),
                (Document(MILL.title, MILL.text),),
                {"answerable": False},
            ),
            Sample(
                "squad-1-3",
                "What does the mill stand on?",
                ("oak piles",),
                (Document("Hollow Creek", "Its mill stands on oak piles.", gold=True),),
            ),
        ],
    ),
    "squad_hub.jsonl": ("squad", [Sample("s1", "Who settled Hollow Creek?", ("millers",), (MILL,))]),
    "hotpotqa.json": ("hotpotqa", [HOTPOT]),
    "hotpotqa_hub.jsonl": ("hotpotqa", [HOTPOT]),
    "triviaqa.json": ("triviaqa", [TRIVIA]),
    "triviaqa_hub.jsonl": ("triviaqa", [TRIVIA]),
    "ms_marco.json": (
        "ms-marco",
        [
            MARCO,
            Sample(
                "502",
                "how old is the elm",
                (),
                (Document("", "Elms are trees."),),
                {"answerable": False, "type": "NUMERIC"},
            ),
        ],
    ),
    "ms_marco_hub.jsonl": ("ms-marco", [MARCO]),
    "kilt.jsonl": (
        "kilt",
        [
            Sample(
                "k1",
                "who carved the gate of Sarn",
                ("Odo the Elder", "Odo"),
                (),
                {"gold_titles": ("Gate of Sarn", "Sarn")},
            ),
            Sample(
                "k2",
                "Lake Vessel [SEP] located in country",
                ("Norland",),
                (),
                {"gold_titles": ("Lake Vessel",), "subject": "Lake Vessel", "relation": "located in country"},
            ),
        ],
    ),
    "plain.jsonl": (
        "plain",
        [
            Sample(
                "7",
                "Where is the key?",
                ("under the mat", "mat"),
                (Document("House", "The key is under the mat.", gold=True), Document("", "A bare text.")),
                {"relation": "place"},
            ),
            Sample("plain-2", "Wie heißt der Kater?", ("Möhre",)),
            Sample("plain-3", "How many?", ("12",)),
        ],
    ),
}


WORDS = [f"w{number}" for number in range(31)]
EXPECTED["passages.jsonl"] = (
    "passage",
    [
        Sample("a", "", (" gap ",), (), {}, "Text before", "after it."),
        Sample("b", "", ("last words",), (), {}, "Only before: ", ""),
        Sample(  # 31 words: 10, 10 and 11
            "passages-3", "", (" ".join(WORDS[10:20]) + " ",), (), {},
            " ".join(WORDS[:10]) + " ", " ".join(WORDS[20:]),
        ),
        Sample(  # the document of a question
            "passages-4-1", "", (" ".join(WORDS[10:20]) + "  ",), (), {},
            " ".join(WORDS[:10]) + "\n", " ".join(WORDS[20:30]),
        ),
    ],
)  # fmt: skip


def write(path: Path, *records: object) -> Path:
    path.write_text("\n".join(json.dumps(record) for record in records), encoding="utf-8")
    return path


def question(number: int) -> dict[str, str]:
    return {"id": f"q{number}", "question": f"What is {number}?", "answer": str(number)}


def test_every_shape_has_a_fixture_and_every_fixture_is_tested() -> None:
    assert {shape for shape, _ in EXPECTED.values()} == set(SHAPES)
    assert {path.name for path in FIXTURES.iterdir()} == set(EXPECTED)


def test_a_shape_that_is_added_is_asked_before_those_it_could_be_taken_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "quiz.jsonl"
    path.write_text(json.dumps({**question(1), "points": 7}))
    assert next(read_samples(path)).metadata == {}
    monkeypatch.setattr(SHAPES, "_rows", dict(SHAPES))
    SHAPES.add(
        "quiz",
        Shape(
            "quiz",
            "a quiz: question, answer, points",
            lambda data: "points" in data,
            lambda data, id: Sample(id, data["question"], (data["answer"],), (), {"points": data["points"]}),
        ),
    )
    assert next(read_samples(path)).metadata == {"points": 7}
    assert next(read_samples(path, "plain")).metadata == {}


@pytest.mark.parametrize("name", EXPECTED)
def test_fixture_reads_as_written_by_hand(name: str) -> None:
    shape, samples = EXPECTED[name]
    assert list(read_samples(FIXTURES / name, shape=shape)) == samples
    if shape != "passage":  # which is asked for by the task, as any text could be one
        assert list(read_samples(FIXTURES / name)) == samples


@pytest.mark.parametrize("name", EXPECTED)
def test_gzipped_under_any_name_reads_the_same(name: str, tmp_path: Path) -> None:
    copy = tmp_path / (name.split(".")[0] + (".json.data" if name == "passages.jsonl" else ".data"))
    copy.write_bytes(gzip.compress((FIXTURES / name).read_bytes()))
    shape = "passage" if EXPECTED[name][0] == "passage" else None
    assert list(read_samples(copy, shape)) == EXPECTED[name][1]


def test_lines_one_array_and_one_wrapped_list_are_the_same(tmp_path: Path) -> None:
    records = [question(number) for number in range(3)]
    lines = write(tmp_path / "a.jsonl", *records)
    array = tmp_path / "b.json"
    array.write_text(json.dumps(records, indent=2))
    wrapped = tmp_path / "c.json"
    wrapped.write_text(json.dumps({"version": 1, "data": records}, indent=2))
    assert list(read_samples(lines)) == list(read_samples(array)) == list(read_samples(wrapped))


def test_byte_order_mark_blank_lines_and_windows_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    body = "\r\n\r\n".join(json.dumps(question(number)) for number in range(2))
    path.write_bytes(b"\xef\xbb\xbf\r\n" + body.encode() + b"\r\n \r\n")
    assert [sample.id for sample in read_samples(path)] == ["q0", "q1"]


def test_line_separators_inside_a_text_do_not_split_a_line(tmp_path: Path) -> None:
    record = {"question": "one\u2028two\x85three", "answer": "\u00e4"}
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(record, ensure_ascii=False), encoding="utf-8")
    assert [sample.question for sample in read_samples(path)] == [record["question"]]


def test_limit_stops_before_a_wrong_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([*(json.dumps(question(number)) for number in range(30)), "{broken"]))
    assert len(list(islice(read_samples(path), 25))) == 25
    with pytest.raises(UserError, match="line 31"):
        list(read_samples(path))


WRONG_LINES = {
    "{broken": "not valid JSON",
    f'{{"question": {"9" * 5000}}}': "not valid JSON",
    '{"question": ' + "[" * 100_000: "nested too deeply",
    "[1, 2]": "list, not an object",
    '{"id": "x", "question": "Q?"}': "no answer",
    '{"id": "x", "question": " ", "answer": "a"}': "is blank",
    '{"id": "x", "question": 3, "answer": "a"}': "is a int, not a text",
    '{"id": "x", "question": "Q?", "answers": ["", null]}': "no answer",
    '{"id": "x", "question": "Q?", "answers": [true]}': "an answer is a bool",
    '{"id": "x", "question": "Q?", "answers": ["a"], "documents": [{"title": "t"}]}': "no field `text`",
    '{"id": "x", "question": "Q?", "answers": ["a"], "documents": [{"text": "t", "gold": "yes"}]}': "'yes'",
    '{"id": "q0", "question": "Q?", "answers": ["a"]}': "has the id 'q0' of line 1",
}


@pytest.mark.parametrize("line", WRONG_LINES, ids=[line[:40] for line in WRONG_LINES])
def test_wrong_line_is_fatal_or_skipped_with_its_number(line: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([json.dumps(question(0)), "", line, json.dumps(question(1))]))
    with pytest.raises(UserError, match=r"a\.jsonl, line 3: ") as caught:
        list(read_samples(path))
    assert WRONG_LINES[line] in str(caught.value)
    skipped: list[WrongRecord] = []
    assert [sample.id for sample in read_samples(path, skipped=skipped)] == ["q0", "q1"]
    assert [(entry.source, entry.place) for entry in skipped] == [("a.jsonl", "line 3")]


@pytest.mark.parametrize(
    ("shape", "record", "told"),
    [
        ("plain", {"question": "Q", "answers": ["A"], "documents": [3]}, "neither a text nor an object with a `text`"),
        ("plain", {"question": "Q", "answers": ["A"], "documents": "x"}, "its field `documents` is not a list"),
        ("plain", {"question": "Q", "answers": ["A"], "metadata": [1]}, "its field `metadata` is not an object"),
        ("kilt", {"input": "Q", "output": [{"provenance": []}]}, "it has no answer in `output[].answer`"),
        ("triviaqa", {"Question": "Q", "Answer": "A"}, "it has no object `Answer` (the test set"),
        ("triviaqa", {"Question": "Q", "Answer": {"Aliases": []}}, "its `Answer` has neither `Value` nor `Aliases`"),
        (
            "hotpotqa",
            {"question": "Q", "answer": "A", "supporting_facts": [["T"]], "context": []},
            "its field `supporting_facts` is not a list of pairs that start with a title",
        ),
        (
            "hotpotqa",
            {"question": "Q", "answer": "A", "supporting_facts": [["T", 0]], "context": [["T", "one text"]]},
            "the paragraph 'T' in `context` is not a list of sentences",
        ),
        (
            "hotpotqa",
            {"question": "Q", "answer": "A", "supporting_facts": [], "context": {"title": ["T"], "sentences": []}},
            "its field `context` is neither a list of objects nor equal columns",
        ),
        ("kilt", {"input": "Q", "output": "A"}, "its field `output` is not a list of objects"),
    ],
)
def test_what_is_wrong_with_a_record_of_a_shape_is_said(shape: str, record: object, told: str, tmp_path: Path) -> None:
    path = write(tmp_path / "some.jsonl", record)
    with pytest.raises(UserError) as error:
        list(read_samples(path, shape))
    assert told in str(error.value) and "line 1" in str(error.value)


def test_wrong_first_line_is_skipped_too(tmp_path: Path) -> None:
    for suffix in ("jsonl", "json"):
        path = tmp_path / f"a.{suffix}"
        path.write_text('{"id": "x", \n' + json.dumps(question(1)))
        skipped: list[WrongRecord] = []
        assert [sample.id for sample in read_samples(path, skipped=skipped)] == ["q1"]
        assert [entry.place for entry in skipped] == ["line 1"]


def test_wrong_question_of_an_article_leaves_its_neighbours(tmp_path: Path) -> None:
    questions = [
        {"id": "a", "question": "A?", "answers": [{"text": "a"}]},
        {"id": "b", "question": "B?"},
        {"id": "c", "question": "C?", "answers": [], "is_impossible": False},
        {"id": "d", "question": "D?", "answers": [{"text": "d"}]},
    ]
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [{"title": "T", "paragraphs": [{"context": "C", "qas": questions}]}]}))
    skipped: list[WrongRecord] = []
    assert [sample.id for sample in read_samples(path, skipped=skipped)] == ["a", "d"]
    assert [entry.place for entry in skipped] == ["item 1, question 2", "item 1, question 3"]


@pytest.mark.parametrize("half", [b"\\ud800", b"\\uDFFF", b"\xed\xa0\x80"])
def test_half_a_surrogate_pair_becomes_a_question_mark(half: bytes, tmp_path: Path) -> None:
    """No tokenizer and no file takes it; a whole pair is a character as any other."""
    line = b'{"id": "a X", "question": "Who X \\ud83d\\ude42?", "answers": ["X b"], "documents": ["of X"]}'
    (tmp_path / "mine.jsonl").write_bytes(line.replace(b"X", half))
    (sample,) = read_samples(tmp_path / "mine.jsonl")
    assert all(text.isascii() for text in (sample.id, *sample.answers, sample.documents[0].text))
    assert sample.id.startswith("a ?") and sample.question.startswith("Who ?") and "🙂" in sample.question


def test_bytes_that_are_not_utf8_are_a_wrong_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(json.dumps(question(0)).encode() + b'\n{"question": "caf\xe9", "answer": "a"}\n')
    with pytest.raises(UserError, match="line 2: it is not UTF-8"):
        list(read_samples(path))


@pytest.mark.parametrize("skip", [False, True])
def test_damaged_files_are_sentences(skip: bool, tmp_path: Path) -> None:
    whole = gzip.compress("\n".join(json.dumps(question(number)) for number in range(3000)).encode())
    cases = {
        "cut.jsonl.gz": (whole[: len(whole) // 2], "cut-off gzip"),
        "flipped.jsonl.gz": (whole[:40] + bytes([whole[40] ^ 0xFF]) + whole[41:], "damaged"),
        "empty.jsonl": (b"", "is empty"),
        "blank.jsonl": (b" \n\n", "is empty"),
        "pretty.json": (b'[\n  {"question": "Q",\n  "answer": }\n]', "not valid JSON: .* line 3"),
        "digits.json": (b"[" + b"9" * 5000 + b"]", "not valid JSON: Exceeds the limit"),
        "deep.json": (b"[" * 100_000, "not valid JSON: it is nested too deeply"),
        "number.json": (b"42", "single JSON int"),
        "pointer.jsonl": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
        "latin.json": (b'[\n{"question": "caf\xe9"}\n]', "not UTF-8"),
        "list.json": (b"[]", "no known shape"),
    }
    for name, (content, sentence) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=sentence):
            list(read_samples(tmp_path / name, skipped=[] if skip else None))


def test_a_device_is_no_file_of_samples() -> None:
    with pytest.raises(UserError, match="is a device"):
        list(read_samples("/dev/null"))


def test_nothing_usable_is_an_error_even_when_skipping(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"question": "Q?", "answers": []})
    with pytest.raises(UserError, match="no sample that can be used"):
        list(read_samples(path, skipped=[]))


def test_unknown_shape_names_what_was_found(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"prompt": "x", "completion": "y"})
    with pytest.raises(UserError, match=r"`prompt`, `completion`.*lost-in-the-middle"):
        list(read_samples(path))
    with pytest.raises(UserError, match="did you mean 'squad'"):
        next(read_samples(path, shape="sqad"))


def test_fields_that_were_not_read_are_named_where_a_sample_has_no_documents(tmp_path: Path) -> None:
    texts = {"contexts": ["A text."], "context": "Another.", "score": 0.5, "empty": [], "qid": "7"}
    path = write(tmp_path / "a.jsonl", question(0) | texts, question(1) | texts)
    with pytest.warns(UserWarning) as caught:
        samples = list(read_samples(path))
    assert [sample.documents for sample in samples] == [(), ()]
    (told,) = [str(one.message) for one in caught]  # once for a file
    assert told.startswith("a.jsonl, line 1: read as the shape 'plain', it has no documents, and nothing was read of ")
    assert "its fields `contexts`, `context`." in told and "documents[] of title, text, gold" in told
    with warnings.catch_warnings(action="error"):
        for name in ("plain.jsonl", "hotpotqa.json", "paper.jsonl", "squad_hub.jsonl"):
            list(read_samples(FIXTURES / name))


@pytest.mark.parametrize("name", ["a\0b", "a" * 5000, "a/" * 3000, "\ud800"])
def test_what_is_no_path_is_a_sentence(name: str) -> None:
    with pytest.raises(UserError, match="There is no file"):
        list(read_samples(name))
    with pytest.raises(UserError, match="There is no corpus file"):
        read_corpus(name)
    with pytest.raises(UserError, match="There is no template"):
        read_template(name)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for source, sentence in ((tmp_path / "none.json", "no file"), (tmp_path, "is a folder")):
        with pytest.raises(UserError, match=sentence):
            list(read_samples(source))


def test_hub_datasets_go_through_the_same_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def load_dataset(name: str, config: str | None, split: str, streaming: bool) -> list[object]:
        calls.append((name, config, split, streaming))
        return [json.loads(line) for line in (FIXTURES / "hotpotqa_hub.jsonl").read_text().splitlines()]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    assert list(read_samples("hf:org/hotpot@distractor:train")) == [HOTPOT]
    assert list(read_samples("hf:org/hotpot")) == [HOTPOT]
    assert calls == [("org/hotpot", "distractor", "train", True), ("org/hotpot", None, "validation", True)]


def test_hub_without_a_network_is_a_sentence() -> None:
    """The library itself, which the tests run offline."""
    pytest.importorskip("datasets", reason="the extra datasets is not installed")
    with pytest.raises(UserError, match=r"'hf:org/nowhere' cannot be read from the hub: .*Check the name") as caught:
        next(read_samples("hf:org/nowhere"))
    assert "\n" not in str(caught.value)


def test_hub_that_breaks_off_says_after_which_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows() -> Iterator[object]:
        yield json.loads((FIXTURES / "hotpotqa_hub.jsonl").read_text().splitlines()[0])
        raise ConnectionError("gone")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=lambda *_, **__: rows()))
    with pytest.raises(UserError, match="after row 1: gone"):
        list(read_samples("hf:org/hotpot", shape="hotpotqa"))


def test_hub_without_the_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"floatscope\[datasets\]"):
        list(read_samples("hf:squad"))
    with pytest.raises(UserError, match="no dataset name"):
        list(read_samples("hf:a:b:c"))
