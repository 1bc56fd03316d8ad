"""The twins' objectives: from a batch to inputs, labels and weights, then to a loss. Data is left to `stream`.

- arm: every token is predicted from those before it.
- dream, llada: some tokens are masked and predicted from all others, by the row before them (dream: shifted logits)
  or by their own row (llada). Mask ratio t ~ U(T_MIN, 1), weight 1/t. One sequence in seven is masked as a whole, with
  one t; in the rest only answer slots are masked, and each question has its own t, or in half of them t = 1: decoding
  starts without an answer in sight, so a question must not lean on the answers to others.
Answers weigh 1 and text little; an eos after the first weighs less, or confident eos slots would cut answers short.
Tokens that start a two-hop answer weigh more. Those that start an answer in the documents come with hints: what
the row that predicts them should hold two layers before the end (the words that name what the first hop finds: the
answer, or the bridge to it) and one layer before the end (the token), as read by the model's own head. Without hints
two-hop questions stayed at guess level.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from floatscope.twins.stream import ANSWER, FIRST, FIRST_EOS, HOP, LATER_EOS, PADDING, TEXT, Batch

WEIGHTS = {PADDING: 0.0, TEXT: 0.1, ANSWER: 1.0, FIRST_EOS: 1.0, LATER_EOS: 0.05, FIRST: 1.0, HOP: 4.0}
T_MIN = 0.1
WHOLE_SEQUENCE = 0.15
ALL_MASKED = 0.5  # share, among the rest, of sequences with every answer slot masked
FULL = 32  # hinted tokens in a batch from which on hints weigh in full
OBJECTIVES = ("arm", "dream", "llada")


@dataclass(frozen=True)
class Target:
    """inputs [B, T] to run; for each chosen token its row in the output, what it should be and what it weighs."""

    inputs: torch.Tensor
    rows: torch.Tensor  # [N, 2] batch index and position of the logits
    labels: torch.Tensor  # [N]
    weights: torch.Tensor  # [N], they sum to about 1
    answers: torch.Tensor  # [N] bool: answer tokens proper, no eos and no text
    hinted: torch.Tensor  # [H] those of the N that come with hints
    found: torch.Tensor  # [H, 2] the words that name what the first hop finds


def role_weights(roles: torch.Tensor) -> torch.Tensor:
    return torch.tensor([WEIGHTS[role] for role in sorted(WEIGHTS)])[roles]


def make_target(objective: str, batch: Batch, mask_id: int, generator: torch.Generator) -> Target:
    if objective == "arm":
        weights = role_weights(batch.roles)
        inputs = batch.ids
    else:
        masked, weights = draw_masks(batch, generator)
        inputs = torch.where(masked, mask_id, batch.ids)
        weights = weights * masked
    weights[:, 0] = 0.0  # bos is given
    total = role_weights(batch.roles).sum()
    chosen = weights.nonzero()  # [N, 2]
    rows = chosen.clone()
    if objective != "llada":
        rows[:, 1] -= 1  # position i is predicted by row i-1
    at = (chosen[:, 0], chosen[:, 1])
    roles = batch.roles[at]
    first = (batch.roles == FIRST) | (batch.roles == HOP)
    number = first.flatten().cumsum(0).view_as(first) - 1  # of a first token, in reading order
    hinted = first[at].nonzero().flatten()
    answers = (roles == ANSWER) | first[at]
    return Target(inputs, rows, batch.ids[at], weights[at] / total, answers, hinted, batch.found[number[at][hinted]])


def draw_masks(batch: Batch, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Which tokens are masked, and what each weighs if it is: role weight / t."""
    size, width = batch.ids.shape
    most = int(batch.questions.max()) + 1

    def ratio(*shape: int) -> torch.Tensor:
        return T_MIN + (1 - T_MIN) * torch.rand(*shape, generator=generator)

    whole = torch.rand(size, 1, generator=generator) < WHOLE_SEQUENCE  # [B, 1]
    per_sequence = ratio(size, 1).expand(size, width)
    per_question = ratio(size, most).gather(1, batch.questions.clamp(min=0))  # [B, T]
    full = torch.rand(size, 1, generator=generator) < ALL_MASKED  # [B, 1]
    t = torch.where(whole, per_sequence, per_question.masked_fill(full, 1.0))
    may = torch.where(whole, batch.roles != PADDING, batch.questions >= 0)
    may[:, 0] = False  # bos stays
    masked = may & (torch.rand(size, width, generator=generator) < t)
    # A whole-sequence masking asks for what mostly cannot be known: all its tokens weigh as text does.
    weights = torch.where(whole, role_weights(batch.roles).clamp(max=WEIGHTS[TEXT]), role_weights(batch.roles))
    return masked, weights / t


def loss_of(
    model: LlamaForCausalLM, target: Target, visible: torch.Tensor | None, hint: float = 0.0
) -> tuple[torch.Tensor, float]:
    """Weighted cross-entropy, and the share of right answer tokens; the head runs on the chosen rows only.

    `visible` [B, T] is false at padding; `hint` is the weight of the hints.
    """
    output = model.model(
        input_ids=target.inputs, attention_mask=visible, use_cache=False, output_hidden_states=hint > 0
    )
    logits = model.lm_head(output.last_hidden_state[target.rows[:, 0], target.rows[:, 1]])  # [N, vocabulary]
    right = (logits.argmax(-1) == target.labels)[target.answers]
    loss = (cross_entropy(logits, target.labels, reduction="none") * target.weights).sum()
    if hint and len(target.hinted):
        loss = loss + hint * min(1.0, len(target.hinted) / FULL) * _hints(model, output.hidden_states, target)
    return loss, float(right.float().mean()) if len(right) else 0.0


def _hints(model: LlamaForCausalLM, states: tuple[torch.Tensor, ...], target: Target) -> torch.Tensor:
    """Cross-entropy of the words found first two layers before the end, plus that of the token one layer before it."""
    rows = target.rows[target.hinted]
    early, late = (model.lm_head(model.model.norm(states[-back][rows[:, 0], rows[:, 1]])) for back in (3, 2))
    found = -early.log_softmax(-1).gather(1, target.found).mean()
    return found + cross_entropy(late, target.labels[target.hinted])
