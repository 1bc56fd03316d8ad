"""Untrained controls: a model with random weights; of a fork, its parent with the fork's visibility and no adapter."""

from __future__ import annotations

from typing import Any

import torch

from floatscope.models.loading import before_training, load
from floatscope.models.model import Model
from floatscope.models.shipped import UNTRAINED

SEED = 0


def load_untrained(source: str, **settings: Any) -> Model:
    """The model before training: a twin's or a fork's own untrained version, or the checkpoint's weights drawn anew."""
    untrained = f"{source}-{UNTRAINED}"
    if before_training(untrained) is not None:
        return load(untrained, **settings)
    model = load(source, **settings)
    randomise(model.backbone)
    return model


@torch.no_grad()
def randomise(backbone: Any) -> None:
    """Draw the weights again as transformers does before training, where they are: no second copy is needed."""
    for part in (*backbone.modules(), *backbone.parameters(), *backbone.buffers()):
        if hasattr(part, "_is_hf_initialized"):  # how transformers marks what it must not draw
            part._is_hf_initialized = False
    state = torch.get_rng_state()
    torch.manual_seed(SEED)
    backbone.initialize_weights()
    backbone.tie_weights()
    torch.set_rng_state(state)
