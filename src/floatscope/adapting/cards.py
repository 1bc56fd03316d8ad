"""The card of an adapter: a README that says what it forks, how it was made and what it can do. Measuring: `gates`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from floatscope.adapting.gates import GateResult, Teller, measure
from floatscope.adapting.gates import table as gates_table
from floatscope.errors import UserError
from floatscope.models.adapters import UNTRAINED
from floatscope.models.loading import load
from floatscope.qa.readers import read_samples

_WHAT = {
    "arm": "An autoregressive fork: its parent trained on as it is, on the same tokens as the masked diffusion forks.",
    "dream": "A Dream-style masked diffusion fork: full visibility, shifted logits (row i-1 predicts position i).",
    "llada": "A LLaDA-style masked diffusion fork: full visibility, row i predicts position i.",
}
_LICENCES = {"smollm2-135m": "SmolLM2-135M-Instruct by Hugging Face, Apache-2.0"}
_OPTIONS = {"steps": "steps", "seed": "seed", "rank": "rank", "window": "window", "held_out": "held-out"}


def write_card(folder: Path, results: Sequence[GateResult], data_note: str = "") -> Path:
    """README.md and gates.json of an adapter, from its log and gates; `data_note`: the data's origin and licence."""
    log = folder / "log.jsonl"
    if not log.exists():
        raise UserError(f"{folder} has no log.jsonl; only an adapter that was trained there has a card.")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    settings, last = rows[0], [row for row in rows if "loss" in row][-1]
    parent, to = settings["parent"], settings["to"]
    minutes = last["seconds"] / 60
    options = " ".join(f"--{option} {settings[name]}" for name, option in _OPTIONS.items())
    files = "\n".join(f"  - {name}, SHA-256 `{digest}`" for name, digest in settings["data"].items())
    licence = f" ({_LICENCES[parent]})" if parent in _LICENCES else ""
    mask = "" if settings["mask_id"] is None else f"\n- Mask token: id {settings['mask_id']}, its embedding trained too"
    note = f"\n- {data_note}" if data_note else ""
    numbers = ", ".join(f"{name} {settings[name]}" for name in ("batch", "rate", "warmup", "floor", "clip"))
    text = f"""# {folder.resolve().name}

{_WHAT[to]} LoRA on all linear layers, with the parent's own weights untouched.

- Parent: {parent}{licence}{mask}
- Command: `floatscope adapt {parent} --to {to} --data {" ".join(settings["data"])} --out DIR {options}`
- {numbers}
- Trained for {last["step"]} steps, {last["tokens"]:,} tokens, {minutes:.0f} minutes; last loss {last["loss"]}
- Data, of which about {settings["held_out"]} questions were held out by passage:
{files}{note}

{gates_table(results)}

"right": an accepted answer stands in what the model says, after normalisation. {_DECODING[to]}
Documents are windows of about {settings["window"]} tokens.
"guess" is the chance of being right with any name or number in the documents, or, without documents, with the commonest
answer.
The bar of running text, the share of masked tokens recovered, is what the same fork gives before training on the same
passages; it is met if the 95% interval of the difference lies above 0.
"""
    (folder / "gates.json").write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    card = folder / "README.md"
    card.write_text(text, encoding="utf-8")
    return card


_MDM = "12 slots, one a step, the surest first, eos last."
_DECODING = {"arm": "Greedy, 12 tokens at most.", "dream": _MDM, "llada": _MDM}


def report(
    folder: Path, n: int = 100, data_note: str = "", progress: Teller | None = None, device: str | None = None
) -> list[GateResult]:
    """Measure the gates of a trained adapter on its held-out questions and write its card."""
    held_out = list(read_samples(folder / "held_out.jsonl"))
    model, untrained = (load(source, device=device, check=False) for source in (folder, f"{folder}{UNTRAINED}"))
    results = measure(model, untrained, held_out, n, progress)
    write_card(folder, results, data_note)
    return results
