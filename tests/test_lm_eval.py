"""The door to lm-evaluation-harness: likelihoods against plain enumeration, and the harness itself on tiny tasks."""

import hashlib
import json
import math
from itertools import combinations, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import floatscope as fs
from floatscope.errors import UserError
from floatscope.qa.stressors import derived_seed
from floatscope.qa.tasks import read_task
from tests.qa.tokenizers_made import byte_level
from tests.tiny_models import MASK, tiny_model

pytest.importorskip("lm_eval", reason="the extra lm-eval is not installed")

from lm_eval import simple_evaluate
from lm_eval.api.model import CacheHook, hash_args
from lm_eval.tasks import TaskManager

from floatscope.lm_eval import FloatscopeLM
from floatscope.models.likelihood import Pair, log_likelihoods

CONTEXT = (1, 17, 8, 40, 22)
TARGET = (31, 7, 55)


def masked_log_probability(model, tokens, hidden, block=None):
    """log p of the hidden tokens, from the full logits of the canvas with them masked."""
    canvas = torch.tensor(tokens)
    canvas[list(hidden)] = MASK
    logits = model.logits(canvas)[0].double()
    return sum(float(logits[place].log_softmax(-1)[tokens[place]]) for place in hidden)


def enumerated(model, context, target):
    """The bound by its definition: the mean over l of the mean over sets of l positions of L/l times their sum."""
    start, length = len(context), len(target)
    total = 0.0
    for size in range(1, length + 1):
        sets = list(combinations(range(start, start + length), size))
        mean = sum(masked_log_probability(model, context + target, hidden) for hidden in sets) / len(sets)
        total += length / size * mean / length
    return total


@pytest.mark.parametrize("name", ["llada", "dream", "bert"])
def test_with_enough_samples_the_bound_is_exact(name):
    model = tiny_model(name)
    (value,) = log_likelihoods(model, [Pair(CONTEXT, TARGET)], samples=7)
    assert value == pytest.approx(enumerated(model, CONTEXT, TARGET), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llada", "dream"])
def test_the_monte_carlo_estimate_is_unbiased(name):
    """With fewer samples than sets the mean over many seeds is the exact value, within its standard error."""
    model = tiny_model(name)
    pair = Pair(CONTEXT, TARGET)
    estimates = [log_likelihoods(model, [pair], samples=6, seed=seed, batch_size=6)[0] for seed in range(100)]
    error = np.std(estimates, ddof=1) / math.sqrt(len(estimates))
    assert error > 0
    assert abs(np.mean(estimates) - enumerated(model, CONTEXT, TARGET)) < 4 * error


def test_under_block_causal_visibility_blocks_follow_one_another():
    """Blocks of 4 from position 0: of 6 tokens after 5, three are in the context's block and three in the next."""
    model = tiny_model("sdar")
    target = (31, 7, 55, 60, 61, 9)
    (value,) = log_likelihoods(model, [Pair(CONTEXT, target)], samples=8)
    first = enumerated(model, CONTEXT, target[:3])
    second = enumerated(model, CONTEXT + target[:3], target[3:])
    assert value == pytest.approx(first + second, rel=1e-5)


def test_an_arm_follows_the_chain_rule():
    model = tiny_model("llama")
    (value,) = log_likelihoods(model, [Pair(CONTEXT, TARGET)])
    logits = model.logits(CONTEXT + TARGET)[0].double()
    steps = [float(logits[len(CONTEXT) - 1 + i].log_softmax(-1)[token]) for i, token in enumerate(TARGET)]
    assert value == pytest.approx(sum(steps), rel=1e-5)


@pytest.mark.parametrize("name", ["llada", "llama"])
def test_neither_batch_nor_order_changes_a_value(name):
    model = tiny_model(name)
    pairs = [Pair(CONTEXT[: 1 + n % 5], tuple(range(10, 12 + 2 * n))) for n in range(4)] + [Pair(CONTEXT, ())]
    whole = log_likelihoods(model, pairs, samples=9, seed=3, batch_size=16)
    single = [log_likelihoods(model, [pair], samples=9, seed=3, batch_size=1)[0] for pair in reversed(pairs)]
    assert whole == pytest.approx(single[::-1], rel=1e-4)
    assert whole[-1] == 0.0


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A generative and a multiple-choice task on the world, written as the harness reads them."""
    folder = tmp_path_factory.mktemp("tasks")
    samples = read_task("world:rag:2", limit=4).samples
    rows = []
    for place, sample in enumerate(samples):
        prompt = fs.build_prompt(fs.load("twin-arm", check=False).tokenizer, sample.question, sample.documents).text
        wrong = samples[(place + 1) % len(samples)].answers[0]
        rows.append({"prompt": prompt, "answer": sample.answers[0], "choices": [wrong, sample.answers[0]]})
    data = folder / "world.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    source = {"dataset_path": "json", "test_split": "test"}
    source["dataset_kwargs"] = {"data_files": {"test": str(data)}, "cache_dir": str(folder / "cache")}
    generative = source | {
        "task": "world_generate", "output_type": "generate_until", "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{answer}}", "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8},
        "metric_list": [{"metric": "exact_match", "ignore_case": True}],
    }  # fmt: skip
    choosing = source | {
        "task": "world_choose", "output_type": "multiple_choice", "doc_to_text": "{{prompt}}",
        "doc_to_choice": "{{choices}}", "doc_to_target": 1, "metric_list": [{"metric": "acc"}],
    }  # fmt: skip
    for task in (generative, choosing):
        (folder / f"{task['task']}.yaml").write_text(json.dumps(task), encoding="utf-8")  # JSON is YAML
    return folder, rows


@pytest.mark.slow
@pytest.mark.parametrize("name", ["twin-llada", "twin-dream", "twin-arm"])
def test_the_harness_runs_generative_and_multiple_choice_tasks(tasks, name):
    folder, rows = tasks
    found = simple_evaluate(
        model="floatscope",
        model_args={"pretrained": name, "mc": 8, "batch_size": 4},
        tasks=["world_generate", "world_choose"],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
        log_samples=True,
    )
    model = fs.load(name, check=False)
    prompts = [model.tokenizer("<bos>" + row["prompt"], add_special_tokens=False)["input_ids"] for row in rows]

    sampler = fs.AutoregressiveSampler(length=8)
    if model.mask_id is not None:
        sampler = fs.LLaDASampler(steps=8, length=8) if name == "twin-llada" else fs.DreamSampler(steps=8, length=8)
    right = 0
    for prompt, row, logged in zip(prompts, rows, found["samples"]["world_generate"], strict=True):
        answer = fs.generate(model, prompt, sampler).answer.tolist()
        answer = answer[: answer.index(model.eos_ids[0])] if model.eos_ids[0] in answer else answer
        text = model.tokenizer.decode(answer).partition("\n")[0]
        assert logged["resps"] == [[text]]
        right += text.lower() == row["answer"].lower()
    assert found["results"]["world_generate"]["exact_match,none"] == pytest.approx(right / len(rows))

    better = 0
    for prompt, row, logged in zip(prompts, rows, found["samples"]["world_choose"], strict=True):
        targets = [model.tokenizer(" " + choice, add_special_tokens=False)["input_ids"] for choice in row["choices"]]
        pairs = [Pair(tuple(prompt), tuple(target)) for target in targets]
        values = log_likelihoods(model, pairs, samples=8)
        assert [response[0][0] for response in logged["resps"]] == pytest.approx(values, rel=1e-4)
        better += values[1] > values[0]
    assert found["results"]["world_choose"]["acc,none"] == pytest.approx(better / len(rows))


class Request:
    def __init__(self, *args):
        self.args = args


@pytest.fixture(scope="module")
def twin():
    return FloatscopeLM("twin-llada", mc=4, batch_size=3)


@pytest.mark.slow
def test_answers_end_before_the_first_stop_string(twin):
    prompt = "Question: Who founded Orbis Labs?\nAnswer:"
    whole, cut = twin.generate_until(
        [Request(prompt, {"until": [], "max_gen_toks": 8}), Request(prompt, {"until": [" "], "max_gen_toks": 8})]
    )
    assert len(whole.split()) > 1
    assert cut == whole.partition(" ")[0]
    both = {"until": [whole.split()[-1], " "], "max_gen_toks": 8}  # of two that are there, the one that comes first
    assert twin.generate_until([Request(prompt, both)]) == [cut]


def test_greedy_says_whether_the_continuation_would_be_written(twin):
    prompt = "Question: Who founded Orbis Labs?\nAnswer:"
    ids = twin.tok_encode(prompt)
    written = fs.generate(twin.model, ids, fs.LLaDASampler(steps=2, length=2)).answer.tolist()
    other = [written[0], written[1] + 1]
    scored = twin._loglikelihood_tokens([(("", ""), ids, written), (("", ""), ids, other)])
    assert [greedy for _, greedy in scored] == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["twin-llada", "twin-arm"])
def test_edits_change_what_is_written_and_how_likely_it_is(name):
    edited = FloatscopeLM(name, mc=3, edits="block 1-4; scale bos by 0.5", length=4)
    given = FloatscopeLM(name, mc=3, edits=[fs.Edit("block", keys="1-4"), fs.Edit("scale", keys="bos", factor=0.5)])
    assert edited.edits == given.edits
    prompt = "Question: Who founded Orbis Labs?\nAnswer:"
    ids = edited.tok_encode(prompt)
    (text,) = edited.generate_until([Request(prompt, {"until": []})])
    sampler = edited._sampler({})
    alone = fs.generate(edited.model, ids, sampler, edits=given.edits)
    assert text == edited.model.text(alone.answer, strip=False)
    pair = Pair(tuple(ids), (31, 7))
    [(value, _)] = edited._loglikelihood_tokens([(("", ""), ids, [31, 7])])
    assert value == log_likelihoods(edited.model, [pair], 3, edits=given.edits)[0]
    assert abs(value - log_likelihoods(edited.model, [pair], 3)[0]) > 1e-4


def test_whole_texts_are_scored_in_windows_and_alone(twin):
    text = "Orbis Labs is based in West Marsh."
    (value,) = twin.loglikelihood_rolling([Request(text)])
    ids = twin.tok_encode(text)
    assert value == pytest.approx(
        log_likelihoods(twin.model, [Pair((ids[0],), tuple(ids[1:]))], samples=4)[0], rel=1e-5
    )
    assert twin.tok_encode("<bos>" + text) == ids


def test_a_context_that_is_too_long_loses_its_beginning(twin):
    ids = list(range(5, 300)) * 8
    assert twin._fitted(ids, 32) == ids[-(2048 - 32) :]
    with pytest.raises(UserError, match="no room"):
        twin._fitted(ids, 2048)


def test_a_text_longer_than_the_context_is_scored_window_by_window(twin, monkeypatch):
    """Every token once, each canvas no longer than the context; the last window has what is left as context."""
    text = "Orbis Labs is based in West Marsh . Tilda Moreau founded it ."
    ids = twin.tok_encode(text, add_special_tokens=False)
    assert len(ids) == 13
    monkeypatch.setattr(FloatscopeLM, "max_length", 6)
    (value,) = twin.loglikelihood_rolling([Request(text)])
    parts = [([twin.tokenizer.bos_token_id], ids[:5]), ([ids[4]], ids[5:10]), (ids[7:10], ids[10:13])]
    pairs = [Pair(tuple(context), tuple(after)) for context, after in parts]
    assert value == pytest.approx(sum(log_likelihoods(twin.model, pairs, samples=4)), rel=1e-5)


@pytest.mark.slow
def test_the_settings_of_a_task_and_of_the_model_make_the_sampler(twin):
    asked = twin._sampler({"max_gen_toks": 8})
    assert (asked.length, asked.steps, asked.temperature) == (8, 8, 0.0)
    assert twin._sampler({"temperature": 0.7}).temperature == 0.7
    assert twin._sampler({"temperature": 0.7, "do_sample": True}).temperature == 0.7
    assert twin._sampler({"temperature": 0.7, "do_sample": False}).temperature == 0.0
    own = FloatscopeLM("twin-llada", length=4, temperature=0.5)._sampler({"max_gen_toks": 8, "temperature": 0.7})
    assert (own.length, own.steps, own.temperature) == (4, 4, 0.5)  # the model's settings go before the task's
    fewer = FloatscopeLM("twin-llada", length=4, steps=2, sampler="llada")
    assert fewer._sampler({"max_gen_toks": 8}) == fs.LLaDASampler(steps=2, length=4, mask_is_candidate=True)
    other = FloatscopeLM("twin-dream", sampler="llada")._sampler({"max_gen_toks": 8})
    assert other == fs.LLaDASampler(steps=8, length=8)  # without the settings of Dream's own


@pytest.mark.slow
def test_chance_follows_from_the_seed_and_the_prompt():
    """Of the sampler and of the likelihood, whatever else is asked in the same batch."""
    chancy = FloatscopeLM("twin-llada", mc=2, seed=5, batch_size=3, length=6, temperature=2.0)
    prompts = [f"Question: Who founded {name}?\nAnswer:" for name in ("Orbis Labs", "Ferrox Steel", "Orbis Labs")]
    answers = chancy.generate_until([Request(prompt, {"until": None}) for prompt in prompts])
    for prompt, answer in zip(prompts, answers, strict=True):
        digest = hashlib.sha256(f"5\x1f{prompt}".encode()).digest()
        sampler, seed = chancy._sampler({}), int.from_bytes(digest[:8], "big")
        alone = fs.generate(chancy.model, chancy.tok_encode(prompt), sampler, [seed])
        assert answer == chancy.model.text(alone.answer, strip=False)
    assert answers[0] == answers[2] != answers[1]
    pair = Pair(CONTEXT, (31, 7, 55, 60, 61))
    [(value, _)] = chancy._loglikelihood_tokens([(("", ""), list(CONTEXT), list(pair.continuation))])
    own, other = (log_likelihoods(chancy.model, [pair], 2, seed)[0] for seed in (5, 0))
    assert value == own != other


@pytest.mark.slow
@pytest.mark.parametrize("name", ["twin-llada", "twin-arm"])
def test_greedy_is_asked_under_the_edits_and_in_the_order_given(name):
    """Of continuations of several lengths, the empty one among them."""
    edited = FloatscopeLM(name, mc=1, batch_size=2, edits="block 2-6")
    contexts = [edited.tok_encode(f"Question: Who founded {who}?\nAnswer:") for who in ("Orbis Labs", "Ferrox")]
    asked, expected = [], []
    for context, length in product(contexts, (3, 1, 2)):
        sampler = fs.AutoregressiveSampler(length=length)
        if name == "twin-llada":
            sampler = fs.LLaDASampler(steps=length, length=length)
        written = fs.generate(edited.model, context, sampler, edits=edited.edits).answer.tolist()
        asked += [(("", ""), context, written), (("", ""), context, [*written[:-1], written[-1] + 1])]
        expected += [len(written) == length, False]
    found = [greedy for _, greedy in edited._loglikelihood_tokens([*asked, (("", ""), contexts[0], [])])]
    assert found == [*expected, True] and any(expected)
    plain = FloatscopeLM(name, mc=1, batch_size=2)
    assert [greedy for _, greedy in plain._loglikelihood_tokens(asked)] != expected


@pytest.mark.slow
def test_blanks_around_an_answer_stay(tmp_path):
    """What the model wrote is cut at stop strings alone: tasks of code live by their indents."""
    tokenizer = byte_level()
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    made = FloatscopeLM(str(tmp_path), temperature=9.0)
    prompts = [f"Who is {name}?" for name in "abcdefghijkl"]
    answers = made.generate_until([Request(prompt, {"until": [], "max_gen_toks": 3}) for prompt in prompts])
    for prompt, answer in zip(prompts, answers, strict=True):
        sampler = fs.AutoregressiveSampler(length=3, temperature=9.0)
        ids = fs.generate(made.model, made.tok_encode(prompt), sampler, [derived_seed(0, prompt)]).answer.tolist()
        assert answer == tokenizer.decode(ids, skip_special_tokens=True)
    assert any(answer != answer.strip() for answer in answers)


def test_what_the_harness_asks_of_a_model(twin, monkeypatch):
    assert (twin.eot_token_id, twin.prefix_token_id) == (twin.tokenizer.eos_token_id, twin.tokenizer.bos_token_id)
    assert twin.max_length == 2048 and twin.batch_size == 3
    monkeypatch.setattr(twin.model, "name", "owner/name")
    assert twin.tokenizer_name == "owner__name"
    turns = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    monkeypatch.setattr(twin.tokenizer, "chat_template", turns + "{% if add_generation_prompt %}<assistant>{% endif %}")
    history = [{"role": "user", "content": "Who?"}]
    assert twin.apply_chat_template(history) == "<user>Who?</><assistant>"
    history.append({"role": "assistant", "content": "It is"})
    assert twin.apply_chat_template(history, add_generation_prompt=False) == "<user>Who?</><assistant>It is"


def test_answers_are_handed_to_the_harness_cache_as_they_are_made(twin, monkeypatch):
    kept = SimpleNamespace(dbdict={})
    monkeypatch.setattr(twin, "cache_hook", CacheHook(kept))
    asked = [(f"Question: Who founded {who}?\nAnswer:", {"until": ["."], "max_gen_toks": 4}) for who in ("A", "Orbis")]
    answers = twin.generate_until([Request(*args) for args in asked])
    assert kept.dbdict == {hash_args("generate_until", args): text for args, text in zip(asked, answers, strict=True)}


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="cuda is there")
def test_without_a_gpu_the_harness_s_own_device_is_left_aside():
    assert str(FloatscopeLM("twin-llada", device="cuda:0").device) == "cpu"
    assert FloatscopeLM("twin-llada", dtype="bfloat16").model.backbone.dtype == torch.bfloat16


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"batch_size": "auto"}, "no automatic"),
        ({"mc": 0}, "at least one sample"),
        ({"blok": 4}, "no setting 'blok'"),
        ({"sampler": "lada"}, "no sampler 'lada'"),
    ],
)
def test_mistakes_are_sentences(settings, match):
    with pytest.raises(UserError, match=match):
        FloatscopeLM("twin-llada", **settings)
