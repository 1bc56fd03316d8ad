"""Checks of a sampler's settings, made where the sampler is made. A failure is a sentence with its remedy."""

import math
from collections.abc import Iterable

from floatscope.errors import UserError
from floatscope.registry import did_you_mean


def require_whole(owner: str, name: str, value: object, least: int = 1) -> None:
    """`value` is an integer, at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UserError(f"{owner}: {name} must be a whole number of at least {least}, got {value!r}.")


def require_number(owner: str, name: str, value: object, interval: str) -> None:
    """`value` is a finite number within `interval`, written as in mathematics: "(0, 1]"."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        above = value > low or (interval[0] == "[" and value == low)
        below = value < high or (interval[-1] == "]" and value == high)
        if above and below:
            return
    raise UserError(f"{owner}: {name} must be a number in {interval}, got {value!r}.")


def require_choice(owner: str, name: str, value: object, choices: Iterable[str]) -> None:
    """`value` is one of a few words."""
    known = tuple(choices)
    if value not in known:
        raise UserError(f"{owner}: {name}={value!r} is unknown: {did_you_mean(str(value), known)}.")


def require_flag(owner: str, name: str, value: object) -> None:
    """`value` is True or False, not a word or number that stands for it."""
    if not isinstance(value, bool):
        raise UserError(f"{owner}: {name} must be True or False, got {value!r}.")


def require_seed(owner: str, value: object) -> None:
    """`value` fits a torch generator."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**64:
        raise UserError(f"{owner}: a seed must be a whole number from 0 to 2**64 - 1, got {value!r}.")
