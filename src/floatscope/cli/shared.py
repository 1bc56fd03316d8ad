"""What several verbs need: loading with a word on screen, and the progress bar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from floatscope.models.model import Model


def load_model(model: str, family: str | None, dtype: str | None, device: str | None, check: bool = True) -> Model:
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    with console.status(escape(f"loading {model}")):
        from floatscope.models.loading import load

        return load(model, family=family, dtype=dtype, device=device, check=check)


def progress_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True))
