"""What a study lacks is said before it runs, from this machine alone."""

import json

import pytest

from floatscope.study.checking import check_study
from floatscope.study.plan import Curve, ModelPlan, PromptPlan, TaskPlan
from tests.study.small_studies import small_study
from tests.tiny_models import tiny_model


def lacks(**changes) -> dict[str, str]:
    return {finding.part: finding.lacks for finding in check_study(small_study(**changes))}


def test_the_twins_lack_nothing():
    assert lacks() == dict.fromkeys(["model twin-arm", "model twin-llada", "task rag", "task twohop", "prompt"], "")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub cache with one model of two shards, of which one is missing."""
    folder = tmp_path / "hub" / "models--owner--half"
    snapshot = folder / "snapshots" / ("a" * 40)
    tiny_model("llama").backbone.save_pretrained(snapshot, max_shard_size="40KB")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("a" * 40)
    shards = sorted(snapshot.glob("model-*.safetensors"))
    assert len(shards) > 1
    shards[-1].unlink()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return shards[-1].name


def test_weights_that_are_missing_or_half_there(tmp_path, hub):
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "pickled" / "pytorch_model.bin").write_bytes(b"x")
    models = [
        ModelPlan("away", "owner/away"), ModelPlan("half", "owner/half"), ModelPlan("nowhere", "./nowhere"),
        ModelPlan("pickled", str(tmp_path / "pickled")), ModelPlan("gpu", "twin-arm", device="cuda"),
        ModelPlan("odd", "twin-llada", sampler={"block": 3}), ModelPlan("kin", "twin-llada", family="lada"),
    ]  # fmt: skip
    found = lacks(models=tuple(models))
    assert "not on this machine" in found["model away"]
    assert "1 of its weight files are missing" in found["model half"] and hub in found["model half"]
    assert "no model at './nowhere'" in found["model nowhere"]
    assert "pickled weights" in found["model pickled"]
    assert "cuda" in found["model gpu"]
    assert "with 4 slots" in found["model odd"]
    assert "lada" in found["model kin"]


def test_data_and_templates_that_are_missing_or_wrong(tmp_path):
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text('{"question": "Who?", "answers": ["x"]}\nno json\n')
    bare = tmp_path / "bare.jsonl"
    bare.write_text(json.dumps({"question": "Who?", "answers": ["x"]}))
    tasks = (TaskPlan("none.jsonl", corpus="neither.jsonl"), TaskPlan(str(wrong)), TaskPlan(str(bare)))
    found = lacks(tasks=tasks, conditions=(Curve("documents", "3"),), prompt=PromptPlan("mine.txt"))
    assert "no file none.jsonl and no file neither.jsonl" in found["task none"]
    assert "line 2" in found["task wrong"]
    assert "No sample fits the condition 'documents/3'" in found["task bare"]
    assert "mine.txt" in found["prompt"]


def test_a_family_that_is_named_is_not_looked_for(tmp_path):
    tiny_model("llama").backbone.save_pretrained(tmp_path / "mine")
    config = json.loads((tmp_path / "mine" / "config.json").read_text()) | {"model_type": "mystery"}
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config | {"architectures": ["MysteryLM"]}))
    found = lacks(
        models=(
            ModelPlan("named", str(tmp_path / "mine"), family="llada"),
            ModelPlan("odd", str(tmp_path / "mine"), family="llada", sampler={"block": 3}),
            ModelPlan("unknown", str(tmp_path / "mine")),
        )
    )
    assert found["model named"] == "" and "with 4 slots" in found["model odd"]
    assert "unknown family" in found["model unknown"]


def test_slots_of_a_condition_are_those_that_the_sampler_must_fill():
    curves = (Curve("slots", "6,8"),)
    found = lacks(models=(ModelPlan("odd", "twin-llada", sampler={"block": 4}),), conditions=curves)
    assert "with 6 slots" in found["model odd"]
    curves = (Curve("slots", "8,12"),)
    found = lacks(models=(ModelPlan("even", "twin-llada", sampler={"block": 4}),), conditions=curves)
    assert found["model even"] == ""
