"""The door to lm-evaluation-harness: likelihoods against plain enumeration, and the harness itself on tiny tasks."""

import json
import math
from itertools import combinations

import numpy as np
import pytest
import torch

import floatscope as fs
from floatscope.errors import UserError
from floatscope.qa.tasks import read_task
from tests.tiny_models import MASK, tiny_model

pytest.importorskip("lm_eval", reason="the extra lm-eval is not installed")

from lm_eval import simple_evaluate
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
