"""The trace file: roundtrip, precision, laziness, damage, atomicity."""

import dataclasses
import json
import os
import pickle
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from floatscope.errors import UserError
from floatscope.traces import ARRAYS, Trace, storage
from tests.traces.full_matrices import full_run, to_trace


@pytest.fixture(scope="module")
def trace() -> Trace:
    return to_trace(full_run(seed=3), metadata={"sample": "q1", "score": np.float32(0.5)})


@pytest.fixture
def saved(trace, tmp_path) -> Path:
    return trace.save(tmp_path / "t.safetensors")


def test_exact_roundtrip(trace, tmp_path):
    back = Trace.load(trace.save(tmp_path / "t.safetensors", exact=True))
    assert set(back.arrays) == set(trace.arrays)
    for name, values in trace.arrays.items():
        np.testing.assert_array_equal(back.arrays[name], values)
        assert back.arrays[name].dtype == values.dtype
    for name in (
        "model",
        "family",
        "kind",
        "visibility",
        "logits",
        "sampler",
        "seed",
        "texts",
    ):
        assert getattr(back, name) == getattr(trace, name)
    assert back.regions == trace.regions
    assert list(back.marks) == list(trace.marks)
    np.testing.assert_array_equal(back.marks["evidence"], trace.marks["evidence"])
    for name in ("canvas", "commit_step", "confidence"):
        np.testing.assert_array_equal(getattr(back, name), getattr(trace, name))
    assert (back.qk_steps, back.keep) == (trace.qk_steps, trace.keep)
    assert back.metadata == {"sample": "q1", "score": 0.5}


def test_half_precision_is_within_its_bound(trace, saved):
    back = Trace.load(saved)
    for name, values in trace.arrays.items():
        if values.dtype.kind == "f":
            assert back.arrays[name].dtype == np.float32
            # 11 bits of mantissa; below the smallest normal number half a subnormal step of 2**-24
            bound = np.maximum(np.abs(values) * 2.0**-11, 2.0**-25)
            assert (np.abs(back.arrays[name] - values) <= bound).all(), name
        else:
            np.testing.assert_array_equal(back.arrays[name], values)


def test_values_too_large_for_half_precision_stay_whole(trace, tmp_path):
    for qk in (np.abs(trace.qk) * 1e5, -np.abs(trace.qk) * 1e5):
        back = Trace.load(dataclasses.replace(trace, arrays={**trace.arrays, "qk": qk}).save(tmp_path / "t"))
        np.testing.assert_array_equal(back.qk, qk)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.integers(1, 4),
    layers=st.integers(1, 3),
    answer=st.integers(1, 4),
    prompt=st.lists(st.sampled_from(["bos", "query", "doc 1", "doc 2"]), min_size=1, max_size=5),
    kind=st.sampled_from(["mdm", "arm"]),
)
def test_any_shape_survives(tmp_path, steps, layers, answer, prompt, kind):
    run = full_run(
        kind=kind,
        steps=steps,
        layers=layers,
        answer=answer,
        prompt=tuple(prompt),
        texts=None,
        heads=2,
        kv_heads=1,
    )
    trace = to_trace(run, ranks=1)
    back = Trace.load(trace.save(tmp_path / "t.safetensors", exact=True))
    assert (back.steps, back.layers, back.region_labels) == (trace.steps, trace.layers, trace.region_labels)
    for name, values in trace.arrays.items():
        np.testing.assert_array_equal(back.arrays[name], values)


def test_arrays_are_read_only_when_used(saved, monkeypatch):
    read: list[str] = []
    original = storage.read_array
    monkeypatch.setattr(storage, "read_array", lambda *given: read.append(given[-1]) or original(*given))
    trace = Trace.load(saved)
    assert (trace.steps, trace.layers, trace.heads) == (4, 3, 4)
    repr(trace)
    assert not [name for name in read if "." not in name]
    _ = trace.received, trace.received
    assert [name for name in read if "." not in name] == ["received"]


@pytest.mark.slow
def test_every_flipped_byte_is_noticed_or_harmless(trace, saved):
    whole = saved.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for place in [*range(0, 8), *rng.integers(0, len(whole), 150)]:
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        saved.write_bytes(damaged)
        try:
            back = Trace.load(saved)
            for name, values in trace.arrays.items():
                np.testing.assert_allclose(back.arrays[name], values, rtol=1e-3, atol=1e-6)
        except UserError:
            refused += 1
    assert refused > 120


def test_a_header_that_says_something_else_than_when_it_was_written(trace, saved):
    """Every number of the file is sound, and so is its JSON: the header's own checksum alone tells."""
    with safe_open(saved, framework="numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no mapping
        envelope = json.loads(file.metadata()[storage.FORMAT])
    changed = envelope | {"header": envelope["header"].replace('"seed": 0', '"seed": 1')}
    assert changed != envelope
    save_file(tensors, saved, {storage.FORMAT: json.dumps(changed)})
    with pytest.raises(UserError, match=r"header of .* is damaged"):
        Trace.load(saved)
    save_file(tensors, saved, {storage.FORMAT: json.dumps(envelope)})
    assert Trace.load(saved).seed == trace.seed


def test_truncated_file(saved):
    whole = saved.read_bytes()
    for keep in (0, 1, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        saved.write_bytes(whole[:keep])
        with pytest.raises(UserError, match="trace"):
            Trace.load(saved)


def test_foreign_newer_pickle_folder_missing(tmp_path, saved):
    foreign = tmp_path / "weights.safetensors"
    save_file({"w": np.ones(3)}, foreign)
    with pytest.raises(UserError, match="no floatscope trace"):
        Trace.load(foreign)
    save_file({"w": np.ones(3)}, foreign, {storage.FORMAT: '{"version": 99}'})
    with pytest.raises(UserError, match=r"version 99.*upgrade"):
        Trace.load(foreign)
    foreign.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(UserError, match="pickle"):
        Trace.load(foreign)
    with pytest.raises(UserError, match="is a folder"):
        Trace.load(tmp_path)
    with pytest.raises(UserError, match="no trace at"):
        Trace.load(tmp_path / "nowhere.safetensors")


def test_a_file_that_vanishes_before_an_array_is_read(saved):
    trace = Trace.load(saved)
    saved.unlink()
    with pytest.raises(UserError, match="could not be read"):
        _ = trace.received


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failing_write_leaves_the_old_file(trace, saved, monkeypatch, failing):
    before = saved.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(UserError, match=r"No space left.*free space"):
        trace.save(saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


@pytest.mark.slow
def test_a_header_whose_length_looks_like_a_pickle(trace, tmp_path):
    """The first byte is the low byte of the header's length: 0x80 is a length like any other."""
    starts = set()
    for padding in range(0, 256, 8):
        made = dataclasses.replace(trace, metadata={"padding": "x" * padding})
        path = made.save(tmp_path / "t.safetensors")
        starts.add(path.read_bytes()[:1])
        assert Trace.load(path).metadata == {"padding": "x" * padding}
    assert b"\x80" in starts


def test_others_may_read_it_if_the_umask_says_so(trace, tmp_path):
    (tmp_path / "plain").touch()
    path = trace.save(tmp_path / "t.safetensors")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_folder_that_does_not_exist(trace, tmp_path):
    with pytest.raises(UserError, match="in an existing folder"):
        trace.save(tmp_path / "no" / "t.safetensors")


def test_npz_opens_without_pickle(trace, tmp_path):
    path = trace.to_npz(tmp_path / "t.npz")
    with np.load(path, allow_pickle=False) as data:
        for name, values in trace.arrays.items():
            np.testing.assert_array_equal(data[name], values)
        np.testing.assert_array_equal(data["canvas"], trace.canvas)
        np.testing.assert_array_equal(data["evidence"], trace.marks["evidence"])
        header = json.loads(str(data["header"]))
    assert header["model"] == trace.model
    assert header["regions"][0] == ["bos", 0, 1]
    with pytest.raises(UserError, match="cannot be written"):
        trace.to_npz(tmp_path / "no" / "t.npz")


def test_what_is_no_plain_file_is_not_replaced(trace, tmp_path):
    """Renaming over a device would remove it from the system."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("pipe", "folder", "dangling", "absent/t", "n" * 300):
        for write in (trace.save, trace.to_npz):
            with pytest.raises(UserError, match="cannot be written"):
                write(tmp_path / name)
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "folder", "pipe"]


@pytest.mark.slow
def test_a_full_disk_leaves_the_old_file_and_no_other(trace, saved):
    """A limit on the size of files stands in for the disk; in a process of its own, as it cannot be lifted."""
    before = saved.read_bytes()
    code = f"""
import resource
from floatscope import Trace, UserError
trace = Trace.load({str(saved)!r})
arrays = dict(trace.arrays)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    trace.save({str(saved)!r})
except UserError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "cannot be written" in done.stdout and "free space" in done.stdout, done.stderr
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_an_array_of_a_later_version_is_left_alone(tmp_path, monkeypatch):
    trace = to_trace(full_run())
    monkeypatch.setitem(ARRAYS._rows, "lens", ARRAYS["received"])
    dataclasses.replace(trace, arrays={**trace.arrays, "lens": trace.received}).save(tmp_path / "t.safetensors")
    monkeypatch.delitem(ARRAYS._rows, "lens")
    back = Trace.load(tmp_path / "t.safetensors")
    assert "lens" not in back.arrays and set(back.arrays) == set(trace.arrays)
    np.testing.assert_allclose(back.received, trace.received, rtol=1e-3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", ["a"]), ("visibility", 3), ("metadata", "text"), ("texts", [None]), ("regions", [["bos"]]),
        ("regions", [["bos", 0, 0.5]]), ("marks", [1]), ("arrays", []), ("arrays", {"received": {}}), ("seed", 1.5),
        ("kind", "both"), ("edits", ["x"]), ("model", "\ud800"), ("qk_steps", None), ("sampler", None),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_a_header_of_other_types_is_refused(saved, name, value):
    """Its checksum is right: somebody wrote it so."""
    with safe_open(saved, framework="numpy") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        envelope = json.loads(file.metadata()[storage.FORMAT])
    text = json.dumps(json.loads(envelope["header"]) | {name: value})
    envelope |= {"header": text, "crc32": zlib.crc32(text.encode())}
    save_file(tensors, saved, {storage.FORMAT: json.dumps(envelope)})
    with pytest.raises(UserError, match="none of a trace"):
        Trace.load(saved)


@pytest.mark.parametrize(
    ("name", "value"), [("received", np.nan), ("received", np.inf), ("seen_by", 0.5), ("commit_keys", 1.0)]
)
def test_arrays_of_what_no_trace_has_are_refused(trace, tmp_path, name, value):
    values = np.full(trace.arrays[name].shape, value, np.float32)
    path = dataclasses.replace(trace, arrays={**trace.arrays, name: values}).save(tmp_path / "t.safetensors")
    with pytest.raises(UserError, match=f"'{name}' .* holds what no trace has"):
        dict(Trace.load(path).arrays)


def test_a_confidence_may_be_unknown(trace, tmp_path):
    unknown = np.full_like(trace.confidence, np.nan)
    path = dataclasses.replace(trace, confidence=unknown).save(tmp_path / "t.safetensors")
    assert np.isnan(Trace.load(path).confidence).all()
    dataclasses.replace(trace, confidence=np.full_like(unknown, np.inf)).save(path)
    with pytest.raises(UserError, match="holds what no trace has"):
        Trace.load(path)
