"""What tracing costs a whole denoising run: `fs.trace` over `fs.generate`, same batch, same sampler, all steps.

    python benchmarks/tracing.py                    # twin-llada and twin-dream, 8 prompts of 150 to 200 tokens
    python benchmarks/tracing.py twin-llada --profile
    python benchmarks/tracing.py twin-arm twin-llada --keep rollout    # what more it costs to keep that too

CPU seconds of one thread, medians of ratios in the same round.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time

import numpy as np
import torch

import floatscope as fs


def main() -> None:
    """Parse, measure, print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["twin-llada", "twin-dream"])
    parser.add_argument("--repeats", type=int, default=5, help="rounds after the first")
    parser.add_argument("--slots", type=int, default=8, help="answer slots, and steps")
    parser.add_argument("--profile", action="store_true", help="where the time of one traced run goes")
    parser.add_argument("--keep", default="compact", help="what traces keep")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(5, 200, length) for length in (180, 190, 200, 170, 185, 160, 199, 150)]
    for name in arguments.models:
        model = fs.load(name)
        sampler = model.sampler({"steps": arguments.slots}, length=arguments.slots)
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


if __name__ == "__main__":
    main()
