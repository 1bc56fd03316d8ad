"""The kernel of attend.c, for a CPU: compiled at first use by the system's C compiler and kept in the cache.

Knows C's structs; what they mean is said there. Statistics are made of its sums as those of the other kernels are.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from floatscope.cache import cached
from floatscope.errors import UserError
from floatscope.probe.batched import GroupSums, in_parts
from floatscope.probe.kernel import LayerStatistics
from floatscope.probe.mixing import Layer, LayerSample

SOURCE, NAME = Path(__file__).with_name("attend.c"), "attend.so"
FLAGS = "-O3 -march=native -fopenmp-simd -fno-math-errno -fno-trapping-math -shared -fPIC -pthread".split()


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class _Sample(ctypes.Structure):
    _fields_ = _fields(ctypes.c_int64, "skip pad causal") + _fields(ctypes.c_void_p, "mask bias")
    _fields_ += _fields(ctypes.c_int64, "mask_row bias_head bias_row")


class _Work(ctypes.Structure):
    _fields_ = _fields(ctypes.c_void_p, "samples query key value row_place key_place group open output sums opened")
    _fields_ += _fields(ctypes.c_int64, "batch heads shared rows keys depth width groups open_rows")
    _fields_ += _fields(ctypes.c_int64, "query_batch query_head query_row key_batch key_head key_row")
    _fields_ += _fields(ctypes.c_int64, "value_batch value_head value_row next") + _fields(ctypes.c_double, "scale")


def attend_native(layer: Layer, output: Tensor) -> Iterator[tuple[int, LayerStatistics]]:
    """By the C routine, in float32."""
    return in_parts(layer, output, _native)


@cache
def library() -> ctypes.CDLL | None:
    """The compiled routine; None where there is no compiler, or none that takes it."""
    compiler = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc")
    if compiler is None:
        return None
    processor = Path("/proc/cpuinfo")  # a cache may be shared by machines that differ in what they can do
    can = re.search(r"^(flags|Features).*", processor.read_text(), re.M) if processor.exists() else None
    told = [SOURCE.read_text(), *FLAGS, compiler, platform.platform(), can[0] if can else platform.processor()]

    def build() -> tuple[ctypes.CDLL, bytes]:
        with TemporaryDirectory() as folder:
            made = Path(folder) / NAME
            subprocess.run([compiler, *FLAGS, "-o", str(made), str(SOURCE)], check=True, capture_output=True)
            return ctypes.CDLL(str(made)), made.read_bytes()  # what is loaded outlives its file

    def save(built: tuple[ctypes.CDLL, bytes], folder: Path) -> None:
        folder.mkdir()
        (folder / NAME).write_bytes(built[1])

    try:
        key = sha256("\n".join(told).encode()).hexdigest()[:32]
        return cached("kernels", key, lambda made: (ctypes.CDLL(str(made / NAME)), b""), build, save)[0]
    except (OSError, subprocess.CalledProcessError):
        return None


def _native(layer: Layer) -> tuple[Tensor, GroupSums]:
    routine, stack, given = library(), layer.stack, layer.inputs
    if routine is None:
        raise UserError("The kernel 'native' needs a C compiler: install gcc, or choose FLOATSCOPE_KERNEL=torch.")
    query, key, value = (
        one if one.dtype == torch.float32 and one.stride(-1) == 1 else one.float().contiguous()
        for one in (given.query, given.key, given.value)
    )
    (batch, heads, rows, depth), (keys, width) = query.shape, value.shape[2:]
    output = query.new_zeros(batch, rows, heads, width)
    sums, opened = (query.new_zeros(batch, heads, count, keys) for count in (stack.group_count, stack.open_count))
    samples = (_Sample * batch)()
    held = [_fill(*pair, rows) for pair in zip(samples, layer.samples, strict=True)]
    tensors = (query, key, value, stack.row_places, stack.key_places, stack.groups, stack.opened, output, sums, opened)
    extents = (batch, heads, heads // key.shape[1], rows, keys, depth, width, stack.group_count, stack.open_count)
    strides = [one for tensor in (query, key, value) for one in tensor.stride()[:3]]
    work = _Work(ctypes.addressof(samples), *(one.data_ptr() for one in tensors), *extents, *strides, scale=given.scale)
    if not routine.attend(ctypes.byref(work), ctypes.c_int64(torch.get_num_threads())):
        raise MemoryError("the kernel 'native' got no memory for the scores of a block of rows")
    del held  # what C pointed to
    return output, lambda groups, _: sums if groups is stack.groups else opened


def _fill(own: _Sample, sample: LayerSample | None, rows: int) -> Any:
    """What is the sample's own; the tensors that it points to, so that they stay."""
    if sample is None:
        own.skip = rows
        return None
    own.skip, own.pad, own.causal = sample.skip, sample.pad, sample.visible.causal
    mask, bias = sample.visible.mask, None if sample.edit is None else sample.edit.bias
    if mask is not None and mask.dtype != torch.bool:
        mask, bias = None, mask[None] if bias is None else mask[None] + bias
    if mask is not None:
        mask = mask if mask.stride(-1) == 1 else mask.contiguous()
        own.mask, own.mask_row = mask.data_ptr(), mask.stride(0)
    if bias is not None:
        bias = bias.float().contiguous()
        own.bias = bias.data_ptr()
        own.bias_head, own.bias_row = (bias.stride(axis) * (bias.shape[axis] > 1) for axis in (0, 1))
    return mask, bias
