"""The shipped twins answer from documents they have never seen, and their untrained versions do not."""

import json
import time
from dataclasses import asdict

import pytest
import torch
from safetensors.torch import load_file

import floatscope as fs
from floatscope.twins.architecture import SHIPPED, WEIGHTS
from floatscope.twins.gates import GATES, HARDER, SLOTS
from floatscope.twins.training import RECIPES
from floatscope.twins.world import World

pytestmark = pytest.mark.slow

SAMPLERS = {
    "twin-arm": fs.AutoregressiveSampler(length=8),
    "twin-dream": fs.DreamSampler(steps=8, length=8),
    "twin-llada": fs.LLaDASampler(steps=8, length=8),
}


def right(name: str, twin: str) -> float:
    """Share of test questions on three documents whose answer is in what the model writes."""
    model = fs.load(name)
    samples = World().samples("binding", 20, documents=3, seed=5)
    prompts = [fs.build_prompt(model.tokenizer, sample.question, sample.documents).ids for sample in samples]
    written = [model.tokenizer.decode(found.answer) for found in fs.generate(model, prompts, SAMPLERS[twin])]
    return sum(sample.answers[0] in text for sample, text in zip(samples, written, strict=True)) / len(samples)


@pytest.mark.parametrize("twin", SAMPLERS)
def test_a_twin_answers_from_its_documents(twin):
    assert right(twin, twin) >= 0.7  # guessing one of the three gives 0.33
    assert right(f"{twin}-untrained", twin) <= 0.1


@pytest.mark.parametrize("twin", SAMPLERS)
def test_a_question_on_three_documents_takes_less_than_a_second_of_one_core(twin):
    model = fs.load(twin)
    sample = World().samples("rag", 1, documents=3)[0]
    prompt = fs.build_prompt(model.tokenizer, sample.question, sample.documents)
    fs.generate(model, prompt.ids, SAMPLERS[twin])  # the first call also warms up torch
    start = time.process_time()  # of all threads together
    fs.generate(model, prompt.ids, SAMPLERS[twin])
    assert time.process_time() - start < 1.0


def test_the_weights_are_small_and_half_precision():
    assert sum(path.stat().st_size for path in WEIGHTS.rglob("*")) <= 8_000_000
    for name in SHIPPED:
        tensors = load_file(WEIGHTS / name / "model.safetensors")
        assert all(tensor.dtype == torch.float16 for tensor in tensors.values())
        assert sum(tensor.numel() for tensor in tensors.values()) <= 1_000_000


@pytest.mark.parametrize("name", SHIPPED)
def test_a_card_says_how_a_twin_was_made_and_what_it_can_do(name):
    card = (WEIGHTS / name / "README.md").read_text()
    rows = [json.loads(line) for line in (WEIGHTS / name / "log.jsonl").read_text().splitlines()]
    assert f"floatscope train --twin {name.removeprefix('twin-')}" in card and f"{rows[-1]['tokens']:,} tokens" in card
    gates = json.loads((WEIGHTS / name / "gates.json").read_text())
    assert {(gate.name, slots) for gate in GATES for slots in SLOTS} <= {
        (cell["gate"], cell["slots"]) for cell in gates if cell["n"] >= 500
    }
    assert {gate.name for gate in HARDER} <= {cell["gate"] for cell in gates}
    assert all(f"| {cell['gate']} | {cell['slots']} | {cell['n']} | {cell['right']:.3f} " in card for cell in gates)


def test_the_parent_was_trained_by_its_command():
    settings = json.loads((WEIGHTS / "twin-parent" / "log.jsonl").read_text().splitlines()[0])
    assert settings == {"twin": "parent", "seed": 0, **asdict(RECIPES["parent"])}


def test_the_forks_were_trained_alike_on_the_same_number_of_tokens():
    logs = [(WEIGHTS / f"twin-{twin}" / "log.jsonl").read_text().splitlines() for twin in ("arm", "dream", "llada")]
    assert len({json.loads(log[-1])["tokens"] for log in logs}) == 1
    settings = [json.loads(log[0]) for log in logs]
    assert all({**one, "twin": ""} == {"twin": "", "seed": 0, **asdict(RECIPES["arm"])} for one in settings)
