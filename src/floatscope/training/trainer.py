"""The one trainer: the steps, log and checkpoints of any learner on any stream. Resumable.

A step's data, masks and learning rate follow from (seed, step), so a run that was stopped and started again ends in the
same weights as one that was not. Which learner and which stream is said by `runs`, what came of it by `gates`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from floatscope.errors import UserError
from floatscope.training.checkpoints import log_row, read_checkpoint, write_checkpoint
from floatscope.training.learner import Learner
from floatscope.training.objective import loss_of, make_target
from floatscope.training.recipe import Recipe, rate_at
from floatscope.training.stream import PADDING, Stream

READ_EVERY = 50  # steps between two read-outs


@dataclass(frozen=True)
class Progress:
    """What a listener is told after each step; `read_out` is the share of right answers where one was just measured."""

    step: int
    steps: int
    loss: float
    tokens: int
    read_out: float | None = None


Listener = Callable[[Progress], None]


class Trainer:
    """A run in the folder `out`; made where one was stopped, it goes on from there.

    about: what the log and the checkpoint say of the run beside seed and recipe; another run's checkpoint is refused.
    """

    def __init__(
        self, learner: Learner, stream: Stream, recipe: Recipe, seed: int, out: Path, about: dict[str, Any]
    ) -> None:
        self.learner, self.stream, self.recipe, self.seed, self.out = learner, stream, recipe, seed, out
        self.settings = {**about, "seed": seed, **asdict(recipe)}
        self.parameters = learner.parameters()
        self.optimizers = learner.optimizers(recipe)
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        if (saved := read_checkpoint(out, self.settings, learner.device)) is not None:
            with torch.no_grad():
                for name, parameter in self.parameters.items():
                    parameter.copy_(saved["parameters"][name])
            for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
                optimizer.load_state_dict(state)
            self.stream.state = saved["stream"]
            self.step, self.tokens, self.seconds = saved["step"], saved["tokens"], saved["seconds"]

    def save(self) -> None:
        """Put a checkpoint in the place of the last."""
        saved = {
            "settings": self.settings,
            "parameters": {name: parameter.detach() for name, parameter in self.parameters.items()},
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "stream": self.stream.state,
            "step": self.step, "tokens": self.tokens, "seconds": self.seconds,
        }  # fmt: skip
        write_checkpoint(self.out, saved)

    def run(
        self,
        log_every: int,
        save_every: int,
        stop_after: int | None = None,
        progress: Listener | None = None,
        read_out: Callable[[], dict[str, Any]] | None = None,
    ) -> bool:
        """Train to the last step, or to `stop_after`; whether the last one was reached.

        read_out: gives numbers for the log, "read_out" among them, every READ_EVERY steps.
        """
        self.learner.backbone.train()
        last = min(self.recipe.steps, stop_after or self.recipe.steps)
        recent: list[tuple[float, int, int]] = []  # since the last line of the log
        while self.step < last:
            began = time.perf_counter()
            measured = self._one_step()
            recent.append(measured)
            self.step += 1
            self.seconds += time.perf_counter() - began
            at_end = self.step == last
            if self.step % log_every == 0 or at_end:
                losses, right, answers = zip(*recent, strict=True)
                share = round(sum(right) / sum(answers), 4) if sum(answers) else None
                rate = round(rate_at(self.step - 1, self.recipe), 7)
                row = {"loss": round(sum(losses) / len(losses), 5), "right": share, **self.stream.told(), "rate": rate}
                self._log(row)
                recent = []
            found: dict[str, Any] = {}
            if read_out is not None and self.step % READ_EVERY == 0:
                found = read_out()
                self._log(found)
            if self.step % save_every == 0 or at_end:
                self.save()
            if progress:
                progress(Progress(self.step, self.recipe.steps, measured[0], self.tokens, found.get("read_out")))
        self.learner.backbone.eval()
        return self.step >= self.recipe.steps

    def _one_step(self) -> tuple[float, int, int]:
        """Loss, right answer tokens and answer tokens."""
        learner, recipe = self.learner, self.recipe
        for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
            group["lr"] = rate_at(self.step, recipe)
        batch = self.stream.at(self.step)
        if learner.context is not None and batch.ids.shape[1] > learner.context:
            raise UserError(
                f"A sequence has {batch.ids.shape[1]} tokens and {learner.name} a context of {learner.context}: "
                "use a smaller --window, or a parent with a longer context."
            )
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.step)
        target = make_target(learner.to, batch, learner.mask_id, recipe, generator)
        # Under causal visibility padding on the right is seen by padding only.
        visible = None if learner.to == "arm" else batch.roles != PADDING
        with torch.autocast("cuda", torch.bfloat16) if learner.device.type == "cuda" else nullcontext():
            loss, right, answers = loss_of(learner, target, visible, recipe.hint)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), recipe.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.tokens += batch.tokens
        self.stream.hear(right / answers if answers else 0.0)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise UserError(f"The loss is {value} at step {self.step}: the parent's numbers overflow; lower the rate.")
        return value, right, answers

    def _log(self, found: dict[str, Any]) -> None:
        row = {"step": self.step, "tokens": self.tokens, **found, "seconds": round(self.seconds, 1)}
        log_row(self.out, self.settings, row)
