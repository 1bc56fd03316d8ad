"""What evaluation costs: answering samples by `floatscope.generate` against a plain evaluation loop, one ratio a model.

    python benchmarks/throughput.py                                # twins and random models of SmolLM2-135M's shape
    python benchmarks/throughput.py --models twin-llada --samples 64 --workers 1
    python benchmarks/throughput.py --models path/to/checkpoint    # any MDM

The plain loop is that of the evaluation scripts of LLaDA and Dream: one sample at a time in one process with torch's
own threads, every step runs the LM head on the whole canvas and looks at all of its logits. Ours is what `evaluate`
does: batches sorted by length and shared by worker processes of one thread each, LM head on open slots only. Both
answer the same prompts with the same recipe at temperature 0; the share of equal tokens is printed. The prompts are
those of a table of gains: each question once without documents and once with five. Rounds are interleaved; seconds of
wall clock on all cores (start and load of the workers apart), medians of ratios.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import floatscope as fs
from floatscope.models.families import FAMILIES
from floatscope.models.model import Model
from floatscope.qa.tasks import read_task

SLOTS = 32
SHAPES = {"smollm2-49k": 49_152, "smollm2-126k": 126_464}
"""Random models of SmolLM2-135M's shape: with its own vocabulary, and with LLaDA's."""
WORKER: dict[str, Model] = {}
DEFAULT_MODELS = ("twin-llada", "twin-dream", *SHAPES)


def random_model(name: str, layers: int) -> Model:
    """An MDM of LLaDA's recipe with plainly random weights; untied as LLaDA, or it would predict the mask it sees."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_hidden_layers=layers, num_attention_heads=9,
        num_key_value_heads=3, vocab_size=SHAPES[name], max_position_embeddings=2048, tie_word_embeddings=False,
    )  # fmt: skip
    return Model(LlamaForCausalLM(config), FAMILIES["llada"], name=name, mask_id=0)


def prompts_for(model: Model, count: int) -> list[np.ndarray]:
    """World questions without and with five documents; for a model without a tokenizer, random ids of such lengths."""
    if model.tokenizer is None:
        random = np.random.default_rng(0)
        sizes = [*random.integers(12, 20, count // 2), *random.integers(100, 160, count - count // 2)]
        return [random.integers(1, model.vocabulary, size) for size in sizes]
    return [
        fs.build_prompt(model.tokenizer, sample.question, documents).ids
        for sample in read_task("world", limit=count // 2).samples
        for documents in ((), sample.documents)
    ]


def quotas(masked: int, steps: int) -> list[int]:
    """LLaDA's schedule: the same number of slots a step, what is left over to the first ones."""
    return [masked // steps + (step < masked % steps) for step in range(steps)]


@torch.no_grad()
def plain_llada(model: Model, prompt: np.ndarray, steps: int) -> np.ndarray:
    """One sample, one block: the likeliest token everywhere, the surest slots of the step's quota become tokens."""
    canvas = torch.full((1, len(prompt) + SLOTS), cast(int, model.mask_id))
    canvas[0, : len(prompt)] = torch.from_numpy(prompt)
    for quota in quotas(SLOTS, steps):
        masked = canvas == model.mask_id
        masked[0, : len(prompt)] = False
        logits = full_logits(model, canvas)  # [1, T, V]
        tokens = logits.argmax(dim=-1)
        sure = logits.softmax(dim=-1).gather(-1, tokens[..., None])[..., 0]
        chosen = sure.masked_fill(~masked, -torch.inf)[0].topk(quota).indices
        canvas[0, chosen] = tokens[0, chosen]
    return canvas[0, len(prompt) :].numpy()


@torch.no_grad()
def plain_dream(model: Model, prompt: np.ndarray, steps: int) -> np.ndarray:
    """One sample along Dream's time: of the masked slots those of least entropy become tokens."""
    canvas = torch.full((1, len(prompt) + SLOTS), cast(int, model.mask_id))
    canvas[0, : len(prompt)] = torch.from_numpy(prompt)
    times = torch.linspace(1, 1e-3, steps + 1)
    for step in range(steps):
        masked = canvas[0] == model.mask_id
        masked[: len(prompt)] = False
        logits = full_logits(model, canvas)
        logits = torch.cat([logits[:, :1], logits[:, :-1]], dim=1)[0, masked]  # row i - 1 predicts position i
        shares = logits.softmax(dim=-1)
        sure = (shares * (shares + 1e-10).log()).sum(dim=-1)
        left = int(masked.sum())
        quota = left if step == steps - 1 else int(left * (1 - times[step + 1] / times[step]))
        if quota:
            chosen = sure.topk(quota).indices
            canvas[0, masked.nonzero()[:, 0][chosen]] = logits.argmax(dim=-1)[chosen]
    return canvas[0, len(prompt) :].numpy()


def full_logits(model: Model, canvas: Tensor) -> Tensor:
    """The backbone as it stands, LM head on every position."""
    return model.backbone(input_ids=canvas, use_cache=False).logits.float()


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Rounds of both ways over the same samples."""
    model = load_model(name, arguments.layers)
    prompts = prompts_for(model, arguments.samples if model.tokenizer is not None else arguments.random_samples)
    steps = SLOTS if model.tokenizer is not None else arguments.random_steps
    plain = plain_dream if model.family.sampler["name"] == "dream" else plain_llada
    order = sorted(range(len(prompts)), key=lambda place: -len(prompts[place]))
    batches = [order[start : start + arguments.batch] for start in range(0, len(order), arguments.batch)]
    seconds: dict[str, list[float]] = {"plain": [], "ours": []}
    first, second = [], {}
    with multiprocessing.get_context("spawn").Pool(arguments.workers, begin, (name, arguments.layers)) as pool:
        work = [([prompts[place] for place in places], steps) for places in batches]
        pool.starmap(answer, [([prompts[0]], 1)] * 4 * arguments.workers, chunksize=1)  # all have loaded the model
        for _ in range(arguments.rounds):
            start = time.perf_counter()
            first = [plain(model, prompt, steps) for prompt in prompts]
            seconds["plain"].append(time.perf_counter() - start)
            start = time.perf_counter()
            found = pool.starmap(answer, work, chunksize=1)
            seconds["ours"].append(time.perf_counter() - start)
            placed = zip(order, (one for done in found for one in done), strict=True)  # batches follow the order
            second = dict(placed)
    return {
        "samples": len(prompts),
        "steps": steps,
        "plain": statistics.median(seconds["plain"]) / len(prompts),
        "ours": statistics.median(seconds["ours"]) / len(prompts),
        "ratio": statistics.median(a / b for a, b in zip(seconds["plain"], seconds["ours"], strict=True)),
        "same": float(np.mean([one == second[place] for place, one in enumerate(first)])),
    }


def load_model(name: str, layers: int) -> Model:
    """A random model of SHAPES, or whatever `fs.load` finds."""
    return random_model(name, layers) if name in SHAPES else fs.load(name)


def begin(name: str, layers: int) -> None:
    """A worker starts: one thread, one copy of the model."""
    torch.set_num_threads(1)
    WORKER["model"] = load_model(name, layers)


def answer(prompts: list[np.ndarray], steps: int) -> list[np.ndarray]:
    """A worker answers one batch."""
    model = WORKER["model"]
    return [done.answer for done in fs.generate(model, prompts, model.sampler(steps=steps, length=SLOTS))]


def main() -> None:
    """Parse, measure, print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(DEFAULT_MODELS), help="comma separated")
    parser.add_argument("--samples", type=int, default=64, help="prompts from questions of the world")
    parser.add_argument("--random-samples", type=int, default=64, help="prompts for a random model, which is slow")
    parser.add_argument(
        "--random-steps", type=int, default=2, help="steps of a random model; every step costs the same"
    )
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=30, help="layers of a random model")
    parser.add_argument("--workers", type=int, default=torch.get_num_threads(), help="processes of ours")
    arguments = parser.parse_args()
    print(
        f"{SLOTS} slots, float32, s per sample: 1 process of {torch.get_num_threads()} threads, batch 1, "
        f"against {arguments.workers} of 1 thread, batch {arguments.batch}"
    )
    print(
        f"{'model':<16}{'samples':>9}{'steps':>7}{'plain s':>10}{'ours s':>10}{'plain / ours':>14}{'same tokens':>13}"
    )
    for name in arguments.models.split(","):
        row = measure(name, arguments)
        print(
            f"{name:<16}{row['samples']:>9}{row['steps']:>7}{row['plain']:>10.3f}{row['ours']:>10.3f}"
            f"{row['ratio']:>14.2f}{row['same']:>13.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
