"""The sampler of autoregressive models: one token per step, through the model's key-value cache."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from floatscope.canvas import COMMITTED
from floatscope.decoding.choosing import choose_tokens, given_tokens, probability_of
from floatscope.decoding.settings import Count, NotNegative
from floatscope.decoding.steps import Batch, Denoiser, Sampler, Step, random_stream, require_arm, require_finite


@dataclass(frozen=True)
class AutoregressiveSampler(Sampler):
    """Write one token per step, the likeliest or sampled; a sample stops with its eos, the batch when all have.

    The confidence of a token is its softmax under the model's own logits, whatever the temperature.
    """

    name: ClassVar[str] = "autoregressive"

    length: Count = 32
    """Tokens at most."""
    temperature: NotNegative = 0.0
    """Gumbel noise on the choice of tokens; 0 takes the likeliest."""
    seed: int = 0
    """Seed of every sample that is given none of its own."""

    def decode(self, denoiser: Denoiser, batch: Batch) -> Iterator[Step]:
        """Extend the prompts; the slots after a sample's eos keep what the batch had in them."""
        require_arm(self, denoiser, batch)
        streams, answers = [random_stream(seed) for seed in batch.seeds], batch.answers
        eos_ids = batch.tokens.new_tensor(denoiser.eos_ids)
        column, cache = batch.tokens[:, : -self.length], None
        active = torch.ones(len(streams), dtype=torch.bool, device=column.device)
        for index in range(self.length):
            logits, cache = denoiser.extend(column, batch.pads, cache)  # [B, V]
            tokens, state = batch.slot_tokens, batch.state.clone()
            confidence = torch.full(state.shape, torch.nan, device=tokens.device)
            for sample in active.nonzero().flatten().tolist():
                own = logits[sample, None].float()  # [1, V]
                require_finite(own, index, sample)
                token = choose_tokens(own, self.temperature, streams[sample])
                if answers is not None:  # a replay: whatever it would choose, and its eos ends nothing
                    token = given_tokens(answers[sample, index, None], own)
                tokens[sample, index] = token
                confidence[sample, index] = probability_of(token, own)
            state[active, index] = COMMITTED
            yield Step(index, batch, tokens, state, confidence, active)
            batch, column = batch.after(tokens, state), tokens[:, index, None]
            if answers is None:
                active = active & ~torch.isin(column[:, 0], eos_ids)
            if not active.any():
                return
