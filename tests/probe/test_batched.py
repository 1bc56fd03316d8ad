"""The kernels for whole batches against plain numpy: Triton's in its interpreter, the swap trick on a CPU.

Every case goes through `attention`, as transformers calls it, with a batch of samples of different length.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

import floatscope as fs
from floatscope.canvas import Prompt
from floatscope.errors import UserError
from floatscope.models.families import FAMILIES
from floatscope.models.model import Model
from floatscope.probe import mixing
from floatscope.probe.attention import Probe, attention, probing
from floatscope.probe.edits import LayerEdit
from floatscope.probe.layout import Layout
from floatscope.probe.mixing import VARIABLE
from floatscope.probe.recording import DenoisingRecorder, Plan
from floatscope.traces import kept_arrays
from tests.probe.test_kernel import plain_matrix, seen_by_kind
from tests.tiny_models import tiny_model

TOLERANCE = 1e-5


@pytest.fixture(params=[pytest.param("triton", marks=pytest.mark.slow), "swap", "native"])
def kernel(request, monkeypatch):
    """A kernel by name, with tiles so small that a canvas of 40 tokens has several."""
    monkeypatch.setenv(VARIABLE, request.param)
    if request.param == "triton":
        tl = pytest.importorskip("triton").language
        from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

        from floatscope.probe import triton_kernels

        plain_dot = InterpreterBuilder.create_dot

        def dot(self, a, b, *others):  # the interpreter keeps bfloat16 as its bits, and multiplies these
            exact = [
                TensorHandle((one.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
                if one.dtype == tl.bfloat16
                else one
                for one in (a, b)
            ]
            return plain_dot(self, *exact, *others)

        monkeypatch.setattr(InterpreterBuilder, "create_dot", dot)
        monkeypatch.setattr(triton_kernels, "BLOCK", 32)  # halved for float32
        monkeypatch.setattr(triton_kernels, "MOST_GROUPS", 16)
    return request.param


class Fixed:
    """An edit that is the same in every layer."""

    hides_only = False

    def __init__(self, edit):
        self.edit = edit

    def compile(self, layer, layout, heads, visible):
        return self.edit


def run(rng, kind, *, tokens, pads, share=2, kv_heads=2, width=8, softcap=None, rows=None, groups=5, dtype=None,
        form="bool", edits=()):  # fmt: skip
    """Attention of a batch through the kernel that is set, and what plain numpy says: yields (found, wanted)."""
    heads, batch, dtype = share * kv_heads, len(pads), dtype or torch.float32
    rows = tokens if rows is None else rows
    query = torch.tensor(rng.normal(size=(batch, heads, rows, width)) * 1.5, dtype=dtype)
    key = torch.tensor(rng.normal(size=(batch, kv_heads, tokens, width)) * 1.5, dtype=dtype)
    value = torch.tensor(rng.normal(size=(batch, kv_heads, tokens, width)), dtype=dtype)
    seen = np.zeros((batch, tokens, tokens), bool)
    layouts, found = [], {}
    for sample, pad in enumerate(pads):
        seen[sample, pad:, pad:] = seen_by_kind(kind, tokens - pad, 4)
        places = torch.arange(tokens - pad)
        own = places[max(0, tokens - rows - pad) :]
        group = torch.from_numpy(rng.integers(0, groups, len(own)))
        opened = torch.from_numpy(np.flatnonzero(rng.random(len(own)) < 0.3))
        columns = torch.from_numpy((rng.random((tokens - pad, 3)) < 0.5).astype(np.float32))
        layouts.append(Layout(own, places, group, groups, columns, opened, 4))
    seen = seen[:, tokens - rows :]
    mask = None
    if any(pads) or kind not in ("bidirectional", "causal") or rows < tokens:
        mask = torch.from_numpy(seen[:, None])
        if form == "float":
            mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    module = torch.nn.Module()
    module.is_causal, module.num_key_value_groups, module.layer_idx = kind == "causal", share, 0

    def listen(layer, sample, statistics, geometry):  # the reference uses its buffers again
        found[sample] = replace(statistics, group_sums=statistics.group_sums.clone()), geometry

    probe = Probe(pads, layouts, listen, 1, edits=edits)
    with probing(probe):
        output, _ = attention(module, query, key, value, mask, scaling=0.4, softcap=softcap)
    assert output.dtype == dtype and sorted(found) == list(range(batch))
    for sample, (pad, layout) in enumerate(zip(pads, layouts, strict=True)):
        skip = rows - len(layout.rows)
        bias = edits[sample].edit.bias if edits else None
        bias = None if bias is None else bias.numpy()
        given = (query[sample, :, skip:], key[sample, :, pad:])
        q, k = (one.float().numpy() for one in given)
        parts = []
        for head in range(heads):  # a bias [1 or H, 1 or R, K] may differ from head to head
            own = None if bias is None else bias[head % len(bias)]
            parts.append(
                plain_matrix(q[head, None], k[head // share, None], seen[sample, skip:, pad:], 0.4, softcap, own)
            )
        matrix = np.concatenate(parts)
        values = value[sample, :, pad:].float().numpy()
        mixed = np.stack([matrix[head] @ values[head // share] for head in range(heads)], 1)
        yield layout, output[sample, skip:].float().numpy(), mixed, found[sample], matrix


def compare(layout, output, mixed, found, matrix, tolerance=TOLERANCE):
    statistics, geometry = found
    assert np.abs(output - mixed).max() < tolerance
    groups = layout.groups.numpy()
    by_hand = np.stack([matrix[:, groups == g].sum(1) for g in range(layout.group_count)], 1)
    assert np.abs(statistics.group_sums.numpy() - by_hand).max() < tolerance
    chosen = matrix[:, layout.open_rows.numpy()]
    assert np.abs(statistics.row_mass.numpy() - chosen @ layout.columns.numpy()).max(initial=0) < tolerance
    entropy = -np.where(chosen > 0, chosen * np.log(np.where(chosen > 0, chosen, 1)), 0).sum(-1)
    assert np.abs(statistics.row_entropy.numpy() - entropy).max(initial=0) < tolerance * 10
    strongest = -np.sort(-chosen, -1)[..., : layout.top]
    assert np.abs(statistics.row_key_mass.numpy() - strongest).max(initial=0) < tolerance
    keys = statistics.row_keys.numpy()
    assert keys.min(initial=0) >= 0
    assert np.abs(np.take_along_axis(chosen, keys, -1) - strongest).max(initial=0) < tolerance
    assert geometry.inputs.query.shape[1] == len(layout.rows)


@pytest.mark.parametrize("pads", [[0, 0], [3, 0]], ids=["even", "pads"])
@pytest.mark.parametrize("kind", ["bidirectional", "causal", "block_causal", "sliding"])
def test_every_visibility_with_and_without_pads(kernel, kind, pads):
    for case in run(np.random.default_rng(1), kind, tokens=21, pads=pads):
        compare(*case)


@pytest.mark.parametrize(
    ("share", "kv_heads", "width", "tokens", "groups"),
    [(1, 1, 5, 33, 3), (1, 3, 16, 17, 1), (3, 1, 20, 37, 20), (4, 2, 8, 1, 2)],
)
def test_odd_sizes_and_ratios_of_heads(kernel, share, kv_heads, width, tokens, groups):
    for case in run(
        np.random.default_rng(2), "causal", tokens=tokens, pads=[0], share=share, kv_heads=kv_heads, width=width,
        groups=groups,
    ):  # fmt: skip
        compare(*case)


@pytest.mark.parametrize("kind", ["bidirectional", "causal"])
def test_a_softcap(kernel, kind):
    """The swap trick cannot cap scores: there the reference runs, by name."""
    for case in run(np.random.default_rng(3), kind, tokens=19, pads=[0, 2], softcap=1.5):
        compare(*case)


@pytest.mark.parametrize("form", ["bool", "float"])
def test_fewer_rows_than_keys(kernel, form):
    for case in run(np.random.default_rng(4), "block_causal", tokens=23, pads=[0, 6], rows=9, form=form):
        compare(*case)


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("per_row", [False, True])
def test_an_edit_that_adds_to_scores(kernel, per_head, per_row):
    rng = np.random.default_rng(5)
    edits = []
    for tokens in (18, 14):
        bias = rng.normal(size=(4 if per_head else 1, tokens if per_row else 1, tokens))
        bias[..., 3] = -np.inf  # a blocked key; every row still sees the first
        edits.append(Fixed(LayerEdit(bias=torch.tensor(bias, dtype=torch.float32))))
    for case in run(rng, "causal", tokens=18, pads=[0, 4], edits=edits):
        compare(*case)


def test_heads_are_changed(kernel):
    halved = Fixed(LayerEdit(heads=torch.full((4, 1), 0.5)))
    for _, output, mixed, _, _ in run(np.random.default_rng(7), "causal", tokens=15, pads=[0], edits=[halved]):
        assert np.abs(output - mixed / 2).max() < TOLERANCE


def test_what_only_the_reference_computes_goes_there(kernel):
    """Attention that is lost after the softmax: `triton` and `swap` have no such step."""
    factor = torch.rand(1, 1, 15, generator=torch.Generator().manual_seed(0))
    lost = Fixed(LayerEdit(factor=factor))
    for layout, _, _, found, matrix in run(np.random.default_rng(7), "causal", tokens=15, pads=[0], edits=[lost]):
        groups = layout.groups.numpy()
        by_hand = np.stack([(matrix * factor.numpy())[:, groups == g].sum(1) for g in range(layout.group_count)], 1)
        assert np.abs(found[0].group_sums.numpy() - by_hand).max() < TOLERANCE


def test_samples_are_taken_in_turns_where_their_sums_are_large(kernel, monkeypatch):
    monkeypatch.setattr(mixing, "MOST_FLOATS", 1)
    for case in run(np.random.default_rng(8), "bidirectional", tokens=17, pads=[0, 2, 5]):
        compare(*case)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(kernel, dtype):
    """Inputs of 8 or 11 bits, scores in float32: group sums to 1e-3 of a row's mass, the output to its own rounding."""
    for case in run(np.random.default_rng(9), "block_causal", tokens=40, pads=[0, 3], width=16, dtype=dtype):
        layout, output, mixed, (statistics, _), matrix = case
        assert np.abs(output - mixed).max() < (2e-2 if dtype == torch.bfloat16 else 3e-3)
        groups = layout.groups.numpy()
        by_hand = np.stack([matrix[:, groups == g].sum(1) for g in range(layout.group_count)], 1)
        assert np.abs(statistics.group_sums.numpy() - by_hand).max() < 1e-3


def test_an_unknown_kernel_is_told_with_the_nearest(monkeypatch):
    monkeypatch.setenv(VARIABLE, "tritton")
    with pytest.raises(UserError, match="did you mean 'triton'"):
        list(run(np.random.default_rng(0), "causal", tokens=3, pads=[0]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["triton", "swap"])
@pytest.mark.parametrize("kind", ["llada", "causal"])
def test_a_step_reads_nothing_from_the_device_and_starts_as_much_for_many_heads(name, kind, monkeypatch):
    """On torch's device without numbers: whatever would wait for one raises there."""
    if name == "triton":
        pytest.importorskip("triton")
    monkeypatch.setenv(VARIABLE, name)
    assert started(kind, heads=2) == started(kind, heads=8) > 0


class Operations(TorchDispatchMode):
    """Counts what is no view."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not func.is_view
        return func(*args, **kwargs or {})


def started(kind, heads):
    """Operations of a recorded step over two samples of different length, the shorter one padded."""
    config = LlamaConfig(
        hidden_size=heads * 8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=heads,
        num_key_value_heads=2, vocab_size=30,
    )  # fmt: skip
    canvases = [Prompt.bare(np.arange(2, 2 + length)).with_slots(4) for length in (6, 9)]
    recorders = [DenoisingRecorder(Plan.of(canvas, kept_arrays("compact")), 2, 3, 3) for canvas in canvases]
    layouts = [one.start(torch.ones(4, dtype=torch.bool), one.plan.slots) for one in recorders]

    def listen(layer, sample, statistics, geometry):
        recorders[sample].layer(layer, statistics, geometry)

    with torch.device("meta"):
        model = Model(LlamaForCausalLM(config), FAMILIES[kind], mask_id=None if kind == "causal" else 1)
        # A mask of padding alone is read by transformers, once, before the first layer; this one is passed on.
        ids, seen = torch.zeros(2, 13, dtype=torch.long), torch.ones(2, 1, 13, 13, dtype=torch.bool)
    probe = Probe([3, 0], layouts, listen, 2)
    probe.refuse_scattered = lambda: None  # the one read, when the forward is over
    with torch.inference_mode(), Operations() as counted, probing(probe):
        model.backbone(ids, attention_mask=seen, use_cache=False)
    return counted.count


@pytest.mark.slow
def test_the_kernels_compile_for_ampere_and_hopper(tmp_path):
    pytest.importorskip("triton")
    settings = os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_DEFAULT_FP_FUSION": "1"}
    del settings["TRITON_INTERPRET"]
    command = [sys.executable, "-m", "tests.probe.compile_kernels", "80", "90"]
    done = subprocess.run(command, env=settings, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert {name.split()[0] + name.split()[-1] for name, *_ in rows} == {
        f"{kernel}_kernelsm_{target}" for kernel in ("forward", "group_sums") for target in (80, 90)
    }
    for _, size, shared in rows:
        assert int(size) > 1000 and int(shared) <= 99 * 1024  # what a block of either may have, and of sm_86 too


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llada", "dream", "sdar", "llama", "gemma2"])
def test_a_whole_trace_is_that_of_the_reference(kernel, name, monkeypatch):
    """Prompts of different length as one batch; head by head, every array of the trace."""
    if kernel == "triton" and name != "dream":
        pytest.skip("the interpreter is slow: one family is enough")
    model, prompts = tiny_model(name), [[5, 6, 7, 8, 9], [7, 8, 9]]
    traces = []
    for chosen in (kernel, "torch"):
        monkeypatch.setenv(VARIABLE, chosen)
        traces.append(fs.trace(model, prompts, model.sampler({"steps": 1}, length=4), keep="heads"))
    for found, wanted in zip(*traces, strict=True):
        assert np.array_equal(found.canvas, wanted.canvas) and found.arrays.keys() == wanted.arrays.keys()
        for array, values in wanted.arrays.items():
            if array != "commit_keys":  # equal masses may come in another order
                assert np.abs(np.float64(found.arrays[array]) - np.float64(values)).max(initial=0) < 1e-4, array
