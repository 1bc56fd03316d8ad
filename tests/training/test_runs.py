"""Training runs: a stopped or killed one ends as an unstopped one does, all forks see one stream, mistakes are told."""

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file, save_file

from floatscope.errors import UserError
from floatscope.models.twins import TwinShape, make_model, save_twin
from floatscope.qa.readers import read_samples
from floatscope.qa.world.vocabulary import make_tokenizer
from floatscope.training import world_stream
from floatscope.training.gates import read_out
from floatscope.training.learner import TwinLearner
from floatscope.training.objective import make_target
from floatscope.training.recipe import RECIPES, AdapterRecipe, TwinRecipe
from floatscope.training.runs import adapt, split_only, train

pytestmark = pytest.mark.slow

TINY = TwinShape(width=32, layers=2, heads=2, hidden=32)
QUICK = TwinRecipe(steps=12, batch=2, rate=1e-3, warmup=3)
ADAPTER = AdapterRecipe(steps=7, batch=2, warmup=2, rank=4, window=16, held_out=12)


@pytest.fixture(scope="module")
def twin_parent(tmp_path_factory):
    return train("parent", tmp_path_factory.mktemp("parent"), recipe=QUICK, shape=TINY)


def rows_of(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("twin", ["parent", "arm", "dream", "llada"])
def test_a_resumed_twin_ends_in_the_same_weights(twin, twin_parent, tmp_path):
    arguments = {"recipe": QUICK, "shape": TINY} if twin == "parent" else {"recipe": QUICK, "parent": twin_parent}
    train(twin, tmp_path / "whole", **arguments)
    train(twin, tmp_path / "parts", stop_after=5, **arguments)
    assert not (tmp_path / "parts" / "model.safetensors").exists()
    train(twin, tmp_path / "parts", **arguments)
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    rows = rows_of(tmp_path / "parts")
    assert [row.get("step") for row in rows] == [None, 5, 12]
    last = rows_of(tmp_path / "whole")[-1]
    assert rows[-1]["tokens"] == last["tokens"] > 0 and rows[-1]["right"] == last["right"]
    assert rows[0] == {"twin": twin, "seed": 0, **asdict(QUICK)}
    assert rows[-1].keys() == {"step", "tokens", "loss", "right", "documents", "gaps", "rate", "seconds"}


def test_a_killed_twin_ends_in_the_same_weights_and_log(tmp_path):
    code = f"""
from pathlib import Path
from floatscope.models.twins import TwinShape
from floatscope.training.recipe import TwinRecipe
from floatscope.training.runs import train
train("parent", Path({str(tmp_path / "killed")!r}), recipe={QUICK!r}, shape={TINY!r}, save_every=2)
"""
    running = subprocess.Popen([sys.executable, "-c", code])
    while not (tmp_path / "killed" / "checkpoint.pt").exists() and running.poll() is None:
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    with (tmp_path / "killed" / "log.jsonl").open("a") as log:  # logged after the last checkpoint, then killed
        log.write('{"step": 99}\n')
    for name in ("killed", "whole"):
        train("parent", tmp_path / name, recipe=QUICK, shape=TINY)
    whole, killed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
    steps = [row.get("step") for row in rows_of(tmp_path / "killed")]
    assert steps[-1] == 12 and 99 not in steps


@pytest.mark.parametrize("to", ["arm", "dream", "llada"])
def test_a_resumed_run_ends_in_the_same_adapter(to, parent, data_file, tmp_path):
    trained, out = tmp_path / "whole", tmp_path / "parts"
    adapt(parent, to, [data_file], trained, ADAPTER, seed=3)
    adapt(parent, to, [data_file], out, ADAPTER, seed=3, stop_after=3)
    assert not (out / "adapter_model.safetensors").exists()
    with (out / "log.jsonl").open("a") as log:  # logged after the last checkpoint, then killed
        log.write('{"step": 6}\n{"step": 7, "lo')
    adapt(parent, to, [data_file], out, ADAPTER, seed=3)
    names = ["adapter_model.safetensors"] + ["mask_embedding.safetensors"] * (to != "arm")
    for name in names:
        whole, parts = load_file(trained / name), load_file(out / name)
        assert whole.keys() == parts.keys() and all(torch.equal(whole[key], parts[key]) for key in whole)
    rows, same = rows_of(out), rows_of(trained)
    assert [row.get("step") for row in rows] == [None, 3, 5, 7]
    assert rows[-1].keys() == {"step", "tokens", "loss", "right", "gaps", "rate", "seconds"}
    assert rows[-1]["tokens"] == same[-1]["tokens"] and rows[-1]["loss"] == same[-1]["loss"]


def test_read_outs_are_logged_and_told(parent, data_file, tmp_path, monkeypatch):
    monkeypatch.setattr("floatscope.training.trainer.READ_EVERY", 3)
    monkeypatch.setattr("floatscope.training.runs.READ_OUT", 5)
    seen, asked = [], []

    def remembering(model, samples):
        asked.append([sample.id for sample in samples])
        return read_out(model, samples)

    monkeypatch.setattr("floatscope.training.runs.read_out", remembering)
    out = adapt(parent, "dream", [data_file], tmp_path, ADAPTER, progress=seen.append)
    assert asked == 2 * [[sample.id for sample in read_samples(out / "held_out.jsonl")][:5]]
    found = [(row["step"], row["read_out"], row["n"]) for row in rows_of(out) if "read_out" in row]
    assert [(step, n) for step, _, n in found] == [(3, 5), (6, 5)] and all(0 <= share <= 1 for _, share, _ in found)
    assert [now.read_out is not None for now in seen] == [step in (3, 6) for step in range(1, 8)]


def test_the_masks_of_a_step_follow_from_seed_and_step(twin_parent, tmp_path, monkeypatch):
    seeds = []

    def remembering(to, batch, mask_id, recipe, generator):
        seeds.append(generator.initial_seed())
        return make_target(to, batch, mask_id, recipe, generator)

    monkeypatch.setattr("floatscope.training.trainer.make_target", remembering)
    train("dream", tmp_path, recipe=replace(QUICK, steps=3), parent=twin_parent, seed=2)
    assert seeds == [2 * 1_000_003 + step for step in range(3)]


def test_progress_is_told_and_counts_tokens(twin_parent, tmp_path):
    seen = []
    train("arm", tmp_path, recipe=QUICK, parent=twin_parent, progress=seen.append)
    assert [p.step for p in seen] == list(range(1, 13))
    assert all(a.tokens < b.tokens for a, b in pairwise(seen))


def test_the_three_twins_see_the_same_tokens(twin_parent, tmp_path):
    last = {}
    for twin in ("arm", "dream", "llada"):
        train(twin, tmp_path / twin, recipe=QUICK, parent=twin_parent)
        last[twin] = rows_of(tmp_path / twin)[-1]["tokens"]
    assert len(set(last.values())) == 1
    assert RECIPES["arm"] == RECIPES["dream"] == RECIPES["llada"]


def test_lessons_are_mastered_or_end_with_patience(tmp_path, monkeypatch):
    monkeypatch.setattr(world_stream, "WINDOW", 4)
    monkeypatch.setattr(world_stream, "PASS", -1.0)  # whatever is right is enough
    quick = replace(QUICK, steps=24)
    train("parent", tmp_path / "quick", recipe=quick, shape=TINY)
    assert rows_of(tmp_path / "quick")[-1]["documents"] == 3
    monkeypatch.setattr(world_stream, "PASS", 2.0)  # never enough: binding is waited for
    train("parent", tmp_path / "slow", recipe=replace(quick, hopping=1, patience=1), shape=TINY)
    assert rows_of(tmp_path / "slow")[-1]["documents"] == 1


def test_a_fork_begins_with_its_parents_weights(twin_parent, tmp_path, monkeypatch):
    """With a rate of nothing it ends with them too."""
    train("arm", tmp_path, recipe=replace(QUICK, steps=1, rate=0.0), parent=twin_parent)
    fork, parent = (load_file(folder / "model.safetensors") for folder in (tmp_path, twin_parent))
    assert fork.keys() == parent.keys() and all(torch.equal(fork[name], parent[name]) for name in parent)


def test_another_recipe_does_not_take_up_a_checkpoint(twin_parent, tmp_path):
    train("arm", tmp_path, recipe=QUICK, parent=twin_parent, stop_after=2)
    with pytest.raises(UserError, match="another run"):
        train("arm", tmp_path, recipe=replace(QUICK, rate=5e-4), parent=twin_parent)


def test_mistakes_with_twins_are_sentences(tmp_path):
    with pytest.raises(UserError, match="Unknown twin"):
        train("bert", tmp_path)
    with pytest.raises(UserError, match="no trained parent"):
        train("arm", tmp_path, parent=tmp_path / "nowhere")
    with pytest.raises(UserError, match="has no parent"):
        train("parent", tmp_path, parent=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="Cannot make the folder"):
        train("parent", tmp_path / "file", recipe=QUICK, shape=TINY)
    (tmp_path / "checkpoint.pt").write_bytes(b"half a checkpoint")
    with pytest.raises(UserError, match="no checkpoint"):
        train("parent", tmp_path, recipe=QUICK, shape=TINY)


def test_an_mdm_is_no_parent(tmp_path):
    tokenizer = make_tokenizer()
    save_twin("dream", make_model(tokenizer, 3, TINY), tokenizer, tmp_path / "dream")
    with pytest.raises(UserError, match="no trained parent"):
        train("arm", tmp_path / "arm", parent=tmp_path / "dream")


def test_mistakes_with_adapters_are_sentences(parent, data_file, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="Unknown kind of fork 'bert'"):
        adapt(parent, "bert", [data_file], tmp_path / "a", ADAPTER)
    with pytest.raises(UserError, match="only an ARM"):
        adapt("twin-llada", "dream", [data_file], tmp_path / "a", ADAPTER)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Cannot make the folder"):
        adapt(parent, "arm", [data_file], tmp_path / "file" / "b", ADAPTER)
    out = adapt(parent, "arm", [data_file], tmp_path / "c", ADAPTER, stop_after=1)
    with pytest.raises(UserError, match=r"another run .*seed 0 and not 1"):
        adapt(parent, "arm", [data_file], out, ADAPTER, seed=1)
    held_out = (out / "held_out.jsonl").read_text()
    with pytest.raises(UserError, match=r"another run .*held_out 12 and not 20"):
        adapt(parent, "arm", [data_file], out, replace(ADAPTER, held_out=20))
    with pytest.raises(UserError, match="holds a fork"):
        split_only(parent, [data_file], out, replace(ADAPTER, held_out=20))
    assert (out / "held_out.jsonl").read_text() == held_out
    count = split_only(parent, [data_file], tmp_path / "split", ADAPTER)
    assert (tmp_path / "split" / "held_out.jsonl").read_text() == held_out
    texts = {document.text for sample in read_samples(data_file) for document in sample.documents}
    whole = [sample.documents[0].text for sample in read_samples(tmp_path / "split" / "passages.jsonl")]
    assert len(whole) == count == len(held_out.splitlines()) and set(whole) <= texts  # not cut to windows
    changed = shutil.copytree(parent, tmp_path / "changed")
    weights = load_file(changed / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    again = adapt(changed, "arm", [data_file], tmp_path / "e", ADAPTER, stop_after=1)
    save_file(weights, changed / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"another run .*parent_sha256"):
        adapt(changed, "arm", [data_file], again, ADAPTER)
    (out / "checkpoint.pt").write_bytes(b"nothing")
    with pytest.raises(UserError, match="no checkpoint of a training run"):
        adapt(parent, "arm", [data_file], out, ADAPTER)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"pip install 'floatscope\[adapt\]'"):
        adapt(parent, "arm", [data_file], tmp_path / "d", ADAPTER)


def test_a_checkpoint_of_an_earlier_version_is_refused(twin_parent, tmp_path):
    """Its settings lack what the recipe now says."""
    old = {"twin": "arm", "seed": 0, "steps": 12}
    torch.save({"settings": old, "model": {}, "optimizers": [], "step": 5}, tmp_path / "checkpoint.pt")
    with pytest.raises(UserError, match=r"belongs to another run \(batch None and not 2.*choose another folder"):
        train("arm", tmp_path, recipe=QUICK, parent=twin_parent)


def test_a_loss_that_overflows_is_told(twin_parent, tmp_path, monkeypatch):
    monkeypatch.setattr(TwinLearner, "head", lambda self, states: states @ self.embedding.weight.T * torch.inf)
    with pytest.raises(UserError, match="The loss is nan at step 0"):
        train("arm", tmp_path, recipe=QUICK, parent=twin_parent)
