"""Training: a stopped run ends as an unstopped one does; all twins see one stream."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file

from floatscope.errors import UserError
from floatscope.twins.architecture import Shape, load_parent, make_model, save_twin
from floatscope.twins.stream import ANSWER, FIRST_EOS, LATER_EOS, TEXT, Stage, Stream
from floatscope.twins.tokenizer import make_tokenizer
from floatscope.twins.training import RECIPES, Recipe, rate_at, stage_at, train
from floatscope.twins.world import World

TINY = Shape(width=32, layers=2, heads=2, hidden=32)
QUICK = Recipe(steps=12, batch=2, rate=1e-3, warmup=3)


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    return train("parent", tmp_path_factory.mktemp("parent"), recipe=QUICK, shape=TINY)


@pytest.mark.parametrize("twin", ["parent", "arm", "dream", "llada"])
def test_a_resumed_run_ends_in_the_same_weights(twin, parent, tmp_path):
    arguments = {"recipe": QUICK, "shape": TINY} if twin == "parent" else {"recipe": QUICK, "parent": parent}
    train(twin, tmp_path / "whole", **arguments)
    train(twin, tmp_path / "parts", stop_after=5, **arguments)
    assert not (tmp_path / "parts" / "model.safetensors").exists()
    train(twin, tmp_path / "parts", **arguments)
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    rows = [json.loads(line) for line in (tmp_path / "parts" / "log.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 12 and rows[-1]["tokens"] > 0


def test_progress_is_told_and_counts_tokens(parent, tmp_path):
    seen = []
    train("arm", tmp_path, recipe=QUICK, parent=parent, progress=seen.append)
    assert [p.step for p in seen] == list(range(1, 13))
    assert all(a.tokens < b.tokens for a, b in pairwise(seen))


def test_the_three_twins_see_the_same_tokens(parent, tmp_path):
    last = {}
    for twin in ("arm", "dream", "llada"):
        train(twin, tmp_path / twin, recipe=QUICK, parent=parent)
        last[twin] = json.loads((tmp_path / twin / "log.jsonl").read_text().splitlines()[-1])["tokens"]
    assert len(set(last.values())) == 1
    assert RECIPES["arm"] == RECIPES["dream"] == RECIPES["llada"]
    assert stage_at("arm", 10) == stage_at("dream", 10) == stage_at("llada", 10)


def test_another_recipe_does_not_take_up_a_checkpoint(parent, tmp_path):
    train("arm", tmp_path, recipe=QUICK, parent=parent, stop_after=2)
    with pytest.raises(UserError, match="another run"):
        train("arm", tmp_path, recipe=replace(QUICK, rate=5e-4), parent=parent)


def test_mistakes_are_sentences(tmp_path):
    with pytest.raises(UserError, match="Unknown twin"):
        train("bert", tmp_path)
    with pytest.raises(UserError, match="no trained parent"):
        train("arm", tmp_path, parent=tmp_path / "nowhere")


def test_the_rate_rises_then_falls_to_its_floor():
    recipe = Recipe(steps=100, batch=1, rate=1.0, warmup=10, floor=0.1)
    assert rate_at(0, recipe) == pytest.approx(0.1)
    assert rate_at(9, recipe) == pytest.approx(1.0)
    assert rate_at(55, recipe) == pytest.approx(0.55)
    assert rate_at(100, recipe) == pytest.approx(0.1)


def test_a_sequence_of_the_stream_reads_as_prompts_do():
    tokenizer = make_tokenizer()
    stage = Stage(4, {"rag": 1.0}, questions=3, slots=8, unanswerable=0.2, stable=0.2)
    batch = Stream(World(0), tokenizer, 0, 4).at(3, stage)
    again = Stream(World(0), tokenizer, 0, 4).at(3, stage)
    assert torch.equal(batch.ids, again.ids)
    for ids, roles in zip(batch.ids, batch.roles, strict=True):
        text = tokenizer.decode(ids[1:][roles[1:] == TEXT])
        assert text.startswith("Document 1: ") and "\nQuestion: " in text and text.endswith("\nAnswer:")
        assert tokenizer.unk_token_id not in ids
        eos = ids == tokenizer.eos_token_id
        assert torch.equal(eos, (roles == FIRST_EOS) | (roles == LATER_EOS))
        assert (roles == ANSWER).sum() >= 2


def test_a_saved_parent_is_read_back(tmp_path):
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, 3, TINY)
    save_twin("parent", model, tokenizer, tmp_path)
    again = load_parent(tmp_path)
    for (name, mine), theirs in zip(model.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(mine.half().float(), theirs), name
