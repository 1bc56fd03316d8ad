"""A GGUF file written on the spot gives the logits of the same weights in safetensors."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import floatscope as fs
from tests.models.checkpoints import qwen_tensors
from tests.models.plain_transformer import Shape, Weights, blocks, plain_logits, random_weights

SHAPE = Shape(kv_heads=2, theta=1e4)
TOKENS = ["<unk>", "<s>", "</s>", "t", "3", "t3"] + [f"w{index}" for index in range(6, SHAPE.vocabulary)]


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp turns neighbouring pairs (2c, 2c+1) where Hugging Face turns (c, c + d/2): rows are reordered."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, weights: Weights) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(SHAPE.hidden)
    writer.add_block_count(SHAPE.layers)
    writer.add_feed_forward_length(SHAPE.inner)
    writer.add_head_count(SHAPE.heads)
    writer.add_head_count_kv(SHAPE.kv_heads)
    writer.add_layer_norm_rms_eps(SHAPE.eps)
    writer.add_rope_freq_base(SHAPE.theta)
    writer.add_rope_dimension_count(SHAPE.head)
    writer.add_vocab_size(SHAPE.vocabulary)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(TOKENS)
    writer.add_token_types([2, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["t 3"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = {
        "norm1": "attn_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output",
        "norm2": "ffn_norm", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
    }  # fmt: skip
    tensors = {"token_embd": weights.embedding, "output_norm": weights.norm, "output": weights.head}
    for index, layer in enumerate(weights.layers):
        turned = {"q": interleaved(layer["q"], SHAPE.heads), "k": interleaved(layer["k"], SHAPE.kv_heads)}
        tensors |= {f"blk.{index}.{names[key]}": value for key, value in (layer | turned).items()}
    for name, value in tensors.items():
        writer.add_tensor(f"{name}.weight", np.ascontiguousarray(value, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def weights() -> Weights:
    return random_weights(SHAPE)


@pytest.fixture(scope="module")
def model(weights: Weights, tmp_path_factory: pytest.TempPathFactory) -> fs.Model:
    return fs.load(write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", weights))


def test_logits_are_those_of_the_architecture(model: fs.Model, weights: Weights) -> None:
    ids = list(range(3, 24))
    expected = plain_logits(weights, SHAPE, ids, blocks(len(ids), 1))
    assert model.family.name == "causal"
    assert float(np.abs(model.logits(ids)[0].numpy() - expected).max()) < 1e-5
    assert all(finding.passed for finding in fs.check(model))


def test_the_same_weights_as_safetensors(model: fs.Model, weights: Weights, tmp_path: Path) -> None:
    """The GGUF model can be saved, is then a plain checkpoint, and holds the tensors it was made of."""
    model.backbone.save_pretrained(tmp_path)
    saved = fs.load(tmp_path)
    torch.testing.assert_close(saved.logits(list(range(20))), model.logits(list(range(20))), atol=1e-6, rtol=0)
    state = saved.backbone.state_dict()
    for name, value in qwen_tensors(weights).items():
        np.testing.assert_allclose(state[name].numpy(), value, atol=1e-6)
    assert isinstance(saved.backbone, transformers.LlamaForCausalLM)


def test_tokens_and_trace(model: fs.Model) -> None:
    assert model.eos_ids == (2,)
    assert model.tokenizer.convert_ids_to_tokens([1, 7]) == ["<s>", "w7"]
    trace = fs.trace(model, [5, 6, 7], fs.AutoregressiveSampler(length=2))
    assert isinstance(trace, fs.Trace)
    assert trace.received.shape[1] == SHAPE.layers


@pytest.mark.slow
def test_the_second_load_comes_from_the_cache(
    weights: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOATSCOPE_CACHE", str(tmp_path / "cache"))
    path = write_gguf(tmp_path / "a.gguf", weights)
    first = fs.load(path)
    renamed = path.rename(tmp_path / "b.gguf")
    with monkeypatch.context() as patch:
        patch.setattr(gguf, "GGUFReader", None)  # would be called by a conversion
        second = fs.load(renamed)
    for name, tensor in first.backbone.state_dict().items():
        assert torch.equal(second.backbone.state_dict()[name], tensor)
    assert second.name == "b.gguf" and (second.eos_ids, second.context) == (first.eos_ids, first.context)
    assert second.backbone.config.to_dict() == first.backbone.config.to_dict() | {
        "_name_or_path": second.backbone.config.name_or_path
    }
    for text in ("t3 w7 w8", "<s>t 3</s>", "  t3\n"):
        assert second.tokenizer(text).input_ids == first.tokenizer(text).input_ids
    assert second.tokenizer.special_tokens_map == first.tokenizer.special_tokens_map
    assert fs.load(renamed, dtype="float64").backbone.dtype == torch.float64  # another dtype is another entry
    assert len(list((tmp_path / "cache" / "gguf").iterdir())) == 2


@pytest.mark.slow
def test_a_damaged_cache_is_built_anew_and_one_that_cannot_be_written_costs_only_time(
    model: fs.Model, weights: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOATSCOPE_CACHE", str(tmp_path / "cache"))
    path = write_gguf(tmp_path / "a.gguf", weights)
    fs.load(path)
    [kept] = (tmp_path / "cache" / "gguf").glob("*/model.safetensors")
    kept.write_bytes(kept.read_bytes()[:-100])
    with pytest.warns(UserWarning, match="is damaged and is built anew"):
        again = fs.load(path)
    ids = list(range(9))
    assert torch.equal(again.logits(ids), model.logits(ids))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLOATSCOPE_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="could not be cached"):
        assert torch.equal(fs.load(path).logits(ids), model.logits(ids))


@pytest.mark.slow
def test_weights_that_were_altered_in_the_cache_are_not_used(
    model: fs.Model, weights: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file stays a sound safetensors file: only its numbers are others."""
    monkeypatch.setenv("FLOATSCOPE_CACHE", str(tmp_path / "cache"))
    path = write_gguf(tmp_path / "a.gguf", weights)
    fs.load(path)
    [kept] = (tmp_path / "cache" / "gguf").glob("*/model.safetensors")
    tensors = load_file(kept)
    tensors["model.norm.weight"] *= 2
    save_file(tensors, kept, metadata={"format": "pt"})
    with pytest.warns(UserWarning, match=r"is damaged and is built anew \(its files are not what they were\)"):
        again = fs.load(path)
    assert torch.equal(again.logits(list(range(9))), model.logits(list(range(9))))


@pytest.mark.parametrize("keep", [0, 3, 40, 700, 3000])
def test_a_header_cut_short(weights: Weights, tmp_path: Path, keep: int) -> None:
    path = write_gguf(tmp_path / "cut.gguf", weights)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(fs.UserError, match=r"cut\.gguf could not be loaded") as error:
        fs.load(path)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.glob("cache/gguf/*"))


def test_a_file_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "photo.gguf"
    path.write_bytes(bytes(range(256)) * 20)
    with pytest.raises(fs.UserError, match=r"photo\.gguf could not be loaded"):
        fs.load(path)


def test_truncated(model: fs.Model, weights: Weights, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "cut.gguf", weights)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(fs.UserError, match=r"cut\.gguf could not be loaded"):
        fs.load(path)


def test_more_layers_than_it_can_hold(weights: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = gguf.GGUFWriter.add_block_count
    with monkeypatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "add_block_count", lambda writer, _: said(writer, 2**31))
        path = write_gguf(tmp_path / "deep.gguf", weights)
    with pytest.raises(fs.UserError, match=r"describes 2,147,483,648 layers and holds 21 tensors"):
        fs.load(path)


@pytest.mark.slow
def test_its_header_is_parsed_once(weights: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes long, in Python."""
    monkeypatch.setenv("FLOATSCOPE_CACHE", str(tmp_path / "cache"))
    path, parsed, reader = write_gguf(tmp_path / "a.gguf", weights), [], gguf.GGUFReader
    monkeypatch.setattr(gguf, "GGUFReader", lambda given: parsed.append(given) or reader(given))
    fs.load(path)
    assert len(parsed) == 1
    monkeypatch.setenv("FLOATSCOPE_CACHE", str(tmp_path / "another"))
    monkeypatch.chdir(tmp_path)
    fs.load(path.name)
    assert len(parsed) == 2
