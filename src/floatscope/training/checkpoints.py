"""Checkpoints and logs of a training run: written whole or not at all, held to the run's settings, taken up again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from floatscope.errors import UserError
from floatscope.files import replace_text, replacing

CHECKPOINT, LOG = "checkpoint.pt", "log.jsonl"


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """What the disk refuses becomes a sentence; torch and safetensors tell of it in errors of their own."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        words = next(iter(str(getattr(error, "strerror", None) or error).splitlines()), "")
        raise UserError(
            f"The training run cannot be written to {out} ({words}): make room, or check its permissions; then run "
            "the same command, which goes on from the last checkpoint."
        ) from error


def read_checkpoint(
    out: Path, settings: Mapping[str, Any], device: torch.device | None = None
) -> dict[str, Any] | None:
    """What a stopped run of the same settings left in `out`, its log cut to where it stood; None before the first one.

    A killed run may have logged more than it kept: that will be logged again.
    """
    path, log = out / CHECKPOINT, out / LOG
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
    if log.exists():
        lines = log.read_text().splitlines(keepends=True)
        replace_text(log, "".join(line for line in lines if _step(line) <= saved["step"]))
    return saved


def _step(line: str) -> float:
    """The step of a line of a log, 0 of the settings; a line that was cut off comes after all others."""
    try:
        return json.loads(line).get("step", 0)
    except ValueError:
        return math.inf


def write_checkpoint(out: Path, saved: Mapping[str, Any]) -> None:
    """Put a checkpoint in the place of the last; it holds `settings` and `step` beside what the run needs."""
    with replacing(out / CHECKPOINT) as temporary, writing(out):
        torch.save(saved, temporary)


def log_row(out: Path, settings: Mapping[str, Any], row: Mapping[str, Any]) -> None:
    """One JSON line more; the first line of a log is the settings of the run."""
    path = out / LOG
    rows = [row] if path.exists() and path.stat().st_size else [settings, row]
    with writing(out), path.open("a") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in rows)
