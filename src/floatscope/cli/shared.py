"""What several verbs need: loading with a word on screen, the progress bar, a console for foreign text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from floatscope.models.model import Model


def load_model(model: str, family: str | None, dtype: str | None, device: str | None, check: bool = True) -> Model:
    from rich.console import Console
    from rich.text import Text

    note = " (a GGUF file is converted once, then read from the cache)" if model.endswith(".gguf") else ""
    with Console(stderr=True).status(Text(f"loading {model}{note}")):
        from floatscope.models.loading import load

        return load(model, family=family, dtype=dtype, device=device, check=check)


def progress_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True))


def literal_console() -> Any:
    """For tables of paths and tokens: brackets and colons in them are no markup."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False)
