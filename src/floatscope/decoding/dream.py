"""Dream's sampler: the whole answer at once, revealed along a linear time schedule."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from floatscope.decoding.choosing import choose_tokens, first_slots, held_back
from floatscope.decoding.denoising import Filling, MaskedSampler, Proposal, masked_slots
from floatscope.decoding.settings import Count, NotNegative
from floatscope.decoding.steps import Batch, Denoiser
from floatscope.errors import UserError

MOST_STEPS = 10_000_000  # of which each is a forward pass
Algorithm = Literal["entropy", "origin", "maskgit_plus", "topk_margin"]


@dataclass(frozen=True)
class DreamSampler(MaskedSampler):
    """Reveal slots from time 1 to `eps` in equal strides t -> s (arXiv 2508.15487 and its published code).

    A step reveals int(masked * (1 - s/t)) slots, the last step all that are left: with steps = length the
    first commits nothing and the last commits two. A step without commits is a step all the same.
    """

    name: ClassVar[str] = "dream"

    steps: Count = 32
    """Forward passes in all."""
    length: Count = 32
    """Answer slots."""
    alg: Algorithm = "entropy"
    """Which slots commit first: low entropy, high probability of the token (maskgit_plus), wide margin of
    the likeliest token over the next (topk_margin); origin reveals each slot with probability 1 - s/t."""
    eps: Annotated[float, "(0, 1)"] = 1e-3
    """Time at the end of the schedule."""
    temperature: NotNegative = 0.0
    """Divides the logits before tokens are sampled; 0 takes the likeliest."""
    top_p: Annotated[float, "(0, 1]"] | None = None
    """Keep only the likeliest tokens that together reach this probability."""
    top_k: Count | None = None
    """Keep only so many of the likeliest tokens."""
    alg_temp: NotNegative | None = None
    """Sample the slots from softmax(confidence / alg_temp); None or 0 takes the most confident."""
    hold_eos: bool = False
    """Slots that would end the answer commit last; their tokens and confidences stay."""
    mask_is_candidate: bool = False
    """Whether slots may take the mask token, as in the published code: one that does stays masked for another step and,
    at the last step, in the answer. By hand off; the family's own sampler has it on, to decode as published."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps > MOST_STEPS:
            raise UserError(f"{type(self).__name__}: steps={self.steps} are more than {MOST_STEPS}: ask for fewer.")
        ordered = self.order != "confidence" or self.tokens_per_step
        if self.alg == "origin" and (self.alg_temp or self.hold_eos or ordered):
            raise UserError(
                f"{type(self).__name__}: alg='origin' reveals slots by chance, not by confidence: leave out alg_temp,"
                " hold_eos, order and tokens_per_step, or choose another alg."
            )

    def step_bounds(self, first_slot: int, family_block: int | None) -> tuple[int, int]:
        """By chance (`origin`) all may be revealed at once; otherwise the schedule is fixed, unless masks stay."""
        if self.alg == "origin":
            return 1, self.steps
        if self.tokens_per_step:
            return self._steps, self._steps
        masked, shares, index = self.length, revealed_shares(self.steps, self.eps), 0
        while masked:
            index += int((masked * shares[index:] >= 1).int().argmax())  # the next step that reveals a slot
            masked -= int(masked * shares[index])
            index += 1
        return index, self.steps if self.mask_is_candidate else index

    def filling(self, denoiser: Denoiser, batch: Batch, sample: int, stream: torch.Generator) -> Filling:
        """One schedule for all samples, over the whole answer."""
        if denoiser.block is not None:
            raise UserError(
                f"{type(self).__name__} fills the whole answer at once, but this model is block-causal with"
                f" blocks of {denoiser.block}: leave the sampler out to use the model's own."
            )
        return _DreamFilling(self, revealed_shares(self._steps, self.eps), denoiser.eos_ids, stream)

    @property
    def _steps(self) -> int:
        return -(-self.length // self.tokens_per_step) if self.tokens_per_step else self.steps


@dataclass(frozen=True, eq=False)
class _DreamFilling(Filling):
    """One sample; step i reveals the share `shares[i]` = 1 - s/t of what is masked."""

    sampler: DreamSampler
    shares: Tensor
    eos_ids: tuple[int, ...]
    stream: torch.Generator

    def last(self, index: int) -> bool:
        return index == len(self.shares) - 1

    def open_slots(self, index: int, state: Tensor) -> Tensor:
        return masked_slots(state)

    def propose(self, index: int, logits: Tensor) -> Proposal:
        if self.sampler.alg == "origin":
            return self._propose_by_chance(float(self.shares[index]), logits)
        tokens, probabilities = self._tokens(logits)
        confidence = confidence_by(self.sampler.alg, tokens, probabilities)
        preference = confidence
        if self.sampler.alg_temp:
            # The top n of log p + Gumbel noise are n draws from p without replacement.
            uniform = torch.rand(len(tokens), generator=self.stream, dtype=torch.float64)
            gumbel = -(-uniform.log()).log().to(confidence.device)
            preference = confidence.double() / self.sampler.alg_temp + gumbel
        held = held_back(tokens, self.eos_ids, self.sampler.hold_eos)
        number = self.sampler.tokens_per_step or int(len(tokens) * self.shares[index])
        return Proposal(tokens, confidence, first_slots(preference, held, number))

    def _propose_by_chance(self, chance: float, logits: Tensor) -> Proposal:
        """`origin`: only the revealed slots choose a token."""
        uniform = torch.rand(len(logits), generator=self.stream, dtype=torch.float64)
        revealed = (uniform < chance).to(logits.device)
        tokens = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
        confidence = torch.zeros(len(logits), device=logits.device)
        if revealed.any():
            tokens[revealed], probabilities = self._tokens(logits[revealed])
            confidence[revealed] = confidence_by("origin", tokens[revealed], probabilities)
        return Proposal(tokens, confidence, revealed)

    def _tokens(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """A token for each row of logits, and the probabilities [n, V] it was chosen by."""
        logits = keep_likely(logits, self.sampler.temperature, self.sampler.top_p, self.sampler.top_k)
        # The temperature is in these logits: what is left is to sample from their softmax.
        tokens = choose_tokens(logits, 1.0 if self.sampler.temperature else 0.0, self.stream)
        return tokens, torch.softmax(logits, dim=-1)


@lru_cache(maxsize=1)
def revealed_shares(steps: int, eps: float) -> Tensor:
    """[steps]: the share 1 - s/t of what is masked that each step reveals, 1 at the last."""
    times = torch.linspace(1, eps, steps + 1)  # float32, as published: int() truncates on it
    shares = 1 - times[1:] / times[:-1]
    shares[-1] = 1.0
    return shares


def keep_likely(logits: Tensor, temperature: float, top_p: float | None, top_k: int | None) -> Tensor:
    """Logits [n, V] after temperature, then top_p, then top_k; what is cut has -inf."""
    if temperature > 0:
        logits = logits / temperature
    if top_p is not None and top_p < 1:
        ranked, order = logits.sort(dim=-1, descending=True, stable=True)
        reached = torch.softmax(ranked, dim=-1).cumsum(dim=-1)
        # A token stays if those before it have not passed top_p; so the likeliest always does.
        cut = torch.zeros_like(reached, dtype=torch.bool)
        cut[:, 1:] = reached[:, :-1] > top_p
        logits = logits.masked_fill(torch.zeros_like(cut).scatter(-1, order, cut), -torch.inf)
    if top_k is not None:
        least = logits.topk(min(top_k, logits.shape[-1]), dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    return logits


def confidence_by(alg: Algorithm, tokens: Tensor, probabilities: Tensor) -> Tensor:
    """Confidence [n] in tokens [n] by probabilities [n, V]: p(token), p1 - p2, or sum p log(p + 1e-10)."""
    if alg == "topk_margin":
        likeliest = probabilities.topk(2, dim=-1).values
        return likeliest[:, 0] - likeliest[:, 1]
    if alg == "entropy":
        return (probabilities * (probabilities + 1e-10).log()).sum(dim=-1)
    return probabilities.gather(-1, tokens[:, None]).squeeze(-1)
