"""Tokenizers load without remote code, with their special tokens, added tokens, splitting rules and chat templates."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

import floatscope as fs
from tests.models.checkpoints import dream_config, llada_config, llada_tensors, qwen_tensors, write_checkpoint
from tests.models.native_models import tiny
from tests.models.plain_transformer import Shape, random_weights

SHAPE = Shape()
LETTERS = [chr(c) for c in range(ord("a"), ord("z") + 1)] + [str(digit) for digit in range(10)] + ["Ġ"]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def byte_level(special: dict[str, int]) -> tokenizers.Tokenizer:
    """Byte-level BPE over letters and digits with two merges; special tokens at the given ids."""
    vocabulary = {letter: index for index, letter in enumerate(LETTERS)} | {"th": 40, "11": 41}
    merges = [("t", "h"), ("1", "1")]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary | special, merges=merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in special])
    return tokenizer


def write_json(folder: Path, **files: Any) -> None:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def test_llada(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, llada_config(SHAPE), llada_tensors(random_weights(SHAPE)))
    special = {"<|startoftext|>": 80, "<|endoftext|>": 81, "<|mdm_mask|>": 94}
    byte_level(special).save(str(folder / "tokenizer.json"))
    stated = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    extra = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    write_json(folder, tokenizer_config=stated | extra, special_tokens_map=stated)
    tokenizer = fs.load(folder).tokenizer
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (80, 81, 81)
    assert tokenizer("the<|mdm_mask|>").input_ids == [40, 4, 94]
    said = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert said == "<user>hi"


@pytest.mark.parametrize("with_json", [False, True], ids=["vocab and merges", "tokenizer.json"])
def test_dream_without_its_remote_class(tmp_path: Path, with_json: bool) -> None:
    folder = write_checkpoint(tmp_path, dream_config(SHAPE), qwen_tensors(random_weights(SHAPE, biases=True)))
    special = {"<|endoftext|>": 83} | {f"<|extra {index}|>": index for index in range(84, 93)}
    special |= {"<|beginoftext|>": 93, "<|mask|>": 94}
    if with_json:
        byte_level(special).save(str(folder / "tokenizer.json"))
    else:
        fill = {f"filler{index}": index for index in range(len(LETTERS), 83) if index != 40}
        write_json(folder, vocab={letter: index for index, letter in enumerate(LETTERS)} | {"th": 40} | fill)
        (folder / "merges.txt").write_text("#version: 0.2\nt h\n")
    decoder = {str(index): {"content": token, "special": True} for token, index in special.items()}
    stated = {
        "added_tokens_decoder": decoder,
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "bos_token": "<|beginoftext|>",
        "chat_template": TEMPLATE,
        "eos_token": "<|endoftext|>",
        "mask_token": "<|mask|>",
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "DreamTokenizer",
        "unk_token": None,
    }
    write_json(folder, tokenizer_config=stated)
    (folder / "tokenization_dream.py").write_text("raise SystemExit('remote code was run')")
    tokenizer = fs.load(folder).tokenizer
    assert tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|beginoftext|>", "<|mask|>"]) == [83, 93, 94]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.mask_token_id) == (93, 83, 94)
    assert tokenizer("the<|mask|>").input_ids == [40, 4, 94]
    assert tokenizer.chat_template == TEMPLATE


def test_splitting_rules_of_tokenizer_json_survive_a_class_of_another_kind(tmp_path: Path) -> None:
    """SmolLM2 names GPT2Tokenizer and splits digits, which that class would not do by itself."""
    tiny("llama").save_pretrained(tmp_path)
    byte_level({"<|endoftext|>": 80}).save(str(tmp_path / "tokenizer.json"))
    write_json(tmp_path, tokenizer_config={"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"})
    assert fs.load(tmp_path).tokenizer("11").input_ids == [27, 27]


@pytest.mark.slow
def test_special_tokens_that_only_the_class_knows(tmp_path: Path) -> None:
    """bert-base-uncased states none of them; without [MASK] it could not be denoised."""
    tiny("bert").save_pretrained(tmp_path)
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "the": 5}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    write_json(tmp_path, tokenizer_config={"do_lower_case": True, "model_max_length": 512})
    model = fs.load(tmp_path)
    assert model.mask_id == 4
    assert (model.tokenizer.cls_token_id, model.tokenizer.sep_token_id, model.tokenizer.pad_token_id) == (2, 3, 0)
    write_json(tmp_path, tokenizer_config={"mask_token": None})
    with pytest.raises(fs.UserError, match="states a mask token"):  # stated as none is stated
        fs.load(tmp_path)


@pytest.mark.slow
def test_a_token_for_unknown_words_that_the_vocabulary_lacks_is_told_at_once(tmp_path: Path) -> None:
    """tokenizers would raise a bare Exception at the first word that is not known."""
    import shutil

    from floatscope.errors import UserError
    from floatscope.models.shipped import shipped

    shutil.copytree(shipped()["twin-arm"], tmp_path / "model")
    file = tmp_path / "model" / "tokenizer.json"
    table = json.loads(file.read_text())
    table["model"]["unk_token"] = "nothing like it"
    file.write_text(json.dumps(table))
    with pytest.raises(UserError, match=r"the tokenizer of .* could not be loaded: .*Missing \[UNK\]"):
        fs.load(tmp_path / "model")


@pytest.mark.slow
def test_no_tokenizer_and_a_broken_one(tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path)
    assert fs.load(tmp_path).tokenizer is None
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(fs.UserError, match=r"the tokenizer of .* could not be loaded"):
        fs.load(tmp_path)
    byte_level({}).save(str(tmp_path / "tokenizer.json"))
    write_json(tmp_path, tokenizer_config={"model_max_length": "long"})
    with pytest.raises(fs.UserError, match="model_max_length of its tokenizer is no number"):
        fs.load(tmp_path)
