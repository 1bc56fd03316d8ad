"""Checkpoints in the published dialects give the logits of their architecture, transcribed in plain_transformer."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import floatscope as fs
from tests.models.checkpoints import (
    MASK,
    dream_config,
    fast_dllm_config,
    llada2_config,
    llada2_tensors,
    llada_config,
    llada_moe_config,
    llada_tensors,
    llama_config,
    moe_config,
    moe_tensors,
    qwen_tensors,
    sdar_config,
    write_checkpoint,
)
from tests.models.plain_transformer import Shape, Weights, blocks, everything, plain_logits, random_weights, shifted

TOKENS = 21
LLADA = Shape()
QWEN = Shape(kv_heads=2, theta=1e6, eps=1e-6)
QK = {"qk_norm": True}
STATED = {"mask_token_id": MASK, "block_size": 8}
LLADA2 = Shape(
    kv_heads=2, theta=6e5, eps=1e-6, rotary=0.5, experts=8, chosen=3, groups=4, chosen_groups=2, dense_layers=1,
    routing="sigmoid", scaling=2.5,
)  # fmt: skip
QWEN_MOE = replace(QWEN, experts=6, chosen=3, routing="normed")
LLADA_MOE = Shape(theta=5e4, experts=6, chosen=3)
ILLADA = {"architectures": ["ILLaDAForCausalLM"], "auto_map": {}, "model_type": "illada", "mask_token_id": MASK}
REASONER = {"architectures": ["DreamForCausalLM"], "block_size": 8, "head_dim": 8}
SDAR_MOE = {"architectures": ["SDARMoeForCausalLM"], "auto_map": {}, "block_size": 4, "model_type": "sdar_moe"}
RND1 = {"architectures": ["RND1LM"], "auto_map": {}, "is_causal": False, "model_type": "rnd1"}


@dataclass(frozen=True)
class Dialect:
    """How one family's checkpoints are written, and what they must compute."""

    family: str
    shape: Shape
    config: Callable[..., dict[str, Any]]
    tensors: Callable[[Weights], dict[str, Any]]
    parts: dict[str, bool]
    visible: NDArray[np.bool_]
    shift: bool
    tie_field: str = "tie_word_embeddings"

    def expected(self, weights: Weights, ids: list[int]) -> NDArray[np.float64]:
        raw = plain_logits(weights, self.shape, ids, self.visible)
        return shifted(raw) if self.shift else raw


DIALECTS = {
    dialect.family: dialect
    for dialect in (
        Dialect("llada", LLADA, llada_config, llada_tensors, {}, everything(TOKENS), False, "weight_tying"),
        Dialect("dream", QWEN, dream_config, qwen_tensors, {"biases": True}, everything(TOKENS), True),
        Dialect("sdar", QWEN, sdar_config, qwen_tensors, {"qk_norm": True}, blocks(TOKENS, 4), False),
        Dialect("fast-dllm-v2", QWEN, fast_dllm_config, qwen_tensors, {"biases": True}, blocks(TOKENS, 8), True),
        Dialect("llada2", LLADA2, partial(llada2_config, **STATED), llada2_tensors, QK, blocks(TOKENS, 8), False),
        Dialect("llada-moe", LLADA_MOE, llada_moe_config, moe_tensors, QK, everything(TOKENS), False),
        Dialect("illada", QWEN, partial(llama_config, **ILLADA), qwen_tensors, {}, everything(TOKENS), False),
        Dialect("dream-reasoner", QWEN, partial(dream_config, **REASONER), qwen_tensors, QK, blocks(TOKENS, 8), False),
        Dialect("sdar-moe", QWEN_MOE, partial(moe_config, **SDAR_MOE), moe_tensors, QK, blocks(TOKENS, 4), False),
        Dialect("rnd1", QWEN_MOE, partial(moe_config, **RND1), moe_tensors, QK, everything(TOKENS), True),
    )
}


@pytest.fixture(params=DIALECTS, ids=str)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return DIALECTS[request.param]


def some_ids(seed: int = 3) -> list[int]:
    ids = np.random.default_rng(seed).integers(0, 80, TOKENS)
    ids[-6:] = MASK
    return ids.tolist()


def largest_difference(model: fs.Model, expected: NDArray[np.float64], ids: list[int]) -> float:
    return float(np.abs(model.logits(ids)[0].numpy() - expected).max())


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_logits_are_those_of_the_architecture(tmp_path: Path, dialect: Dialect, tied: bool) -> None:
    weights = random_weights(dialect.shape, tied=tied, **dialect.parts)
    config = dialect.config(dialect.shape, **{dialect.tie_field: tied})
    model = fs.load(write_checkpoint(tmp_path / "model", config, dialect.tensors(weights)))
    assert model.family.name == dialect.family
    assert model.mask_id == MASK
    ids = some_ids()
    assert largest_difference(model, dialect.expected(weights, ids), ids) < 1e-5


def test_grouped_query_llada(tmp_path: Path) -> None:
    shape = replace(LLADA, kv_heads=2)
    weights = random_weights(shape)
    model = fs.load(write_checkpoint(tmp_path, llada_config(shape), llada_tensors(weights)))
    ids = some_ids()
    assert largest_difference(model, plain_logits(weights, shape, ids, everything(TOKENS)), ids) < 1e-5


def test_olmo_fields_that_may_be_null(tmp_path: Path) -> None:
    """Without n_kv_heads every head has its own keys; without embedding_size the vocabulary is vocab_size."""
    weights = random_weights(LLADA)
    config = llada_config(LLADA, n_kv_heads=None, embedding_size=None)
    model = fs.load(write_checkpoint(tmp_path, config, llada_tensors(weights)))
    ids = some_ids()
    assert largest_difference(model, plain_logits(weights, LLADA, ids, everything(TOKENS)), ids) < 1e-5


def test_vocabulary_smaller_than_the_embedding(tmp_path: Path) -> None:
    weights = random_weights(LLADA)
    config = llada_config(LLADA, vocab_size=LLADA.vocabulary - 5)
    assert fs.load(write_checkpoint(tmp_path, config, llada_tensors(weights))).vocabulary == LLADA.vocabulary


@pytest.mark.slow
def test_shards_hold_the_same_model(tmp_path: Path, dialect: Dialect) -> None:
    weights = random_weights(dialect.shape, **dialect.parts)
    config, tensors = dialect.config(dialect.shape), dialect.tensors(weights)
    model = fs.load(write_checkpoint(tmp_path, config, tensors, shards=3))
    ids = some_ids()
    assert largest_difference(model, dialect.expected(weights, ids), ids) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_weights_become_float32_on_a_cpu(tmp_path: Path, dialect: Dialect, stored: torch.dtype) -> None:
    weights = random_weights(dialect.shape, **dialect.parts)
    rounded = _rounded(weights, stored)
    tensors = dialect.tensors(weights)
    model = fs.load(write_checkpoint(tmp_path, dialect.config(dialect.shape), tensors, dtype=stored))
    assert {parameter.dtype for parameter in model.backbone.parameters()} == {torch.float32}
    ids = some_ids()
    assert largest_difference(model, dialect.expected(rounded, ids), ids) < 1e-5


def test_dtype_can_be_asked_for(tmp_path: Path) -> None:
    weights = random_weights(LLADA)
    folder = write_checkpoint(tmp_path, llada_config(LLADA), llada_tensors(weights))
    model = fs.load(folder, dtype="bfloat16")
    assert model.backbone.dtype == torch.bfloat16
    assert model.logits([1, 2, 3]).dtype == torch.float32


def _rounded(weights: Weights, dtype: torch.dtype) -> Weights:
    def cut(value: NDArray[np.float64]) -> NDArray[np.float64]:
        return torch.from_numpy(value).to(dtype).double().numpy()

    layers = [{name: cut(value) for name, value in layer.items()} for layer in weights.layers]
    return Weights(cut(weights.embedding), cut(weights.norm), cut(weights.head), layers)


def test_the_transcription_notices_a_wrong_rotary_base(tmp_path: Path) -> None:
    """The comparison can fail: each part of the config shows in the logits."""
    weights = random_weights(LLADA)
    model = fs.load(write_checkpoint(tmp_path, llada_config(LLADA), llada_tensors(weights)))
    ids = some_ids()
    for wrong in (replace(LLADA, theta=1e4), replace(LLADA, eps=1e-2)):
        assert largest_difference(model, plain_logits(weights, wrong, ids, everything(TOKENS)), ids) > 1e-3
    causal = plain_logits(weights, LLADA, ids, blocks(TOKENS, 1))
    assert largest_difference(model, causal, ids) > 1e-3
