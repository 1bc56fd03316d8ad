"""The shipped twins answer from documents they have never seen, and their untrained versions do not."""

import pytest

import floatscope as fs
from floatscope.twins.world import World

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
