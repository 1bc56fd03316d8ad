"""The verb adapt: from files to an adapter with its card, and mistakes as one sentence."""

import json
import sys

import pytest

import floatscope as fs
from floatscope.cli import main

pytestmark = pytest.mark.slow


def run(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["floatscope", *map(str, words)])
    with pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code, capsys.readouterr()


def test_adapt_makes_a_fork_that_answers(parent, data_file, tmp_path, monkeypatch, capsys):
    out = tmp_path / "llada"
    words = ["adapt", parent, "--to", "llada", "--data", data_file, "--out", out, "--steps", 4, "--rank", 2]
    words += ["--window", 16, "--held-out", 14, "--samples", 4, "--merge", "--data-note", "Made up."]
    code, said = run(monkeypatch, capsys, *words)
    assert code == 0 and "oracle, 1 document" in said.out and str(out) in said.out
    assert fs.load(out).family.name == "fork-llada" and (out / "merged" / "model.safetensors").exists()
    assert "Made up." in (out / "README.md").read_text()
    settings = json.loads((out / "log.jsonl").read_text().splitlines()[0])
    assert settings["steps"] == 4 and settings["rank"] == 2 and settings["held_out"] == 14
    words = ["evaluate", "--model", out, "--task", out / "held_out.jsonl", "--documents", "0,3", "--length", 4]
    code, said = run(monkeypatch, capsys, *words, "--limit", 2, "--raw", "--out", tmp_path / "run")
    assert code == 0, said.err
    # The held-out questions alone, without training, are the same.
    words = ["adapt", parent, "--to", "dream", "--data", data_file, "--out", tmp_path / "split", "--split-only"]
    code, said = run(monkeypatch, capsys, *words, "--window", 16, "--held-out", 14)
    assert code == 0 and [file.name for file in (tmp_path / "split").iterdir()] == ["held_out.jsonl"]
    assert (tmp_path / "split" / "held_out.jsonl").read_text() == (out / "held_out.jsonl").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere", "--to", "dream"], "no model at 'nowhere'"),
        (["PARENT", "--to", "bert"], "Invalid value"),
        (["PARENT", "--to", "arm", "--samples", "0"], "at least one sample"),
        (["PARENT", "--to", "arm", "--rank", "0"], "rank is 0"),
        (["PARENT", "--to", "arm", "--held-out", "1000"], "too few to hold out"),
    ],
)
def test_a_mistake_is_one_sentence(parent, data_file, tmp_path, monkeypatch, capsys, words, sentence):
    words = [parent if word == "PARENT" else word for word in words]
    code, said = run(monkeypatch, capsys, "adapt", *words, "--data", data_file, "--out", tmp_path / "out")
    assert code == 2 and sentence in said.err and len(said.err.strip().splitlines()) == 1
