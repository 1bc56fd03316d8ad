"""Training the twins: one causal parent through a curriculum, then three forks of it on one stream. Resumable.

`train` is all there is to call. A step's data, masks and learning rate follow from (seed, step), so a run that was
stopped and started again ends in the same weights as one that was not. Gates are measured by `gates`.
"""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from floatscope.errors import UserError
from floatscope.twins.architecture import Shape, load_parent, make_model, save_twin, set_visibility
from floatscope.twins.objectives import loss_of, make_target
from floatscope.twins.stream import PADDING, ROUND, Stage, Stream
from floatscope.twins.tokenizer import MASK_ID, make_tokenizer
from floatscope.twins.world import World

TWINS = ("parent", "arm", "dream", "llada")
BETAS = (0.9, 0.98)
CLIP = 1.0
MOST = 10  # documents in training
BINDING = 3  # up to this many documents, contexts ask for binding only
PASS, WINDOW = 0.9, 4 * ROUND  # a document is added when this share of answer tokens was right over so many steps
_MIX = {"binding": 0.2, "rag": 0.25, "twohop": 0.45, "closed": 0.1}


@dataclass(frozen=True)
class Recipe:
    """The numbers of one training run."""

    steps: int
    batch: int
    rate: float  # peak learning rate
    warmup: int = 100
    floor: float = 0.05  # the learning rate falls to this share of its peak
    horizon: int = 0  # step at which it would get there; 0: the last one
    decay: float = 0.05  # weight decay
    patience: int = 150  # the parent's curriculum adds a document at the latest after so many steps (not below 3)


_FORK = Recipe(steps=800, batch=16, rate=1e-3, warmup=50)
RECIPES = {
    "parent": Recipe(steps=1800, batch=16, rate=2e-3, warmup=50, horizon=3200),
    "arm": _FORK,
    "dream": _FORK,
    "llada": _FORK,
}


@dataclass(frozen=True)
class Progress:
    """What a listener is told after each step."""

    twin: str
    step: int
    steps: int
    loss: float
    tokens: int


def stage_at(twin: str, documents: int) -> Stage:
    """What the stream holds once the curriculum has come to this many documents."""
    if twin != "parent":
        return Stage(documents, _MIX, questions=6, slots=32, unanswerable=0.05, stable=0.05, near=0.2)
    if documents <= BINDING:  # learn to copy and to bind before anything else
        return Stage(documents, {"binding": 1.0}, questions=8, slots=0, plain=True)
    return Stage(documents, _MIX, questions=8, slots=0, unanswerable=0.05, stable=0.05, near=0.1)


def rate_at(step: int, recipe: Recipe) -> float:
    """Linear warmup, then a cosine down to the floor."""
    if step < recipe.warmup:
        return recipe.rate * (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, (recipe.horizon or recipe.steps) - recipe.warmup)
    return recipe.rate * (recipe.floor + (1 - recipe.floor) * 0.5 * (1 + math.cos(math.pi * done)))


def train(
    twin: str,
    out: Path,
    parent: Path | None = None,
    recipe: Recipe | None = None,
    seed: int = 0,
    shape: Shape | None = None,
    save_every: int = 200,
    stop_after: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Path:
    """Train one twin into the folder `out` and return it; a folder with a checkpoint is taken up where it stopped.

    `parent` is the folder of the trained parent for arm, dream and llada (default: the one that ships).
    `out` gets checkpoint.pt, log.jsonl and, at the end, the model in its dialect. `stop_after` ends early, resumable.
    """
    if twin not in TWINS:
        raise UserError(f"Unknown twin {twin!r}; floatscope trains {', '.join(TWINS)}.")
    recipe = recipe or RECIPES[twin]
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, seed, shape or Shape()) if twin == "parent" else load_parent(parent)
    set_visibility(model, bidirectional=twin in ("dream", "llada"))
    run = _Run(twin, out, recipe, seed, model)
    run.resume()
    run.go(Stream(World(0), tokenizer, seed, recipe.batch), save_every, stop_after, progress)
    if run.step >= recipe.steps:
        save_twin(twin, model, tokenizer, out)
    return out


_COUNTERS = ("step", "tokens", "documents", "since", "recent")


class _Run:
    """The state of a training run: model, optimizer, step and tokens, and how they are kept."""

    def __init__(self, twin: str, out: Path, recipe: Recipe, seed: int, model: LlamaForCausalLM) -> None:
        self.twin, self.out, self.recipe, self.seed, self.model = twin, out, recipe, seed, model
        matrices = [p for p in model.parameters() if p.ndim > 1]
        norms = [p for p in model.parameters() if p.ndim == 1]
        groups = [{"params": matrices, "weight_decay": recipe.decay}, {"params": norms, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=recipe.rate, betas=BETAS)
        self.step = 0
        self.tokens = 0
        self.documents = 1 if twin == "parent" else MOST
        self.since = 0  # step at which the last document was added
        self.recent: list[float] = []  # shares of right answer tokens since then

    @property
    def settings(self) -> dict[str, Any]:
        return {"twin": self.twin, "seed": self.seed, **asdict(self.recipe)}

    def resume(self) -> None:
        path = self.out / "checkpoint.pt"
        if not path.exists():
            return
        saved = torch.load(path, weights_only=True)
        if saved["settings"] != self.settings:
            raise UserError(
                f"{path} belongs to another run ({saved['settings']}); choose another folder, or delete it."
            )
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        for name in _COUNTERS:
            setattr(self, name, saved[name])

    def save(self) -> None:
        saved = {
            "settings": self.settings, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            **{name: getattr(self, name) for name in _COUNTERS},
        }  # fmt: skip
        partial = self.out / "checkpoint.part"
        torch.save(saved, partial)
        partial.replace(self.out / "checkpoint.pt")

    def go(
        self,
        stream: Stream,
        save_every: int,
        stop_after: int | None,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.model.train()
        last = min(self.recipe.steps, stop_after or self.recipe.steps)
        losses: list[float] = []
        while self.step < last:
            losses.append(self._one_step(stream))
            self.step += 1
            if progress:
                progress(Progress(self.twin, self.step, self.recipe.steps, losses[-1], self.tokens))
            if self.step % 50 == 0 or self.step == last:
                self._log(sum(losses) / len(losses))
                losses = []
            if self.step % save_every == 0 or self.step == last:
                self.save()
        self.model.eval()

    def _one_step(self, stream: Stream) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = rate_at(self.step, self.recipe)
        if self.step % ROUND == 0:  # a stage holds for a whole round of batches
            self._advance()
        batch = stream.at(self.step, stage_at(self.twin, self.documents))
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.step)
        objective = "arm" if self.twin == "parent" else self.twin
        target = make_target(objective, batch, MASK_ID, generator)
        # Under causal visibility padding on the right is seen by padding only.
        visible = None if objective == "arm" else batch.roles != PADDING
        loss, right = loss_of(self.model, target, visible)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.tokens += batch.tokens
        self.recent = [*self.recent, right][-WINDOW:]
        return float(loss.detach())

    def _advance(self) -> None:
        """One more document, when those so far are mastered or patience ends."""
        mastered = len(self.recent) == WINDOW and sum(self.recent) / WINDOW > PASS
        waited = self.documents >= BINDING and self.step - self.since >= self.recipe.patience
        if self.documents < MOST and (mastered or waited):
            self.documents += 1
            self.since, self.recent = self.step, []

    def _log(self, loss: float) -> None:
        """One JSON line; the first line of a log is the settings of the run."""
        right = sum(self.recent) / max(1, len(self.recent))
        row = {
            "step": self.step,
            "tokens": self.tokens,
            "loss": round(loss, 5),
            "right": round(right, 4),
            "documents": self.documents,
            "rate": round(rate_at(self.step - 1, self.recipe), 7),
        }
        path = self.out / "log.jsonl"
        rows = [row] if path.exists() else [self.settings, row]
        with path.open("a") as file:
            file.writelines(json.dumps(entry) + "\n" for entry in rows)
