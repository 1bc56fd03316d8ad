"""Checkpoints: whole or not at all, and what the disk refuses is one sentence that says how to go on."""

import json
import resource

import pytest

from floatscope.errors import UserError
from floatscope.models.twins import TwinShape
from floatscope.training.recipe import TwinRecipe
from floatscope.training.runs import train

TINY = {"shape": TwinShape(width=32, layers=2, heads=2, hidden=32), "recipe": TwinRecipe(steps=3, batch=1, rate=1e-3)}


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
