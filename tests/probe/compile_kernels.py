"""Compiles the Triton kernels for GPUs that need not be there and prints a line for each: name, target, bytes, shared.

Run by test_batched.py in a process of its own, without Triton's interpreter.
"""

import inspect
import sys

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from floatscope.probe import triton_kernels

POINTERS = {
    "row_places": "*i32", "key_places": "*i32", "groups": "*i32", "mask": "*i1", "bias": "*fp32", "logsumexp": "*fp32",
    "sums": "*fp32",
}  # fmt: skip


def source(kernel, element: str, width: int, causal: bool, softcap: bool, masked: bool) -> ASTSource:
    """The kernel as `_options` would ask for it."""
    block = 32 if element == "fp32" or width > 128 else 64
    fixed = {
        "CAUSAL": causal, "SOFTCAP": softcap, "MASK": masked, "BIAS": masked, "FAR": triton_kernels.FAR,
        "PRECISION": "ieee" if element == "fp32" else "tf32", "ROWS": block, "KEYS": block, "WIDTH": width,
        "VALUES": width, "GROUPS": 64,
    }  # fmt: skip
    names = inspect.signature(kernel.fn).parameters
    signature = {}
    for name in names:
        if name in fixed:
            signature[name] = "constexpr"
        elif name in ("query", "key", "value", "output"):
            signature[name] = f"*{element}"
        else:
            signature[name] = POINTERS.get(name, "fp32" if name in ("scale", "softcap") else "i32")
    return ASTSource(kernel, signature, {name: value for name, value in fixed.items() if name in names})


def main() -> None:
    for capability in map(int, sys.argv[1:]):
        for kernel in (triton_kernels.forward_kernel, triton_kernels.group_sums_kernel):
            for element, width, *flags in (("bf16", 128, False, False, False), ("fp32", 64, True, True, True)):
                made = compile(source(kernel, element, width, *flags), target=GPUTarget("cuda", capability, 32))
                name = f"{kernel.fn.__name__} {element} sm_{capability}"
                print(name, len(made.asm["cubin"]), made.metadata.shared, sep="\t", flush=True)


if __name__ == "__main__":
    main()
