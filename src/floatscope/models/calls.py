"""Calls into transformers: quiet, and with one sentence for whatever goes wrong inside or does not fit."""

import io
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr
from pathlib import Path
from typing import Any

from floatscope.errors import UserError


@contextmanager
def transformers_call(where: str) -> Iterator[None]:
    """Only errors are heard, progress bars only on a terminal; what is raised becomes a sentence about `where`."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    silent = logging.is_progress_bar_enabled() and not sys.stderr.isatty()
    logging.set_verbosity_error()
    if silent:
        logging.disable_progress_bar()
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # a damaged file raises anything here: tokenizers throws Exception itself
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        if isinstance(error, KeyError):  # says only the key
            reason = f"nothing is known by the name {reason}"
        raise UserError(f"{where} could not be loaded: {reason}") from error
    finally:
        logging.set_verbosity(verbosity)
        if silent:
            logging.enable_progress_bar()


@contextmanager
def no_bars() -> Iterator[None]:
    """For calls whose progress bar cannot be switched off: it goes nowhere unless stderr is a terminal."""
    with nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO()):
        yield


def refuse_mismatch(path: Path, info: Mapping[str, Any]) -> None:
    """Tensors that were missing, surplus or of another shape, by name: transformers only reports them."""
    problems = []
    for key, label in (
        ("missing_keys", "missing tensors"),
        ("unexpected_keys", "surplus tensors"),
        ("mismatched_keys", "tensors of another shape"),
    ):
        if names := sorted(str(name[0] if isinstance(name, tuple) else name) for name in info.get(key) or ()):
            problems.append(f"{label} {alike(names)}")
    if problems:
        raise UserError(
            f"{path} does not fit its family: {'; '.join(problems)}; name another family if it is wrong, or "
            "declare one in a TOML file (keys maps names, drop leaves surplus tensors out: docs/howto/families.md)"
        )


def alike(names: Iterable[str], most: int = 16) -> str:
    """Names in a sentence; those that differ in numbers alone are one: `layers.*.up.weight (12)`."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(re.sub(r"(?<=\.)\d+(?=\.)", "*", name), []).append(name)
    told = [held[0] if len(held) == 1 else f"{kind} ({len(held)})" for kind, held in kinds.items()]
    return ", ".join(told[:most]) + (f" and {len(told) - most} more" if len(told) > most else "")


def refuse_layers(path: Path, layers: int, tensors: int) -> None:
    """More layers than a file can hold, each of which would be made before anything is compared, for hours."""
    if layers > max(1000, tensors):
        raise UserError(f"{path} describes {layers:,} layers and holds {tensors:,} tensors: it is damaged")
