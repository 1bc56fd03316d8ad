"""The kernel in C beyond its numbers, which `test_batched.py` holds: how it is made, and where it is not."""

import ctypes
import os
import subprocess
import sys

import pytest
import torch

from floatscope.errors import UserError
from floatscope.probe import mixing, native
from floatscope.probe.attention import Probe, attention, probing
from floatscope.probe.layout import Layout
from floatscope.probe.mixing import VARIABLE

COMPILE = "from floatscope.probe.native import library; assert library() is not None"


def layer(mask=None, threads=1, tokens=70, heads=6):
    """Output and group sums of one layer over two samples."""
    generator = torch.Generator().manual_seed(3)
    query, key, value = (torch.randn(2, heads, tokens, 8, generator=generator) * 2 for _ in range(3))
    layout = Layout.whole(torch.arange(tokens) % 3, 3, torch.ones(tokens, 2), torch.arange(4))
    module, found = torch.nn.Module(), []
    module.is_causal, module.layer_idx = False, 0
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with probing(Probe([0, 0], [layout] * 2, lambda *given: found.append(given[2]), 1)):
            output, _ = attention(module, query, key, value, mask)
    finally:
        torch.set_num_threads(before)
    return [output, *(own.group_sums for own in found), *(own.row_mass for own in found)]


@pytest.fixture
def anew(monkeypatch, tmp_path):
    """An empty cache, and a process that has compiled nothing yet."""
    monkeypatch.setenv("FLOATSCOPE_CACHE", str(tmp_path / "cache"))
    for remembered in (native.library, mixing._fastest):
        remembered.cache_clear()
    yield tmp_path / "cache"
    monkeypatch.undo()
    for remembered in (native.library, mixing._fastest):
        remembered.cache_clear()


def test_bits_are_the_same_with_any_number_of_threads(monkeypatch):
    monkeypatch.setenv(VARIABLE, "native")
    one, two, many = (layer(threads=count) for count in (1, 2, 5))
    assert all(map(torch.equal, one, two)) and all(map(torch.equal, one, many))


def test_bits_are_the_same_wherever_memory_lies(monkeypatch):
    """Blocks of 16 bytes and more, held between calls, move what the kernel is given by the heap."""
    monkeypatch.setenv(VARIABLE, "native")
    heap = ctypes.CDLL(None)
    heap.malloc.restype = ctypes.c_void_p
    first, held = layer(), []
    for size in range(16, 33 * 16, 32):
        held += [heap.malloc(ctypes.c_size_t(size)) for _ in range(3)]
        assert all(map(torch.equal, layer(), first))
    for one in held:
        heap.free(ctypes.c_void_p(one))


def test_a_row_that_sees_nothing_gives_nothing_and_what_is_hidden_gets_exactly_nothing(monkeypatch):
    monkeypatch.setenv(VARIABLE, "native")
    mask = torch.ones(70, 70, dtype=torch.bool)
    mask[69], mask[:, 5:9] = False, False
    output, first, *_ = layer(mask=mask.expand(2, 1, -1, -1))
    assert float(output[:, 69].abs().max()) == 0
    assert float(first[..., 5:9].abs().max()) == 0
    assert float(first.sum()) == pytest.approx(6 * 69, abs=1e-3)


@pytest.mark.slow
def test_it_is_chosen_on_a_cpu_and_the_reference_without_a_compiler(anew, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert mixing._fastest("cpu") == "native" and mixing._fastest("meta") == "torch"
    mixing._fastest.cache_clear()
    native.library.cache_clear()
    monkeypatch.setenv("PATH", str(anew))
    monkeypatch.setenv("CC", "no-such-compiler")
    assert mixing._fastest("cpu") == "torch"
    wanted = layer()  # by the reference
    monkeypatch.setenv(VARIABLE, "native")
    with pytest.raises(UserError, match="needs a C compiler: install gcc"):
        layer()
    monkeypatch.setenv(VARIABLE, "torch")
    assert all(map(torch.equal, layer(), wanted))


def test_a_compiler_that_fails_is_as_none(anew, monkeypatch):
    monkeypatch.setenv("CC", "false")
    assert native.library() is None


@pytest.mark.slow
def test_processes_that_compile_at_once_leave_one_whole_library(anew):
    environment = os.environ | {"FLOATSCOPE_CACHE": str(anew)}
    running = [subprocess.Popen([sys.executable, "-W", "error", "-c", COMPILE], env=environment) for _ in range(3)]
    assert [one.wait() for one in running] == [0, 0, 0]
    kept = sorted(path.name for path in anew.rglob("*") if path.is_file())
    assert kept == ["attend.so", "sha256.json"]


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_costs_time_and_a_damaged_one_is_made_anew(anew, monkeypatch):
    anew.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="could not be cached"):
        assert native.library() is not None
    anew.unlink()
    native.library.cache_clear()
    assert native.library() is not None
    (made,) = anew.rglob("attend.so")
    made.write_bytes(b"no library")
    native.library.cache_clear()
    with pytest.warns(UserWarning, match="damaged and is built anew"):
        assert native.library() is not None
