"""Training the twins: one causal parent through a curriculum, then three forks of it on one stream. Resumable.

`train` is all there is to call. A step's data, masks and learning rate follow from (seed, step), so a run that was
stopped and started again ends in the same weights as one that was not. Gates are measured by `gates`.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from floatscope.checkpoints import log_row, read_checkpoint, write_checkpoint
from floatscope.errors import UserError
from floatscope.twins.architecture import Shape, load_parent, make_model, save_twin, set_visibility
from floatscope.twins.objectives import loss_of, make_target
from floatscope.twins.stream import PADDING, ROUND, Stage, Stream
from floatscope.twins.tokenizer import MASK_ID, make_tokenizer
from floatscope.twins.world import World

TWINS = ("parent", "arm", "dream", "llada")
BETAS = (0.9, 0.98)
CLIP = 1.0
LESSONS = (1, 2, 3, 5, 6, 8, 10)  # documents at most, in the lessons of the parent's curriculum
BINDING = 3  # up to this many documents, contexts ask for binding only
HOPPING = 5  # up to this many, mostly for two hops
PASS, WINDOW = 0.9, 4 * ROUND  # a lesson ends when this share of answer tokens was right over so many steps
_HOPS = {"binding": 0.11, "rag": 0.11, "twohop": 0.7, "closed": 0.08}
_MIX = {"binding": 0.3, "rag": 0.3, "twohop": 0.32, "closed": 0.08}
_FORKED = {"binding": 0.28, "rag": 0.26, "twohop": 0.32, "closed": 0.14}


@dataclass(frozen=True)
class Recipe:
    """The numbers of one training run."""

    steps: int
    batch: int
    rate: float  # peak learning rate
    warmup: int = 50
    floor: float = 0.05  # the learning rate falls to this share of its peak ...
    horizon: int = 0  # ... by this step; 0: the last one
    cooldown: int = 0  # over so many steps at the end it falls to nothing on top of that
    decay: float = 0.05  # weight decay
    hint: float = 1.0  # weight of the hints
    patience: int = 120  # a lesson of more than BINDING documents ends at the latest after so many steps ...
    hopping: int = 400  # ... and that of two hops after so many


_FORK = Recipe(steps=1000, batch=16, rate=1.5e-3, horizon=1300, cooldown=300)
RECIPES = {"parent": Recipe(steps=3100, batch=16, rate=3e-3), "arm": _FORK, "dream": _FORK, "llada": _FORK}


@dataclass(frozen=True)
class Progress:
    """What a listener is told after each step."""

    twin: str
    step: int
    steps: int
    loss: float
    tokens: int


def stage_at(twin: str, documents: int) -> Stage:
    """What the stream holds in the lesson with this many documents; forks are in the last one."""
    if twin != "parent":
        return Stage(documents, _FORKED, questions=10, slots=32, unanswerable=0.05, stable=0.05, near=0.2, once=True)
    if documents <= BINDING:  # learn to copy and to bind before anything else
        return Stage(documents, {"binding": 1.0}, questions=10, slots=0, plain=True)
    mix = _HOPS if documents <= HOPPING else _MIX
    return Stage(documents, mix, questions=10, slots=0, unanswerable=0.05, stable=0.05, near=0.15)


def rate_at(step: int, recipe: Recipe) -> float:
    """Linear warmup, then a cosine down to the floor, and a linear cooldown."""
    if step < recipe.warmup:
        return recipe.rate * (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, (recipe.horizon or recipe.steps) - recipe.warmup)
    left = min(1.0, (recipe.steps - step) / recipe.cooldown) if recipe.cooldown else 1.0
    return recipe.rate * left * (recipe.floor + (1 - recipe.floor) * 0.5 * (1 + math.cos(math.pi * done)))


def train(
    twin: str,
    out: Path,
    parent: Path | None = None,
    recipe: Recipe | None = None,
    seed: int = 0,
    shape: Shape | None = None,
    save_every: int = 100,
    stop_after: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Path:
    """Train one twin into the folder `out` and return it; a folder with a checkpoint is taken up where it stopped.

    `parent` is the folder of the trained parent for arm, dream and llada (default: the one that ships).
    `out` gets checkpoint.pt, log.jsonl and, at the end, the model in its dialect. `stop_after` ends early, resumable.
    """
    if twin not in TWINS:
        raise UserError(f"Unknown twin {twin!r}; floatscope trains {', '.join(TWINS)}.")
    if twin == "parent" and parent is not None:
        raise UserError(f"The parent has no parent: leave out {parent}, or train arm, dream or llada from it.")
    recipe = recipe or RECIPES[twin]
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, seed, shape or Shape()) if twin == "parent" else load_parent(parent)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot make the folder {out} for the twin ({error.strerror}); name another one.") from None
    set_visibility(model, bidirectional=twin in ("dream", "llada"))
    run = _Run(twin, out, recipe, seed, model)
    run.resume()
    run.go(Stream(World(0), tokenizer, seed, recipe.batch), save_every, stop_after, progress)
    if run.step >= recipe.steps:
        save_twin(twin, model, tokenizer, out)
    return out


_COUNTERS = ("step", "tokens", "lesson", "since", "recent")


def _optimizers(model: LlamaForCausalLM, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embeddings and norms, at one rate."""
    matrices = [p for name, p in model.named_parameters() if p.ndim > 1 and "embed" not in name]
    norms = [p for p in model.parameters() if p.ndim == 1]
    muon = torch.optim.Muon(matrices, lr=recipe.rate, weight_decay=recipe.decay, adjust_lr_fn="match_rms_adamw")
    rest = [
        {"params": [model.model.embed_tokens.weight], "weight_decay": recipe.decay},
        {"params": norms, "weight_decay": 0.0},
    ]
    return [muon, torch.optim.AdamW(rest, lr=recipe.rate, betas=BETAS)]


class _Run:
    """The state of a training run: model, optimizers, step and tokens, and how they are kept."""

    def __init__(self, twin: str, out: Path, recipe: Recipe, seed: int, model: LlamaForCausalLM) -> None:
        self.twin, self.out, self.recipe, self.seed, self.model = twin, out, recipe, seed, model
        self.optimizers = _optimizers(model, recipe)
        self.step = 0
        self.tokens = 0
        self.lesson = 0 if twin == "parent" else len(LESSONS) - 1
        self.since = 0  # step at which the lesson began
        self.recent: list[float] = []  # shares of right answer tokens since then

    @property
    def settings(self) -> dict[str, Any]:
        return {"twin": self.twin, "seed": self.seed, **asdict(self.recipe)}

    def resume(self) -> None:
        saved = read_checkpoint(self.out, self.settings)
        if saved is None:
            return
        self.model.load_state_dict(saved["model"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        for name in _COUNTERS:
            setattr(self, name, saved[name])

    def save(self) -> None:
        saved = {
            "settings": self.settings, "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            **{name: getattr(self, name) for name in _COUNTERS},
        }  # fmt: skip
        write_checkpoint(self.out, saved)

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
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate_at(self.step, self.recipe)
        if self.step % ROUND == 0:  # a stage holds for a whole round of batches
            self._advance()
        batch = stream.at(self.step, stage_at(self.twin, LESSONS[self.lesson]))
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.step)
        objective = "arm" if self.twin == "parent" else self.twin
        target = make_target(objective, batch, MASK_ID, generator)
        # Under causal visibility padding on the right is seen by padding only.
        visible = None if objective == "arm" else batch.roles != PADDING
        loss, right = loss_of(self.model, target, visible, self.recipe.hint)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.tokens += batch.tokens
        self.recent = [*self.recent, right][-WINDOW:]
        return float(loss.detach())

    def _advance(self) -> None:
        """The next lesson, when this one is mastered or patience with it ends (never before binding is learnt)."""
        documents = LESSONS[self.lesson]
        mastered = len(self.recent) == WINDOW and sum(self.recent) / WINDOW > PASS
        patience = self.recipe.hopping if documents <= HOPPING else self.recipe.patience
        waited = documents >= BINDING and self.step - self.since >= patience
        if self.lesson < len(LESSONS) - 1 and (mastered or waited):
            self.lesson += 1
            self.since, self.recent = self.step, []

    def _log(self, loss: float) -> None:
        right = sum(self.recent) / max(1, len(self.recent))
        row = {
            "step": self.step,
            "tokens": self.tokens,
            "loss": round(loss, 5),
            "right": round(right, 4),
            "documents": LESSONS[self.lesson],
            "rate": round(rate_at(self.step - 1, self.recipe), 7),
        }
        log_row(self.out, self.settings, row)
