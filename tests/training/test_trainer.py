"""Checkpoints: whole or not at all, and what the disk refuses is one sentence that says how to go on."""

import os
import resource

import pytest
import torch

from floatscope.errors import UserError
from floatscope.training.trainer import read_checkpoint, write_checkpoint


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path):
    write_checkpoint(tmp_path, {"settings": {"seed": 1}, "step": 5, "weights": torch.ones(3)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # the system's own error for a file that may not grow
    try:
        with pytest.raises(UserError, match=r"cannot be written to .*make room.* goes on from the last checkpoint"):
            write_checkpoint(tmp_path, {"settings": {"seed": 1}, "step": 6, "weights": torch.ones(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    found = read_checkpoint(tmp_path, {"seed": 1})
    assert found is not None and found["step"] == 5 and os.listdir(tmp_path) == ["checkpoint.pt"]
    with pytest.raises(UserError, match=r"belongs to another run .seed 1 and not 2"):
        read_checkpoint(tmp_path, {"seed": 2})
