"""What a study will cost: counted without models, timed by a calibration, and operations as torch counts them."""

import dataclasses

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import floatscope as fs
from floatscope.study import estimating
from floatscope.study.estimating import GPU, ModelShape, count, estimate
from floatscope.study.plan import Curve, ModelPlan, TaskPlan
from floatscope.study.running import run_study
from tests.study.small_studies import small_study


@pytest.mark.slow
def test_an_estimate_scales_the_time_of_a_middle_batch_to_all_of_them(tmp_path, monkeypatch):
    """Loading takes 10 seconds here, a batch 2, and both workers share the batches. A batch's size is its tokens."""
    study = small_study(
        models=(ModelPlan("twin-llada"),), tasks=(TaskPlan("world:rag:3"),), conditions=(Curve("documents", "0,3"),),
        limit=5, batch=4, workers=2, controls=(), steps=2,
    )  # fmt: skip
    one = dataclasses.replace(study, workers=1)
    tokens = sorted(run_study(one, tmp_path).run.results().filter(control="")["prompt_tokens"])
    sizes = [4 * (tokens[3] + 4), 4 * (tokens[7] + 4), 2 * (tokens[9] + 4)]
    clock = iter([0, 10, 20, 22])
    monkeypatch.setattr("floatscope.study.estimating.time.perf_counter", lambda: next(clock))
    (found,) = estimate(study)
    assert (found.name, found.units, found.batches) == ("twin-llada", 10, 3)
    assert found.seconds == pytest.approx(10 + 2 * sum(sizes) / sizes[1] / 2)
    shape = ModelShape.of(fs.load("twin-llada", check=False))
    for seconds, gpu in zip(found.gpu_seconds, (GPU(312e12, 2.0e12), GPU(989e12, 3.35e12)), strict=True):
        batches = ((4, tokens[3] + 4), (4, tokens[7] + 4), (2, tokens[9] + 4))
        assert seconds == pytest.approx(sum(2 * shape.seconds(gpu, size, rows, rows, 4) for size, rows in batches))
    assert found.trace_bytes == 0


@pytest.mark.slow
def test_units_and_batches_are_counted_without_a_model(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a model was loaded")

    timed = estimate(small_study(batch=3))
    monkeypatch.setattr("floatscope.models.loading.load", refuse)
    monkeypatch.setattr("floatscope.models.loading.load_untrained", refuse)
    guesses, *found = count(small_study(batch=3))
    # three guesses for 2 tasks x 2 numbers of documents x 5 samples
    assert (guesses.name, guesses.units, guesses.batches) == ("guesses, by no model", 60, 0)
    assert [(row.name, row.units, row.batches) for row in found] == [
        (row.name, row.units, row.batches) for row in timed
    ]
    assert [row.name for row in found] == ["twin-arm", "twin-arm, untrained", "twin-llada", "twin-llada, untrained"]


@pytest.mark.slow
def test_traces_take_the_disk_that_was_estimated(tmp_path):
    study = small_study(conditions=(Curve("documents", "3", traces=5),), tasks=(TaskPlan("world:rag:3"),), controls=())
    found = estimate(study)
    run = run_study(study, tmp_path).run
    for row in found:
        kept = sum(path.stat().st_size for path in run.traces(model=row.name))
        assert row.trace_bytes == pytest.approx(kept, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["twin-llada", "twin-arm"])
def test_operations_are_those_that_torch_counts(name):
    model = fs.load(name)
    shape, rows = ModelShape.of(model), 96
    plain = sdpa_kernel(SDPBackend.MATH)  # the only one whose operations torch counts on a CPU
    with FlopCounterMode(display=False) as counter, plain, torch.no_grad():
        model.backbone(torch.zeros(1, rows, dtype=torch.int64))  # the head runs on all rows here
    assert shape.operations(rows, rows, rows) == pytest.approx(counter.get_total_flops(), rel=0.005)


def test_a_forward_takes_the_longer_of_computing_and_reading():
    shape, gpu = ModelShape(body=1000, head=100, layers=2, width=10), GPU(peak=1e6, bandwidth=1e4)
    operations = 2 * 1000 * 50 + 4 * 2 * 10 * 50 * 50 + 2 * 100 * 8
    assert shape.operations(50, 50, 8) == operations
    usable = estimating.UTILISATION * 1e6
    assert shape.seconds(gpu, 4, 50, 50, 8) == pytest.approx(4 * operations / usable)
    assert shape.seconds(gpu, 1, 1, 50, 1) == pytest.approx(2 * 1100 / 1e4)  # one token: the weights are read for it
    assert shape.batch_seconds(gpu, 4, 42, 8, 5, arm=False, traced=True) == pytest.approx(5 * 4 * operations / usable)
    prompt = 4 * shape.operations(42, 42, 1) / usable
    plain, traced = (shape.batch_seconds(gpu, 4, 42, 8, 5, arm=True, traced=traced) for traced in (False, True))
    assert plain == pytest.approx(prompt + 5 * 0.22)
    assert traced - plain == pytest.approx(4 * shape.operations(50, 50, 0) / usable)
