"""The one exception for mistakes a user can mend: a sentence with a remedy, shown without a traceback by the CLI."""


class UserError(ValueError):
    """What was wrong, where, and what to do, in one sentence."""
