"""The forks' objectives: from a batch to inputs, labels and weights, then to a loss. Data is left to `stream`.

- arm: each token is predicted from those before it.
- dream, llada: some tokens are masked and predicted from all others, by the row before them (dream: shifted logits) or
  by their own row (llada). In running text any token may be masked, in a question only answer slots; the mask ratio of
  a sequence is t ~ U(T_MIN, 1), its weight 1/t (LLaDA, arXiv 2502.09992); half of the questions have t = 1, as decoding
  starts.
Answers and the eos that ends them weigh 1. A later eos weighs little, or confident eos slots would cut answers short;
a token of running text so little that a text counts about as much as an answer. The weights of all tokens of a batch,
masked or not, norm its loss, which makes the three objectives comparable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from floatscope.adapting.stream import ANSWER, FIRST_EOS, LATER_EOS, PADDING, PROMPT, TEXT, Batch

WEIGHTS = {PADDING: 0.0, PROMPT: 0.0, TEXT: 0.05, ANSWER: 1.0, FIRST_EOS: 1.0, LATER_EOS: 0.05}
T_MIN = 0.1
ALL_MASKED = 0.5  # share of questions with every slot masked


@dataclass(frozen=True)
class Target:
    """inputs [B, T] to run; for each chosen token its row in the output, what it should be and what it weighs."""

    inputs: torch.Tensor
    rows: torch.Tensor  # [N, 2] batch index and position of the logits
    labels: torch.Tensor  # [N]
    weights: torch.Tensor  # [N], they sum to about 1
    answers: torch.Tensor  # [N] bool: answer tokens proper, no eos and no text


def role_weights(roles: torch.Tensor) -> torch.Tensor:
    return torch.tensor([WEIGHTS[role] for role in sorted(WEIGHTS)])[roles]


def make_target(objective: str, batch: Batch, mask_id: int | None, generator: torch.Generator) -> Target:
    weights = role_weights(batch.roles)
    total = weights.sum()
    inputs = batch.ids
    if objective != "arm":
        assert mask_id is not None
        masked, ratio = draw_masks(batch, generator)
        inputs = torch.where(masked, mask_id, batch.ids)
        weights = weights * masked / ratio
    weights[:, 0] = 0.0  # nothing stands before the first token
    chosen = weights.nonzero()  # [N, 2]
    rows = chosen.clone()
    if objective != "llada":
        rows[:, 1] -= 1  # position i is predicted by row i-1
    at = (chosen[:, 0], chosen[:, 1])
    return Target(inputs, rows, batch.ids[at], weights[at] / total, batch.roles[at] == ANSWER)


def draw_masks(batch: Batch, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Which tokens are masked [B, T], and the mask ratio of each sequence [B, 1]."""
    size, width = batch.ids.shape
    ratio = T_MIN + (1 - T_MIN) * torch.rand(size, 1, generator=generator)
    full = torch.rand(size, 1, generator=generator) < ALL_MASKED
    running = (batch.roles == TEXT).any(1, keepdim=True)
    ratio = torch.where(full & ~running, 1.0, ratio)
    may = batch.roles >= TEXT
    may[:, 0] = False
    return may & (torch.rand(size, width, generator=generator) < ratio), ratio


def loss_of(fork: Any, target: Target, visible: torch.Tensor | None) -> tuple[torch.Tensor, int, int]:
    """Weighted cross-entropy, right answer tokens and answer tokens; the head runs on the chosen rows only.

    `fork` gives logits of rows (see `forks.Fork`); `visible` [B, T] is false at padding.
    """
    logits = fork.logits(target.inputs, target.rows, visible).float()  # [N, vocabulary]
    labels = target.labels.to(logits.device)
    loss = (cross_entropy(logits, labels, reduction="none") * target.weights.to(logits.device)).sum()
    right = (logits.detach().argmax(-1) == labels)[target.answers.to(logits.device)]
    return loss, int(right.sum()), len(right)
