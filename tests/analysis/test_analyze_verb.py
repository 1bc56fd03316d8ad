"""The verb analyze on trace files: tables, figures, heatmaps, controls of a run, sentences."""

import sys

import numpy as np
import polars as pl
import pytest

from floatscope import cli
from tests.traces.full_matrices import full_run, to_trace


def analyze(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["floatscope", "analyze", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    told = capsys.readouterr()
    return stopped.value.code, told.out, told.err


@pytest.fixture
def run_folder(tmp_path):
    folder = tmp_path / "run" / "traces"
    folder.mkdir(parents=True)
    for seed in range(3):
        about = {"sample": f"s{seed}", "task": "ab"[seed % 2], "condition": "base"}
        to_trace(full_run(seed=seed), model="m", metadata=about).save(folder / f"own{seed}.safetensors")
        control = about | {"control": "untrained", "control_of": "m"}
        bare = to_trace(full_run(seed=seed, sharpness=0.1), model="m", metadata=control)
        bare.save(folder / f"bare{seed}.safetensors")
    return tmp_path / "run"


@pytest.mark.slow
def test_a_run_with_its_controls(monkeypatch, capsys, tmp_path, run_folder):
    out = tmp_path / "out"
    code, shown, _ = analyze(monkeypatch, capsys, "drift", run_folder, "--out", out, "--detector", "zscore(1)")
    assert code == 0 and "untrained" not in shown.partition("note:")[2]
    names = {path.name for path in out.iterdir()}
    assert names == {
        *(
            f"drift{part}.parquet"
            for part in ("", "_depth", "_ends", "_ends_depth", "_curve", "_states", "_heads", "_verdicts")
        ),
        *(f"{stem}.{kind}" for stem in ("drift", "drift_2", "drift_map") for kind in ("svg", "pdf", "html")),
    }
    table = pl.read_parquet(out / "drift.parquet")
    # tasks apart, and controls are not counted as samples
    assert table.group_by("task").agg(pl.col("samples").max()).sort("task").rows() == [("a", 2), ("b", 1)]
    for stem, drawn in (("drift", "a, base"), ("drift_2", "b, base")):
        assert drawn in (out / f"{stem}.svg").read_text()
    assert table["untrained"].drop_nulls().len() > 0
    assert "Question" in (out / "drift_map.svg").read_text()


@pytest.mark.slow
def test_conditions_are_not_mixed_unless_they_are_named(monkeypatch, capsys, tmp_path, run_folder):
    for seed in (5, 6):
        about = {"sample": f"s{seed}", "task": "a", "condition": "bare"}
        to_trace(full_run(seed=seed), model="m", metadata=about).save(run_folder / "traces" / f"x{seed}.safetensors")
    call = ["dispersion", run_folder, "--out", tmp_path / "out"]
    code, _, told = analyze(monkeypatch, capsys, *call)
    assert code == 2 and "2 conditions (base, bare); say which with --condition" in told
    code, _, told = analyze(monkeypatch, capsys, *call, "--condition", "bear")
    assert code == 2 and "did you mean 'bare'" in told
    assert not (tmp_path / "out").exists()
    assert analyze(monkeypatch, capsys, *call, "--condition", "bare")[0] == 0
    alone = pl.read_parquet(tmp_path / "out" / "dispersion.parquet")
    assert set(alone["condition"]) == {"bare"} and set(alone["samples"]) == {2}
    assert analyze(monkeypatch, capsys, *call, "--condition", "bare", "--condition", "base")[0] == 0
    both = pl.read_parquet(tmp_path / "out" / "dispersion.parquet")
    assert both.filter(condition="bare").drop("untrained").equals(alone.drop("untrained"))


@pytest.mark.slow
def test_kept_matrices_give_the_qk_heatmaps(monkeypatch, capsys, tmp_path):
    run = full_run()
    trace = to_trace(run)
    states = {
        "matrix_steps": np.array([3]),
        "matrix_layers": np.arange(3),
        "attention": run.attention[3][None].astype(np.float32),
        "queries": run.queries[3][None].astype(np.float32),
        "keys": run.keys[3][None].astype(np.float32),
    }
    import dataclasses

    full = dataclasses.replace(trace, arrays={**trace.arrays, **states}, keep="matrices")
    full.save(tmp_path / "t.safetensors")
    call = ["qk", tmp_path / "t.safetensors", "--out", tmp_path / "out", "--detector", "zscore(1)", "--layer", 1]
    code, shown, _ = analyze(monkeypatch, capsys, *call)
    assert code == 0 and "qk_matrices.svg" in shown
    drawn = (tmp_path / "out" / "qk_matrices.svg").read_text()
    assert "king" in drawn and "layer 1, step 3" in drawn


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--seed", "-1"], "seed -1 is negative"),
        (["--detector", "zscroe(3)"], "did you mean 'zscore'"),
        (["--alpha", "0.5"], "--alpha is no setting of drift"),
        (["--layer", "9"], "no layer 9"),
    ],
)
def test_mistakes_are_one_sentence(monkeypatch, capsys, tmp_path, run_folder, arguments, sentence):
    code, _, told = analyze(monkeypatch, capsys, "drift", run_folder, "--out", tmp_path / "out", *arguments)
    assert code == 2 and sentence in told and "Traceback" not in told
