"""What it costs to see attention with each tool, in one run: time, peak memory, and how both grow with the canvas.

    make bench                                               # all that pyproject's extra [bench] installs
    python benchmarks/peers.py --tokens 512,1024 --layers 4  # whichever of them are installed

Every way runs the same random model, SmolLM2-135M's layers over a vocabulary of 1,000 words (some ways cannot leave
out the LM head, which would weigh on these alone), and the same canvas, and ends with the attention that each token
receives in each layer (mean over heads and rows):

    bare            SDPA, no attention: the limit
    floatscope      the full probe, into a trace's arrays
    eager           transformers' output_attentions
    published       the extraction loop that goes with arXiv 2601.07894: eager, head means of each layer to numpy
    TransformerLens a bridge around the same model, run_with_cache of the attention patterns
    nnsight         a trace of the same model, attention of each layer saved
    flash-colsum    column sums by a CUDA kernel: only with a GPU

Times are CPU seconds of one thread, interleaved, medians of ratios to bare; each way has a process of its own for peak
memory. The exponent is the slope of log(seconds) over log(tokens).
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from capture import resident_peak, runner, smollm2_shape
from floatscope.models.model import Model

Run = Callable[[], Any]
VOCABULARY = 1000


def bare(model: Model, ids: Tensor) -> Run:
    """A forward of the body with SDPA."""
    return runner(model, "bare", ids)


def floatscope(model: Model, ids: Tensor) -> Run:
    """What `fs.trace` runs at one step."""
    return runner(model, "probe", ids)


def eager(model: Model, ids: Tensor) -> Run:
    """All matrices of all layers, then their column means."""
    return runner(model, "eager", ids)


def published(model: Model, ids: Tensor) -> Run:
    """Layer by layer: the mean over heads as a float32 matrix in numpy, and its column means."""

    def run() -> list[Any]:
        model.backbone.set_attn_implementation("eager")
        try:
            found = model.backbone(ids, output_attentions=True, use_cache=False)
            matrices = [layer[0].float().mean(0).cpu().numpy() for layer in found.attentions]
            return [matrix.mean(0) for matrix in matrices]
        finally:
            model.backbone.set_attn_implementation("floatscope")

    return run


def transformer_lens(model: Model, ids: Tensor) -> Run:
    """A bridge around a model of its own, since it rebuilds what it is given."""
    from transformer_lens.model_bridge import TransformerBridge  # type: ignore[import-not-found]

    own = smollm2_shape(model.layers, VOCABULARY).backbone
    own.load_state_dict(model.backbone.state_dict())
    own.config.architectures = [type(own).__name__]
    bridge = TransformerBridge.boot_transformers("random-model", hf_model=own, tokenizer=_no_tokenizer())

    def run() -> list[Tensor]:
        _, cache = bridge.run_with_cache(ids, names_filter=lambda name: name.endswith("hook_pattern"))
        return [pattern[0].mean(0).mean(0) for pattern in cache.values()]

    return run


def nnsight(model: Model, ids: Tensor) -> Run:
    """Each layer's matrices are read inside of the trace; only their column means are saved."""
    from nnsight import NNsight, save  # type: ignore[import-not-found]

    wrapped = NNsight(model.backbone)

    def run() -> list[Tensor]:
        model.backbone.set_attn_implementation("eager")
        try:
            with wrapped.trace(ids, output_attentions=True, use_cache=False):
                found = save([layer.self_attn.output[1][0].mean(0).mean(0) for layer in wrapped.model.layers])
            return found
        finally:
            model.backbone.set_attn_implementation("floatscope")

    return run


WAYS: dict[str, tuple[str, Callable[[Model, Tensor], Run]]] = {
    "bare": ("torch", bare),
    "floatscope": ("floatscope", floatscope),
    "eager": ("transformers", eager),
    "published": ("transformers", published),
    "TransformerLens": ("transformer-lens", transformer_lens),
    "nnsight": ("nnsight", nnsight),
}


def _no_tokenizer() -> Any:
    """The smallest tokenizer there is: canvases are given as ids."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"<s>": 0, "</s>": 1, "<unk>": 2}, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", pad_token="</s>")


def installed() -> dict[str, str]:
    """The ways that can run here, with the version of what they need."""
    found = {}
    for way, (package, _) in WAYS.items():
        try:
            found[way] = version(package)
        except PackageNotFoundError:
            print(f"{way}: {package} is not installed, left out")
    print(
        "flash-colsum: left out, it runs on CUDA alone" if not torch.cuda.is_available() else "flash-colsum: left out"
    )
    return found


def canvas(model: Model, tokens: int) -> Tensor:
    """The same random ids for all."""
    return torch.randint(3, model.vocabulary, (1, tokens), generator=torch.Generator().manual_seed(1))


def timed(model: Model, ways: list[str], tokens: int, repeats: int) -> dict[str, tuple[float, float]]:
    """Median CPU seconds of each way, and the median of its ratio to bare in the same round."""
    ids = canvas(model, tokens)
    runs = {way: WAYS[way][1](model, ids) for way in ways}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    with torch.inference_mode():
        for round_ in range(repeats + 1):
            for way in ways:
                start = time.process_time()
                runs[way]()
                if round_:  # the first round warms up
                    seconds[way].append(time.process_time() - start)
    ratios = {way: [a / b for a, b in zip(seconds[way], seconds["bare"], strict=True)] for way in ways}
    return {way: (statistics.median(seconds[way]), statistics.median(ratios[way])) for way in ways}


def peak(way: str, tokens: int, layers: int) -> float:
    """Peak MB of a process that does nothing else."""
    command = [sys.executable, __file__, "--peak-of", way, "--tokens", str(tokens), "--layers", str(layers)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def slope(points: list[tuple[int, float]]) -> float:
    """The exponent of growth, by least squares in logarithms."""
    across, up = ([math.log(one[axis]) for one in points] for axis in (0, 1))
    return statistics.linear_regression(across, up).slope if len(points) > 1 else math.nan


def main() -> None:
    """Parse, measure, print one table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="512,1024,2048,4096,8192", help="canvas lengths, comma separated")
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=5, help="rounds after the first")
    parser.add_argument("--ways", help="some of the ways, comma separated; bare is always there")
    parser.add_argument("--no-memory", action="store_true", help="leave out the processes for peak memory")
    parser.add_argument("--peak-of", choices=list(WAYS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = smollm2_shape(arguments.layers, VOCABULARY)
    if arguments.peak_of:
        with torch.inference_mode():
            run = WAYS[arguments.peak_of][1](model, canvas(model, int(arguments.tokens)))
            resident_peak(reset=True)
            run()
            run()
        return print(json.dumps(resident_peak()))
    known = installed()
    ways = [way for way in known if not arguments.ways or way in ("bare", *arguments.ways.split(","))]
    python = platform.python_version()
    print(f"\n{date.today()}, {platform.machine()}, Python {python}, {model.name}, {model.layers} layers")
    print("python " + " ".join(sys.argv) + "\n")
    lengths = [int(one) for one in arguments.tokens.split(",")]
    rows: dict[str, list[tuple[int, float, float, float]]] = {way: [] for way in ways}
    for tokens in lengths:
        for way, (seconds, ratio) in timed(model, ways, tokens, arguments.repeats).items():
            memory = math.nan if arguments.no_memory else peak(way, tokens, arguments.layers)
            rows[way].append((tokens, seconds, ratio, memory))
    print("| way | version | " + " | ".join(f"{one} tokens: time / bare, MB" for one in lengths) + " | exponent |")
    print("|---" * (len(lengths) + 3) + "|")
    for way, own in rows.items():
        cells = " | ".join(f"{ratio:.2f}, {memory:.0f}" for *_, ratio, memory in own)
        exponent = slope([(tokens, seconds) for tokens, seconds, *_ in own])
        print(f"| {way} | {known[way]} | {cells} | {exponent:.2f} |", flush=True)


if __name__ == "__main__":
    main()
