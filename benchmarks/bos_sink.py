"""Is there a bos sink? Received attention at bos per layer, of the twins and their controls, by floatscope's traces.

    python benchmarks/bos_sink.py --samples 50 --documents 10
    python benchmarks/bos_sink.py twins/parent twins/arm       # checkpoints of one's own

Each model reads the same test prompts; the numbers are means over prompts of received attention at bos (column mean of
the head-mean matrix) at the first step, when no answer is written yet. "parent, full" is the parent's weights under
full visibility: it says what lifting the causal mask alone does. "uniform" is attention that is spread evenly over
whatever is visible; a number that is not above it is no sink.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

import floatscope as fs
from floatscope.models.model import Model
from floatscope.models.twins import save_twin

SLOTS = 8


def parent_with_full_visibility(folder: Path) -> Model:
    """The parent's weights in Dream's dialect: the same function of its inputs, but for who sees whom."""
    parent = fs.load("twin-parent")
    save_twin("dream", parent.backbone, parent.tokenizer, folder)
    return fs.load(folder)


def received_at_bos(model: Model, samples: list[fs.Sample]) -> tuple[np.ndarray, float]:
    """[layer] mean received attention at bos at the first step, and what even attention would give it."""
    arm = model.mask_id is None
    found, even = [], []
    for sample in samples:
        prompt = fs.build_prompt(model.tokenizer, sample.question, sample.documents)
        sampler = fs.AutoregressiveSampler(length=1) if arm else fs.LLaDASampler(steps=1, length=SLOTS)
        trace = fs.trace(model, prompt, sampler)
        found.append(np.asarray(trace.received[0, :, 0], dtype=np.float64))
        rows = len(prompt.ids) if arm else len(prompt.ids) + SLOTS
        even.append(np.mean(1 / np.arange(1, rows + 1)) if arm else 1 / rows)
    return np.mean(found, axis=0), float(np.mean(even))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", help="names or folders; default: the twins and their controls")
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--documents", type=int, default=10)
    options = parser.parse_args()
    samples = fs.world.World(0).samples("rag", options.samples, documents=options.documents)
    with tempfile.TemporaryDirectory() as folder:
        models = {name: fs.load(name) for name in options.models}
        if not models:
            models = {name: fs.load(f"twin-{name}") for name in ("arm", "parent", "parent-untrained", "dream", "llada")}
            models["parent, full"] = parent_with_full_visibility(Path(folder))
            models["untrained, full"] = fs.load("twin-dream-untrained")
        print("| model | visibility | layer 1 | 2 | 3 | 4 | 5 | uniform |\n|---|---|---|---|---|---|---|---|")
        for name, model in models.items():
            layers, uniform = received_at_bos(model, samples)
            cells = " | ".join(f"{value:.3f}" for value in layers)
            print(f"| {name} | {model.visibility} | {cells} | {uniform:.3f} |", flush=True)


if __name__ == "__main__":
    main()
