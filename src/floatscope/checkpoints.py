"""Checkpoints and logs of a training run: written whole or not at all, held to the run's settings, taken up again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from floatscope.errors import UserError

LOG = "log.jsonl"


def read_checkpoint(
    out: Path, settings: Mapping[str, Any], device: torch.device | None = None
) -> dict[str, Any] | None:
    """What a stopped run of the same settings left in `out`, its log cut to where it stood; None before the first one.

    A killed run may have logged more than it kept: that will be logged again.
    """
    path, log = out / "checkpoint.pt", out / LOG
    if not path.exists():
        log.unlink(missing_ok=True)
        return None
    try:
        saved = torch.load(path, weights_only=True, map_location=device)
        found = saved["settings"]
    except Exception:  # a damaged pickle raises what it likes, and torch's words advise to unpickle it anyway
        raise UserError(f"{path} is no checkpoint of a training run; choose another folder, or delete it.") from None
    if found != settings:
        differ = ", ".join(
            f"{name} {found.get(name)!r} and not {value!r}"
            for name, value in settings.items()
            if found.get(name) != value
        )
        raise UserError(f"{path} belongs to another run ({differ}); choose another folder, or delete it.")
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    log.write_text("".join(line for line in lines if json.loads(line).get("step", 0) <= saved["step"]))
    return saved


def write_checkpoint(out: Path, saved: Mapping[str, Any]) -> None:
    """Put a checkpoint in the place of the last; it holds `settings` and `step` beside what the run needs."""
    partial = out / "checkpoint.part"
    torch.save(saved, partial)
    partial.replace(out / "checkpoint.pt")


def log_row(out: Path, settings: Mapping[str, Any], row: Mapping[str, Any]) -> None:
    """One JSON line more; the first line of a log is the settings of the run."""
    path = out / LOG
    rows = [row] if path.exists() else [settings, row]
    with path.open("a") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in rows)
