"""What a user is told: mistakes that can be mended, as one sentence each without a traceback, and warnings."""

import warnings


class UserError(ValueError):
    """What was wrong, where, and what to do, in one sentence."""


def plain_warnings() -> None:
    """Let warnings of this process be one line each, as a user reads them, without a place in the code."""
    warnings.formatwarning = lambda message, *_, **__: f"floatscope: {message}\n"
