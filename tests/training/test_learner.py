"""The learner of an adapter: what is trained, decoding in between, and that what it writes is what loads."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import floatscope as fs
from floatscope.errors import UserError
from floatscope.models.adapters import read_fork, write_fork
from floatscope.models.twins import TwinShape, make_model
from floatscope.qa.world.vocabulary import make_tokenizer
from floatscope.training.learner import AdapterLearner, TwinLearner, choose_mask_token, ship
from floatscope.training.recipe import AdapterRecipe, TwinRecipe
from floatscope.training.runs import adapt

pytestmark = pytest.mark.slow

QUICK = AdapterRecipe(steps=7, batch=2, warmup=2, rank=4, window=16, held_out=12)
KINDS = ("arm", "dream", "llada")


@pytest.fixture(scope="module", params=KINDS)
def trained(request, parent, data_file, tmp_path_factory):
    """A trained fork, its folder, and the logits that it had at the end of training."""
    out = tmp_path_factory.mktemp("forks") / request.param
    adapt(parent, request.param, [data_file], out, QUICK, seed=3)
    return out


def logits_in_training(folder, parent, to, ids):
    """As the objective computes them, from the state of the checkpoint; by position that they score."""
    fork = AdapterLearner(parent, to, QUICK.rank, seed=99)
    saved = torch.load(folder / "checkpoint.pt", weights_only=True)["parameters"]
    with torch.no_grad():
        for name, parameter in fork.parameters().items():
            parameter.copy_(saved[name])
        rows = torch.tensor([[0, place] for place in range(len(ids))])
        states = fork.states(torch.tensor([ids]), None)[-1]
        return fork.head(states[rows[:, 0], rows[:, 1]]), fork.mask_id


def canvas(to, mask_id):
    ids = [0, 40, 50, 60, 70, 80, 90, 100]
    return ids if to == "arm" else [*ids[:4], mask_id, mask_id, *ids[6:]]


def test_the_logits_of_training_are_those_of_the_loaded_fork(trained, parent):
    model = fs.load(trained)
    ids = canvas(trained.name, model.mask_id)
    expected, mask_id = logits_in_training(trained, parent, trained.name, ids)
    assert mask_id == model.mask_id
    found = model.logits(ids)[0]
    if trained.name == "dream":  # Model.logits gives row i the scores of position i
        expected = torch.cat([expected[:1], expected[:-1]])
    assert (found - expected).abs().max() < 1e-4
    untrained = fs.load(f"{trained}-untrained", check=False).logits(ids)[0]
    assert (untrained - found).abs().max() > 1e-2  # it did learn something


def test_peft_loads_the_adapter_too(trained, parent):
    config = json.loads((trained / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (4, 8, 0.0)
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    if trained.name != "arm":
        pytest.skip("peft knows nothing of full visibility")
    model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(parent), trained).eval()
    ids = canvas("arm", None)
    with torch.no_grad():
        assert (model(torch.tensor([ids])).logits - fs.load(trained).logits(ids)).abs().max() < 1e-4


def test_a_twin_is_trained_by_muon_and_adamw_or_by_adamw_alone():
    tokenizer = make_tokenizer()
    learner = TwinLearner(make_model(tokenizer, 0, TwinShape(width=16, layers=2, heads=2, hidden=16)), "arm", tokenizer)
    every = {id(parameter) for parameter in learner.parameters().values()}
    for muon, kinds in ((True, ["Muon", "AdamW"]), (False, ["AdamW"])):
        made = learner.optimizers(TwinRecipe(steps=1, batch=1, rate=0.1, decay=0.2, muon=muon))
        groups = [group for optimizer in made for group in optimizer.param_groups]
        assert [type(optimizer).__name__ for optimizer in made] == kinds
        seen = [id(parameter) for group in groups for parameter in group["params"]]
        assert set(seen) == every and len(seen) == len(every)  # each once
        for group in groups:  # norms are not decayed, whatever else is
            assert all(group["weight_decay"] == (0.2 if p.ndim > 1 else 0.0) for p in group["params"])


def test_forks_of_one_seed_begin_with_the_same_adapter(parent):
    first, second = (AdapterLearner(parent, to, 4, seed=1).parameters() for to in ("arm", "dream"))
    assert second.keys() - first.keys() == {"mask_embedding"}
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_only_the_adapter_is_trained(parent):
    fork = AdapterLearner(parent, "dream", 4, seed=0)
    assert all("lora_" in name or name == "mask_embedding" for name in fork.parameters())
    width, inner, kv, rank, layers = 32, 48, 16, 4, 2
    per_layer = rank * (2 * (width + width) + 2 * (width + kv) + 3 * (width + inner))
    assert sum(p.numel() for p in fork.parameters().values()) == layers * per_layer + width


def test_the_quick_layers_compute_what_pefts_own_do(parent):
    fork = AdapterLearner(parent, "dream", 4, seed=0)
    assert fork.mask_id is not None
    torch.manual_seed(0)
    for parameter in fork.parameters().values():
        parameter.data += 0.1 * torch.randn_like(parameter)
    ids, rows = torch.arange(20, 30)[None].repeat(2, 1), torch.tensor([[0, 3], [1, 9]])
    ids[:, 4] = fork.mask_id

    def run():
        logits = fork.head(fork.states(ids, None)[-1][rows[:, 0], rows[:, 1]])
        gradients = torch.autograd.grad(logits.logsumexp(-1).sum(), list(fork.parameters().values()))
        return [logits.detach(), *gradients]

    quick = run()
    for module in fork.backbone.modules():
        module.__dict__.pop("forward", None)
    for fast, plain in zip(quick, run(), strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)


def test_decoding_in_between_leaves_training_as_it_was(parent):
    fork = AdapterLearner(parent, "dream", 4, seed=0)
    assert fork.mask_embedding is not None and fork.mask_id is not None
    fork.mask_embedding.data += 1.0
    table = fork.embedding.weight.clone()
    with fork.as_model() as model:
        assert torch.equal(model.backbone.get_input_embeddings().weight[fork.mask_id], fork.mask_embedding)
        assert model.family.name == "fork-dream" and not model.backbone.training
    assert torch.equal(fork.embedding.weight, table) and fork.backbone.training
    assert fork.backbone.config._attn_implementation == "sdpa"


def test_a_merged_fork_loads_on_its_own(parent, data_file, tmp_path):
    out = adapt(parent, "llada", [data_file], tmp_path / "fork", QUICK, merge=True)
    apart, merged = fs.load(out), fs.load(out / "merged")
    assert merged.family.name == "fork-llada" and merged.mask_id == apart.mask_id
    ids = canvas("llada", apart.mask_id)
    assert (apart.logits(ids) - merged.logits(ids)).abs().max() < 1e-5


def test_a_fork_is_asked_as_it_was_trained_and_a_plain_adapter_in_its_parents_chat(trained, parent, tmp_path):
    chatty, plain = (shutil.copytree(folder, tmp_path / folder.name) for folder in (parent, trained))
    (chatty / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    about = read_fork(plain)
    write_fork(plain, replace(about, parent=str(chatty)))
    assert fs.load(chatty).tokenizer.chat_template and not fs.load(plain).tokenizer.chat_template
    if trained.name == "arm":
        (plain / "fork.json").unlink()
        config = json.loads((plain / "adapter_config.json").read_text())
        (plain / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": str(chatty)}))
        assert fs.load(plain).tokenizer.chat_template


def test_what_ships_is_half_the_size_and_holds_no_passage(trained, tmp_path):
    shipped = ship(trained, tmp_path / trained.name)
    assert not {"held_out.jsonl", "checkpoint.pt"} & {path.name for path in shipped.iterdir()}
    full, half = (load_file(folder / "adapter_model.safetensors") for folder in (trained, shipped))
    assert all(half[name].dtype == torch.float16 and full[name].dtype == torch.float32 for name in full)
    model, ids = fs.load(shipped), canvas(trained.name, fs.load(trained).mask_id)
    assert (model.logits(ids) - fs.load(trained).logits(ids)).abs().max() < 0.05


def test_the_mask_token_is_a_special_token_that_nothing_uses(parent):
    tokenizer = fs.load(parent, check=False).tokenizer
    assert tokenizer.convert_ids_to_tokens(choose_mask_token(tokenizer)) == "<mask-to-be>"
    tokenizer.chat_template = "<mask-to-be> {{ messages }}"
    assert tokenizer.convert_ids_to_tokens(choose_mask_token(tokenizer)) == "<free>"
    tokenizer.add_special_tokens({"mask_token": "<s>"})
    assert choose_mask_token(tokenizer) == tokenizer.bos_token_id


def test_a_parent_of_other_layers_or_too_short_a_context_is_refused(parent, data_file, tmp_path):
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    other = tmp_path / "gpt2"
    tokenizer = AutoTokenizer.from_pretrained(parent)
    tokenizer.save_pretrained(other)
    GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2)).save_pretrained(other)
    with pytest.raises(UserError, match="GPT2LMHeadModel without layers q_proj"):
        adapt(other, "dream", [data_file], tmp_path / "a", QUICK)
    scaled = shutil.copytree(parent, tmp_path / "scaled")
    config = json.loads((scaled / "config.json").read_text())
    (scaled / "config.json").write_text(json.dumps(config | {"final_logit_softcapping": 30.0}))
    with pytest.raises(UserError, match="has final_logit_softcapping"):
        adapt(scaled, "dream", [data_file], tmp_path / "c", QUICK)
    short = tmp_path / "short"
    model = fs.load(parent, check=False)
    model.backbone.config.max_position_embeddings = 32
    model.backbone.save_pretrained(short)
    tokenizer.save_pretrained(short)
    with pytest.raises(UserError, match="a context of 32"):
        adapt(short, "dream", [data_file], tmp_path / "b", QUICK)
    fork = adapt(parent, "arm", [data_file], tmp_path / "fork", QUICK)
    with pytest.raises(UserError, match=f"fork is a fork itself: adapt its parent {parent}"):
        adapt(fork, "dream", [data_file], tmp_path / "d", QUICK)


def test_an_untrained_twin_can_be_a_parent(data_file, tmp_path):
    out = adapt("twin-arm-untrained", "arm", [data_file], tmp_path / "fork", replace(QUICK, steps=1))
    assert read_fork(out).parent == "twin-arm-untrained"
    ids = [1, 20, 21, 22]
    found, parent = (fs.load(source).logits(ids) for source in (f"{out}-untrained", "twin-arm-untrained"))
    assert torch.equal(found, parent) and not torch.equal(fs.load(out).logits(ids), parent)
