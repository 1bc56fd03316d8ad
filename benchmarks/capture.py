"""What capture costs: a forward with the full probe, and eager attention, as ratios to a bare SDPA forward.

    python benchmarks/capture.py                             # SmolLM2-135M's shape, random weights, 512 to 4096 tokens
    python benchmarks/capture.py --tokens 512,1024 --layers 12
    python benchmarks/capture.py --model path/to/model.gguf  # a real checkpoint

Each way runs in a process of its own for peak memory, and interleaved in one process for time: CPU seconds, medians of
ratios, so that other work on the machine and its slow moments change little. "The full probe" is what
`floatscope.trace` runs at one step: all rows in region groups, 32 rows of interest, QK sums, value norms, and the
reduction into a trace's arrays.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from floatscope.models.families import FAMILIES
from floatscope.models.loading import load
from floatscope.models.model import Model
from floatscope.probe.attention import Probe, probing
from floatscope.probe.kernel import Workspace
from floatscope.probe.recording import BatchRecorder, DenoisingRecorder, Plan
from floatscope.traces import kept_arrays

SLOTS = 32
DOCUMENTS = 10
WAYS = ("bare", "probe", "eager")


def smollm2_shape(layers: int, vocabulary: int = 49152, heads: int = 9) -> Model:
    """SmolLM2-135M's dimensions as a bidirectional MDM with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=heads // 3, head_dim=64, vocab_size=vocabulary, max_position_embeddings=8192,
        tie_word_embeddings=True,
    )  # fmt: skip
    return Model(LlamaForCausalLM(config), FAMILIES["llada"], name="SmolLM2-135M shape", mask_id=0)


def plan(tokens: int) -> Plan:
    """A canvas of ten documents, a question and 32 answer slots."""
    prompt = tokens - SLOTS
    region = torch.arange(prompt) * (DOCUMENTS + 2) // prompt
    columns = torch.zeros(tokens, DOCUMENTS + 3)
    columns[torch.arange(prompt), region] = 1
    columns[prompt:, -1] = 1
    groups = torch.cat([region, torch.full((SLOTS,), DOCUMENTS + 3)])
    slots, keep = torch.arange(prompt, tokens), kept_arrays("compact")
    return Plan(groups, slots, DOCUMENTS + 4, DOCUMENTS + 2, DOCUMENTS + 3, columns, keep)


def runner(model: Model, way: str, ids: torch.Tensor) -> Callable[[], Any]:
    """One forward over the canvas in the given way; the LM head runs on the answer slots in all of them."""
    tokens = ids.shape[1]
    none, slots = torch.zeros(1, dtype=torch.long), torch.arange(tokens - SLOTS, tokens)[None]
    if way == "bare":
        return lambda: model.forward(ids, none, slots)
    if way == "probe":
        planned, workspace = plan(tokens), Workspace()  # the workspace lives as long as a run

        def probed() -> torch.Tensor:
            recorder = DenoisingRecorder(planned, model.layers, 1)
            layout, batch = recorder.start(torch.ones(SLOTS, dtype=torch.bool), slots[0]), BatchRecorder([recorder])
            with probing(Probe([0], [layout], batch.layer, model.layers, workspace)):
                logits = model.forward(ids, none, slots)
            batch.share()
            return logits

        return probed

    def eager() -> Any:
        model.backbone.set_attn_implementation("eager")
        try:
            found = model.backbone.base_model(ids, output_attentions=True, use_cache=False)
            received = [layer[0].mean(0).mean(0) for layer in found.attentions]
            return model.backbone.lm_head(found.last_hidden_state[:, slots[0]]), received
        finally:
            model.backbone.set_attn_implementation("floatscope")

    return eager


def timed(model: Model, tokens: int, ways: list[str], repeats: int) -> dict[str, float]:
    """Median CPU seconds of each way, and the median of its ratio to bare in the same round."""
    ids = torch.randint(1, model.vocabulary, (1, tokens), generator=torch.Generator().manual_seed(1))
    run = {way: runner(model, way, ids) for way in ways}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    with torch.inference_mode():
        for round_ in range(repeats + 1):
            for way in ways:
                start = time.process_time()
                run[way]()
                if round_:  # the first round warms up
                    seconds[way].append(time.process_time() - start)
    found = {f"{way} s": statistics.median(values) for way, values in seconds.items()}
    for way in ways[1:]:
        ratios = [a / b for a, b in zip(seconds[way], seconds["bare"], strict=True)]
        found[f"{way} / bare"] = statistics.median(ratios)
    return found


def peak(arguments: argparse.Namespace, way: str, tokens: int) -> dict[str, float]:
    """MB of a fresh process after loading, and at its peak after two forwards."""
    command = [sys.executable, __file__, "--peak-of", way, "--tokens", str(tokens), "--layers", str(arguments.layers)]
    command += ["--threads", str(arguments.threads)] + (["--model", arguments.model] if arguments.model else [])
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def resident_peak(reset: bool = False) -> float:
    """The largest resident size of this process in MB: since the last reset where the system can (Linux)."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    return int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) / 1024  # type: ignore[index]


def measure_peak(model: Model, way: str, tokens: int) -> None:
    """Print this process's memory before and after; run by `peak`."""
    ids = torch.randint(1, model.vocabulary, (1, tokens))
    resident_peak(reset=True)
    before = resident_peak()
    with torch.inference_mode():
        run = runner(model, way, ids)
        run()
        run()
    print(json.dumps({"loaded": before, "peak": resident_peak()}))


def main() -> None:
    """Parse, measure, print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="512,1024,2048,4096", help="canvas lengths, comma separated")
    parser.add_argument("--layers", type=int, default=30, help="layers of the random model")
    parser.add_argument("--repeats", type=int, default=5, help="rounds after the first")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", help="a checkpoint (folder, .gguf or hub id) instead of the random model")
    parser.add_argument("--no-eager", action="store_true", help="leave out eager attention, which is slow and large")
    parser.add_argument("--peak-of", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.model:
        model = load(arguments.model)
        if model.family.is_arm:  # the same weights with full visibility, as an MDM would run them
            model = Model(model.backbone, FAMILIES["llada"], name=model.name, mask_id=0)
    else:
        model = smollm2_shape(arguments.layers)
    if arguments.peak_of:
        return measure_peak(model, arguments.peak_of, int(arguments.tokens))
    ways = [way for way in WAYS if way != "eager" or not arguments.no_eager]
    print(f"{model.name}, {model.layers} layers, float32, {arguments.threads} thread(s), bidirectional")
    heads = [f"{way} s" for way in ways] + [f"{way} / bare" for way in ways[1:]] + [f"{way} peak MB" for way in ways]
    print(f"{'tokens':>7}" + "".join(f"{head:>15}" for head in [*heads, "probe peak / bare"]))
    for tokens in map(int, arguments.tokens.split(",")):
        row = timed(model, tokens, ways, arguments.repeats)
        memory = {way: peak(arguments, way, tokens) for way in ways}
        row |= {f"{way} peak MB": found["peak"] for way, found in memory.items()}
        row["probe peak / bare"] = memory["probe"]["peak"] / memory["bare"]["peak"]
        cells = [row[head] for head in [*heads, "probe peak / bare"]]
        print(f"{tokens:>7}" + "".join(f"{cell:>15.3f}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
