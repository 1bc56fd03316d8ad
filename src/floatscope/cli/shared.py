"""What several verbs need: flags of loading, the progress bar, foreign text that is safe on a terminal."""

import sys
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

if TYPE_CHECKING:
    from floatscope.models.model import Model

REPEATED = Parameter(negative="", consume_multiple=False)
"""A flag that may be given several times."""
FLAG = Parameter(negative="")
"""A flag that is there or not."""
_LOADING = Parameter(group=Group("How a model is loaded", sort_key=2))


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LoadFlags:
    """How a model is loaded."""

    revision: Annotated[str | None, _LOADING] = None
    """Of a hub id: a branch, a tag or a commit; default: its main branch."""
    family: Annotated[str | None, _LOADING] = None
    """Name of a family or a TOML file, if it is not recognised."""
    dtype: Annotated[str | None, _LOADING] = None
    """float32, bfloat16, ...; default: float32 on a CPU, the checkpoint's own elsewhere."""
    device: Annotated[str | None, _LOADING] = None
    """cpu, cuda, mps, ..."""
    mask_id: Annotated[int | None, _LOADING] = None
    """The mask token, where the checkpoint does not say."""
    block_size: Annotated[int | None, _LOADING] = None
    """The block size of a model that sees in blocks, where it is neither stated nor its family's."""

    @property
    def how(self) -> dict[str, Any]:
        """The flags as `floatscope.load` and a study's model have them."""
        told = {name: getattr(self, name) for name in ("revision", "family", "dtype", "device", "mask_id")}
        return told | {"block": self.block_size}

    def load(self, source: str, check: bool = True) -> "Model":
        """The model, with a word on screen meanwhile."""
        from rich.console import Console
        from rich.text import Text

        from floatscope.models.pulling import refuse_unknown

        refuse_unknown(source)  # before torch is there
        note = " (a GGUF file is converted once, then read from the cache)" if source.endswith(".gguf") else ""
        with Console(stderr=True).status(Text(f"loading {source}{note}")):
            from floatscope.models.loading import load

            return load(source, **self.how, check=check)


LOAD_BY_DEFAULT = LoadFlags()


def given(settings: Any) -> dict[str, Any]:
    """Those of some flags, all of which may be left out, that were not."""
    return {name: value for name, value in ({} if settings is None else vars(settings)).items() if value is not None}


SECONDS = 30.0
"""Between two lines of progress in a log."""


def progress_bar(*amounts: Any) -> Any:
    """A bar that ends in these columns; where none are given, in how many of how many are done.

    Where nobody watches, as in the log of a batch job, it is a line now and then.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    class Lines(Progress):
        told = monotonic()

        def update(self, task_id: Any, **changes: Any) -> None:
            super().update(task_id, **changes)
            self.tell(task_id)

        def advance(self, task_id: Any, advance: float = 1) -> None:
            super().advance(task_id, advance)
            self.tell(task_id)

        def tell(self, task_id: Any) -> None:
            task = self.tasks[task_id]
            if monotonic() - self.told >= SECONDS and task.total:
                self.told = monotonic()
                left = "" if task.time_remaining is None else f", {timedelta(seconds=round(task.time_remaining))} left"
                done = f"{task.completed:,.0f} of {task.total:,.0f}{left}"
                print(one_line(f"floatscope: {task.description}: {done}"), file=sys.stderr, flush=True)

    amounts = amounts or (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(), *amounts, TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console) if console.is_terminal else Lines(*columns, disable=True)


def literal_console() -> Any:
    """For tables of paths and tokens: brackets and colons in them are no markup."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False)


def printable(text: str) -> str:
    """Text without the characters that would steer a terminal; line ends and tabs stay."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


def one_line(text: str) -> str:
    """The same without line ends."""
    return printable(" ".join(text.split()))
