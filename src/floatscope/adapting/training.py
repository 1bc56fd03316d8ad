"""Training a fork: its adapter and mask embedding on the stream, with checkpoints, a log and read-outs. Resumable.

`adapt` is all there is to call. A step's data, masks and learning rate follow from (seed, step), so a run that was
stopped and started again ends in the same adapter as one that was not. Gates are measured by `gates`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from floatscope.adapting.data import Data, Windows, held_out_samples, read_data, write_samples
from floatscope.adapting.forks import Fork
from floatscope.adapting.gates import read_out
from floatscope.adapting.objectives import loss_of, make_target
from floatscope.adapting.stream import PADDING, Stream
from floatscope.adapting.writing import write_adapter
from floatscope.checkpoints import CHECKPOINT, log_row, read_checkpoint, write_checkpoint, writing
from floatscope.errors import UserError
from floatscope.qa.samples import Sample

BETAS = (0.9, 0.98)
LOG_EVERY, SAVE_EVERY, READ_EVERY = 5, 25, 50
READ_OUT = 20  # held-out questions in a read-out
HELD_OUT = "held_out.jsonl"


@dataclass(frozen=True)
class Recipe:
    """The numbers of one training run."""

    steps: int = 150
    batch: int = 8
    rate: float = 1e-3  # peak learning rate
    warmup: int = 20
    floor: float = 0.1  # the learning rate falls to this share of its peak
    clip: float = 1.0  # largest norm of the gradient
    rank: int = 16
    window: int = 40  # tokens of a document
    held_out: int = 400  # questions that are not trained on

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "rank", "held_out"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}: use at least 1.")


@dataclass(frozen=True)
class Progress:
    """What a listener is told after each step; `read_out` is the share of right answers where one was just measured."""

    step: int
    steps: int
    loss: float
    tokens: int
    read_out: float | None = None


Listener = Callable[[Progress], None]


def rate_at(step: int, recipe: Recipe) -> float:
    """Linear warmup, then a cosine down to the floor."""
    if step < recipe.warmup:
        return recipe.rate * (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return recipe.rate * (recipe.floor + (1 - recipe.floor) * 0.5 * (1 + math.cos(math.pi * done)))


def adapt(
    parent: str | Path,
    to: str,
    files: Sequence[str | Path],
    out: Path,
    recipe: Recipe | None = None,
    seed: int = 0,
    device: str | None = None,
    stop_after: int | None = None,
    progress: Listener | None = None,
    merge: bool = False,
) -> Path:
    """Train one fork of `parent` into the folder `out` and return it; with a checkpoint there, go on where it stopped.

    parent: anything `floatscope.load` knows that is an ARM.
    to: "arm", "dream" or "llada".
    files: questions with answers and gold passages, in any shape that `read_samples` knows.
    stop_after: end early, resumable, without the adapter's files.
    merge: also write the whole model, in out/merged.
    """
    recipe = recipe or Recipe()
    fork = Fork(parent, to, recipe.rank, seed, device)
    data, windows, held_out = split_data(fork.tokenizer, files, recipe)
    make_folder(out)
    source = {"parent": str(parent), "parent_sha256": fork.parent_sha256, "data": data.files}
    run = _Run(fork, out, recipe, seed, source)
    run.resume()
    with writing(out):
        write_samples(held_out, out / HELD_OUT)
    stream = Stream(data, windows, fork.tokenizer, fork.eos_id, seed, recipe.batch)
    run.go(stream, held_out[:READ_OUT], stop_after, progress)
    if run.step >= recipe.steps:
        with writing(out):
            write_adapter(fork, out, merge=merge)
    return out


def split_only(tokenizer: Any, files: Sequence[str | Path], out: Path, recipe: Recipe) -> int:
    """Write out/held_out.jsonl without any training, and return how many questions it has."""
    if (out / CHECKPOINT).exists():
        raise UserError(f"{out} holds a fork, whose own held-out questions are there: choose another folder.")
    *_, held_out = split_data(tokenizer, files, recipe)
    make_folder(out)
    with writing(out):
        write_samples(held_out, out / HELD_OUT)
    return len(held_out)


def split_data(tokenizer: Any, files: Sequence[str | Path], recipe: Recipe) -> tuple[Data, Windows, tuple[Sample, ...]]:
    """The data, what cuts it, and the held-out questions."""
    windows = Windows(tokenizer, recipe.window)
    data = read_data(files, recipe.held_out, windows)
    return data, windows, held_out_samples(data, windows)


def make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot make the folder {out} for the adapter ({error.strerror}); name another one.") from None


class _Run:
    """The state of a training run: fork, optimizer, step and tokens, and how they are kept."""

    def __init__(self, fork: Fork, out: Path, recipe: Recipe, seed: int, source: dict[str, Any]) -> None:
        self.fork, self.out, self.recipe, self.seed = fork, out, recipe, seed
        self.settings = {"to": fork.to, **source, "seed": seed, **asdict(recipe), "mask_id": fork.mask_id}
        self.parameters = fork.parameters()
        self.optimizer = torch.optim.AdamW(
            list(self.parameters.values()), lr=recipe.rate, betas=BETAS, weight_decay=0.0
        )
        self.step = 0
        self.tokens = 0
        self.seconds = 0.0
        self.loss = math.nan

    def resume(self) -> None:
        saved = read_checkpoint(self.out, self.settings, self.fork.device)
        if saved is None:
            return
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(saved["parameters"][name])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.step, self.tokens, self.seconds = saved["step"], saved["tokens"], saved["seconds"]

    def save(self) -> None:
        saved = {
            "settings": self.settings,
            "parameters": {name: parameter.detach() for name, parameter in self.parameters.items()},
            "optimizer": self.optimizer.state_dict(),
            "step": self.step, "tokens": self.tokens, "seconds": self.seconds,
        }  # fmt: skip
        write_checkpoint(self.out, saved)

    def go(
        self, stream: Stream, read_out_on: Sequence[Sample], stop_after: int | None, progress: Listener | None
    ) -> None:
        self.fork.backbone.train()
        last = min(self.recipe.steps, stop_after or self.recipe.steps)
        recent: list[tuple[float, int, int]] = []
        while self.step < last:
            began = time.perf_counter()
            recent.append(self._one_step(stream))
            self.step += 1
            self.seconds += time.perf_counter() - began
            at_end = self.step == last
            if self.step % LOG_EVERY == 0 or at_end:
                self._log(_averages(recent))
                recent = []
            found = None
            if self.step % READ_EVERY == 0:
                with self.fork.as_model() as model:
                    found = read_out(model, read_out_on)
                self._log({"read_out": found, "n": len(read_out_on)})
            if self.step % SAVE_EVERY == 0 or at_end:
                self.save()
            if progress:
                progress(Progress(self.step, self.recipe.steps, self.loss, self.tokens, found))
        self.fork.backbone.eval()

    def _one_step(self, stream: Stream) -> tuple[float, int, int]:
        for group in self.optimizer.param_groups:
            group["lr"] = rate_at(self.step, self.recipe)
        batch = stream.at(self.step)
        self._refuse_too_long(batch.ids.shape[1])
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.step)
        target = make_target(self.fork.to, batch, self.fork.mask_id, generator)
        # Under causal visibility padding on the right is seen by padding only.
        visible = None if self.fork.to == "arm" else batch.roles != PADDING
        on_gpu = self.fork.device.type == "cuda"
        with torch.autocast("cuda", torch.bfloat16) if on_gpu else nullcontext():
            loss, right, answers = loss_of(self.fork, target, visible)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), self.recipe.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.tokens += batch.tokens
        self.loss = float(loss.detach())
        if not math.isfinite(self.loss):
            raise UserError(
                f"The loss is {self.loss} at step {self.step}: the parent's numbers overflow; lower the rate."
            )
        return self.loss, right, answers

    def _refuse_too_long(self, length: int) -> None:
        if self.fork.context is not None and length > self.fork.context:
            raise UserError(
                f"A sequence has {length} tokens and {self.fork.name} a context of {self.fork.context}: "
                "use a smaller --window, or a parent with a longer context."
            )

    def _log(self, found: dict[str, Any]) -> None:
        row = {"step": self.step, "tokens": self.tokens, **found, "seconds": round(self.seconds, 1)}
        log_row(self.out, self.settings, row)


def _averages(recent: Sequence[tuple[float, int, int]]) -> dict[str, Any]:
    """Mean loss, and the share of right answer tokens."""
    losses, right, answers = zip(*recent, strict=True)
    share = sum(right) / sum(answers) if sum(answers) else None
    return {"loss": round(sum(losses) / len(losses), 5), "right": None if share is None else round(share, 4)}
