"""Untrained controls: a model with random weights; of a fork, its parent with the fork's visibility and no adapter."""

from __future__ import annotations

from typing import Any

import torch

from floatscope.models.adapters import before_training
from floatscope.models.loading import load
from floatscope.models.model import Model
from floatscope.study.plan import UNTRAINED, ModelPlan
from floatscope.twins.architecture import SHIPPED

SEED = 0


def load_model(plan: ModelPlan) -> Model:
    """The model of a plan under the plan's name."""
    model = load(
        plan.source,
        family=plan.family,
        dtype=plan.dtype,
        device=plan.device,
        device_map=plan.device_map,
        mask_id=plan.mask_id,
    )
    model.name = plan.name
    return model


def load_untrained(plan: ModelPlan) -> Model:
    """The model before training: a twin's or a fork's own untrained version, or the checkpoint's weights drawn anew."""
    untrained = f"{plan.source}-{UNTRAINED}"
    if plan.source in SHIPPED or before_training(untrained) is not None:
        model = load(
            untrained,
            family=plan.family,
            dtype=plan.dtype,
            device=plan.device,
            device_map=plan.device_map,
            mask_id=plan.mask_id,
        )
    else:
        model = load_model(plan)
        randomise(model.backbone)
    model.name = f"{plan.name}-{UNTRAINED}"
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
