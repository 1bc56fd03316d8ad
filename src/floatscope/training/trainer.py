"""The one trainer: the steps, log and checkpoints of any learner on any stream. Resumable.

A step's data, masks and learning rate follow from (seed, step), so a run that was stopped and started again ends in the
same weights as one that was not. Which learner and which stream is said by `runs`, what came of it by `gates`.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from floatscope.errors import UserError
from floatscope.files import replacing
from floatscope.training.learner import Learner
from floatscope.training.objective import loss_of, make_target
from floatscope.training.recipe import Recipe, rate_at
from floatscope.training.stream import PADDING, Stream

CHECKPOINT, LOG = "checkpoint.pt", "log.jsonl"
COUNTED = ("step", "tokens", "seconds", "logged")
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
        make_folder(out)
        self.learner, self.stream, self.recipe, self.seed, self.out = learner, stream, recipe, seed, out
        self.settings = {**about, "seed": seed, **asdict(recipe)}
        self.parameters = learner.parameters()
        self.optimizers = learner.optimizers(recipe)
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        self.logged = 0  # bytes of the log
        if (out / CHECKPOINT).exists():
            saved = self._read_checkpoint()
            with torch.no_grad():
                for name, parameter in self.parameters.items():
                    parameter.copy_(saved["parameters"][name])
            for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
                optimizer.load_state_dict(state)
            self.stream.state = saved["stream"]
            self.step, self.tokens, self.seconds, self.logged = (saved[name] for name in COUNTED)
        with writing(out), (out / LOG).open("a") as log:
            # A killed run may have logged more than it kept: that will be logged again.
            self.logged = log.truncate(min(self.logged, log.tell()))

    def _read_checkpoint(self) -> dict[str, Any]:
        """What a stopped run of the same settings left."""
        path = self.out / CHECKPOINT
        try:
            saved = torch.load(path, weights_only=True, map_location=self.learner.device)
            found = saved["settings"]
        except Exception:  # a damaged pickle raises what it likes, and torch's words advise to unpickle it anyway
            raise UserError(
                f"{path} is no checkpoint of a training run; choose another folder, or delete it."
            ) from None
        if found != self.settings:
            changed = {name: value for name, value in self.settings.items() if found.get(name) != value}
            differ = ", ".join(f"{name} {found.get(name)!r} and not {value!r}" for name, value in changed.items())
            raise UserError(f"{path} belongs to another run ({differ}); choose another folder, or delete it.")
        return saved

    def _save(self) -> None:
        saved = {
            "settings": self.settings,
            "parameters": {name: parameter.detach() for name, parameter in self.parameters.items()},
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "stream": self.stream.state,
            **{name: getattr(self, name) for name in COUNTED},
        }
        with replacing(self.out / CHECKPOINT) as temporary, writing(self.out):
            torch.save(saved, temporary)

    def run(
        self,
        log_every: int,
        save_every: int,
        stop_after: int | None = None,
        progress: Listener | None = None,
        read_out: Callable[[], dict[str, Any]] | None = None,
    ) -> bool:
        """Train to the last step, or to `stop_after`; whether the last one was reached, and the model written.

        read_out: gives numbers for the log, "read_out" among them, every READ_EVERY steps.
        """
        self.learner.backbone.train()
        last = min(self.recipe.steps, stop_after or self.recipe.steps)
        recent: list[tuple[float, torch.Tensor]] = []  # since the last line of the log
        while self.step < last:
            began = time.perf_counter()
            measured = self._one_step()
            recent.append(measured)
            self.step += 1
            self.seconds += time.perf_counter() - began
            at_end = self.step == last
            if self.step % log_every == 0 or at_end:
                losses, counts = zip(*recent, strict=True)
                right, gaps = (round(r / n, 4) if n else None for r, n in torch.stack(counts).sum(0).tolist())
                row = {"loss": round(sum(losses) / len(losses), 5), "right": right, **self.stream.told(), "gaps": gaps}
                self._log(row | {"rate": round(rate_at(self.step - 1, self.recipe), 7)})
                recent = []
            found: dict[str, Any] = {}
            if read_out is not None and self.step % READ_EVERY == 0:
                found = read_out()
                self._log(found)
            if self.step % save_every == 0 or at_end:
                self._save()
            if progress:
                progress(Progress(self.step, self.recipe.steps, measured[0], self.tokens, found.get("read_out")))
        self.learner.backbone.eval()
        done = self.step >= self.recipe.steps
        if done:
            with writing(self.out):
                self.learner.write(self.out)
        return done

    def _one_step(self) -> tuple[float, torch.Tensor]:
        """The loss, and the counts of `loss_of`."""
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
            loss, counts = loss_of(learner, target, visible, getattr(recipe, "hint", 0.0))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), recipe.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.tokens += batch.tokens
        right, answers = counts[0].tolist()
        if answers:
            self.stream.hear(right / answers)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise UserError(f"The loss is {value} at step {self.step}: the parent's numbers overflow; lower the rate.")
        return value, counts

    def _log(self, found: dict[str, Any]) -> None:
        """One JSON line more; the first line of a log is the settings of the run."""
        row = {"step": self.step, "tokens": self.tokens, **found, "seconds": round(self.seconds, 1)}
        rows = [row] if self.logged else [self.settings, row]
        with writing(self.out), (self.out / LOG).open("a") as file:
            file.writelines(json.dumps(entry) + "\n" for entry in rows)
            self.logged = file.tell()


def make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot make the folder {out} for the model ({error.strerror}); name another one.") from None


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """What the disk refuses becomes a sentence; torch and safetensors tell of it in errors of their own."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        words = next(iter(str(getattr(error, "strerror", None) or error).splitlines()), "")
        raise UserError(
            f"The training run cannot be written to {out} ({words}): make room, or check its permissions; then run "
            "the same command, which goes on from the last checkpoint."
        ) from error
