"""Recognition never guesses silently: tensor names decide between kinds, and what stays open is asked for."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import floatscope as fs
from floatscope.models.recognising import WHY_NOT
from tests.models.checkpoints import (
    MASK,
    dream_config,
    llada_config,
    llada_moe_config,
    llama_config,
    moe_tensors,
    qwen_config,
    qwen_tensors,
    write_checkpoint,
)
from tests.models.plain_transformer import blocks, everything, plain_logits, random_weights, shifted
from tests.models.test_dialects import LLADA, LLADA_MOE, QWEN, TOKENS, some_ids

A2D = {"a2d-llama": {}, "a2d-qwen2": {"biases": True}, "a2d-qwen3": {"qk_norm": True}}


def difference(model: fs.Model, expected: Any) -> float:
    return float(np.abs(model.logits(some_ids())[0].numpy() - expected).max())


def test_a_dream_with_the_tensors_of_qwen3_is_a_dream_reasoner(tmp_path: Path) -> None:
    """By its tensors, whatever the class is called; the block size of the family where the config states none."""
    weights = random_weights(QWEN, qk_norm=True)
    config = dream_config(QWEN, head_dim=QWEN.head)  # as Dream-7B's: model_type Dream, architecture DreamModel
    model = fs.load(write_checkpoint(tmp_path, config, qwen_tensors(weights)))
    assert (model.family.name, str(model.visibility)) == ("dream-reasoner", "block_causal(32)")
    assert difference(model, plain_logits(weights, QWEN, some_ids(), everything(TOKENS))) < 1e-5  # one block holds all


def test_a_moe_of_llada_s_type_is_no_llada(tmp_path: Path) -> None:
    weights = random_weights(LLADA_MOE, qk_norm=True)
    folder = write_checkpoint(tmp_path, llada_moe_config(LLADA_MOE, architectures=None), moe_tensors(weights))
    assert fs.load(folder).family.name == "llada-moe"


def test_tensors_of_no_kind_are_told(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, llada_config(LLADA), qwen_tensors(random_weights(LLADA)))
    with pytest.raises(fs.UserError, match=r"its config says llada .*, but no tensor is like .*transformer.*blocks"):
        fs.load(folder)


@pytest.mark.slow
@pytest.mark.parametrize("family", A2D)
def test_a_model_of_dllm_is_asked_for(tmp_path: Path, family: str) -> None:
    weights = random_weights(QWEN, **A2D[family])
    plain = llama_config(QWEN) if family == "a2d-llama" else qwen_config(QWEN, head_dim=QWEN.head)
    architecture = f"A2D{family.removeprefix('a2d-').title()}LMHeadModel"
    config = plain | {"model_type": family, "architectures": [architecture]}
    folder = write_checkpoint(tmp_path, config, qwen_tensors(weights))
    with pytest.raises(fs.UserError, match=rf"sees everything or blocks without saying which: pass family '{family}'"):
        fs.load(folder)
    ids = some_ids()
    for block, visible in ((None, everything(TOKENS)), (4, blocks(TOKENS, 4))):
        model = fs.load(folder, family=family, mask_id=MASK, block=block)
        assert difference(model, plain_logits(weights, QWEN, ids, visible)) < 1e-5


@pytest.mark.parametrize("where", ["generation_config.json", "tokenizer_config.json"])
def test_a_causal_checkpoint_with_a_mask_token_is_asked_about(tmp_path: Path, where: str) -> None:
    """As Open-dCoder is: Qwen2 with a mask token in its generation config, and nothing else that tells."""
    weights = random_weights(QWEN, biases=True)
    config = qwen_config(QWEN, model_type="qwen2", architectures=["Qwen2ForCausalLM"])
    folder = write_checkpoint(tmp_path, config, qwen_tensors(weights))
    stated = {"mask_token_id": MASK} if where.startswith("generation") else {"mask_token": "<M>"}
    (folder / where).write_text(json.dumps(stated), encoding="utf-8")
    with pytest.raises(fs.UserError, match=r"looks causal .* states a mask token .* 'open-dcoder' or 'fork-dream'"):
        fs.load(folder)
    assert fs.load(folder, family="causal").is_arm
    given = None if where.startswith("generation") else MASK
    model = fs.load(folder, family="open-dcoder", mask_id=given)
    assert model.mask_id == MASK
    assert difference(model, shifted(plain_logits(weights, QWEN, some_ids(), everything(TOKENS)))) < 1e-5


def test_shipped_models_state_a_mask_token_and_are_what_they_are() -> None:
    assert fs.load("twin-arm", check=False).family.name == "causal"


@pytest.mark.parametrize("model_type", WHY_NOT)
def test_what_is_known_and_not_read_says_why(tmp_path: Path, model_type: str) -> None:
    config = {"model_type": model_type, "architectures": ["Whatever"], "auto_map": {}}
    folder = write_checkpoint(tmp_path, config, qwen_tensors(random_weights(QWEN)))
    with pytest.raises(fs.UserError) as error:
        fs.load(folder)
    assert WHY_NOT[model_type] in str(error.value)


def test_blocks_of_models_without_any_cannot_be_chosen() -> None:
    with pytest.raises(fs.UserError, match="of family causal, whose blocks cannot be chosen"):
        fs.load("twin-arm", block=4)
