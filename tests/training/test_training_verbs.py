"""The verbs train and adapt: model, log, gates on screen and a card; mistakes are one sentence and exit code 2."""

import json
import sys

import pytest

import floatscope as fs
from floatscope.cli import main
from floatscope.models.twins import TwinShape
from floatscope.training import gates, runs
from floatscope.training.gates import GATES, HARDER
from floatscope.training.recipe import TwinRecipe

pytestmark = pytest.mark.slow

CELLS = (GATES[0], GATES[2], HARDER[2])  # all of them take minutes; test_card measures all


@pytest.fixture
def tiny(monkeypatch):
    """The recipe of two steps, the shape of a thumbnail, three cells."""
    recipe = TwinRecipe(steps=2, batch=2, rate=1e-3, warmup=1)
    monkeypatch.setattr(runs, "RECIPES", dict.fromkeys(("parent", "arm", "dream", "llada"), recipe))
    monkeypatch.setattr(gates, "GATES", CELLS[:2])
    monkeypatch.setattr(gates, "HARDER", CELLS[2:])
    monkeypatch.setattr(runs, "TwinShape", lambda: TwinShape(width=16, layers=2, heads=2, hidden=16))


def run(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["floatscope", *map(str, words)])
    with pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code, capsys.readouterr()


def test_train_makes_a_fork_with_its_gates_and_card(tiny, tmp_path, monkeypatch, capsys):
    words = ["train", "--samples", 2, "--out"]
    code, said = run(monkeypatch, capsys, *words, tmp_path / "parent", "--twin", "parent")
    assert code == 0
    out = tmp_path / "llada"
    recipe = ["--steps", 3, "--no-muon", "--passages", 0.5]
    forked = [out, "--twin", "llada", "--parent", tmp_path / "parent", "--seed", 3, *recipe]
    code, said = run(monkeypatch, capsys, *words, *forked)
    assert code == 0 and all(gate.name in said.out for gate in CELLS) and str(out) in said.out
    card = (out / "README.md").read_text()
    assert all(line in card for line in said.out.splitlines() if line.startswith("| binding"))
    assert fs.load(out).family.name == "llada"
    rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert (rows[0]["twin"], rows[0]["seed"], rows[-1]["step"]) == ("llada", 3, 3)
    given = {"steps": 3, "muon": False, "passages": 0.5, "batch": 2, "rate": 1e-3}  # the last two: the twin's own
    assert given.items() <= rows[0].items()


def test_a_mistake_with_train_is_one_sentence(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    for words, sentence in (
        (("--twin", "bert", "--out", tmp_path / "x"), "bert"),
        (("--twin", "arm", "--out", tmp_path / "x", "--parent", tmp_path / "nowhere"), "no trained parent"),
        (("--twin", "arm", "--out", tmp_path / "file"), "Cannot make the folder"),
        (("--twin", "parent", "--out", tmp_path / "x", "--samples", 0), "at least one sample each, not --samples 0"),
        (("--twin", "arm", "--out", tmp_path / "x", "--passages", 1.5), "passages is 1.5: use at least 0, at most 1"),
        (("--twin", "arm", "--out", tmp_path / "x", "--rate", "nan"), "rate is nan: use at least 0"),
    ):
        code, said = run(monkeypatch, capsys, "train", *words)
        assert code == 2 and sentence in said.err and len(said.err.strip().splitlines()) == 1
    assert not (tmp_path / "x").exists()


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
    found = sorted(file.name for file in (tmp_path / "split").iterdir())
    assert code == 0 and found == ["held_out.jsonl", "passages.jsonl"]
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
def test_a_mistake_with_adapt_is_one_sentence(parent, data_file, tmp_path, monkeypatch, capsys, words, sentence):
    words = [parent if word == "PARENT" else word for word in words]
    code, said = run(monkeypatch, capsys, "adapt", *words, "--data", data_file, "--out", tmp_path / "out")
    assert code == 2 and sentence in said.err and len(said.err.strip().splitlines()) == 1
