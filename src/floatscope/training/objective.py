"""The objectives: from a batch to inputs, labels and weights, then to a loss. docs/twins.md has the reasons.

- arm: every token is predicted from those before it.
- dream, llada: some tokens are masked and predicted from all others, by the row before them (dream: shifted logits) or
  by their own row (llada). Each question, and each gap in running text, has its mask ratio t ~ U(T_MIN, 1) and the
  weight 1/t (LLaDA, arXiv 2502.09992); in a share of the sequences with answers or gaps (`recipe.full`) t = 1, as
  decoding starts. A share of sequences (`recipe.whole`) is masked as a whole instead, prompt and all, with one t.
The weights of all tokens of a batch, masked or not, norm its loss, which makes the three objectives comparable.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from floatscope.training.learner import Learner
from floatscope.training.recipe import Recipe
from floatscope.training.stream import (
    ANSWER,
    FIRST,
    FIRST_EOS,
    GAP,
    HOP,
    LATER_EOS,
    PADDING,
    PROMPT,
    TEXT,
    ExampleBatch,
)

# A later eos weighs little, or confident eos slots would cut answers short.
WEIGHTS = {PADDING: 0.0, PROMPT: 0.0, ANSWER: 1.0, FIRST_EOS: 1.0, LATER_EOS: 0.05, FIRST: 1.0, HOP: 4.0}
T_MIN = 0.1
FULL = 32  # hinted tokens in a batch from which on hints weigh in full


@dataclass(frozen=True)
class Target:
    """inputs [B, T] to run; for each chosen token its row in the output, what it should be and what it weighs."""

    inputs: Tensor
    rows: Tensor  # [N, 2] batch index and position of the logits
    labels: Tensor  # [N]
    weights: Tensor  # [N], they sum to about 1
    answers: Tensor  # [N] bool: answer tokens proper, no eos and no text
    gaps: Tensor  # [N] bool: tokens of gaps in running text
    hinted: Tensor  # [H] those of the N that come with hints
    found: Tensor  # [H, 2] the words that name what the first hop finds

    def on(self, device: torch.device) -> Target:
        return Target(*(getattr(self, field.name).to(device) for field in fields(self)))


def role_weights(roles: Tensor, recipe: Recipe) -> Tensor:
    weights = {**WEIGHTS, TEXT: recipe.text, GAP: recipe.gap}
    return torch.tensor([weights[role] for role in sorted(weights)])[roles]


def make_target(
    to: str, batch: ExampleBatch, mask_id: int | None, recipe: Recipe, generator: torch.Generator
) -> Target:
    """What to run and what to ask for; `to` is arm, dream or llada."""
    weights = role_weights(batch.roles, recipe)
    total = weights.sum()
    inputs = batch.ids
    if to != "arm":
        assert mask_id is not None
        masked, weights = draw_masks(batch, recipe, generator)
        inputs = torch.where(masked, mask_id, batch.ids)
        weights = weights * masked
    weights[:, 0] = 0.0  # nothing stands before the first token
    chosen = weights.nonzero()  # [N, 2]
    rows = chosen.clone()
    if to != "llada":
        rows[:, 1] -= 1  # position i is predicted by row i-1
    at = (chosen[:, 0], chosen[:, 1])
    first = (batch.roles == FIRST) | (batch.roles == HOP)
    number = first.flatten().cumsum(0).view_as(first) - 1  # of a first token, in reading order
    hinted = first[at].nonzero().flatten()
    answers, gaps = (batch.roles[at] == ANSWER) | first[at], batch.roles[at] == GAP
    found = batch.found[number[at][hinted]]
    return Target(inputs, rows, batch.ids[at], weights[at] / total, answers, gaps, hinted, found)


def draw_masks(batch: ExampleBatch, recipe: Recipe, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Which tokens are masked [B, T], and what each weighs if it is [B, T]: role weight / t."""
    size, width = batch.ids.shape
    weights = role_weights(batch.roles, recipe)

    def draw(columns: int = 1) -> Tensor:
        return torch.rand(size, columns, generator=generator)

    def ratio(columns: int = 1) -> Tensor:
        return T_MIN + (1 - T_MIN) * draw(columns)

    whole = draw() < recipe.whole if recipe.whole else torch.zeros(size, 1, dtype=torch.bool)  # [B, 1]
    per_sequence = ratio() if recipe.whole else torch.ones(size, 1)
    per_question = ratio(max(1, int(batch.questions.max()) + 1)).gather(1, batch.questions.clamp(min=0))  # [B, T]
    running = ((batch.roles == TEXT) & (batch.questions >= 0)).any(1, keepdim=True)  # text to be masked, no answers
    full = (draw() < recipe.full) & ~running
    t = torch.where(whole, per_sequence, per_question.masked_fill(full, 1.0))
    may = torch.where(whole, batch.roles != PADDING, batch.questions >= 0)
    may[:, 0] = False
    masked = may & (draw(width) < t)
    # A whole-sequence masking asks for what mostly cannot be known: all its tokens weigh as text does.
    return masked, torch.where(whole, weights.clamp(max=recipe.text), weights) / t


def loss_of(learner: Learner, target: Target, visible: Tensor | None, hint: float = 0.0) -> tuple[Tensor, Tensor]:
    """Weighted cross-entropy; and [2, 2]: of answer tokens, and of tokens of gaps, how many are right of how many.

    The head runs on the chosen rows only. `visible` [B, T] is false at padding; `hint` is the weight of the hints.
    """
    target = target.on(learner.device)
    states = learner.states(target.inputs, visible, every=hint > 0)
    logits = learner.head(states[-1][target.rows[:, 0], target.rows[:, 1]]).float()  # [N, vocabulary]
    loss = (cross_entropy(logits, target.labels, reduction="none") * target.weights).sum()
    if hint and len(target.hinted):
        # Cross-entropy of the words found first two layers before the end, plus that of the token one layer before it.
        rows = target.rows[target.hinted]
        norm = learner.backbone.base_model.norm
        early, late = (learner.head(norm(states[-back][rows[:, 0], rows[:, 1]])) for back in (3, 2))
        found = -early.log_softmax(-1).gather(1, target.found).mean()
        hints = found + cross_entropy(late, target.labels[target.hinted])
        loss = loss + hint * min(1.0, len(target.hinted) / FULL) * hints
    right = logits.detach().argmax(-1) == target.labels
    asked = torch.stack([target.answers, target.gaps])  # [2, N]
    return loss, torch.stack([(asked & right).sum(1), asked.sum(1)], dim=1).cpu()
