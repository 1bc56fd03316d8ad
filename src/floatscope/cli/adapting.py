"""The verb that forks a pretrained model: adapt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from floatscope.cli.shared import progress_bar
from floatscope.errors import UserError


def adapt(
    parent: str,
    /,
    *,
    to: Literal["dream", "llada", "arm"],
    data: Annotated[tuple[str, ...], Parameter(negative="", consume_multiple=True)],
    out: Path,
    steps: int = 150,
    seed: int = 0,
    rank: int = 16,
    window: int = 40,
    held_out: int = 400,
    split_only: Annotated[bool, Parameter(negative="")] = False,
    merge: Annotated[bool, Parameter(negative="")] = False,
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
    steps
        Batches of 8 sequences, about 1200 tokens each.
    seed
        Of the adapter's first weights, the stream and the masks; forks of one seed see the same stream.
    rank
        Of the adapter's matrices.
    window
        Tokens that a document is cut to.
    held_out
        Questions to measure on, not trained on; none of their gold passages is trained on either.
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
    if samples < 1:
        raise UserError(f"Gates need at least one sample each, not --samples {samples}.")
    from floatscope.adapting import training
    from floatscope.adapting.cards import report
    from floatscope.adapting.forks import parent_tokenizer
    from floatscope.adapting.gates import table
    from floatscope.models.loading import load

    recipe = training.Recipe(steps=steps, rank=rank, window=window, held_out=held_out)
    if split_only:
        tokenizer = parent_tokenizer(load(parent, check=False))
        count = training.split_only(tokenizer, data, out, recipe)
        print(f"{count} held-out questions: {out / training.HELD_OUT}")
        return
    with progress_bar() as bar:
        task = bar.add_task(f"adapting to {to}", total=None, visible=False)
        right = ""

        def tell(now: training.Progress) -> None:
            nonlocal right
            if now.read_out is not None:
                right = f", held-out right {now.read_out:.2f}"
            words = f"adapting to {to}, loss {now.loss:.2f}, {now.tokens / 1e3:.0f}k tokens{right}"
            bar.update(task, description=words, completed=now.step, total=now.steps, visible=True)

        def tell_gate(gate: str, done: int, gates: int) -> None:
            bar.update(task, description=f"gates: {gate}", completed=done, total=gates, visible=True)

        folder = training.adapt(parent, to, data, out, recipe, seed, device, progress=tell, merge=merge)
        bar.reset(task)
        results = report(folder, samples, data_note, tell_gate, device)
    print(table(results))
    print(f"\nAdapter, log and card: {folder}")
