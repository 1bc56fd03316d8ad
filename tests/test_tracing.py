"""Every array of a trace against full matrices, for every family, in batches of unequal prompts."""

import dataclasses
import os
import re
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

import floatscope as fs
from floatscope.canvas import Prompt, Region, regions_from_labels
from tests.decoding.test_events import Noisy
from tests.plain_attention import canvas_at, column_sets, expected_geometry, expected_step, watch
from tests.tiny_models import MASK, MODELS, tiny_model

TOLERANCE = 1e-5
ARMS = [name for name, (_, family) in MODELS.items() if family == "causal"]
MDMS = [name for name in MODELS if name not in ARMS]
LABELS = ["bos", "scaffold", "query", "doc 1", "doc 2"]


def sampler_for(name, length=8):
    if name in ARMS:
        return fs.AutoregressiveSampler(length=length)
    if name == "dream":
        return fs.DreamSampler(steps=5, length=length, alg="entropy")
    if name == "fast-dllm-v2":
        return fs.ThresholdSampler(length=32, threshold=0.02)  # its blocks have 32 slots: few steps
    return fs.LLaDASampler(steps=length, length=length, block=4)


def make_prompt(rng, length):
    """Random tokens with random regions and a mark that overlaps them."""
    labels = ["bos"] + [LABELS[k] for k in np.sort(rng.integers(1, 4, length - 2))] + ["scaffold"]
    marks = {"evidence": np.sort(rng.choice(length, size=min(4, length), replace=False)).astype(np.int64)}
    return Prompt("", rng.integers(3, 90, length), regions_from_labels(labels), marks)


def close(found, expected, name):
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    error = np.abs(np.asarray(found, np.float64) - expected).max(initial=0) / scale
    assert error < TOLERANCE, f"{name}: {error:.1e}"


def compare(model, trace):
    """All arrays of one trace with the plain computation."""
    arm = trace.kind == "arm"
    if arm:
        layers_of_step = [watch(model, trace.canvas[:-1])] * trace.steps
    else:
        layers_of_step = [watch(model, canvas_at(trace, step, MASK)) for step in range(trace.steps)]
    masked = np.zeros_like(trace.masked) if arm else trace.masked
    for step, layers in enumerate(layers_of_step):
        rows = trace.slots[0] + step if arm else len(trace.canvas)
        assert trace.computed[step].tolist() == [0, rows]
        for number, layer in enumerate(layers):
            for name, expected in expected_step(trace, layer, rows, masked[step]).items():
                if name == "group_rows":
                    assert (trace.group_rows[step] == expected).all()
                elif name in trace.arrays:
                    close(trace.arrays[name][step, number], expected, name)
            if step in trace.qk_steps:
                place = trace.qk_steps.index(step)
                for name, expected in expected_geometry(trace, layer, rows).items():
                    close(trace.arrays[name][place, number], expected, name)
            last = layers_of_step[-1][number]["seen"].sum(0)
            assert trace.seen_by[number, : len(last)].tolist() == last.tolist()
    compare_commits(trace, layers_of_step)


def compare_commits(trace, layers_of_step):
    columns = column_sets(trace)
    for slot, step in enumerate(trace.commit_step):
        position = trace.slots[slot]
        row = position if trace.logits == "same" else max(position - 1, 0)
        for number, layer in enumerate(layers_of_step[step]):
            own = layer["attention"][:, row]
            wide = np.zeros((len(own), len(trace.canvas)))
            wide[:, : own.shape[1]] = own
            expected = np.stack([wide[:, columns[name]].sum(-1) for name in trace.column_labels], -1)
            close(trace.commit_mass[slot, number], expected, "commit_mass")
            ranks = trace.commit_key_mass.shape[-1]
            close(trace.commit_key_mass[slot, number], -np.sort(-wide, -1)[:, :ranks], "commit_key_mass")
            at = np.take_along_axis(wide, trace.commit_keys[slot, number].astype(int), -1)
            close(trace.commit_key_mass[slot, number], at, "commit_keys")
            entropy = -(own * np.log(np.where(own > 0, own, 1))).sum(-1)
            close(trace.commit_entropy[slot, number], entropy, "commit_entropy")


@pytest.mark.parametrize("name", MODELS)
def test_every_array_equals_plain_numpy(name):
    model = tiny_model(name)
    rng = np.random.default_rng(3)
    prompts = [make_prompt(rng, length) for length in (13, 9, 13, 6)]
    for trace in fs.trace(model, prompts, sampler_for(name), keep="heads"):
        compare(model, trace)


def slots_at(rng, length, slots):
    """A canvas of so many tokens besides its slots, with random regions around them and a mark."""
    total = length + len(slots)
    labels = np.array([LABELS[k] for k in np.sort(rng.integers(1, 5, total))], object)
    labels[slots] = "answer"
    marks = {"evidence": rng.choice(np.setdiff1d(np.arange(total), slots), size=2, replace=False)}
    return Prompt("", rng.integers(3, 90, total), regions_from_labels(labels.tolist()), marks, slots=slots)


def plain_probability(model, canvas, position, token, mask=True):
    """Of a token at a position of one canvas, by the backbone alone; row 0 scores position 0 in every family."""
    with torch.inference_mode():
        rows = model.backbone(input_ids=torch.tensor(canvas)[None]).logits[0].double().numpy()
    row = rows[position if model.family.logits == "same" else max(position - 1, 0)].copy()
    if mask:
        row[MASK] = -np.inf
    chances = np.exp(row - row.max())
    return chances[token] / chances.sum()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MDMS if tiny_model(name).block is None])
@pytest.mark.parametrize("keep", ["heads", "compact"])
def test_slots_anywhere_equal_plain_numpy(name, keep):
    """At the left, in the middle, at the right and scattered, in one batch of unequal canvases."""
    model, rng = tiny_model(name), np.random.default_rng(4)
    places = ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [0, 3, 7, 9], [1, 2, 5, 6])
    prompts = [slots_at(rng, length, np.array(own)) for length, own in zip((9, 5, 8, 6, 12), places, strict=True)]
    sampler = fs.LLaDASampler(steps=4, length=4, block=2)
    for prompt, trace in zip(prompts, fs.trace(model, prompts, sampler, keep=keep), strict=True):
        assert (trace.slots.tolist(), trace.regions) == (prompt.slots.tolist(), prompt.regions)
        assert trace.marks["evidence"].tolist() == prompt.marks["evidence"].tolist()
        around = np.setdiff1d(np.arange(len(prompt.ids)), prompt.slots)
        assert trace.canvas[around].tolist() == prompt.ids[around].tolist()
        assert set(trace.commit_step[:2]) == {0, 1}  # blocks are counted over the slots
        compare(model, trace)
        for slot, step in enumerate(trace.commit_step):
            position = trace.slots[slot]
            chance = plain_probability(model, canvas_at(trace, step, MASK), position, trace.canvas[position])
            close(trace.confidence[slot], chance, "confidence")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llada", "dream", "bert"])
def test_slots_anywhere_are_alone_what_they_are_in_a_batch(name):
    model, rng = tiny_model(name), np.random.default_rng(6)
    prompts = [slots_at(rng, 7, np.array([0, 1, 2])), slots_at(rng, 12, np.array([5, 6, 7]))]
    for prompt, together in zip(prompts, fs.trace(model, prompts, fs.DreamSampler(3, 3)), strict=True):
        alone = fs.trace(model, prompt, fs.DreamSampler(3, 3))
        assert alone.canvas.tolist() == together.canvas.tolist()
        for array, values in alone.arrays.items():
            close(together.arrays[array], values, array)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sentence"),
    [("sdar", "block-causal .blocks of 4. and sees no text after a block"), ("llama", "writes its answer after the")],
)
def test_models_that_cannot_infill_say_so(name, sentence):
    prompt = slots_at(np.random.default_rng(0), 6, np.arange(2, 6))
    for run in (fs.trace, fs.generate):
        with pytest.raises(fs.UserError, match=f"{sentence}.*has its slots elsewhere: put them at the end"):
            run(tiny_model(name), prompt, tiny_model(name).sampler(length=4))
    at_end = slots_at(np.random.default_rng(0), 6, np.arange(6, 10))
    fs.generate(tiny_model(name), at_end, tiny_model(name).sampler(length=4))


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    name=st.sampled_from(["llada", "dream", "sdar", "llama", "modernbert"]),
    seed=st.integers(0, 1000),
    lengths=st.lists(st.integers(3, 20), min_size=1, max_size=3),
    keep=st.sampled_from(["compact", "groups", "heads", "matrices"]),
)
def test_any_batch_and_pad_pattern(name, seed, lengths, keep):
    model = tiny_model(name, seed % 3)
    rng = np.random.default_rng(seed)
    prompts = [make_prompt(rng, length) for length in lengths]
    for trace in fs.trace(model, prompts, sampler_for(name, 4), keep=keep):
        compare(model, trace)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_tracing_changes_no_token(name):
    model = tiny_model(name)
    rng = np.random.default_rng(5)
    ids = [rng.integers(3, 90, length) for length in (12, 7)]
    sampler = sampler_for(name)
    for trace, generation in zip(fs.trace(model, ids, sampler), fs.generate(model, ids, sampler), strict=True):
        assert trace.canvas.tolist() == generation.canvas.tolist()
        assert trace.commit_step.tolist() == generation.commit_step.tolist()
        assert trace.steps == generation.steps
        close(trace.confidence, generation.confidence, "confidence")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llada", "dream", "bert", "sdar", "llama"])
def test_a_batch_gives_each_sample_what_it_gets_alone(name):
    model = tiny_model(name)
    rng = np.random.default_rng(6)
    prompts = [make_prompt(rng, length) for length in (11, 5, 8)]
    sampler = sampler_for(name)
    for prompt, together in zip(prompts, fs.trace(model, prompts, sampler), strict=True):
        alone = fs.trace(model, prompt, sampler)
        assert alone.canvas.tolist() == together.canvas.tolist()
        for array, values in alone.arrays.items():
            close(together.arrays[array], values, array)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llada", "llama"])
def test_each_trace_has_the_seed_of_its_sample(name):
    """And is what that seed gives, whatever its place."""
    model = tiny_model(name)
    sampler = model.sampler(length=4, temperature=2.0, seed=3)
    own = fs.trace(model, [[5, 6, 7]] * 3, sampler, seeds=[8, 9, 8])
    assert [trace.seed for trace in own] == [8, 9, 8]
    assert own[0].canvas.tolist() == own[2].canvas.tolist() != own[1].canvas.tolist()
    assert fs.trace(model, [5, 6, 7], sampler).seed == 3


@pytest.mark.slow
def test_an_edit_counts_the_steps_and_not_the_passes_of_guidance():
    model, ids = tiny_model("llada"), list(range(10, 22))
    sampler = fs.LLaDASampler(steps=3, length=3, cfg=1.0)
    plain, edited = (
        fs.trace(model, ids, sampler, edits=edits) for edits in ((), [fs.Edit("block", keys="4", steps="1")])
    )
    assert np.array_equal(plain.received[0], edited.received[0])
    assert (edited.received[:, :, 4] == 0).all(axis=1).tolist() == [False, True, False]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llada", "llama"])
def test_matrices_are_the_attention_matrices(name):
    model = tiny_model(name)
    trace = fs.trace(model, list(range(3, 15)), sampler_for(name), keep="matrices", matrix_layers=(1, 2))
    assert trace.matrix_layers.tolist() == [1, 2]
    last = watch(model, trace.canvas[:-1] if trace.kind == "arm" else canvas_at(trace, trace.steps - 1, MASK))
    assert trace.matrix_steps[-1] == trace.steps - 1
    for place, number in enumerate((1, 2)):
        expected = last[number]["attention"]
        close(trace.attention[-1, place][..., : expected.shape[-1]], expected, "attention")
        close(trace.queries[-1, place], last[number]["query"], "queries")
        close(trace.keys[-1, place][:, : expected.shape[-1]], last[number]["key"], "keys")
    one = fs.trace(tiny_model("llada"), [3, 4, 5], sampler_for("llada"), keep="matrices", matrix_steps=(2,))
    assert one.matrix_steps.tolist() == [2]


def test_only_the_conditional_pass_is_captured():
    model = tiny_model("llada")
    plain = fs.LLaDASampler(steps=1, length=4)
    guided = dataclasses.replace(plain, cfg=2.0)
    ids = list(range(10, 22))
    assert np.array_equal(fs.trace(model, ids, plain).received, fs.trace(model, ids, guided).received)


@pytest.mark.slow
def test_shapes_that_go_in_decide_what_comes_out():
    model = tiny_model("llada")
    sampler = fs.LLaDASampler(steps=2, length=2)
    ids = torch.arange(3, 11)
    assert isinstance(fs.trace(model, ids, sampler), fs.Trace)
    assert isinstance(fs.trace(model, ids[None], sampler), fs.Trace)
    assert len(fs.trace(model, [ids, ids.numpy()], sampler)) == 2
    assert len(fs.trace(model, [ids.tolist()], sampler)) == 1


@pytest.mark.slow
def test_the_bos_token_of_bare_ids_is_its_own_region():
    for name in ("llama", "llada"):
        assert fs.trace(tiny_model(name), [1, 5, 6], sampler_for(name)).region_labels == ("bos", "query", "answer")
        assert fs.trace(tiny_model(name), [5, 1, 6], sampler_for(name)).region_labels == ("query", "answer")


def test_steps_are_seen_as_they_are_made():
    seen = []
    fs.trace(tiny_model("llada"), [5, 6, 7], fs.LLaDASampler(steps=4, length=4), on_step=seen.append)
    assert [step.index for step in seen] == [0, 1, 2, 3]


@pytest.mark.slow
def test_what_each_step_received_is_told_as_it_is_made():
    """The arrays of the trace, step by step; of a sample that has ended, its last."""
    told = []
    model = tiny_model("sdar")
    with torch.no_grad():
        model.backbone.lm_head.weight.mul_(6)
    prompts, sampler = [[5, 6, 7], [8, 9, 10, 11]], fs.ThresholdSampler(length=8, threshold=0.35)
    traces = fs.trace(model, prompts, sampler, on_received=lambda step, seen: told.append((step.index, seen)))
    assert [index for index, _ in told] == list(range(max(trace.steps for trace in traces)))
    for index, seen in told:
        for own, trace in zip(seen, traces, strict=True):
            assert np.array_equal(own, trace.received[min(index, trace.steps - 1)])


@pytest.mark.slow
def test_an_answer_of_one_token():
    for name in ("llama", "llada"):
        trace = fs.trace(tiny_model(name), [5, 6, 7], sampler_for(name, 4 if name == "llada" else 1))
        compare(tiny_model(name), trace)


def test_unknown_keep_is_a_sentence():
    with pytest.raises(
        fs.UserError, match="keep='everything' is no array of a trace: Known are compact, rollout, groups"
    ):
        fs.trace(tiny_model("llada"), [5], fs.LLaDASampler(steps=2, length=2), keep="everything")  # pyright: ignore


def test_a_canvas_longer_than_the_context_is_a_sentence():
    with pytest.raises(fs.UserError, match=r"124 tokens and 8 answer slots do not fit .* context of 128"):
        fs.trace(tiny_model("llada"), list(range(3, 93)) + [5] * 34, fs.LLaDASampler(steps=8, length=8))


@pytest.mark.slow
def test_a_head_that_goes_round_its_base_model_and_a_mixture_of_experts():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 96}
    opt = transformers.OPTConfig(**sizes, ffn_dim=48, max_position_embeddings=64, word_embed_proj_dim=32)
    experts = transformers.MixtralConfig(
        **sizes, intermediate_size=32, num_key_value_heads=2, num_local_experts=4, max_position_embeddings=64
    )
    for config in (opt, experts):
        model = fs.Model(transformers.AutoModelForCausalLM.from_config(config), fs.FAMILIES["causal"])
        assert all(finding.passed for finding in fs.check(model)), fs.check(model)
        compare(model, fs.trace(model, list(range(5, 15)), fs.AutoregressiveSampler(length=3)))


@pytest.mark.slow
def test_samples_of_a_batch_may_end_at_different_steps():
    model = tiny_model("sdar")
    with torch.no_grad():
        model.backbone.lm_head.weight.mul_(6)
    rng = np.random.default_rng(3)
    prompts = [make_prompt(rng, length) for length in (13, 9, 6)]
    traces = fs.trace(model, prompts, fs.ThresholdSampler(length=8, threshold=0.35))
    assert len({trace.steps for trace in traces}) > 1
    for trace in traces:
        compare(model, trace)


def steps_and_geometry(name, sampler, prompt, sharpness=1.0):
    """How many steps a run took and at which its geometry was kept, equal to that of a run that keeps all."""
    model = tiny_model(name)
    with torch.no_grad():
        model.backbone.lm_head.weight.mul_(sharpness)
    compact, whole = (fs.trace(model, prompt, sampler, keep=keep) for keep in ("compact", "heads"))
    assert isinstance(compact, fs.Trace) and isinstance(whole, fs.Trace)
    assert whole.qk_steps == tuple(range(compact.steps))
    for place, step in enumerate(compact.qk_steps):
        for array in ("qk", "cos", "norm", "key_norm", "value_norm"):
            assert np.array_equal(compact.arrays[array][place], whole.arrays[array][step])
    return compact.steps, compact.qk_steps


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sampler"),
    [
        ("llada", fs.LLaDASampler(steps=64, length=6)),  # more steps than slots
        ("llada", fs.LLaDASampler(steps=6, length=6)),
        ("llada", fs.LLaDASampler(steps=1, length=6)),
        ("dream", fs.DreamSampler(steps=9, length=4)),
        ("dream", fs.DreamSampler(steps=12, length=3, alg="origin", seed=1)),  # ends by chance
        ("sdar", fs.LLaDASampler(steps=8, length=8)),
        *[("llama", fs.AutoregressiveSampler(length=length)) for length in (1, 2, 5)],
    ],
)
def test_geometry_is_kept_at_the_first_the_middle_and_the_last_step_that_was_run(name, sampler):
    steps, kept = steps_and_geometry(name, sampler, [5, 6, 7])
    assert kept == tuple(sorted({0, steps // 2, steps - 1}))


@pytest.mark.slow
def test_of_many_steps_none_is_lost():
    """Hundreds of steps of which most commit nothing: the same canvas gives the same arrays, another one others."""
    trace = fs.trace(tiny_model("dream"), list(range(3, 9)), fs.DreamSampler(steps=300, length=8), keep="heads")
    assert trace.steps == len(trace.received) == len(trace.head_attention) == len(trace.qk) == 300
    np.testing.assert_allclose(trace.received.sum(-1), 1, atol=1e-5)
    same = (trace.tokens[1:] == trace.tokens[:-1]).all(1)
    assert 285 < same.sum() < 299 and not same[256:].all()
    for array in (trace.received, trace.head_attention, trace.qk):
        assert ((array[1:] == array[:-1]).reshape(299, -1).all(1) == same).all()


@pytest.mark.slow
def test_of_a_run_that_ends_early_the_middle_is_kept_too():
    ends = []
    for threshold in (0.1, 0.2, 0.25, 0.3, 1.0):
        steps, kept = steps_and_geometry("sdar", fs.ThresholdSampler(length=12, threshold=threshold), [5, 6, 7], 6.0)
        assert kept == tuple(sorted({0, steps // 2, steps - 1}))
        ends.append(steps)
    assert len(set(ends)) >= 3 and max(ends) == 12


@pytest.mark.slow
def test_prompts_made_by_hand_and_bare_ids_run_in_one_batch():
    model, sampler = tiny_model("llada"), sampler_for("llada")
    regions = [Region("bos", 0, 1), Region("doc 1", 1, 6)]
    prompt = Prompt("", [3, 4, 5, 6, 7, 8], regions, {"evidence": [4, 2], "none": []})
    found, bare = fs.trace(model, [prompt, [3, 4]], sampler, keep="heads")
    assert found.marks["evidence"].tolist() == [2, 4]
    assert (found.region_labels, bare.region_labels) == (("bos", "doc 1", "answer"), ("query", "answer"))
    compare(model, found)
    compare(model, bare)


@pytest.mark.parametrize("name", ["llada", "llama"])
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"matrix_layers": (3,)}, r"matrix_layers=\[3\] should be whole numbers from 0 to 2"),
        ({"matrix_layers": (-1,)}, "from 0 to 2"),
        ({"matrix_layers": ()}, "from 0 to 2"),
        ({"matrix_layers": (0.5,)}, "from 0 to 2"),
        ({"matrix_steps": (8,)}, r"matrix_steps=\[8\] should be whole numbers from 0 to 7"),
        ({"matrix_steps": (2,), "keep": "heads"}, "give it with keep='matrices'"),
    ],
)
def test_matrices_that_are_not_there_are_a_sentence(name, options, sentence):
    with pytest.raises(fs.UserError, match=sentence):
        fs.trace(tiny_model(name), [5, 6, 7], sampler_for(name), **{"keep": "matrices"} | options)


@pytest.mark.slow
def test_matrices_that_would_fill_the_machine_are_refused_before_the_run(monkeypatch):
    """2 samples, 6 steps, 3 layers, 4 heads over at most 18 tokens: 2 * 6 * 3 * 4 * 18 * 18 numbers of 4 bytes."""
    model, sampler = tiny_model("llada"), fs.LLaDASampler(steps=6, length=6)
    prompts, needed, heard = [list(range(3, 15)), list(range(3, 10))], 186_624, []
    told = {"SC_PAGE_SIZE": 1}
    monkeypatch.setattr(os, "sysconf", told.__getitem__)
    told["SC_PHYS_PAGES"] = 2 * needed
    fs.trace(model, prompts, sampler, keep="matrices")
    told["SC_PHYS_PAGES"] -= 2
    with pytest.raises(fs.UserError, match="Full matrices of 18 tokens would take 0"):
        fs.trace(model, prompts, sampler, keep="matrices", on_step=heard.append)
    assert not heard
    fs.trace(model, prompts, sampler, keep="matrices", matrix_steps=[0, 1, 2, 3, 4])
    fs.trace(tiny_model("llama"), prompts, fs.AutoregressiveSampler(length=6), keep="matrices")  # one matrix for all


def test_metadata_comes_back_from_the_file_as_it_was(tmp_path):
    known = {
        "sample": "q-1", "task": "squad", "condition": "noise/4", "control": "", "prediction": "Ada \u00e9\n",
        "answers": ["Ada", "Ada Lovelace"], "accuracy": 1.0, "cut": 3, "missing": None,
    }  # fmt: skip
    given = known | {"answers": tuple(known["answers"]), "accuracy": np.float32(1), "cut": np.int64(3)}
    traces = fs.trace(tiny_model("llada"), [[5, 6], [7]], fs.LLaDASampler(2, 2), metadata=[given, {"sample": 4}])
    assert [trace.metadata for trace in traces] == [known, {"sample": 4}]
    assert fs.Trace.load(traces[0].save(tmp_path / "t")).metadata == known


@pytest.mark.parametrize(
    ("metadata", "sentence"),
    [
        ([{}], "metadata has 1 entries for 2 prompts"),
        ([{}, {}, {}], "metadata has 3 entries for 2 prompts"),
        ([{}, "b"], "metadata should be a table of names and values, or a list of them"),
        ("ab", "metadata should be a table"),
        ({"answers": {1, 2}}, r"\{1, 2\} cannot be stored: a trace's file holds texts"),
        ({("a", 1): 2}, "keys must be str.*a trace's file holds texts"),
    ],
)
def test_metadata_that_cannot_be_kept_is_refused_before_the_run(metadata, sentence):
    ran = []
    with pytest.raises(fs.UserError, match=sentence):
        fs.trace(tiny_model("llada"), [[5, 6], [7]], fs.LLaDASampler(2, 2), metadata=metadata, on_step=ran.append)
    assert not ran


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llada", "llama"])
def test_without_a_sampler_the_model_s_own_is_used(name):
    model = tiny_model(name)
    trace = fs.trace(model, [5, 6, 7])
    own = model.sampler()
    assert trace.sampler == {"name": own.name} | dataclasses.asdict(own)
    assert trace.canvas.tolist() == fs.generate(model, [5, 6, 7]).canvas.tolist()
    assert trace.canvas.tolist() == fs.trace(model, [5, 6, 7], own).canvas.tolist()


def test_a_sampler_that_does_not_keep_to_its_bounds_is_refused():
    class Hasty(fs.LLaDASampler):
        def step_bounds(self, first_slot, family_block):
            return 1, 3

    with pytest.raises(fs.UserError, match="The sampler 'llada' took 4 steps, and its step_bounds said 1 to 3"):
        fs.trace(tiny_model("llada"), [5, 6, 7], Hasty(steps=4, length=4))


def test_a_name_in_place_of_a_sampler_is_refused_with_what_to_write():
    model = tiny_model("llada")
    for run in (fs.trace, fs.generate):
        with pytest.raises(fs.UserError, match=r"give model\.sampler\(name='llada'\)"):
            run(model, [1, 2], "llada")


def test_matrices_that_would_not_fit_into_half_of_the_memory_are_refused(monkeypatch):
    """By hand: 2 samples, 3 steps, the model's layers and heads, 10 tokens squared, 4 bytes."""
    model = tiny_model("llada")
    sampler = fs.LLaDASampler(length=4, steps=3, block=4)
    needed = 2 * 3 * model.layers * model.config.num_attention_heads * 10**2 * 4
    memory = 2 * needed
    monkeypatch.setattr("os.sysconf", lambda name: 1 if name == "SC_PAGE_SIZE" else memory)
    prompts = [[3, 4, 5, 6, 7, 8], [3, 4, 5, 6]]
    assert len(fs.trace(model, prompts, sampler, keep="matrices")) == 2
    memory -= 2
    with pytest.raises(fs.UserError, match=r"Full matrices of 10 tokens would take .* GB"):
        fs.trace(model, prompts, sampler, keep="matrices")
    assert len(fs.trace(model, prompts, sampler, keep="matrices", matrix_layers=[0])) == 2
    assert len(fs.trace(model, prompts, sampler, keep="heads")) == 2


def test_the_road_from_trace_to_the_kernel_has_as_many_functions_as_the_design_says(monkeypatch):
    from floatscope.probe import mixing

    page = (Path(__file__).parent.parent / "docs" / "design.md").read_text(encoding="utf-8")
    found, attend, home = [], mixing.attend, str(Path(fs.__file__).parent)

    def watched(*given, **options):
        found.append([frame for frame in traceback.extract_stack() if frame.filename.startswith(home)])
        return attend(*given, **options)

    monkeypatch.setattr(mixing, "attend", watched)
    monkeypatch.setenv(mixing.VARIABLE, "torch")
    fs.trace(tiny_model("llada"), [5, 6, 7], fs.LLaDASampler(2, 2))
    told = re.search(r"One road of (\d+) functions", page)
    assert told is not None
    assert {len(frames) + 1 for frames in found} == {int(told[1])}, [frame.name for frame in found[0]]


@dataclasses.dataclass(frozen=True)
class Wavering(Noisy):
    """The toy that commits all, revises and renoises, and stops a step after nothing is masked."""

    def step_bounds(self, first_slot, family_block):
        return 4, 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llada", "dream"])
def test_tokens_that_are_revised_and_withdrawn_are_traced(name):
    """Every forward is a step of the trace, also those that no masked slot is left for."""
    model = tiny_model(name)
    for trace in fs.trace(model, [[5, 6], [7, 8, 9]], Wavering(), keep="heads"):
        assert trace.steps == 4 and trace.state.tolist() == [[0, 0, 0], [1, 1, 1], [0, 1, 1], [1, 1, 1]]
        assert trace.tokens.tolist() == [[MASK] * 3, [1, 1, 1], [2, 2, 2], [3, 2, 2]]
        assert trace.commit_step.tolist() == [2, 0, 0]
        for step in range(4):
            canvas = trace.canvas.copy()
            canvas[trace.slots] = trace.tokens[step]
            for number, layer in enumerate(watch(model, canvas)):
                expected = expected_step(trace, layer, len(canvas), trace.masked[step])
                close(trace.received[step, number], expected["received"], "received")
                close(trace.head_attention[step, number], expected["head_attention"], "head_attention")
                assert trace.group_rows[step].tolist() == expected["group_rows"].tolist()


def test_prompts_whose_canvases_differ_keep_what_is_theirs():
    """Under blocks of four, prompts of 5, 8 and 9 tokens have 3, 4 and 3 slots: they run apart and come in order."""
    model = tiny_model("sdar")
    sampler = fs.ThresholdSampler(3, order="random", tokens_per_step=1, whole_blocks=True)
    prompts = [list(range(3, 3 + length)) for length in (5, 8, 9)]
    edits = [[fs.Edit("block", keys="1")], [], [fs.Edit("zero", keys="2-3"), fs.Edit("sink")]]
    for seeds in ((7, 8, 9), np.array([7, 8, 9])):
        told = [{"sample": name} for name in "abc"]
        found = fs.trace(model, prompts, sampler, seeds=seeds, metadata=told, edits=edits)
        assert [len(trace.slots) for trace in found] == [3, 4, 3]
        assert [trace.metadata["sample"] for trace in found] == ["a", "b", "c"]
        assert [trace.seed for trace in found] == [7, 8, 9]
        assert [[edit["op"] for edit in trace.edits] for trace in found] == [["block"], [], ["zero", "sink"]]
    for prompt, seed, own, trace in zip(prompts, (7, 8, 9), edits, found, strict=True):
        alone = fs.trace(model, prompt, sampler, seeds=[seed], edits=own)
        assert alone.canvas.tolist() == trace.canvas.tolist()
        assert alone.commit_step.tolist() == trace.commit_step.tolist()
        np.testing.assert_allclose(alone.received, trace.received, atol=1e-5)
    for one in fs.trace(model, prompts, sampler, metadata={"task": "t"}, edits=[fs.Edit("sink")], keep=["received"]):
        assert one.metadata["task"] == "t" and len(one.edits) == 1 and one.keep == "received"


def test_steps_are_told_before_what_they_received():
    told = []
    fs.trace(
        tiny_model("llada"), [5, 6, 7], fs.LLaDASampler(steps=2, length=2),
        on_received=lambda step, seen: told.append(("received", step.index, seen[0].shape)),
        on_step=lambda step: told.append(("step", step.index)),
    )  # fmt: skip
    assert told == [("step", 0), ("received", 0, (3, 5)), ("step", 1), ("received", 1, (3, 5))]
    heard = []
    fs.trace(tiny_model("llama"), [5, 6, 7], fs.AutoregressiveSampler(2), on_step=lambda step: heard.append(step.index))
    assert heard == [0, 1]


def test_texts_of_tokens_that_came_by_are_kept_beside_those_that_stayed():
    """Tokens that were likely or stood in a slot and are not on the canvas, each by its id, with its own text."""
    model = fs.load("twin-llada", check=False)
    trace = fs.trace(model, fs.build_prompt(model, "Who founded Nordwind?", []), model.sampler(length=3, steps=3))
    likely = {*trace.candidate_tokens.ravel().tolist()} - {-1}
    passing = trace.metadata["passing_texts"]
    assert {*map(int, passing)} == likely - {*trace.canvas.tolist()}
    assert [*passing.values()] == model.tokenizer.convert_ids_to_tokens([*map(int, passing)])
    assert trace.metadata["prediction"] == model.text(trace.answer)
