"""Forks load as what PEFT computes of the same adapter, with the mask's embedding and the visibility of their kind."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

import floatscope as fs
from floatscope.models import shipped
from floatscope.models.adapters import Fork, parent_hash, read_fork, write_fork
from floatscope.models.loading import load_untrained, locate
from floatscope.models.pulling import RECEIPT, parent_folder
from floatscope.study.checking import check_study
from floatscope.study.plan import ModelPlan
from floatscope.study.store import describe_model
from tests.study.small_studies import small_study

MASK, WIDTH, VOCABULARY = 7, 16, 40
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
IDS = [1, 5, MASK, 12, MASK, 30]


def tiny_llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2,
        initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config)


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parent")
    tiny_llama().save_pretrained(folder)
    return folder


def make_adapter(folder: Path, parent: Path, to: Any = "dream", **changes: Any) -> Path:
    """An adapter as peft writes it, with random matrices, and what `floatscope adapt` puts beside it."""
    backbone = transformers.LlamaForCausalLM.from_pretrained(parent)
    settings = {"r": 3, "lora_alpha": 5, "target_modules": LINEAR} | changes
    tuned = get_peft_model(backbone, LoraConfig(task_type="CAUSAL_LM", **settings))
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in tuned.named_parameters():
            if "lora_" in name:
                weight.normal_(std=0.4)
    tuned.save_pretrained(str(folder))
    mdm = to != "arm"
    write_fork(folder, Fork(str(parent), to, MASK if mdm else None, parent_hash(parent)))
    if mdm:
        save_file({"mask_embedding": torch.randn(WIDTH)}, folder / "mask_embedding.safetensors")
    return folder


def by_peft(folder: Path, parent: Path, full: bool) -> torch.Tensor:
    """Logits of peft's own model, adapter apart, run by transformers' plain attention under the given visibility."""
    backbone = transformers.LlamaForCausalLM.from_pretrained(parent, attn_implementation="eager")
    if (folder / "mask_embedding.safetensors").exists():
        row = load_file(folder / "mask_embedding.safetensors")["mask_embedding"]
        with torch.no_grad():
            backbone.model.embed_tokens.weight[MASK] = row
    tuned = PeftModel.from_pretrained(backbone, str(folder)).eval()
    size = len(IDS)
    seen = torch.ones(size, size) if full else torch.ones(size, size).tril()
    mask = torch.zeros(1, 1, size, size).masked_fill(seen == 0, -1e9)
    with torch.inference_mode():
        return tuned(input_ids=torch.tensor([IDS]), attention_mask=mask).logits[0]


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"use_rslora": True}, {"target_modules": ["q_proj", "down_proj"]}])
@pytest.mark.parametrize("to", ["arm", "dream", "llada"])
def test_logits_are_those_of_peft(parent: Path, tmp_path: Path, to: str, changes: dict[str, Any]) -> None:
    folder = make_adapter(tmp_path, parent, to, **changes)
    model = fs.load(folder)
    expected = by_peft(folder, parent, full=to != "arm")
    if to == "dream":  # row i-1 scores position i
        expected = torch.cat([expected[:1], expected[:-1]])
    torch.testing.assert_close(model.logits(IDS)[0], expected, atol=2e-5, rtol=1e-5)
    assert model.family.name == {"arm": "causal", "dream": "fork-dream", "llada": "fork-llada"}[to]
    assert model.mask_id == (None if to == "arm" else MASK)
    assert float((model.logits(IDS) - fs.load(f"{folder}-untrained").logits(IDS)).abs().max()) > 0.1


def test_untrained_is_the_parent_with_the_mask_removed(parent: Path, tmp_path: Path) -> None:
    model = fs.load(f"{make_adapter(tmp_path, parent, 'llada')}-untrained")
    plain = fs.load(parent, family="fork-llada", mask_id=MASK)
    assert torch.equal(model.logits(IDS), plain.logits(IDS))
    assert (model.mask_id, str(model.visibility)) == (MASK, "bidirectional")
    assert model.name == f"{tmp_path.name}-untrained"


@pytest.mark.slow
def test_a_half_precision_adapter_and_another_dtype(parent: Path, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path, parent)
    full = fs.load(folder).logits(IDS)
    file = folder / "adapter_model.safetensors"
    save_file({name: tensor.half() for name, tensor in load_file(file).items()}, file)
    torch.testing.assert_close(fs.load(folder).logits(IDS), full, atol=2e-2, rtol=1e-2)
    assert fs.load(folder, dtype="float64").backbone.dtype == torch.float64


@pytest.mark.slow
def test_a_merged_checkpoint_states_its_family(parent: Path, tmp_path: Path) -> None:
    model = fs.load(make_adapter(tmp_path / "fork", parent))
    model.backbone.save_pretrained(tmp_path / "merged")
    config = json.loads((tmp_path / "merged" / "config.json").read_text())
    config |= {"floatscope_family": "fork-dream", "mask_token_id": MASK}
    (tmp_path / "merged" / "config.json").write_text(json.dumps(config))
    merged = fs.load(tmp_path / "merged")
    assert (merged.family.name, merged.mask_id) == ("fork-dream", MASK)
    assert torch.equal(merged.logits(IDS), model.logits(IDS))


def test_an_adapter_of_peft_alone_is_an_arm(parent: Path, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path, parent, "arm")
    (folder / "fork.json").unlink()
    assert read_fork(folder) == Fork(str(parent), "arm", chat=True)
    torch.testing.assert_close(
        fs.load(folder).logits(IDS)[0], by_peft(folder, parent, full=False), atol=2e-5, rtol=1e-5
    )


def test_a_fork_denoises_and_traces(parent: Path, tmp_path: Path) -> None:
    model = fs.load(make_adapter(tmp_path, parent))
    trace = fs.trace(model, [5, 6, 8], fs.LLaDASampler(length=4, steps=4, block=4, hold_eos=True))
    assert isinstance(trace, fs.Trace) and trace.received.shape[:2] == (4, 2)


@pytest.mark.slow
def test_other_weights_than_those_it_was_trained_on(parent: Path, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "fork", parent)
    moved = Path(shutil.copytree(parent, tmp_path / "changed"))
    write_fork(folder, Fork(str(moved), "dream", MASK, parent_hash(parent)))
    assert fs.load(folder).mask_id == MASK  # another place, the same weights
    tensors = load_file(moved / "model.safetensors")
    tensors["model.norm.weight"][3] += 1e-3
    save_file(tensors, moved / "model.safetensors", metadata={"format": "pt"})
    for source in (folder, f"{folder}-untrained"):
        with pytest.raises(fs.UserError, match=r"was trained on other weights than those of .*changed"):
            fs.load(source)
    (moved / RECEIPT).write_text('{"source": "hub"}')  # the same parent, pulled from elsewhere
    with pytest.warns(UserWarning, match="trained on other weights .* which come from hub"):
        fs.load(folder)


def test_the_hash_is_of_the_tensors_and_not_of_their_files(parent: Path, tmp_path: Path) -> None:
    backbone = transformers.LlamaForCausalLM.from_pretrained(parent)
    backbone.save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert parent_hash(tmp_path) == parent_hash(parent)


def test_files_of_a_fork_are_its_parents_and_its_own(parent: Path, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path, parent)
    (folder / "gates.json").write_text("{}")
    names = [file.name for file in locate(folder).files()]
    assert names == [
        "config.json", "generation_config.json", "model.safetensors",
        "adapter_config.json", "adapter_model.safetensors", "fork.json", "mask_embedding.safetensors",
    ]  # fmt: skip
    assert locate(f"{folder}-untrained").files() == locate(parent).files()


def set_json(name: str, **changes: Any) -> Any:
    def change(folder: Path) -> None:
        told = json.loads((folder / name).read_text()) | changes
        (folder / name).write_text(json.dumps({key: value for key, value in told.items() if value is not ...}))

    return change


def set_tensor(file: str, name: str, value: Any) -> Any:
    def change(folder: Path) -> None:
        tensors = load_file(folder / file)
        tensors = {key: tensor for key, tensor in tensors.items() if key != name or value is not None}
        save_file(tensors | ({} if value is None else {name: value}), folder / file)

    return change


Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
WEIGHTS = "adapter_model.safetensors"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (set_json("adapter_config.json", peft_type="LOHA"), "type 'LOHA' cannot be merged"),
        (set_json("adapter_config.json", use_dora=True), "use_dora = True cannot be merged"),
        (set_json("adapter_config.json", rank_pattern={"q_proj": 4}), "rank_pattern = .* cannot be merged"),
        (set_json("adapter_config.json", modules_to_save=["lm_head"]), "modules_to_save = .* cannot be merged"),
        (set_json("adapter_config.json", bias="all"), "bias = 'all' cannot be merged"),
        (set_json("adapter_config.json", init_lora_weights="pissa"), "init_lora_weights = 'pissa' cannot"),
        (set_json("adapter_config.json", some_new_field=1), "some_new_field = 1 cannot be merged"),
        (set_json("adapter_config.json", r=0), "r is 0"),
        (set_json("adapter_config.json", r=4), "should be of rank 4 for a weight of"),
        (set_tensor(WEIGHTS, f"{Q}A.weight", None), "q_proj has only lora_B; the adapter is damaged"),
        (set_tensor(WEIGHTS, f"{Q}A.weight", torch.full((3, 16), torch.nan)), "NaN or infinite"),
        (set_tensor(WEIGHTS, f"{Q}magnitude", torch.ones(3)), "is no LoRA matrix"),
        (
            set_tensor("mask_embedding.safetensors", "mask_embedding", torch.ones(3)),
            "a row mask_embedding of 16 numbers",
        ),
        (lambda folder: (folder / "mask_embedding.safetensors").unlink(), "has no mask_embedding.safetensors"),
        (lambda folder: (folder / WEIGHTS).write_bytes(b"short"), f"{WEIGHTS} cannot be read"),
        (lambda folder: (folder / WEIGHTS).unlink(), f"has no {WEIGHTS}"),
        (lambda folder: (folder / "fork.json").write_text("{"), "fork.json is not valid JSON"),
        (set_json("fork.json", parent="nowhere"), "no model at 'nowhere'"),
        (set_json("fork.json", parent=...), "fork.json: a fork needs the key 'parent'"),
        (set_json("fork.json", parent=""), "a fork needs the name of its parent"),
        (lambda folder: save_file({}, folder / WEIGHTS), f"{WEIGHTS} holds no LoRA matrices"),
        (set_json("fork.json", to="bert"), "to should be one of arm, dream, llada, not 'bert'"),
        (set_json("fork.json", mask_id=None), "a dream fork needs a mask token"),
        (set_json("fork.json", mask_id=400), "for a mask token below 40"),
        (set_json("fork.json", parent="smollm2-135m"), "run `floatscope pull smollm2-135m --from pypi`"),
    ],
)
def test_what_cannot_be_merged_is_a_sentence(parent: Path, tmp_path: Path, change: Any, sentence: str) -> None:
    folder = make_adapter(tmp_path, parent)
    change(folder)
    with pytest.raises(fs.UserError, match=sentence) as error:
        fs.load(folder)
    assert "\n" not in str(error.value)


def test_an_adapter_of_peft_must_name_its_parent(parent: Path, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path, parent, "arm")
    (folder / "fork.json").unlink()
    for named in (None, "", 3):
        set_json("adapter_config.json", base_model_name_or_path=named)(folder)
        with pytest.raises(fs.UserError, match="names no parent in base_model_name_or_path: add it"):
            fs.load(folder)


def test_modules_that_the_parent_has_not_or_shares(parent: Path, tmp_path: Path) -> None:
    file = make_adapter(tmp_path, parent) / WEIGHTS
    tensors = load_file(file)
    a, b = tensors[f"{Q}A.weight"], tensors[f"{Q}B.weight"]
    for module, sentence in (
        ("model.layers.9.self_attn.q_proj", "which is not there in LlamaForCausalLM"),
        ("model.norm", "is a LlamaRMSNorm, not a Linear"),
        ("lm_head", "shares its weight with the embedding"),
    ):
        name = f"base_model.model.{module}.lora_"
        save_file(tensors | {f"{name}A.weight": a.clone(), f"{name}B.weight": b.clone()}, file)
        with pytest.raises(fs.UserError, match=sentence):
            fs.load(tmp_path)


@pytest.mark.slow
def test_parents_of_another_kind(parent: Path, tmp_path: Path) -> None:
    inner = make_adapter(tmp_path / "inner", parent)
    outer = make_adapter(tmp_path / "outer", parent)
    write_fork(outer, Fork(str(inner), "dream", MASK))
    with pytest.raises(fs.UserError, match="is an adapter too: merge that one first"):
        fs.load(outer)
    other = Path(shutil.copytree(parent, tmp_path / "other"))
    for config, sentence in (
        ({"model_type": "mystery", "architectures": ["MysteryLM"]}, "unknown family"),
        ({"floatscope_family": "fork-llada"}, "is of family fork-llada, not causal"),
        ({"floatscope_family": "fork-bert"}, "floatscope_family is 'fork-bert', not one of"),
    ):
        set_json("config.json", **config)(other)
        write_fork(outer, Fork(str(other), "dream", MASK))
        with pytest.raises(fs.UserError, match=sentence):
            fs.load(outer)
        shutil.copy(parent / "config.json", other)


@pytest.mark.slow
def test_names_of_shipped_forks(parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    monkeypatch.setenv("FLOATSCOPE_CACHE", str(tmp_path / "cache"))
    for name in ("smollm2-dream", "smollm2-dream-untrained"):
        with pytest.raises(fs.UserError, match=f"no model at '{name}'"):
            fs.load(name)
    folder = make_adapter(tmp_path / "smollm2-dream", parent)
    write_fork(folder, Fork("smollm2-135m", "dream", MASK, parent_hash(parent)))
    for name in ("smollm2-dream", "smollm2-dream-untrained", "smollm2-135m"):
        with pytest.raises(fs.UserError, match=r"smollm2-135m is not on this machine yet: run `floatscope pull"):
            fs.load(name)
    pulled = Path(shutil.copytree(parent, parent_folder("smollm2-135m")))
    (pulled / RECEIPT).write_text('{"source": "pypi"}')
    assert fs.load("smollm2-135m").family.name == "causal"
    model = fs.load("smollm2-dream")
    assert (model.name, model.family.name, model.mask_id) == ("smollm2-dream", "fork-dream", MASK)
    assert fs.load("smollm2-dream-untrained").mask_id == MASK


@pytest.mark.slow
def test_a_study_knows_forks_and_takes_the_untrained_one_as_control(parent: Path, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "fork", parent)
    orphan = make_adapter(tmp_path / "orphan", parent)
    write_fork(orphan, Fork("smollm2-135m", "dream", MASK))
    broken = make_adapter(tmp_path / "broken", parent)
    (broken / "mask_embedding.safetensors").unlink()
    plan = ModelPlan("mine", str(folder))
    control = load_untrained(plan.source)
    assert torch.equal(control.logits(IDS), fs.load(f"{folder}-untrained").logits(IDS))
    others = {"orphan": orphan, "broken": broken, "control": f"{folder}-untrained"}
    study = small_study(models=(plan, *(ModelPlan(name, str(source)) for name, source in others.items())))
    found = {finding.part: finding.lacks for finding in check_study(study)}
    assert (found["model mine"], found["model control"]) == ("", "")
    assert "run `floatscope pull smollm2-135m --from pypi`" in found["model orphan"]
    assert found["model broken"] == f"{broken} lacks mask_embedding.safetensors"
    adapted, alone = ModelPlan("adapted", str(folder)), ModelPlan("alone", str(parent))
    before = describe_model(adapted)["sha256"]
    set_tensor("mask_embedding.safetensors", "mask_embedding", torch.ones(WIDTH))(folder)
    assert before != describe_model(adapted)["sha256"] != describe_model(alone)["sha256"]
