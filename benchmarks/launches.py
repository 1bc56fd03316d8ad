"""How many operations a traced step starts on a GPU, and how often it waits for one: counted without a GPU.

    python benchmarks/launches.py

The forward and the recording of its layers run at LLaDA-8B's shape in bfloat16 on torch's device "meta", whose tensors
have a shape and no numbers. Every operation that the dispatcher sees and that is no view
is a launch; whatever would read a number on the host raises there, so that a count is also a proof that nothing waits.
The reference kernel does read numbers: it is counted on a CPU, on narrow heads, with the block size that it takes on a
GPU. Per layer: two layers less one. Our own Triton kernels are one operation each, as they are one launch.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM

from capture import SLOTS, plan
from floatscope.models.families import FAMILIES
from floatscope.models.model import Model
from floatscope.probe import kernel
from floatscope.probe.attention import Probe, probing
from floatscope.probe.recording import BatchRecorder, DenoisingRecorder

READS = {"_local_scalar_dense", "equal", "is_nonzero", "nonzero", "_unique2", "masked_select", "bincount"}
NOTHING = {"detach", "lift_fresh", "alias", "empty", "empty_strided", "new_empty", "new_empty_strided", "arange"}


class Launches(TorchDispatchMode):
    """Operations that compute, copies between devices, and reads by the host."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device, self.found = device, Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        result = func(*args, **kwargs or {})
        made = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
        devices = {one.device.type for one in (*given, *made)}
        if name in READS and self.device in devices:
            self.found["waits"] += 1
        if name in ("_to_copy", "copy_") and len(devices) > 1:
            self.found["copies"] += 1
        elif self.device in devices and name not in NOTHING and not func.is_view:
            self.found["launches"] += 1
        return result


class Fetches(TorchFunctionMode):
    """On a CPU nothing is copied by `.cpu()`: the call itself is counted, as a wait."""

    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cpu:
            self.found["waits"] += 1
        return func(*args, **kwargs or {})


def counted(name: str | None, layers: int, heads: int, batch: int, tokens: int, shapes: bool) -> Counter[str]:
    """Operations of one forward over a batch, recorded, by the kernel of this name; None: bare."""
    os.environ["FLOATSCOPE_KERNEL"] = name or ""
    width = 128 if shapes else 4
    config = LlamaConfig(
        hidden_size=heads * width, intermediate_size=3 * heads * width, num_hidden_layers=layers, vocab_size=1000,
        num_attention_heads=heads, num_key_value_heads=heads, max_position_embeddings=8192,
    )  # fmt: skip
    planned, device = plan(tokens), "meta" if shapes else "cpu"
    recorders = [DenoisingRecorder(planned, layers, 1) for _ in range(batch)]
    slots = torch.arange(tokens - SLOTS, tokens)
    layouts = [one.start(torch.ones(SLOTS, dtype=torch.bool), slots) for one in recorders]
    together = BatchRecorder(recorders)
    counter = Launches(device)
    with torch.device(device):
        backbone: Any = LlamaForCausalLM(config)
        backbone.to(torch.bfloat16 if shapes else torch.float32)
        ids = torch.zeros(batch, tokens, dtype=torch.long)
        model = Model(backbone, FAMILIES["llada"], mask_id=0)
    heard = nullcontext() if name is None else probing(Probe([0] * batch, layouts, together.layer, layers))
    with torch.inference_mode(), counter, Fetches(counter.found):
        with heard:
            model.backbone.base_model(ids, use_cache=False)
        together.share()
    return counter.found


def per_layer(name: str | None, heads: int, batch: int, tokens: int, shapes: bool) -> Counter[str]:
    """What one more layer adds."""
    one, two = (counted(name, layers, heads, batch, tokens, shapes) for layers in (1, 2))
    return Counter({what: two[what] - one[what] for what in two})


def main() -> None:
    """Print one table."""
    kernel._rows_in_block = lambda keys, device: max(1, kernel.GPU_BLOCK_FLOATS // keys)
    print("one more layer, recorded:          launches  copies to or from the device  waits of the host")
    for heads, batch in ((32, 1), (8, 1), (32, 8)):
        for name in (None, "torch", "triton", "swap"):
            shapes = name != "torch"
            found = per_layer(name, heads, batch, 1024 if shapes else 128, shapes)
            label = f"{heads} heads, {batch} sample{'s' * (batch > 1)}, {name or 'bare SDPA'}"
            print(f"{label:<33}{found['launches']:>10}{found['copies']:>31}{found['waits']:>19}", flush=True)
    print("a whole step of 32 layers, 32 heads, 8 samples:", dict(counted("triton", 32, 32, 8, 1024, True)))


if __name__ == "__main__":
    main()
