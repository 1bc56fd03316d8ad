"""`floatscope train`: a model, a log, gates on screen and a card; mistakes are one sentence and exit code 2."""

import json
import sys

import pytest

import floatscope as fs
from floatscope import cli
from floatscope.twins import cards, training
from floatscope.twins.architecture import Shape
from floatscope.twins.gates import GATES, HARDER
from floatscope.twins.training import Recipe

pytestmark = pytest.mark.slow

CELLS = (GATES[0], GATES[2], HARDER[2])  # all of them take minutes; test_gates measures all


@pytest.fixture
def tiny(monkeypatch):
    """The recipe of two steps, the shape of a thumbnail, three cells."""
    recipe = Recipe(steps=2, batch=2, rate=1e-3, warmup=1)
    monkeypatch.setattr(training, "RECIPES", dict.fromkeys(training.TWINS, recipe))
    monkeypatch.setattr(cards, "GATES", CELLS[:2])
    monkeypatch.setattr(cards, "HARDER", CELLS[2:])
    monkeypatch.setattr(training, "Shape", lambda: Shape(width=16, layers=2, heads=2, hidden=16))


@pytest.fixture
def run(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["floatscope", "train", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return stopped.value.code, *capsys.readouterr()

    return call


def test_train_makes_a_fork_with_its_gates_and_card(tiny, run, tmp_path):
    code, shown, _ = run("--twin", "parent", "--out", tmp_path / "parent", "--samples", 2)
    assert code == 0
    code, shown, _ = run(
        "--twin", "llada", "--out", tmp_path / "llada", "--parent", tmp_path / "parent", "--samples", 2
    )
    assert code == 0 and all(gate.name in shown for gate in CELLS)
    card = (tmp_path / "llada" / "README.md").read_text()
    assert all(line in card for line in shown.splitlines() if line.startswith("| binding"))
    assert fs.load(tmp_path / "llada").family.name == "llada"
    rows = [json.loads(line) for line in (tmp_path / "llada" / "log.jsonl").read_text().splitlines()]
    assert rows[0]["twin"] == "llada" and rows[-1]["step"] == 2


def test_mistakes_are_sentences(run, tmp_path):
    (tmp_path / "file").touch()
    for arguments, words in (
        (("--twin", "bert", "--out", tmp_path / "x"), "bert"),
        (("--twin", "arm", "--out", tmp_path / "x", "--parent", tmp_path / "nowhere"), "no trained parent"),
        (("--twin", "arm", "--out", tmp_path / "file"), "Cannot make the folder"),
        (("--twin", "parent", "--out", tmp_path / "x", "--samples", 0), "samples"),
    ):
        code, _, said = run(*arguments)
        assert code == 2 and words in said and len(said.strip().splitlines()) == 1
    assert not (tmp_path / "x").exists()
