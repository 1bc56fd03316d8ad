"""The verb that makes the twins: train."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from floatscope.cli.shared import progress_bar
from floatscope.errors import UserError


def train(
    *,
    twin: Literal["parent", "arm", "dream", "llada"],
    out: Path,
    parent: Path | None = None,
    seed: int = 0,
    samples: int = 500,
) -> None:
    """Train a twin into a folder, measure its gates and write its card; run it again to take up a stopped run.

    Example: floatscope train --twin parent --out twins/parent

    Parameters
    ----------
    twin
        parent, arm, dream or llada.
    out
        Folder for checkpoint, log, model and card; made if it is not there.
    parent
        Folder of a trained parent to fork (arm, dream, llada); default: the one that comes with the package.
    seed
        Of the first weights, the stream and the masks; the shipped twins have seed 0.
    samples
        Test questions for each gate.
    """
    from floatscope.twins.cards import report
    from floatscope.twins.gates import table
    from floatscope.twins.training import Progress
    from floatscope.twins.training import train as train_twin

    if samples < 1:
        raise UserError(f"Gates need at least one sample each, not --samples {samples}.")
    with progress_bar() as bar:
        task = bar.add_task(f"training {twin}", total=None, visible=False)

        def tell(now: Progress) -> None:
            words = f"training {twin}, loss {now.loss:.2f}, {now.tokens / 1e6:.1f}M tokens"
            bar.update(task, description=words, completed=now.step, total=now.steps, visible=True)

        def tell_gate(cell: str, done: int, cells: int) -> None:
            bar.update(task, description=f"gates: {cell}", completed=done, total=cells, visible=True)

        folder = train_twin(twin, out, parent=parent, seed=seed, progress=tell)
        bar.reset(task)
        results = report(folder, n=samples, progress=tell_gate)
    print(table(results))
    print(f"\nModel, log and card: {folder}")
