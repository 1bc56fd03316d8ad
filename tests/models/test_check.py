"""The tap proves itself, and notices when it should not be believed."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

import floatscope as fs
from floatscope.models.check import require
from tests.models.native_models import GROUPED, tiny


def failed(model: fs.Model) -> set[str]:
    return {finding.name for finding in fs.check(model) if not finding.passed}


def test_a_causal_backbone_declared_bidirectional_by_hand_only() -> None:
    """A backbone that kept its causal mask under a bidirectional family is found out."""
    model = fs.Model(tiny("llama"), replace(fs.FAMILIES["llada"], mask_id=90))
    assert failed(model) == set()
    model.backbone.config.is_causal = True
    for module in model.backbone.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = True
    assert failed(model) == {"attention follows visibility", "tokens act where they are visible"}
    with pytest.raises(fs.UserError, match="cannot be traced faithfully as family llada"):
        require(model)


def test_a_masked_lm_honours_blocks_and_cannot_be_declared_causal() -> None:
    """Block masks are ours and BERT takes them; a causal one is left to the class, and BERT has none."""
    block_causal = replace(fs.FAMILIES["bert"], visibility=fs.Visibility("block_causal", 4), mask_id=90)
    assert failed(fs.Model(tiny("bert"), block_causal)) == set()
    causal = replace(fs.FAMILIES["bert"], visibility=fs.Visibility("causal"), mask_id=90)
    assert "attention follows visibility" in failed(fs.Model(tiny("bert"), causal))


@pytest.mark.parametrize("kernel", ["torch", "native"])
@pytest.mark.parametrize(("what", "noticed"), [("output", "output equals SDPA"), ("sums", "rows sum to 1")])
def test_a_wrong_kernel_is_noticed(kernel: str, what: str, noticed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference, and the one that runs here unless another is named."""
    from floatscope.probe import mixing, native

    attend, routine = mixing.attend, native._native

    def wrong_attend(*given: Any, **named: Any) -> Any:
        output, statistics = attend(*given, **named)
        (output if what == "output" else statistics.group_sums).mul_(1.1)  # written in place
        return output, statistics

    def wrong_routine(layer: Any) -> Any:
        output, group_sums = routine(layer)
        if what == "output":
            return output * 1.1, group_sums
        return output, lambda *given: group_sums(*given) * 1.1

    if kernel == "torch":
        monkeypatch.setenv(mixing.VARIABLE, "torch")
    monkeypatch.setattr(mixing, "attend", wrong_attend)
    monkeypatch.setattr(native, "_native", wrong_routine)
    assert failed(fs.Model(tiny("llama"), fs.FAMILIES["causal"])) == {noticed}


def test_positions_that_count_the_pads_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-2 has a learned vector for each position: one that starts at the pads takes others."""
    model = fs.Model(tiny("gpt2"), fs.FAMILIES["causal"])
    assert failed(model) == set()
    forward = model.backbone.forward
    monkeypatch.setattr(
        model.backbone, "forward", lambda **given: forward(**{k: v for k, v in given.items() if k != "position_ids"})
    )
    assert failed(model) == {"left pads change nothing"}


def test_learned_sinks_are_refused_by_name() -> None:
    sizes: dict[str, Any] = GROUPED | {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 8}
    torch.manual_seed(0)
    model = fs.Model(transformers.GptOssForCausalLM(transformers.GptOssConfig(**sizes)), fs.FAMILIES["causal"])
    with pytest.raises(fs.UserError, match="GptOssAttention hands 's_aux' to its attention function"):
        fs.check(model)


def test_a_model_without_attention_is_refused() -> None:
    sizes: dict[str, Any] = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
    backbone = transformers.MambaForCausalLM(transformers.MambaConfig(**sizes))
    with pytest.raises(fs.UserError, match=r"cannot be traced|takes no attention function"):
        fs.check(fs.Model(backbone, fs.FAMILIES["causal"]))


@pytest.mark.parametrize("window", [2, 3, 5])
def test_a_narrow_sliding_window_is_checked_within_itself(window: int) -> None:
    backbone = transformers.MistralForCausalLM(transformers.MistralConfig(**GROUPED, sliding_window=window))
    findings = fs.check(fs.Model(backbone, fs.FAMILIES["causal"]))
    assert all(finding.passed for finding in findings), findings
    assert f"{window} tokens, all within the sliding window of {window}" in findings[2].detail


@pytest.mark.slow
@pytest.mark.parametrize("window", [2, 9, 40])
def test_a_window_that_is_dropped_is_found(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wider than the canvas of the check or not: a layer that looks beyond its window is told."""
    backbone = transformers.MistralForCausalLM(transformers.MistralConfig(**GROUPED, sliding_window=window))
    model = fs.Model(backbone, fs.FAMILIES["causal"])
    assert [finding.name for finding in fs.check(model)][-1] == "sliding windows hold"
    everything = transformers.models.mistral.modeling_mistral.create_causal_mask
    monkeypatch.setattr(transformers.models.mistral.modeling_mistral, "create_sliding_window_causal_mask", everything)
    *_, found = fs.check(model)
    assert not found.passed and found.detail == "3 layers with a window, 3 of them look beyond it"


def test_windows_under_block_causal_visibility_are_refused() -> None:
    family = replace(fs.FAMILIES["sdar"], name="mine", visibility=fs.Visibility("block_causal", 4))
    backbone = transformers.MistralForCausalLM(transformers.MistralConfig(**GROUPED, sliding_window=9))
    with pytest.raises(fs.UserError, match=r"a sliding window of 9 tokens under block_causal\(4\)"):
        fs.Model(backbone, family, mask_id=3)
    wide = transformers.MistralForCausalLM(transformers.MistralConfig(**GROUPED, sliding_window=64))
    assert fs.Model(wide, family, mask_id=3).window is None  # as wide as the context: it hides nothing


def test_chunks_are_windows() -> None:
    """Llama 4: three of four layers look at their own chunk alone."""
    sizes: dict[str, Any] = GROUPED | {"num_hidden_layers": 4, "head_dim": 8, "num_local_experts": 2}
    config = transformers.Llama4TextConfig(**sizes, intermediate_size_mlp=48, attention_chunk_size=8)
    *_, found = fs.check(fs.Model(transformers.Llama4ForCausalLM(config), fs.FAMILIES["causal"]))
    assert found.passed and found.detail == "3 layers with a window, 0 of them look beyond it"
    family = replace(fs.FAMILIES["sdar"], visibility=fs.Visibility("block_causal", 4))
    with pytest.raises(fs.UserError, match=r"a sliding window of 8 tokens under block_causal\(4\)"):
        fs.Model(transformers.Llama4ForCausalLM(config), family, mask_id=3)


@pytest.mark.slow
@pytest.mark.parametrize("context", [2, 3, 4])
def test_a_short_context_is_checked_within_itself(context: int) -> None:
    sizes: dict[str, Any] = GROUPED | {"max_position_embeddings": context}
    config = transformers.LlamaConfig(**sizes)
    assert failed(fs.Model(transformers.LlamaForCausalLM(config), fs.FAMILIES["causal"])) == set()
    full = replace(fs.FAMILIES["llada"], mask_id=90)
    assert failed(fs.Model(transformers.LlamaForCausalLM(config), full)) == set()


@pytest.mark.parametrize("context", [0, 1])
def test_a_model_that_sees_no_other_token_is_refused(context: int) -> None:
    sizes: dict[str, Any] = GROUPED | {"max_position_embeddings": context}
    config = transformers.LlamaConfig(**sizes)
    with pytest.raises(fs.UserError, match=rf"sees {context} token at a time \(context {context}, sliding window None"):
        fs.check(fs.Model(transformers.LlamaForCausalLM(config), fs.FAMILIES["causal"]))
