"""A fork in the making: a pretrained ARM with frozen weights, a LoRA adapter on its linear layers, and a mask token.

Knows transformers and peft; nothing of data or objectives.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from floatscope.errors import UserError
from floatscope.models.adapters import FAMILY_OF, parent_hash
from floatscope.models.families import get_family
from floatscope.models.loading import load, resolve
from floatscope.models.model import Model, see_everything

SCALED = ("final_logit_softcapping", "logits_scaling", "logit_scale")  # what some heads do after their product
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def import_peft() -> Any:
    try:
        import peft
    except ImportError:
        raise UserError("Adapting needs the package peft: pip install 'floatscope[adapt]'.") from None
    return peft


def choose_mask_token(tokenizer: Any) -> int:
    """The mask token of a fork: the tokenizer's own, else its last special token that stands for nothing else.

    Such tokens (SmolLM2: <empty_output>) are in the vocabulary and, being special, never come out of plain text.
    """
    if tokenizer.mask_token_id is not None:
        return int(tokenizer.mask_token_id)
    taken = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    chat = str(getattr(tokenizer, "chat_template", None) or "")
    free = [
        number
        for number, token in tokenizer.added_tokens_decoder.items()
        if token.special and number not in taken and token.content not in chat
    ]
    if not free:
        raise UserError(
            "The parent's tokenizer has no special token left to be the mask: its special tokens are all in use. "
            "Choose a parent with a reserved one (<reserved_0>, <|fim_pad|>, ...), or add one and resize its embedding."
        )
    return int(max(free))


def parent_tokenizer(model: Model) -> Any:
    """The tokenizer of a model that can be forked: an ARM, with an eos token."""
    if not model.family.is_arm:
        raise UserError(f"{model.name} is of family {model.family.name}; only an ARM (family causal) can be forked.")
    if model.tokenizer is None or model.tokenizer.eos_token_id is None:
        raise UserError(f"{model.name} has no tokenizer with an eos token, which training on text needs.")
    return model.tokenizer


class _AdaptedLinear(torch.autograd.Function):
    """x W' + scale (x A') B' with W frozen: products added in place, where peft's own layer makes three passes more."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        flat = x.reshape(-1, x.shape[-1])  # [N, in]
        low = flat @ a.t()  # [N, r]
        out = flat @ weight.t()  # [N, out]
        out.addmm_(low, b.t(), alpha=scale)
        ctx.save_for_backward(flat, weight, a, b, low)
        ctx.scale = scale
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        flat, weight, a, b, low = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])  # [N, out]
        low_grad = (rows @ b).mul_(ctx.scale)  # [N, r]
        grad_x = rows @ weight
        grad_x.addmm_(low_grad, a)
        return grad_x.view(*grad.shape[:-1], -1), None, low_grad.t() @ flat, (rows.t() @ low).mul_(ctx.scale), None


def quicken(backbone: torch.nn.Module) -> None:
    """Let peft's layers compute with `_AdaptedLinear`: the same numbers, a CPU step in an eighth less time."""
    for module in backbone.modules():
        if hasattr(module, "lora_A") and isinstance(base := getattr(module, "base_layer", None), torch.nn.Linear):
            module.forward = partial(_quick_forward, module, base)


def _quick_forward(layer: Any, base: torch.nn.Linear, x: Tensor) -> Tensor:
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    out: Any = _AdaptedLinear.apply(x, base.weight, a, b, layer.scaling["default"])
    return out if base.bias is None else out + base.bias


class Fork:
    """The parent with what is trained of it. Three forks of one seed and rank begin with the same adapter."""

    def __init__(self, parent: str | Path, to: str, rank: int, seed: int, device: str | None = None) -> None:
        if to not in FAMILY_OF:
            raise UserError(f"Unknown kind of fork {to!r}; a parent is adapted to {', '.join(FAMILY_OF)}.")
        if rank < 1:
            raise UserError(f"The adapter's rank is {rank}: use at least 1.")
        peft = import_peft()
        self.to = to
        model = load(
            parent, device=device or ("cuda" if torch.cuda.is_available() else None), dtype="float32", check=False
        )
        self.tokenizer = parent_tokenizer(model)
        self.name = str(parent)
        self.parent_sha256 = parent_hash(resolve(parent))
        self.eos_id = int(self.tokenizer.eos_token_id)
        self.mask_id = None if to == "arm" else choose_mask_token(self.tokenizer)
        self.backbone = model.backbone
        self.device = model.device
        self.context = model.context
        self._refuse_unknown_layers()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.peft = peft.get_peft_model(self.backbone, self._config(peft, rank))
        if self.device.type == "cpu":
            quicken(self.backbone)
        self._row = self.embedding.weight.detach()[self.mask_id].clone() if self.mask_id is not None else None
        self.mask_embedding = torch.nn.Parameter(self._row.clone()) if self._row is not None else None
        self._prepare()

    def _config(self, peft: Any, rank: int) -> Any:
        return peft.LoraConfig(
            r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=list(LAYERS), task_type="CAUSAL_LM",
        )  # fmt: skip

    def _refuse_unknown_layers(self) -> None:
        names = {name.rpartition(".")[2] for name, _ in self.backbone.named_modules()}
        if missing := [layer for layer in LAYERS if layer not in names]:
            raise UserError(
                f"{self.name} is a {type(self.backbone).__name__} without layers {', '.join(missing)}; adapters are "
                "made for models with the layers of Llama, Qwen, Mistral and their kin."
            )
        scaled = [name for name in SCALED if getattr(self.backbone.config, name, None)]
        if type(self.embedding) is not torch.nn.Embedding or scaled:
            what = f"has {scaled[0]}" if scaled else "scales its embedding"
            raise UserError(f"{self.name} {what}, which training here does not know: choose another parent.")

    def _prepare(self) -> None:
        """Attention that trains fast, and the fork's visibility."""
        self.backbone.set_attn_implementation("sdpa")
        if self.to != "arm":
            see_everything(self.backbone)

    @property
    def embedding(self) -> Any:
        return self.backbone.get_input_embeddings()

    @property
    def tied(self) -> bool:
        return self.embedding.weight is self.backbone.get_output_embeddings().weight

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """All that is trained, by name, in a fixed order."""
        found = {name: p for name, p in self.backbone.named_parameters() if p.requires_grad}
        return found | ({"mask_embedding": self.mask_embedding} if self.mask_embedding is not None else {})

    def logits(self, inputs: Tensor, rows: Tensor, visible: Tensor | None) -> Tensor:
        """[N, vocabulary]: the head on rows (batch index, position) [N, 2]; `visible` [B, T] is false at padding."""
        inputs, rows = inputs.to(self.device), rows.to(self.device)
        embedded = self.embedding(inputs)
        if self.mask_embedding is not None:
            embedded = torch.where((inputs == self.mask_id)[..., None], self.mask_embedding, embedded)
        seen = None if visible is None or bool(visible.all()) else visible.to(self.device)
        states = self.backbone.base_model(
            inputs_embeds=embedded, attention_mask=seen, use_cache=False
        ).last_hidden_state
        chosen = states[rows[:, 0], rows[:, 1]]  # [N, d]
        logits = self.backbone.get_output_embeddings()(chosen)
        if self.mask_embedding is not None and self.tied:
            logits[:, self.mask_id] = chosen @ self.mask_embedding.to(chosen.dtype)
        return logits

    @contextmanager
    def as_model(self) -> Iterator[Model]:
        """The fork as it stands, for decoding; afterwards it trains on."""
        table = self.embedding.weight
        with torch.no_grad():
            if self.mask_embedding is not None:
                table[self.mask_id] = self.mask_embedding
        try:
            yield Model(self.backbone, get_family(FAMILY_OF[self.to]), self.tokenizer, self.name, self.mask_id)
        finally:
            with torch.no_grad():
                if self._row is not None:
                    table[self.mask_id] = self._row
            self._prepare()
            self.backbone.train()
