"""Cards and tables of gates: what they say of a run, line by line."""

import json
from dataclasses import asdict

import pytest

from floatscope.errors import UserError
from floatscope.models.twins import TwinShape
from floatscope.statistics import Interval
from floatscope.training import gates
from floatscope.training.card import report, write_card
from floatscope.training.gates import judge, table
from floatscope.training.recipe import AdapterRecipe, TwinRecipe
from floatscope.training.runs import adapt, train

QUICK = AdapterRecipe(steps=7, batch=2, warmup=1, rank=2, window=16, held_out=14)


def test_a_table_has_the_columns_of_its_results_and_a_verdict_per_bar():
    half = Interval(0.5, 0.25, 0.75, 4)
    by_bar = judge("binding", half, {"guess_type": 0.01, "guess_relation": 1 / 3}, least=0.6, slots=8)
    by_guess = judge("fresh", half, {"guess_type": 0.01, "guess_relation": None}, passed=True, slots=8)
    too_good = judge("fresh", half, {"guess_type": 0.01, "guess_relation": None}, passed=False, slots=32)
    watched = judge("harder", half, {"guess_type": 0.0, "guess_relation": 0.0}, slots=32)
    assert table([by_bar, by_guess, too_good, watched]).splitlines() == [
        "| gate | slots | n | right (95% interval) | guess: type | guess: relation | bar |  |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| binding | 8 | 4 | 0.500 (0.250 to 0.750) | 0.010 | 0.333 | 0.600 | missed |",
        "| fresh | 8 | 4 | 0.500 (0.250 to 0.750) | 0.010 |  | guess | met |",
        "| fresh | 32 | 4 | 0.500 (0.250 to 0.750) | 0.010 |  | guess | missed |",
        "| harder | 32 | 4 | 0.500 (0.250 to 0.750) | 0.000 | 0.000 |  |  |",
    ]
    written = judge("passages", half, {"wrong": 0.25, "invented": 0.0}, least=0.4)
    assert table([by_bar, written]).splitlines()[2:] == [
        "| binding | 8 | 4 | 0.500 (0.250 to 0.750) | 0.010 | 0.333 |  |  | 0.600 | missed |",
        "| passages |  | 4 | 0.500 (0.250 to 0.750) |  |  | 0.250 | 0.000 | 0.400 | met |",
    ]
    assert by_bar == {
        "gate": "binding", "slots": 8, "n": 4, "right": 0.5, "low": 0.25, "high": 0.75, "guess_type": 0.01,
        "guess_relation": 0.3333, "least": 0.6, "passed": False,
    }  # fmt: skip
    plain = judge("oracle", half, {"exact": 0.25}, least=0.5)
    assert plain["passed"] is True and "slots" not in plain and "slots" not in table([plain])
    assert "| oracle | 4 | 0.500 (0.250 to 0.750) | 0.250 | 0.500 | met |" in table([plain])


@pytest.mark.slow
def test_a_twins_card_says_how_it_was_made_and_what_it_can_do(tmp_path, monkeypatch):
    monkeypatch.setattr(gates, "SLOTS", (4, 6))
    shape = TwinShape(width=32, layers=2, heads=2, hidden=32)
    recipe = TwinRecipe(steps=2, batch=2, rate=1e-3, warmup=1, muon=False)
    out = train("parent", tmp_path / "twin", recipe=recipe, shape=shape, seed=4)
    results = report(out, 2)
    card = (out / "README.md").read_text()
    last = json.loads((out / "log.jsonl").read_text().splitlines()[-1])
    for line in (
        "# twin-parent",
        "- Command: `floatscope train --twin parent --out DIR --seed 4 --steps 2 --batch 2 --rate 0.001 --warmup 1 "
        "--no-muon`",
        "- seed 4, steps 2, batch 2, rate 0.001, warmup 1, floor 0.05, horizon 0, cooldown 0, clip 1.0, decay 0.05, "
        "text 0.1, gap 0.3, full 0.5, whole 0.15, hint 1.0, muon False, passages 0.2, patience 120, hopping 400",
        f"- Trained for 2 steps, {last['tokens']:,} tokens, 0 minutes; last loss {last['loss']}. Log: log.jsonl.",
        *table(results).splitlines(),
    ):
        assert line in card.splitlines()
    for gate in gates.GATES:
        assert [r["slots"] for r in results if r["gate"] == gate.name] == [4, 6]
    assert json.loads((out / "gates.json").read_text()) == results


@pytest.mark.slow
def test_an_adapters_card_says_how_it_was_made_and_what_it_can_do(parent, data_file, tmp_path):
    out = adapt(parent, "dream", [data_file], tmp_path / "dream", QUICK)
    told = []
    results = report(out, 5, "Made-up questions, CC0.", lambda name, done, total: told.append((done, total)))
    settings, *rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    card = (out / "README.md").read_text()
    assert card.startswith("# dream\n\nA Dream-style masked diffusion fork: ")
    for line in (
        f"- Parent: {parent}",
        "- Mask token: id 3, its embedding trained too",
        f"- Command: `floatscope adapt {parent} --to dream --data questions.jsonl --out DIR --seed 0 --steps 7 "
        "--batch 2 --warmup 1 --rank 2 --window 16 --held-out 14`",
        "- batch 2, rate 0.001, warmup 1, floor 0.1, clip 1.0",
        f"- Trained for 7 steps, {rows[-1]['tokens']:,} tokens, 0 minutes; last loss {rows[-1]['loss']}",
        "- Data, of which about 14 questions were held out by passage:",
        f"  - questions.jsonl, SHA-256 `{settings['data']['questions.jsonl']}`",
        "- Made-up questions, CC0.",
        *table(results).splitlines(),
    ):
        assert line in card.splitlines()
    assert [row["gate"] for row in json.loads((out / "gates.json").read_text())] == [r["gate"] for r in results]
    assert told == [(i, 4) for i in range(4)]


def test_a_folder_without_a_log_has_no_card(tmp_path):
    with pytest.raises(UserError, match=r"no log\.jsonl"):
        write_card(tmp_path, [])


def test_the_card_tells_of_a_known_parent_and_of_the_last_step_that_was_trained(tmp_path):
    """A read-out may be the last line of the log, and an ARM has no mask token."""
    settings = {"to": "arm", "parent": "smollm2-135m", "mask_id": None, "data": {"nq.jsonl": "ab12"}, "seed": 0}
    settings |= asdict(AdapterRecipe(steps=100, window=24))
    rows = [settings, {"step": 100, "tokens": 123456, "loss": 0.5, "seconds": 170.0}, {"step": 100, "read_out": 0.25}]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    write_card(tmp_path, [])
    card = (tmp_path / "README.md").read_text()
    for line in (
        "- Parent: smollm2-135m (SmolLM2-135M-Instruct by Hugging Face, Apache-2.0)",
        "- Trained for 100 steps, 123,456 tokens, 3 minutes; last loss 0.5",
        "- Command: `floatscope adapt smollm2-135m --to arm --data nq.jsonl --out DIR --seed 0 --steps 100 "
        "--window 24`",
        "- Data, of which about 400 questions were held out by passage:",
        "Documents are windows of about 24 tokens.",
    ):
        assert line in card.splitlines()
    assert "An autoregressive fork" in card and "Mask token" not in card and "Greedy, 12 tokens at most." in card
