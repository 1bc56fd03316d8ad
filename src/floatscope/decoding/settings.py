"""What a sampler's settings may be, read off its fields when it is made. A failure is a sentence with its remedy."""

import sys
from dataclasses import fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from floatscope.errors import UserError
from floatscope.registry import did_you_mean

Count = Annotated[int, "[1, inf)"]
NotNegative = Annotated[float, "[0, inf)"]


def check_settings(sampler: Any) -> None:
    """Each field holds what its type says: one of a few words, True or False, a finite number in an interval.

    The interval stands in `Annotated`, written as in mathematics: "(0, 1]".
    """
    owner, hints = type(sampler).__name__, get_type_hints(type(sampler), include_extras=True)
    for field in fields(sampler):
        name, hint, value = field.name, hints[field.name], getattr(sampler, field.name)
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if name == "seed":
            require_seed(owner, value)
            continue
        if value is None and NoneType in kinds:
            continue
        words = get_args(kinds[0])
        if get_origin(kinds[0]) is Literal and value not in words:
            raise UserError(f"{owner}: {name}={value!r} is unknown: {did_you_mean(str(value), words)}.")
        if kinds[0] is bool and not isinstance(value, bool):
            raise UserError(f"{owner}: {name} must be True or False, got {value!r}.")
        if get_origin(kinds[0]) is not Annotated:
            continue
        base, interval = words
        low, high = (float(end) for end in interval[1:-1].split(","))
        wanted = f"a whole number of at least {low:.0f}" if base is int else f"a number in {interval}"
        fits = isinstance(value, int if base is int else int | float) and not isinstance(value, bool)
        fits = fits and value is not None and low <= value <= min(high, sys.float_info.max)
        if not fits or (value == low and interval[0] == "(") or (value == high and interval[-1] == ")"):
            raise UserError(f"{owner}: {name} must be {wanted}, got {value!r}.")


def require_seed(owner: str, value: object) -> None:
    """`value` fits a torch generator."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**64:
        raise UserError(f"{owner}: a seed must be a whole number from 0 to 2**64 - 1, got {value!r}.")
