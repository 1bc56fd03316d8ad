"""Two models to decode with: a formula that is computed sample by sample, and a tiny transformers Llama."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from floatscope.decoding import Batch

VOCABULARY = 13
MASK = 12
Logits = Callable[[Sequence[int]], NDArray[np.float32]]


def formula(seed: int, scale: float = 2.0, vocabulary: int = VOCABULARY) -> Logits:
    """canvas -> logits [T, V]: each row depends on every token of the canvas and its distance."""
    random = np.random.default_rng(seed)
    embedding = random.normal(size=(vocabulary, 6))
    distance = random.normal(size=(2 * 128 - 1, 6))
    head = random.normal(size=(6, vocabulary)) * scale

    def logits(canvas: Sequence[int]) -> NDArray[np.float32]:
        width = len(canvas)
        rows = np.zeros((width, 6))
        for i in range(width):
            for j in range(width):
                rows[i] += embedding[canvas[j]] * distance[i - j + 127]
        return (np.tanh(rows / np.sqrt(width)) @ head).astype(np.float32)

    return logits


def likes_masks(seed: int) -> Logits:
    """The formula, with the mask token among the likeliest at many positions."""
    plain = formula(seed, scale=1.0)

    def logits(canvas: Sequence[int]) -> NDArray[np.float32]:
        rows = plain(canvas)
        rows[:, MASK] += 1.5
        return rows

    return logits


class FormulaDenoiser:
    """A Denoiser that computes each sample from its own canvas: nothing can leak through batch or pads."""

    def __init__(
        self,
        logits: Logits,
        mask_id: int | None = MASK,
        eos_ids: tuple[int, ...] = (),
        block: int | None = None,
        context: int | None = None,
    ) -> None:
        self.logits, self.mask_id, self.eos_ids, self.block, self.context = logits, mask_id, eos_ids, block, context
        self.is_arm = mask_id is None
        self.calls: list[tuple[Tensor, Tensor, bool]] = []

    def score(self, batch: Batch, columns: Tensor, conditional: bool = True) -> Tensor:
        self.calls.append((batch.tokens.clone(), columns.clone(), conditional))
        rows = []
        for row, pad, asked in zip(batch.tokens, batch.pads.tolist(), columns, strict=True):
            assert bool((asked >= pad).all())
            rows.append(self.logits(row[pad:].tolist())[(asked - pad).numpy()])
        return torch.from_numpy(np.stack(rows))

    def extend(self, tokens: Tensor, pads: Tensor, cache: Any) -> tuple[Tensor, Any]:
        canvas = tokens if cache is None else torch.cat([cache, tokens], dim=1)
        rows = [self.logits(row[pad:].tolist())[-1] for row, pad in zip(canvas, pads.tolist(), strict=True)]
        return torch.from_numpy(np.stack(rows)), canvas


class LlamaDenoiser:
    """A tiny Llama: causal, or bidirectional with logits of the same position or shifted by one."""

    def __init__(self, visibility: str, shifted: bool = False, eos_ids: tuple[int, ...] = ()) -> None:
        torch.manual_seed(3)
        config = LlamaConfig(
            vocab_size=40,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            initializer_range=0.4,
            bos_token_id=1,
            eos_token_id=None,
            pad_token_id=None,
        )
        self.model = LlamaForCausalLM(config).eval()
        self.context = config.max_position_embeddings
        self.causal, self.shifted, self.eos_ids, self.block = visibility == "causal", shifted, eos_ids, None
        self.mask_id = None if self.causal else 39
        self.is_arm = self.causal
        if not self.causal:
            self.model.config.is_causal = False
            for layer in self.model.model.layers:
                layer.self_attn.is_causal = False  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]

    def score(self, batch: Batch, columns: Tensor, conditional: bool = True) -> Tensor:
        return self.logits_at(batch.tokens, batch.pads, columns)

    def logits_at(self, tokens: Tensor, pads: Tensor, columns: Tensor) -> Tensor:
        place = torch.arange(tokens.shape[1])
        states = self.model.model(
            input_ids=tokens,
            attention_mask=(place >= pads[:, None]).long(),
            position_ids=(place - pads[:, None]).clamp(min=0),
        ).last_hidden_state
        assert states is not None
        rows = torch.maximum(columns - int(self.shifted), pads[:, None])
        return self.model.lm_head(states.gather(1, rows[:, :, None].expand(-1, -1, states.shape[-1])))

    def extend(self, tokens: Tensor, pads: Tensor, cache: Any) -> tuple[Tensor, Any]:
        before = 0 if cache is None else cache.get_seq_length()
        columns = torch.arange(before + tokens.shape[1])
        out = self.model(
            input_ids=tokens,
            attention_mask=(columns >= pads[:, None]).long(),
            position_ids=(columns - pads[:, None]).clamp(min=0)[:, before:],
            past_key_values=cache,
            use_cache=True,
        )
        return out.logits[:, -1], out.past_key_values
