"""Families as data: recognition, the user's own TOML file, and the page that lists them."""

import re
from pathlib import Path

import pytest

import floatscope as fs
from floatscope.models.families import get_family, read_family
from floatscope.models.recognising import recognise
from tests.models.checkpoints import (
    dream_config,
    fast_dllm_config,
    llada_config,
    llada_tensors,
    sdar_config,
    write_checkpoint,
)
from tests.models.plain_transformer import Shape, blocks, plain_logits, random_weights, shifted

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "families.md"
SHAPE = Shape()


def own(folder: Path, text: str) -> Path:
    file = folder / "own.toml"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("config", "family"),
    [
        (llada_config(SHAPE), "llada"),
        (dream_config(SHAPE), "dream"),
        (sdar_config(SHAPE), "sdar"),
        (fast_dllm_config(SHAPE), "fast-dllm-v2"),
        ({"model_type": "other", "architectures": ["DreamModel"], "auto_map": {}}, "dream"),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, "causal"),
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "causal"),
        ({"model_type": "gemma3_text"}, "causal"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "bert"),
        ({"model_type": "bert", "architectures": ["BertLMHeadModel"]}, "causal"),
        ({"model_type": "modernbert"}, "bert"),
        ({"model_type": "llama", "floatscope_family": "fork-dream"}, "fork-dream"),
        (
            {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "floatscope_family": "fork-llada"},
            "fork-llada",
        ),
    ],
)
def test_recognised_from_config(config: dict[str, object], family: str) -> None:
    assert recognise(config, "somewhere").name == family


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": "mystery", "architectures": ["MysteryLM"]},
        {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "auto_map": {"AutoModel": "a.B"}},
        {"model_type": "bert", "architectures": ["BertModel"]},
        {"model_type": ["llama"], "architectures": "LlamaForCausalLM"},
    ],
)
def test_unknown_says_what_was_found_what_is_supported_and_what_to_do(config: dict[str, object]) -> None:
    with pytest.raises(fs.UserError) as error:
        recognise(config, "somewhere")
    sentence = str(error.value)
    assert f"model_type {config.get('model_type')!r}" in sentence
    assert all(name in sentence for name in fs.FAMILIES)
    assert "TOML" in sentence and "\n" not in sentence


def test_by_name() -> None:
    assert get_family("dream") is fs.FAMILIES["dream"]
    with pytest.raises(
        fs.UserError, match=r"There is no family 'lada': did you mean 'llada'\? Known are llada, illada"
    ):
        get_family("lada")


def test_own_family_from_a_base(tmp_path: Path) -> None:
    family = read_family(own(tmp_path, 'base = "llada"\nvisibility = "block_causal(8)"\nmask_id = 5\n'))
    assert family.name == "own" and family.mask_id == 5 and str(family.visibility) == "block_causal(8)"
    assert family.keys == fs.FAMILIES["llada"].keys
    assert family.backbone == "LlamaForCausalLM"


@pytest.mark.slow
@pytest.mark.parametrize(("visibility", "size"), [("causal", 1), ("block_causal(3)", 3), ("bidirectional", 99)])
@pytest.mark.parametrize("logits", ["same", "shifted"])
def test_visibility_and_shift_of_an_own_family_are_independent(
    tmp_path: Path, visibility: str, size: int, logits: str
) -> None:
    weights = random_weights(SHAPE)
    folder = write_checkpoint(tmp_path / "model", llada_config(SHAPE), llada_tensors(weights))
    model = fs.load(folder, family=own(tmp_path, f'base = "llada"\nvisibility = "{visibility}"\nlogits = "{logits}"'))
    ids = list(range(5, 24))
    raw = plain_logits(weights, SHAPE, ids, blocks(len(ids), size))
    expected = shifted(raw) if logits == "shifted" else raw
    assert abs(model.logits(ids)[0].numpy() - expected).max() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            'base = "llada"\nvisibilty = "causal"',
            "own.toml, line 2: There is no key 'visibilty' in a family: did you mean 'visibility'",
        ),
        ('backbone = "LlamaForCausalLM"', "line 1: a family without a base needs the key 'visibility'"),
        ('base = "llada"\nvisibility = "sideways"', "unknown visibility 'sideways'"),
        ('base = "llada"\nvisibility = 4', "visibility should be a text, not 4"),
        ('base = "llada"\nlogits = "later"', "logits should be one of same, shifted, block_next, next, not 'later'"),
        ('base = "llada"\nlogits = "next"', "logits next need causal visibility, not bidirectional"),
        ('base = "lada"', "did you mean 'llada'"),
        ("base = ", "not valid TOML"),
        ('base = "llada"\nmask_id = "five"', "mask_id should be a whole number, not 'five'"),
        ('base = "llada"\nmask_id = true', "mask_id should be a whole number, not True"),
        ('base = "llada"\neos_ids = 5', "eos_ids should be a list of whole numbers, not 5"),
        ('base = "llada"\neos_ids = ["</s>"]', "eos_ids should be a list of whole numbers, not \\['</s>'\\]"),
        ('base = "llada"\nmodel_types = [4]', "model_types should be a list of texts, not \\[4\\]"),
        ('base = "llada"\nkeys = "none"', "keys should be a table of texts or a list of texts, not 'none'"),
        ("base = \"llada\"\nkeys = { 'a' = 4 }", "keys should be a table of texts or a list of texts, not {'a': 4}"),
        ("base = \"llada\"\nconfig = { 'a' = ['b'] }", "config should be a table of texts, not"),
        ('base = "llada"\nsampler = { steps = 4 }', "the sampler has no name"),
        ('base = "llada"\nsampler = {}', "the sampler has no name"),
        ('base = "llada"\nsampler = { name = 4 }', "the sampler has no name"),
        (
            'backbone = "LlamaForCausalLM"\nvisibility = "causal"\nlogits = "next"',
            "own.toml, line 1: a family without a base needs the key 'sampler'",
        ),
        ("base = 4", "base should be a text, not 4"),
        ('base = "own.toml"', "own.toml is its own base"),
        (
            'base = "llada"\n\n[sampler]\nname = "lada"',
            "own.toml, line 3: There is no sampler 'lada': did you mean 'llada'",
        ),
        ('base = "llada"\nsampler = { name = "llada", step = 4 }', "has no setting 'step': did you mean 'steps'"),
        (
            "base = 'llada'\n[keys]\n'a' = 'b'\ndrop = ['c']",
            "own.toml, line 4: drop stands in the table .keys.: move it",
        ),
        ("base = \"llada\"\nkeys = { '(' = 'x' }", r"'\(' = 'x' is not a regular expression"),
        ("base = \"llada\"\nkeys = { 'a' = '\\1' }", "is not a regular expression and its replacement"),
    ],
)
def test_a_wrong_family_file_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(fs.UserError, match=sentence) as error:
        get_family(own(tmp_path, text))
    assert "\n" not in str(error.value)
    assert "own" in str(error.value) or "lada" in str(error.value)


def test_a_base_may_be_a_file_beside_it_but_not_in_a_circle(tmp_path: Path) -> None:
    with pytest.raises(fs.UserError, match=r"first\.toml cannot be read"):
        read_family(own(tmp_path, 'base = "first.toml"'))
    (tmp_path / "first.toml").write_text('base = "dream"\nmask_id = 7\n')
    family = read_family(own(tmp_path, 'base = "first.toml"\neos_ids = [3]\n'))
    assert (family.name, family.mask_id, family.eos_ids, family.logits) == ("own", 7, (3,), "shifted")
    (tmp_path / "first.toml").write_text('base = "./own.toml"\n')
    with pytest.raises(fs.UserError, match=r"own\.toml is its own base: name one of llada, illada"):
        read_family(tmp_path / "own.toml")


def test_a_family_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(fs.UserError, match=r"absent\.toml cannot be read: No such file"):
        get_family(tmp_path / "absent.toml")


def test_the_page_lists_the_registry() -> None:
    rows = re.findall(r"^\| `([\w.-]+)` \| (.+?) \| `(.+?)` \| `(\w+)` \| (.+?) \| `(\w+)` \|", PAGE.read_text(), re.M)
    expected = [
        (
            family.name,
            f"`{family.backbone}`",
            str(family.visibility),
            family.logits,
            "none" if family.is_arm or family.noise else str(family.mask_id or "the tokenizer's"),
            family.sampler["name"],
        )
        for family in fs.FAMILIES.values()
    ]
    assert rows == expected


def test_the_example_of_the_page_is_a_family(tmp_path: Path) -> None:
    examples = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.S)
    assert examples
    for example in examples:
        read_family(own(tmp_path, example))
