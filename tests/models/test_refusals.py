"""What cannot be loaded is one sentence that names the place, the fault and, where there is one, the remedy."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import floatscope as fs
from tests.models.checkpoints import (
    dream_config,
    llada_config,
    llada_tensors,
    qwen_tensors,
    sdar_config,
    write_checkpoint,
)
from tests.models.native_models import GROUPED, tiny
from tests.models.plain_transformer import Shape, random_weights

SHAPE = Shape()


def refused(source: str | Path, **others: Any) -> str:
    with pytest.raises(fs.UserError) as error:
        fs.load(source, **others)
    sentence = str(error.value)
    assert "\n" not in sentence
    return sentence


@pytest.fixture
def llada(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "llada", llada_config(SHAPE), llada_tensors(random_weights(SHAPE)))


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The checkpoint with its tensors changed in place."""
    tensors = llada_tensors(random_weights(SHAPE))
    change(tensors)
    return write_checkpoint(folder, llada_config(SHAPE), tensors)


def test_places_without_a_model(tmp_path: Path) -> None:
    assert "no model at" in refused(tmp_path / "absent")
    assert "no model at './absent'" in refused("./absent")
    assert "no model at 'absent'" in refused("absent")
    assert "no model at" in refused(tmp_path / "absent.gguf")
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    assert "is a file: give the folder with config.json" in refused(file)
    assert "has no config.json" in refused(tmp_path)
    (tmp_path / "small.gguf").write_bytes(b"GGUF")
    assert "to load a GGUF give its path (small.gguf)" in refused(tmp_path)
    assert "small.gguf could not be loaded" in refused(tmp_path / "small.gguf")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("{", "is not valid JSON"), ("[]", "should hold a JSON object, not a list"), ("\xff", "is not UTF-8 text")],
)
def test_broken_config(llada: Path, text: str, sentence: str) -> None:
    (llada / "config.json").write_text(text, encoding="latin-1")
    assert sentence in refused(llada)


def test_a_config_that_cannot_be_read(llada: Path) -> None:
    (llada / "config.json").unlink()
    (llada / "config.json").mkdir()
    assert "config.json cannot be read: Is a directory" in refused(llada)


def test_a_name_that_transformers_does_not_know(tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_act": "foo"}))
    assert "nothing is known by the name 'foo'" in refused(tmp_path)


def test_unknown_family(llada: Path) -> None:
    (llada / "config.json").write_text(json.dumps({"model_type": "mystery", "architectures": ["MysteryLM"]}))
    sentence = refused(llada)
    assert "unknown family (model_type 'mystery', architectures ['MysteryLM'])" in sentence
    assert "supported are llada, illada" in sentence and "TOML" in sentence
    assert "did you mean 'llada'?" in refused(llada, family="lada")


def test_pickles_and_nothing(llada: Path) -> None:
    (llada / "model.safetensors").rename(llada / "pytorch_model.bin")
    assert "has only pickled weights (pytorch_model.bin), which can run code" in refused(llada)
    (llada / "pytorch_model.bin").unlink()
    assert "has no *.safetensors weights" in refused(llada)


@pytest.mark.parametrize("keep", [0, 4, 200, 5000])
def test_truncated_weights(llada: Path, keep: int) -> None:
    file = llada / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    assert "could not be loaded" in refused(llada)


def test_a_shard_that_is_not_there(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, llada_config(SHAPE), llada_tensors(random_weights(SHAPE)), shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors" in refused(folder)


@pytest.mark.slow
def test_tensors_that_do_not_fit_are_named(tmp_path: Path) -> None:
    block = "model.transformer.blocks.1"
    missing = refused(rewrite(tmp_path / "a", lambda tensors: tensors.pop(f"{block}.q_proj.weight")))
    assert "missing tensors model.layers.1.self_attn.q_proj.weight" in missing
    surplus = refused(rewrite(tmp_path / "b", lambda tensors: tensors.update({f"{block}.gate.weight": np.ones(3)})))
    assert f"surplus tensors {block}.gate.weight" in surplus
    (tmp_path / "mine.toml").write_text(f"base = 'llada'\ndrop = ['{re.escape(block)}[.]gate[.]']\n")
    assert fs.load(tmp_path / "b", family=tmp_path / "mine.toml").layers == SHAPE.layers
    square = {f"{block}.up_proj.weight": np.ones((4, 4))}
    shape = refused(rewrite(tmp_path / "c", lambda tensors: tensors.update(square)))
    assert "tensors of another shape model.layers.1.mlp.up_proj.weight" in shape


def test_tensors_of_an_unknown_dialect_are_told_by_their_kinds(tmp_path: Path) -> None:
    """Twelve kinds of a Llama, each once, and what differs in more than its layer apart: enough to write [keys]."""
    folder = write_checkpoint(tmp_path, llada_config(SHAPE), llada_tensors(random_weights(SHAPE)))
    (tmp_path / "mine.toml").write_text("base = 'llada'\nkeys = {}\n")
    sentence = refused(folder, family=tmp_path / "mine.toml")
    missing, _, surplus = sentence.partition("missing tensors ")[2].partition("; name another")[0].partition("; ")
    layer = ("input_layernorm", "mlp.down_proj", "mlp.gate_proj", "mlp.up_proj", "post_attention_layernorm")
    parts = [*layer, *(f"self_attn.{part}_proj" for part in "koqv")]
    of_layers = [f"model.layers.*.{part}.weight ({SHAPE.layers})" for part in parts]
    assert missing.split(", ") == [
        "lm_head.weight", "model.embed_tokens.weight", *of_layers, "model.norm.weight"
    ]  # fmt: skip
    assert f"model.transformer.blocks.*.ff_proj.weight ({SHAPE.layers})" in surplus and " more" not in surplus


def test_fields_of_an_unknown_config_are_told(tmp_path: Path) -> None:
    config = {"width": 16, "depth": 2, "model_type": "mystery", "clip": None}
    folder = write_checkpoint(tmp_path, config, llada_tensors(random_weights(SHAPE)))
    assert "it states width, depth: name another family" in refused(folder, family="llada")


def test_a_tokenizer_of_remote_code(llada: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tokenizer.json: its class is never run, and the way out is a class of transformers, which needs a package."""
    (llada / "tokenizer.model").write_bytes(b"")
    stated = {"tokenizer_class": "Mystery", "auto_map": {"AutoTokenizer": ["tokenization_mystery.Mystery", None]}}
    (llada / "tokenizer_config.json").write_text(json.dumps(stated))
    (llada / "mine.toml").write_text("base = 'llada'\n")
    assert "is remote code, which is never run: add a tokenizer.json, or name a class" in refused(
        llada, family=llada / "mine.toml"
    )
    (llada / "mine.toml").write_text("base = 'llada'\ntokenizer = 'LamaTokenizer'\n")
    assert "'LamaTokenizer' is no tokenizer class of transformers" in refused(llada, family=llada / "mine.toml")
    (llada / "mine.toml").write_text("base = 'llada'\ntokenizer = 'LlamaTokenizer'\n")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    assert "its tokenizer.model needs a package: pip install sentencepiece" in refused(
        llada, family=llada / "mine.toml"
    )


def test_a_config_of_a_far_larger_model_is_refused_before_it_is_built(llada: Path) -> None:
    config = json.loads((llada / "config.json").read_text())
    (llada / "config.json").write_text(json.dumps(config | {"mlp_hidden_size": 10**9}))
    said = refused(llada)
    assert "config.json describes" in said and "one of them is damaged" in said
    (llada / "config.json").write_text(json.dumps(config | {"n_layers": 10**9}))
    assert "describes 1,000,000,000 layers and holds" in refused(llada)


def test_a_wrong_family_is_refused_before_anything_is_built(llada: Path, tmp_path: Path) -> None:
    assert "config.json states no hidden_size, num_hidden_layers, num_attention_heads in the words of family dream" in (
        refused(llada, family="dream")
    )
    dream = write_checkpoint(tmp_path / "dream", dream_config(SHAPE), qwen_tensors(random_weights(SHAPE, biases=True)))
    assert "in the words of family llada (LlamaForCausalLM)" in refused(dream, family="llada")
    assert "missing tensors model.layers.*.self_attn.k_norm.weight (2)" in refused(dream, family="sdar")


def test_tied_in_words_only(tmp_path: Path) -> None:
    """weight_tying false without a head of its own: the head is missing, not invented."""
    weights = random_weights(SHAPE, tied=True)
    folder = write_checkpoint(tmp_path, llada_config(SHAPE), llada_tensors(weights))
    assert "missing tensors lm_head.weight" in refused(folder)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_damaged_values_are_named(tmp_path: Path, value: float) -> None:
    def damage(tensors: dict[str, Any]) -> None:
        tensors["model.transformer.blocks.0.attn_out.weight"][3, 4] = value

    sentence = refused(rewrite(tmp_path, damage))
    assert "tensor model.layers.0.self_attn.o_proj.weight has NaN or infinite values" in sentence


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("alibi", True), ("block_type", "sequential"), ("activation_type", "gelu"), ("layer_norm_type", "default"),
        ("rope", False), ("scale_logits", True), ("include_qkv_bias", True), ("attention_layer_norm", True),
        ("block_group_size", 2), ("clip_qkv", 8.0), ("input_emb_norm", True),
    ],
)  # fmt: skip
def test_what_a_llama_cannot_compute(tmp_path: Path, field: str, value: object) -> None:
    config = llada_config(SHAPE, **{field: value})
    folder = write_checkpoint(tmp_path, config, llada_tensors(random_weights(SHAPE)))
    sentence = refused(folder)
    assert f"config field {field} is {value!r}; family llada needs" in sentence


def test_nonsense_in_a_known_field(tmp_path: Path) -> None:
    config = llada_config(SHAPE, n_heads="many")
    folder = write_checkpoint(tmp_path, config, llada_tensors(random_weights(SHAPE)))
    assert "'num_attention_heads' expected int, got str" in refused(folder)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["four", 0, -1, 2.5])
def test_a_block_size_that_is_none(tmp_path: Path, size: object) -> None:
    shape = Shape()
    weights = random_weights(shape, qk_norm=True)
    folder = write_checkpoint(tmp_path, sdar_config(shape, block_size=size), qwen_tensors(weights))
    assert f"config field block_size is {size!r}, not a block size" in refused(folder)


def test_sliding_dream(tmp_path: Path) -> None:
    weights = random_weights(SHAPE, biases=True)
    folder = write_checkpoint(tmp_path, dream_config(SHAPE, use_sliding_window=True), qwen_tensors(weights))
    assert "use_sliding_window is True; family dream needs False" in refused(folder)


def test_mask_outside_the_vocabulary(tmp_path: Path) -> None:
    config = llada_config(SHAPE, mask_token_id=4000)
    folder = write_checkpoint(tmp_path, config, llada_tensors(random_weights(SHAPE)))
    assert "mask id 4000 is outside its vocabulary of 96" in refused(folder)
    assert fs.load(folder, mask_id=90).mask_id == 90
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"mask_token_id": {"a": 1}}))
    assert "mask id {'a': 1} is outside its vocabulary" in refused(folder)


def test_masked_lm_without_a_mask(tmp_path: Path) -> None:
    tiny("bert").save_pretrained(tmp_path)
    assert "neither config nor tokenizer states a mask token: give it" in refused(tmp_path)


def test_learned_sinks_at_load(tmp_path: Path) -> None:
    sizes: dict[str, Any] = GROUPED | {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 8}
    transformers.GptOssForCausalLM(transformers.GptOssConfig(**sizes)).save_pretrained(tmp_path)
    assert "hands 's_aux' to its attention function" in refused(tmp_path)


def test_remote_code_is_never_run(tmp_path: Path) -> None:
    """A known type with an auto_map, forced to a family: the class of transformers is used and the file never read."""
    tiny("llama").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    names = {"AutoConfig": "remote.Config", "AutoModelForCausalLM": "remote.Model"}
    (tmp_path / "config.json").write_text(json.dumps(config | {"auto_map": names}))
    (tmp_path / "remote.py").write_text("raise SystemExit('remote code was run')")
    assert "unknown family" in refused(tmp_path)
    assert fs.load(tmp_path, family="causal").backbone.__class__ is transformers.LlamaForCausalLM


def test_wrong_arguments(llada: Path) -> None:
    assert "give device or device_map, not both" in refused(llada, device="cpu", device_map="auto")
    assert "unknown dtype 'flaot32': use float32" in refused(llada, dtype="flaot32")
    assert "unknown dtype 'nn'" in refused(llada, dtype="nn")
    assert "unknown dtype 'int32': use float32, bfloat16, float16, float64" in refused(llada, dtype="int32")
    assert "unknown dtype" in refused(llada, dtype=torch.int64)
    assert "unknown dtype 32" in refused(llada, dtype=32)
    assert "unknown device 'gpu'" in refused(llada, device="gpu")
    assert "device 'meta' holds no numbers" in refused(llada, device="meta")
    assert "put on no device" in refused(llada, device_map="meta")
    if not torch.cuda.is_available():
        assert "on device cuda could not be loaded" in refused(llada, device="cuda")
    assert "device map" in refused(llada, device_map="everywhere").replace("_", " ")


@pytest.mark.parametrize("backbone", ["Nonsense", "logging", "AutoTokenizer", "LlamaModel", "LlamaForCausalML"])
def test_a_backbone_that_is_no_language_model(llada: Path, tmp_path: Path, backbone: str) -> None:
    own = tmp_path / "own.toml"
    own.write_text(f'base = "llada"\nbackbone = "{backbone}"')
    assert f"family own: {backbone!r} is no model class of transformers" in refused(llada, family=own)


def test_device_map(llada: Path) -> None:
    plain, mapped = fs.load(llada, device="cpu"), fs.load(llada, device_map={"": "cpu"})
    ids = list(range(20))
    torch.testing.assert_close(mapped.logits(ids), plain.logits(ids))
    assert mapped.backbone.dtype == torch.float32


@pytest.mark.slow
def test_without_network_and_without_noise(llada: Path, tmp_path: Path) -> None:
    """In a process of its own: a normal load prints nothing, and a hub id that cannot be had is refused at once."""
    tiny("qwen2").save_pretrained(tmp_path / "qwen2")
    code = f"""
import time, floatscope as fs
fs.load({str(llada)!r}).logits([1, 2])
fs.load({str(tmp_path / "qwen2")!r})
start = time.monotonic()
try:
    fs.load("nobody/nothing")
except fs.UserError as error:
    print(time.monotonic() - start, error)
"""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    assert done.stderr == ""
    seconds, sentence = done.stdout.rstrip("\n").split(" ", 1)
    assert float(seconds) < 5
    assert sentence.startswith("no folder 'nobody/nothing' here, and the hub did not give it")
    assert "\n" not in sentence


def test_loading_leaves_the_logging_of_transformers_as_it_was(llada: Path) -> None:
    from transformers.utils import logging

    before = (logging.get_verbosity(), logging.is_progress_bar_enabled())
    fs.load(llada)
    refused(llada, family="dream")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


@pytest.mark.parametrize(
    ("model_type", "told"),
    [("llada_v3", "did you mean 'llada'?"), ("my-sdar-chat", "did you mean 'sdar'?"), ("mystery", "unknown family")],
)
def test_a_family_is_suggested_where_none_is_known(llada: Path, model_type: str, told: str) -> None:
    config = json.loads((llada / "config.json").read_text())
    config |= {"model_type": model_type, "architectures": ["MineLM"], "auto_map": {}}
    (llada / "config.json").write_text(json.dumps(config))
    sentence = refused(llada)
    assert told in sentence and "its tensors are called as those of llada" in sentence
    assert ("did you mean" in sentence) == (model_type != "mystery")
