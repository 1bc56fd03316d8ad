"""Learners: a causal backbone in training, and what of it is trained. They know nothing of data or objectives.

`TwinLearner` trains all weights of a twin; `adapter_learner` a LoRA adapter of a pretrained parent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from floatscope.models.model import see_everything
from floatscope.models.twins import save_twin
from floatscope.training.recipe import Recipe

BETAS = (0.9, 0.98)


class Learner:
    """A causal backbone that is trained on as it is (arm) or under full visibility (dream, llada)."""

    mask_embedding: torch.nn.Parameter | None = None
    """The embedding of the mask token, where it is trained apart from the others."""

    def __init__(self, backbone: Any, to: str, tokenizer: Any, mask_id: int | None, name: str) -> None:
        self.backbone, self.to, self.tokenizer, self.mask_id, self.name = backbone, to, tokenizer, mask_id, name
        self.prepare()

    def prepare(self) -> None:
        """Attention that trains fast, and the visibility to train for."""
        self.backbone.set_attn_implementation("sdpa")
        if self.to != "arm":
            see_everything(self.backbone)

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """All that is trained, by name, in a fixed order."""
        return {name: parameter for name, parameter in self.backbone.named_parameters() if parameter.requires_grad}

    def optimizers(self, recipe: Recipe) -> list[torch.optim.Optimizer]:
        """What moves the parameters."""
        trained = list(self.parameters().values())
        return [torch.optim.AdamW(trained, lr=recipe.rate, betas=BETAS, weight_decay=recipe.decay)]

    @property
    def device(self) -> torch.device:
        """Where it trains."""
        return self.embedding.weight.device

    @property
    def context(self) -> int | None:
        """The longest sequence that the backbone was made for, if it says."""
        return getattr(self.backbone.config.get_text_config(), "max_position_embeddings", None)

    @property
    def embedding(self) -> Any:
        """The token embedding."""
        return self.backbone.get_input_embeddings()

    def states(self, inputs: Tensor, visible: Tensor | None, every: bool = False) -> tuple[Tensor, ...]:
        """Hidden states [B, T, d], of `every` layer or the last one only; `visible` [B, T] is false at padding."""
        embedded = self.embedding(inputs)
        if self.mask_embedding is not None:
            embedded = torch.where((inputs == self.mask_id)[..., None], self.mask_embedding, embedded)
        seen = None if visible is None or bool(visible.all()) else visible.to(self.device)
        found = self.backbone.base_model(
            inputs_embeds=embedded, attention_mask=seen, use_cache=False, output_hidden_states=every
        )
        return found.hidden_states if every else (found.last_hidden_state,)

    def head(self, states: Tensor) -> Tensor:
        """Logits [N, vocabulary] of hidden states [N, d]."""
        head = self.backbone.get_output_embeddings()
        logits = head(states)
        if self.mask_embedding is not None and head.weight is self.embedding.weight:
            logits[:, self.mask_id] = states @ self.mask_embedding.to(states.dtype)
        return logits


class TwinLearner(Learner):
    """A twin, all of whose weights are trained."""

    def __init__(self, backbone: Any, twin: str, tokenizer: Any) -> None:
        self.twin = twin
        to = "arm" if twin == "parent" else twin
        super().__init__(backbone, to, tokenizer, tokenizer.mask_token_id, f"twin-{twin}")

    def optimizers(self, recipe: Recipe) -> list[torch.optim.Optimizer]:
        """Muon for the matrices of the layers, AdamW for embeddings and norms, at one rate."""
        parameters = self.parameters()
        matrices = [p for name, p in parameters.items() if p.ndim > 1 and "embed" not in name]
        rest = [
            {"params": [self.embedding.weight], "weight_decay": recipe.decay},
            {"params": [p for p in parameters.values() if p.ndim == 1], "weight_decay": 0.0},
        ]
        return [
            torch.optim.Muon(matrices, lr=recipe.rate, weight_decay=recipe.decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, lr=recipe.rate, betas=BETAS),
        ]

    def write(self, out: Path) -> None:
        """The whole model in its dialect."""
        save_twin(self.twin, self.backbone, self.tokenizer, out)
