"""Decoding: samplers as generators of Step events, over any model that can score slots or extend a prompt.

Knows a callable model (`Denoiser`) and nothing of attention. A row of `SAMPLERS` is a sampler's class: its fields are
its settings.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from floatscope.decoding.autoregressive import AutoregressiveSampler
from floatscope.decoding.denoising import Filling, MaskedSampler, Proposal, denoise, masked_slots
from floatscope.decoding.dream import DreamSampler
from floatscope.decoding.entropy_bound import EntropyBoundSampler
from floatscope.decoding.generation import Generation, generate
from floatscope.decoding.llada import LLaDASampler
from floatscope.decoding.steps import Batch, Denoiser, Sampler, Step, random_stream, require_mdm
from floatscope.decoding.threshold import ThresholdSampler
from floatscope.errors import UserError
from floatscope.registry import Registry, did_you_mean

SAMPLERS: Registry[type[Sampler]] = Registry(
    "sampler",
    {
        sampler.name: sampler
        for sampler in (LLaDASampler, DreamSampler, ThresholdSampler, EntropyBoundSampler, AutoregressiveSampler)
    },
)


def make_sampler(name: str, wishes: Mapping[str, Any] | None = None, /, **settings: Any) -> Sampler:
    """A sampler by its name in `SAMPLERS`; a setting that it does not have is refused.

    `wishes`: settings for samplers that have them; the others leave them out.
    """
    sampler = SAMPLERS.named(name)
    known = [field.name for field in fields(sampler)]
    for setting in settings:
        if setting not in known:
            raise UserError(f"The sampler {name!r} has no setting {setting!r}: {did_you_mean(setting, known)}.")
    return sampler(**{wish: value for wish, value in (wishes or {}).items() if wish in known} | settings)


__all__ = [
    "SAMPLERS",
    "AutoregressiveSampler",
    "Batch",
    "Denoiser",
    "DreamSampler",
    "EntropyBoundSampler",
    "Filling",
    "Generation",
    "LLaDASampler",
    "MaskedSampler",
    "Proposal",
    "Sampler",
    "Step",
    "ThresholdSampler",
    "denoise",
    "generate",
    "make_sampler",
    "masked_slots",
    "random_stream",
    "require_mdm",
]
