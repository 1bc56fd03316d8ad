"""Gates: guesses counted by hand, answers cut at eos, verdicts that can go either way, and a card that says it all."""

import json

import pytest

import floatscope as fs
from floatscope.errors import UserError
from floatscope.qa.samples import Document, Sample
from floatscope.twins.architecture import Shape
from floatscope.twins.cards import report, write_card
from floatscope.twins.gates import GATES, Gate, _guess, _result, answer, table
from floatscope.twins.training import Recipe, train
from floatscope.twins.world import World

WORLD = World(0)


def test_the_relation_guess_counts_the_documents_that_state_the_asked_relation():
    documents = (
        Document("Mara Voss", "Many visitors ask about it. The employer of Mara Voss is Orbis Mills."),
        Document("Ada Hale", "Ada Hale works for Calyx Bank."),
        Document("Ada Hale", "Ada Hale was born in Port Alden."),
        Document("Corvus Steel", "Little else is on record."),
    )
    sample = Sample(
        "1", "Which company employs Ada Hale?", ("Calyx Bank",), documents, {"kind": "rag", "relation": "employer"}
    )
    by_type, by_relation = _guess(sample, WORLD, "test")
    assert by_relation == 1 / 2
    assert by_type == 1 / len(WORLD.fresh["test"]["company"])


@pytest.mark.parametrize("k", [1, 3, 10])
def test_in_binding_samples_every_document_is_a_candidate(k):
    for sample in WORLD.samples("binding", 30, documents=k):
        assert _guess(sample, WORLD, "test")[1] == 1 / k


def test_no_guess_from_documents_is_right_where_none_states_the_answer():
    samples = WORLD.samples("stable-noise", 30, documents=5)
    assert all(_guess(sample, WORLD, "test")[1] == 0 < _guess(sample, WORLD, "test")[0] for sample in samples)


def test_verdicts_follow_the_bar():
    gate = Gate("binding", "binding", 2, least=0.6)
    samples = WORLD.samples("binding", 4, documents=2)
    right = [sample.answers[0] for sample in samples]
    assert _result(gate, 8, samples, right, WORLD, "test").passed is True
    half = _result(gate, 8, samples, [*right[:2], "", "not stated"], WORLD, "test")
    assert (half.right, half.passed) == (0.5, False)
    assert half.low <= 0.5 <= half.high and half.n == 4
    assert "missed" in table([half]) and "| 0.60 |" in table([half])


@pytest.fixture(scope="module")
def tiny_twin(tmp_path_factory):
    recipe = Recipe(steps=2, batch=2, rate=1e-3, warmup=1)
    shape = Shape(width=32, layers=2, heads=2, hidden=32)
    return train("parent", tmp_path_factory.mktemp("twin"), recipe=recipe, shape=shape)


def test_answers_are_text_without_eos(tiny_twin):
    texts = answer(fs.load(tiny_twin), WORLD.samples("rag", 3, documents=2), slots=4)
    assert len(texts) == 3 and all("<eos>" not in text for text in texts)


def test_a_report_measures_every_gate_and_writes_the_card(tiny_twin):
    results = report(tiny_twin, n=2, slots=(4, 6))
    for gate in GATES:
        assert [r.slots for r in results if r.gate == gate.name] == [4, 6]
    card = (tiny_twin / "README.md").read_text()
    assert "floatscope train --twin parent" in card and all(gate.name in card for gate in GATES)
    assert json.loads((tiny_twin / "gates.json").read_text())[0]["n"] == 2


def test_a_folder_without_a_log_has_no_card(tmp_path):
    with pytest.raises(UserError, match=r"log\.jsonl"):
        write_card(tmp_path, [])
