"""Documents as a sample has them, from the command line to the report; what is changed or cannot be read is told."""

import json
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import floatscope as fs
from floatscope import cli
from floatscope.canvas import positions
from floatscope.qa.tasks import read_task
from floatscope.study.store import Run


def run(monkeypatch, capsys, *arguments):
    """Exit code, stdout and stderr of one call."""
    monkeypatch.setattr(sys, "argv", ["floatscope", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    told = capsys.readouterr()
    return stopped.value.code, told.out, told.err


@pytest.fixture
def questions(tmp_path):
    """Samples of the world with two, three and four documents, the gold one where the world has put it."""
    lines = []
    for count in (2, 3, 4):
        sample = read_task(f"world:rag:{count}", limit=3).samples[count - 2]
        documents = [vars(document) for document in sample.documents]
        lines.append({"question": sample.question, "answers": sample.answers, "documents": documents})
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.mark.slow
def test_own_documents_are_the_default_of_a_file_and_stay_as_they_are(monkeypatch, capsys, tmp_path, questions):
    asked = ("--model", "twin-llada", "--task", questions, "--length", 4, "--trace", 3)
    code, shown, _ = run(monkeypatch, capsys, "evaluate", *asked, "--out", tmp_path / "run")
    assert code == 0
    found = Run(tmp_path / "run")
    assert found.study.conditions[0].values == "0,own"
    samples = read_task(str(questions)).samples
    for path, sample in zip(found.traces(condition="documents/own"), samples, strict=True):
        trace = fs.Trace.load(path)
        texts = np.array(trace.texts_or_ids)
        for number, document in enumerate(sample.documents, 1):
            words = "".join(texts[positions(trace.regions, f"doc {number}")])
            assert words.replace(" ", "").endswith(document.text.replace(" ", ""))
        assert f"doc {len(sample.documents) + 1}" not in trace.region_labels
    rows = found.results().filter(control="", model="twin-llada")
    scores = found.scores().filter(metric="accuracy", model="twin-llada")
    own, none = (rows.filter(condition=f"documents/{name}")["accuracy"].to_list() for name in ("own", "0"))
    assert rows.filter(condition="documents/own")["documents"].to_list() == [None] * 3
    gain = scores.filter(statistic="gain").row(0, named=True)
    assert (gain["condition"], gain["documents"], gain["n"]) == ("documents/own", None, 3)
    assert gain["value"] == pytest.approx(np.mean(own) - np.mean(none))
    assert "| twin-llada | own |" in shown and "| twin-llada | gain of own |" in shown
    assert scores.filter(statistic="score")["documents"].to_list() == [0, None]
    code, path, _ = run(monkeypatch, capsys, "report", tmp_path / "run")
    page = Path(path.strip()).read_text(encoding="utf-8")
    assert code == 0 and "With their own documents " in page
    assert "with own</th>" in page and "without</th>" in page


@pytest.mark.slow
def test_the_world_beside_a_file_leaves_the_file_its_own_documents(monkeypatch, capsys, tmp_path, questions):
    asked = ("--model", "twin-arm", "--task", "world", "--task", questions, "--length", 4, "--limit", 1)
    code, _, _ = run(monkeypatch, capsys, "evaluate", *asked, "--out", tmp_path / "run")
    rows = Run(tmp_path / "run").results().filter(model="twin-arm", task="mine")
    assert code == 0 and rows["condition"].to_list() == ["documents/0", "documents/own"]


@pytest.mark.slow
def test_what_a_number_changes_is_told_once_also_with_workers(monkeypatch, capsys, tmp_path, questions):
    asked = ("--model", "twin-arm", "--task", questions, "--length", 4, "--documents", "0,3", "--workers", 2)
    with pytest.warns(UserWarning) as caught:
        code, shown, told = run(monkeypatch, capsys, "evaluate", *asked, "--out", tmp_path / "run")
    assert code == 0 and "| twin-arm | gain of 3 |" in shown
    assert [str(one.message) for one in caught] == [
        "The task 'mine': 3 documents are asked for: of 3 samples 1 have fewer and are shown others beside their gold "
        "ones, shuffled and 1 have more and are shown their first 3; 'own' in place of 3 shows them as they are given."
    ]
    assert "documents are asked for" not in told  # of the workers


def test_a_file_without_documents_is_asked_without_them(monkeypatch, capsys, tmp_path):
    path = tmp_path / "bare.jsonl"
    path.write_text('{"question": "Who is the founder of Ferrox Steel?", "answers": ["Ida Ritter"]}')
    asked = ("--model", "twin-arm", "--task", path, "--length", 4)
    code, _, told = run(monkeypatch, capsys, "evaluate", *asked, "--out", tmp_path / "run")
    assert code == 2 and "has no documents of its own: ask without them (--documents 0)" in told


@pytest.mark.slow
def test_a_text_that_the_tokenizer_does_not_know_is_told(monkeypatch, capsys, tmp_path):
    words = "Qui a fonde la maison ?"
    path = tmp_path / "french.jsonl"
    path.write_text(json.dumps({"question": words, "answers": ["x"]}))
    asked = ("--model", "twin-arm", "--task", path, "--documents", "0", "--length", 4)
    model = fs.load("twin-arm", check=False)
    ids = fs.build_prompt(model.tokenizer, words, []).ids
    unknown = int(np.count_nonzero(ids == model.tokenizer.unk_token_id))
    assert unknown >= 4
    with pytest.warns(UserWarning, match=f"twin-arm: {unknown} of the {len(ids)} tokens of its prompts are not in its"):
        run(monkeypatch, capsys, "evaluate", *asked, "--out", tmp_path / "run")
    call = ("trace", "twin-arm", "--question", words, "--length", 4, "--out", tmp_path / "t.safetensors")
    with pytest.warns(UserWarning, match=f"{unknown} of the {len(ids)} tokens of the prompt are not in the vocabulary"):
        assert run(monkeypatch, capsys, *call)[0] == 0


def test_a_tokenizer_that_knows_every_byte_knows_all_of_a_text():
    from floatscope.qa.prompts import build_canvas, unknown_tokens

    tokenizer = fs.load("twin-arm", check=False).tokenizer
    middle = build_canvas(tokenizer, "founder xyzzy", 3, "xyzzy")
    assert unknown_tokens(tokenizer, middle) == 2
    assert unknown_tokens(tokenizer, fs.build_prompt(tokenizer, "founder", [])) == 0
    tokenizer.unk_token = tokenizer.eos_token  # as of GPT-2
    assert unknown_tokens(tokenizer, middle) == 0


@pytest.mark.slow
def test_no_warning_is_told_where_all_is_as_asked(recwarn, monkeypatch, capsys, tmp_path):
    asked = ("--model", "twin-arm", "--task", "world:rag:3", "--documents", "0,3", "--length", 4, "--limit", 2)
    assert run(monkeypatch, capsys, "evaluate", *asked, "--out", tmp_path / "run")[0] == 0
    assert not [one for one in recwarn if issubclass(one.category, UserWarning)]
    assert pl.read_parquet(tmp_path / "run" / "tables" / "scores.parquet").height
