"""Steps against a plain loop; checkpoints whole or not at all; what the disk refuses is told with how to go on."""

import json
import math
import resource

import pytest
import torch

from floatscope.errors import UserError
from floatscope.models.loading import load
from floatscope.models.twins import TwinShape, make_model
from floatscope.qa.world import World
from floatscope.qa.world.vocabulary import make_tokenizer
from floatscope.training.learner import TwinLearner
from floatscope.training.objective import loss_of, make_target
from floatscope.training.recipe import TwinRecipe
from floatscope.training.runs import train
from floatscope.training.stream import PADDING
from floatscope.training.world_stream import WorldStream, lessons_of

TINY = {"shape": TwinShape(width=32, layers=2, heads=2, hidden=32), "recipe": TwinRecipe(steps=3, batch=1, rate=1e-3)}


@pytest.mark.slow
def test_a_full_disk_leaves_the_last_checkpoint(tmp_path):
    checkpoint = train("parent", tmp_path, stop_after=1, **TINY) / "checkpoint.pt"
    kept = checkpoint.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The system's own error for a file that may not grow; the log still fits.
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(UserError, match=r"cannot be written to .*make room.* goes on from the last checkpoint"):
            train("parent", tmp_path, stop_after=2, **TINY)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert checkpoint.read_bytes() == kept
    assert sorted(file.name for file in tmp_path.iterdir()) == ["checkpoint.pt", "log.jsonl"]
    train("parent", tmp_path, **TINY)  # goes on from step 1, whose line is the last that is kept of the log
    assert [json.loads(line).get("step") for line in (tmp_path / "log.jsonl").read_text().splitlines()] == [None, 1, 3]
    with pytest.raises(UserError, match=r"belongs to another run .seed 0 and not 2"):
        train("parent", tmp_path, seed=2, **TINY)


def test_a_lost_log_begins_anew_with_the_settings(tmp_path):
    train("parent", tmp_path, stop_after=1, **TINY)
    (tmp_path / "log.jsonl").unlink()
    train("parent", tmp_path, **TINY)
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert rows[0]["twin"] == "parent" and [row.get("step") for row in rows] == [None, 3]


@pytest.mark.slow
@pytest.mark.parametrize("twin", ["parent", "dream"])
def test_the_steps_are_those_of_a_plain_loop(twin, tmp_path):
    """AdamW at the rate of each step, on clipped gradients that are not carried over; the log has the means."""
    recipe = TwinRecipe(steps=4, batch=2, rate=1e-2, warmup=2, floor=0.0, muon=False, clip=0.05, hint=0.5)
    out, tokenizer, about = tmp_path / "out", make_tokenizer(), {"recipe": recipe, "seed": 7}
    if twin == "parent":
        train(twin, out, shape=TINY["shape"], **about)
        backbone = make_model(tokenizer, 7, TINY["shape"])
    else:
        parent = train("parent", tmp_path / "parent", **TINY)
        train(twin, out, parent=parent, **about)
        backbone = load(parent, dtype="float32", device="cpu", check=False).backbone
    learner = TwinLearner(backbone, twin, tokenizer)
    backbone.train()
    stream = WorldStream(World(0), tokenizer, lessons_of(twin, recipe), 7, 2)
    parameters = learner.parameters()
    groups = [
        {"params": [p for p in parameters.values() if (p.ndim == 1) is norms], "weight_decay": 0.0 if norms else 0.05}
        for norms in (False, True)
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98))
    losses, shares, tokens, norms = [], [], 0, []
    for step, rate in enumerate((0.005, 0.01, 0.01, 0.005)):  # two steps up, then half a cosine
        batch = stream.at(step)
        masks = torch.Generator().manual_seed(7 * 1_000_003 + step)
        target = make_target(learner.to, batch, tokenizer.mask_token_id, recipe, masks)
        seen = batch.roles != PADDING
        loss, counts = loss_of(learner, target, None if twin == "parent" else seen, 0.5)
        optimizer.zero_grad()
        loss.backward()
        norms.append(math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in parameters.values())))
        for group in optimizer.param_groups:
            group["lr"] = rate
            for parameter in group["params"]:
                parameter.grad *= min(1.0, 0.05 / norms[-1])
        optimizer.step()
        losses.append(float(loss.detach()))
        shares += [int(counts[0, 0]) / int(counts[0, 1])] if counts[0, 1] else []
        tokens += int(seen.sum())
    saved = torch.load(out / "checkpoint.pt", weights_only=True)["parameters"]
    for name, parameter in parameters.items():
        torch.testing.assert_close(saved[name], parameter.detach(), rtol=1e-3, atol=1e-5)
    settings, row = (json.loads(line) for line in (out / "log.jsonl").read_text().splitlines())
    assert settings["seed"] == 7 and min(norms) > 0.05
    assert (row["step"], row["tokens"], row["rate"]) == (4, tokens, 0.005)
    assert row["loss"] == pytest.approx(sum(losses) / 4, abs=2e-5)
    assert row["right"] == pytest.approx(sum(shares) / len(shares), abs=1e-4)
