"""Decoding: samplers as generators of Step events, over any model that can score slots or extend a prompt.

Knows a callable model (`Denoiser`) and nothing of attention.
To add a sampler is to add its file, and its class to `SAMPLERS`.
"""

from dataclasses import fields
from typing import Any

from floatscope.decoding.autoregressive import AutoregressiveSampler
from floatscope.decoding.dream import DreamSampler
from floatscope.decoding.generation import Generation, generate, make_batch, read_prompts
from floatscope.decoding.llada import LLaDASampler
from floatscope.decoding.settings import did_you_mean
from floatscope.decoding.steps import Batch, Denoiser, Sampler, Step
from floatscope.decoding.threshold import ThresholdSampler
from floatscope.errors import UserError

AnySampler = LLaDASampler | DreamSampler | ThresholdSampler | AutoregressiveSampler

SAMPLERS: dict[str, type[AnySampler]] = {
    sampler.name: sampler for sampler in (LLaDASampler, DreamSampler, ThresholdSampler, AutoregressiveSampler)
}


def make_sampler(name: str, **settings: Any) -> AnySampler:
    """A sampler by its name in `SAMPLERS`; every mistake in name or settings is a UserError."""
    if name not in SAMPLERS:
        raise UserError(f"There is no sampler {name!r}:{did_you_mean(str(name), SAMPLERS)}")
    known = [field.name for field in fields(SAMPLERS[name])]
    for setting in settings:
        if setting not in known:
            raise UserError(f"The sampler {name!r} has no setting {setting!r}:{did_you_mean(setting, known)}")
    return SAMPLERS[name](**settings)


__all__ = [
    "SAMPLERS",
    "AutoregressiveSampler",
    "Batch",
    "Denoiser",
    "DreamSampler",
    "Generation",
    "LLaDASampler",
    "Sampler",
    "Step",
    "ThresholdSampler",
    "generate",
    "make_batch",
    "make_sampler",
    "read_prompts",
]
