"""The choices samplers share: a token for each slot, the confidence in it, and which slots commit first."""

from collections.abc import Sequence

import torch
from torch import Tensor

from floatscope.errors import UserError


def choose_tokens(logits: Tensor, temperature: float, stream: torch.Generator) -> Tensor:
    """One token for each row of logits [n, V]: the likeliest, or sampled with a temperature.

    By Gumbel noise: argmax of exp(logits) / (-log u)^temperature, u uniform [n, V] from the sample's stream.
    In float64, as lower precision favours likely tokens (arXiv 2409.02908); in logs, which cannot overflow.
    """
    if temperature == 0:
        return logits.argmax(dim=-1)
    uniform = torch.rand(logits.shape, generator=stream, dtype=torch.float64).to(logits.device)
    return (logits.double() - temperature * (-uniform.log()).log()).argmax(dim=-1)


def probability_of(tokens: Tensor, logits: Tensor) -> Tensor:
    """softmax(logits [n, V]) at tokens [n], in float32."""
    probabilities = torch.softmax(logits, dim=-1, dtype=torch.float32)
    return probabilities.gather(-1, tokens[:, None]).squeeze(-1)


def given_tokens(tokens: Tensor, logits: Tensor) -> Tensor:
    """Tokens [n] of a replay, where their logits [n, V] are; one that the model does not know is refused."""
    if int(tokens.max()) >= logits.shape[-1]:
        raise UserError(f"token id {int(tokens.max())} is outside the vocabulary of {logits.shape[-1]}")
    return tokens.to(logits.device)


def held_back(tokens: Tensor, eos_ids: Sequence[int], hold_eos: bool) -> Tensor:
    """bool [n]: slots whose token ends the answer, if such are to commit last; else none."""
    held = torch.zeros_like(tokens, dtype=torch.bool)
    return torch.isin(tokens, tokens.new_tensor(eos_ids)) if hold_eos and eos_ids else held


def first_slots(preference: Tensor, held: Tensor, number: int) -> Tensor:
    """bool [n]: the `number` slots of highest preference, held ones after the rest, ties by position."""
    order = preference.argsort(descending=True, stable=True)
    order = order[held[order].to(torch.int8).argsort(stable=True)]
    chosen = torch.zeros_like(held)
    chosen[order[:number]] = True
    return chosen
