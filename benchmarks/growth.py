"""How the cost of a traced run grows: with the tokens, the steps, the samples of a batch, the heads, one at a time.

    python benchmarks/growth.py                        # 2 layers of SmolLM2-135M's shape
    python benchmarks/growth.py --layers 4 --repeats 5

Every run denoises random canvases, plain (`fs.generate`) and traced (`fs.trace`), in turn in one process: CPU seconds
of one thread, medians. The exponent is the slope of log(seconds) over log(size): 1 is linear. What is not varied stays
as MIDDLE says; heads are of width 64 whatever the width of the model, three to a key-value head.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

import floatscope as fs
from capture import smollm2_shape
from peers import slope

SIZES = {"tokens": (128, 256, 512, 1024), "steps": (4, 8, 16), "samples": (1, 2, 4, 8), "heads": (3, 9, 18)}
MIDDLE = {"tokens": 256, "steps": 8, "samples": 2, "heads": 9}
SLOTS = 16


def seconds(layers: int, repeats: int, tokens: int, steps: int, samples: int, heads: int) -> tuple[float, float]:
    """Median CPU seconds of a plain and of a traced run."""
    model = smollm2_shape(layers, 1000, heads)
    draw = torch.Generator().manual_seed(0)
    prompts = torch.randint(1, model.vocabulary, (samples, tokens - SLOTS), generator=draw).tolist()
    sampler = model.sampler(steps=steps, length=SLOTS)
    found: tuple[list[float], list[float]] = [], []
    for _ in range(repeats + 1):
        for times, run in zip(found, (fs.generate, fs.trace), strict=True):
            start = time.process_time()
            run(model, prompts, sampler)
            times.append(time.process_time() - start)
    plain, traced = (statistics.median(times[1:]) for times in found)  # the first round warms up
    return plain, traced


def main() -> None:
    """Parse, measure, print one table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3, help="rounds after the first")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| grows | sizes | plain, s | traced, s | traced / plain | exponent, plain | exponent, traced |")
    print("|---|---|---|---|---|---|---|")
    for name, sizes in SIZES.items():
        found = [seconds(arguments.layers, arguments.repeats, **MIDDLE | {name: size}) for size in sizes]
        plain, traced = ([one[way] for one in found] for way in (0, 1))
        cells = [", ".join(map(str, sizes))]
        cells += [", ".join(f"{one:.2f}" for one in row) for row in (plain, traced)]
        cells += [", ".join(f"{b / a:.2f}" for a, b in found)]
        cells += [f"{slope(list(zip(sizes, row, strict=True))):.2f}" for row in (plain, traced)]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
