"""What tracing costs a whole denoising run: `fs.trace` over `fs.generate`, same batch, same sampler, all steps.

    python benchmarks/tracing.py                    # twin-llada and twin-dream, 8 prompts of 150 to 200 tokens
    python benchmarks/tracing.py twin-llada --profile
    python benchmarks/tracing.py smollm2-shape 8b-layer --repeats 3    # four layers and one, with random weights
    python benchmarks/tracing.py twin-arm twin-llada --keep rollout    # what more it costs to keep that too
    python benchmarks/tracing.py --candidates       # what the candidates of open slots cost, in time and bytes

CPU seconds of one thread, medians of ratios in the same round. --candidates traces with and without the arrays that
`candidates.py` keeps, and adds up their bytes as a file has them.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import floatscope as fs
from capture import smollm2_shape
from floatscope.models.families import FAMILIES
from floatscope.models.model import Model
from floatscope.probe.candidates import NAMES
from floatscope.traces import ARRAYS


def main() -> None:
    """Parse, measure, print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["twin-llada", "twin-dream"])
    parser.add_argument("--repeats", type=int, default=5, help="rounds after the first")
    parser.add_argument("--slots", type=int, default=8, help="answer slots, and steps")
    parser.add_argument("--profile", action="store_true", help="where the time of one traced run goes")
    parser.add_argument("--candidates", action="store_true", help="what the candidates of open slots cost")
    parser.add_argument("--keep", default="compact", help="what traces keep")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(5, 200, length) for length in (180, 190, 200, 170, 185, 160, 199, 150)]
    for name in arguments.models:
        model = load_model(name)
        sampler = model.sampler({"steps": arguments.slots}, length=arguments.slots)
        if arguments.candidates:
            print(f"{name}: {candidates_cost(model, prompts, sampler, arguments.repeats)}", flush=True)
            continue
        found, more = [], []
        for _ in range(arguments.repeats + 1):
            start = time.process_time()
            fs.generate(model, prompts, sampler)
            middle = time.process_time()
            fs.trace(model, prompts, sampler)
            end = time.process_time()
            found.append((end - middle) / (middle - start))
            if arguments.keep != "compact":
                fs.trace(model, prompts, sampler, keep=arguments.keep)
                more.append((time.process_time() - end) / (end - middle))
        print(f"{name}: traced / plain {statistics.median(found[1:]):.2f} (the first round warms up)", flush=True)
        if more:
            print(f"{name}: keep={arguments.keep} / compact {statistics.median(more[1:]):.2f}", flush=True)
        if arguments.profile:
            profile = cProfile.Profile()
            profile.runcall(fs.trace, model, prompts, sampler)
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)


def load_model(name: str) -> fs.Model:
    """Some layers of a larger model, over a vocabulary of 1,000 words, or whatever `fs.load` finds."""
    if name == "smollm2-shape":
        return smollm2_shape(4, 1000)
    if name != "8b-layer":
        return fs.load(name)
    config = LlamaConfig(
        hidden_size=4096, intermediate_size=12288, num_hidden_layers=1, num_attention_heads=32, vocab_size=1000
    )
    return Model(LlamaForCausalLM(config), FAMILIES["llada"], name=name, mask_id=0)


def candidates_cost(model: fs.Model, prompts: list[Any], sampler: Any, repeats: int) -> str:
    """Traced with over without the candidates, and their share of a compact trace's bytes."""
    traces: list[Any] = fs.trace(model, prompts, sampler)  # pyright: ignore[reportAssignmentType]
    kept = {name for trace in traces for name in trace.arrays} - {"layer_index"}
    rest = sorted(kept - set(NAMES))
    ratios = []
    for _ in range(repeats + 1):
        start = time.process_time()
        fs.trace(model, prompts, sampler, keep=rest)
        middle = time.process_time()
        fs.trace(model, prompts, sampler, keep=sorted(kept))
        ratios.append((time.process_time() - middle) / (middle - start))
    sizes = {name: sum(one.arrays[name].size for one in traces) * ARRAYS[name].bytes for name in kept}
    own = sum(sizes[name] for name in NAMES) / len(traces)
    share = own / (sum(sizes.values()) / len(traces))
    time_ratio = f"{statistics.median(ratios[1:]):.3f} ({min(ratios[1:]):.3f} to {max(ratios[1:]):.3f})"
    return f"with candidates / without {time_ratio}; {own:,.0f} bytes a trace, {100 * share:.1f} % of its arrays"


if __name__ == "__main__":
    main()
