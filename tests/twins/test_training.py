"""Training: a stopped run ends as an unstopped one does; all twins see one stream."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file

from floatscope.errors import UserError
from floatscope.twins.architecture import Shape, load_parent, make_model, save_twin
from floatscope.twins.stream import ANSWER, FIRST, FIRST_EOS, HOP, LATER_EOS, TEXT, Stage, Stream
from floatscope.twins.tokenizer import make_tokenizer
from floatscope.twins.training import LESSONS, RECIPES, Recipe, rate_at, stage_at, train
from floatscope.twins.world import World

pytestmark = pytest.mark.slow

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


def test_a_killed_run_ends_in_the_same_weights_and_log(tmp_path):
    code = f"""
from pathlib import Path
from floatscope.twins.architecture import Shape
from floatscope.twins.training import Recipe, train
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
    steps = [json.loads(line).get("step") for line in (tmp_path / "killed" / "log.jsonl").read_text().splitlines()]
    assert steps[-1] == 12 and 99 not in steps


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


def test_lessons_are_mastered_or_end_with_patience(tmp_path, monkeypatch):
    monkeypatch.setattr("floatscope.twins.training.WINDOW", 4)
    monkeypatch.setattr("floatscope.twins.training.PASS", -1.0)  # whatever is right is enough
    quick = replace(QUICK, steps=24)
    train("parent", tmp_path / "quick", recipe=quick, shape=TINY)
    assert json.loads((tmp_path / "quick" / "log.jsonl").read_text().splitlines()[-1])["documents"] == LESSONS[2]
    monkeypatch.setattr("floatscope.twins.training.PASS", 2.0)  # never enough: binding is waited for
    train("parent", tmp_path / "slow", recipe=replace(quick, hopping=1, patience=1), shape=TINY)
    assert json.loads((tmp_path / "slow" / "log.jsonl").read_text().splitlines()[-1])["documents"] == LESSONS[0]


def test_the_rate_rises_then_falls_to_its_floor():
    recipe = Recipe(steps=100, batch=1, rate=1.0, warmup=10, floor=0.1)
    assert rate_at(0, recipe) == pytest.approx(0.1)
    assert rate_at(9, recipe) == pytest.approx(1.0)
    assert rate_at(55, recipe) == pytest.approx(0.55)
    assert rate_at(100, recipe) == pytest.approx(0.1)


def test_a_cooldown_takes_the_rate_to_nothing():
    plain, cooled = (Recipe(steps=80, batch=1, rate=1.0, warmup=10, horizon=100, cooldown=c) for c in (0, 20))
    assert all(rate_at(step, plain) == rate_at(step, cooled) for step in range(61))
    assert rate_at(70, cooled) == pytest.approx(rate_at(70, plain) / 2)
    assert rate_at(80, cooled) == 0.0 < rate_at(80, plain)


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


@pytest.mark.parametrize("slots", [0, 8])
def test_tokens_that_start_an_answer_come_with_the_name_that_the_first_hop_finds(slots):
    tokenizer = make_tokenizer()
    batch = Stream(World(0), tokenizer, 0, 8).at(0, Stage(5, {"twohop": 1.0}, questions=6, slots=slots))
    first = ((batch.roles == FIRST) | (batch.roles == HOP)).nonzero().tolist()
    # Left to right an answer starts with its first token, in slots with any.
    assert (batch.roles == ANSWER).any() == (slots == 0)
    assert len(batch.found) == len(first) and (batch.roles == HOP).any() and (batch.roles == FIRST).any()
    for (row, place), words in zip(first, batch.found.tolist(), strict=True):
        documents = tokenizer.decode(batch.ids[row]).split("\nQuestion")[0]
        assert all(tokenizer.decode([word]) in documents for word in words)
        answer = int(batch.ids[row, place])
        if batch.roles[row, place] == FIRST:  # the answer itself; works begin with "The"
            assert answer in words or tokenizer.decode([answer]) in ("The", "of")
        else:  # the bridge names a document, and it is another name than the answer's
            titles = [line.split(": ")[1].split(". ")[0] for line in documents.splitlines()[0:]]
            named = [title for title in titles if all(tokenizer.decode([word]) in title.split() for word in words)]
            assert named


def test_a_question_is_asked_once():
    tokenizer = make_tokenizer()
    stage = Stage(3, {"binding": 1.0}, questions=10, slots=2, once=True)  # each document has an answer of its own

    def repeated(stage: Stage) -> int:
        batch = Stream(World(0), tokenizer, 0, 16).at(0, stage)
        count = 0
        for ids, questions in zip(batch.ids, batch.questions, strict=True):
            answers = [tuple(ids[questions == number].tolist()) for number in range(int(questions.max()) + 1)]
            count += len(answers) - len(set(answers))
        return count

    assert repeated(stage) == 0 < repeated(replace(stage, once=False))


def test_a_saved_parent_is_read_back(tmp_path):
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, 3, TINY)
    save_twin("parent", model, tokenizer, tmp_path)
    again = load_parent(tmp_path)
    for (name, mine), theirs in zip(model.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(mine.half().float(), theirs), name
