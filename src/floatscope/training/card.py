"""The card of a trained model: a README that says what it is, how it was made and what it can do."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from floatscope.errors import UserError
from floatscope.files import replace_text
from floatscope.models.adapters import is_adapter
from floatscope.models.loading import load
from floatscope.models.shipped import UNTRAINED
from floatscope.qa.readers import read_samples
from floatscope.training.gates import ADAPTER_SLOTS, GateResult, Teller, measure_adapter, measure_twin, table
from floatscope.training.passages import HELD_OUT
from floatscope.training.recipe import RECIPES, AdapterRecipe, Recipe
from floatscope.training.trainer import LOG

_TWINS = {
    "parent": "The causal parent of the twins, trained through the lessons. A plain Llama.",
    "arm": "The autoregressive twin: the parent trained on with the AR objective. A plain Llama.",
    "dream": "The Dream-style masked diffusion twin: bidirectional, shifted logits, Dream's dialect (zero biases).",
    "llada": "The LLaDA-style masked diffusion twin: bidirectional, logits of the same position. LLaDA's dialect.",
}
_FORKS = {
    "arm": "An autoregressive fork: its parent trained on as it is, on the same tokens as the masked diffusion forks.",
    "dream": "A Dream-style masked diffusion fork: full visibility, shifted logits (row i-1 predicts position i).",
    "llada": "A LLaDA-style masked diffusion fork: full visibility, row i predicts position i.",
}
_LICENCES = {"smollm2-135m": "SmolLM2-135M-Instruct by Hugging Face, Apache-2.0"}
_MDM = f"{ADAPTER_SLOTS} slots, one per step, the surest first, eos last."
_DECODING = {"arm": f"Greedy, {ADAPTER_SLOTS} tokens at most.", "dream": _MDM, "llada": _MDM}
_WORLD = """"right" is exact match after normalisation; MDMs fill one slot per step, the surest first.
"guess: type" takes any name of the answer's type, "guess: relation" any object that the documents state for the asked
relation.
Of passages, "right" is the share of the gap's facts that the twin tells; "wrong" contradict the text around the gap and
"invented" are unknown to it, both per fact of the gap."""
_PASSAGES = """"right": an accepted answer stands in what the model says, after normalisation. {decoding}
Documents are windows of about {window} tokens.
"guess" is the chance of being right with any name or number in the documents, or, without documents, with the commonest
answer.
The bars of running text (the share of masked tokens recovered; the F1 of the words written after the first half of a
passage with those of its other half) are what the same fork gives before training on the same passages; they are met if
the 95% interval of the difference lies above 0."""


def report(
    folder: Path, n: int, data_note: str = "", progress: Teller | None = None, device: str | None = None
) -> list[GateResult]:
    """Measure the gates of a trained twin or adapter with n samples each, and write its card."""
    model = load(folder, device=device, check=False)
    if is_adapter(folder):
        untrained = load(f"{folder}-{UNTRAINED}", device=device, check=False)
        held_out = list(read_samples(folder / HELD_OUT))
        results = measure_adapter(model, untrained, held_out, n, progress)
    else:
        results = measure_twin(model, n, progress)
    write_card(folder, results, data_note)
    return results


def write_card(folder: Path, results: Sequence[GateResult], data_note: str = "") -> None:
    """README.md and gates.json of a trained model; `data_note` is a sentence on the data's origin and licence."""
    log = folder / LOG
    if not log.exists():
        raise UserError(f"{folder} has no {LOG}; only a model that was trained there has a card.")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    settings, last = rows[0], [row for row in rows if "loss" in row][-1]
    minutes = f", {last['seconds'] / 60:.0f} minutes" if "seconds" in last else ""
    trained = f"Trained for {last['step']} steps, {last['tokens']:,} tokens{minutes}; last loss {last['loss']}"
    if twin := settings.get("twin"):
        title, what, notes = f"twin-{twin}", _TWINS[twin], _WORLD
        facts = [
            f"Command: `floatscope train --twin {twin} --out DIR {_flags(settings, RECIPES[twin])}`",
            ", ".join(f"{name} {value}" for name, value in settings.items() if name != "twin"),
            f"{trained}. Log: {LOG}.",
            "World: `fs.world.World(0)`; gates are measured on its test split, whose fresh facts no training saw.",
        ]
    else:
        parent, to, mask_id = settings["parent"], settings["to"], settings["mask_id"]
        options = _flags(settings, AdapterRecipe())
        files = "".join(f"\n  - {name}, SHA-256 `{digest}`" for name, digest in settings["data"].items())
        title = folder.resolve().name
        what = f"{_FORKS[to]} LoRA on all linear layers, with the parent's own weights untouched."
        notes = _PASSAGES.format(decoding=_DECODING[to], window=settings["window"])
        facts = [
            f"Parent: {parent}" + (f" ({_LICENCES[parent]})" if parent in _LICENCES else ""),
            *([] if mask_id is None else [f"Mask token: id {mask_id}, its embedding trained too"]),
            f"Command: `floatscope adapt {parent} --to {to} --data {' '.join(settings['data'])} --out DIR {options}`",
            ", ".join(f"{name} {settings[name]}" for name in ("batch", "rate", "warmup", "floor", "clip")),
            trained,
            f"Data, of which about {settings['held_out']} questions were held out by passage:{files}",
            *([data_note] if data_note else []),
        ]
    listed = "\n".join(f"- {fact}" for fact in facts)
    replace_text(folder / "README.md", f"# {title}\n\n{what}\n\n{listed}\n\n{table(results)}\n\n{notes}\n")
    replace_text(folder / "gates.json", json.dumps(list(results), indent=1) + "\n")


def _flags(settings: dict[str, Any], usual: Recipe) -> str:
    """The seed, and every number that is not the usual one, as the command line takes them."""
    unlike = {name: settings[name] for name, value in asdict(usual).items() if settings.get(name, value) != value}
    flags = [(name.replace("_", "-"), value) for name, value in {"seed": settings["seed"], **unlike}.items()]
    return " ".join(f"--no-{flag}" if value is False else f"--{flag} {value}" for flag, value in flags)
