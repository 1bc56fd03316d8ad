"""The card of a trained twin: a README that says how it was made and what it can do. Measuring is left to `gates`."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from floatscope.errors import UserError
from floatscope.models.loading import load
from floatscope.twins.gates import GATES, HARDER, PUBLISHED, SLOTS, GateResult, measure, table

_WHAT = {
    "parent": "The causal parent of the twins, trained through the curriculum. A plain Llama.",
    "arm": "The autoregressive twin: the parent trained on with the AR objective. A plain Llama.",
    "dream": "The Dream-style masked diffusion twin: bidirectional, shifted logits, Dream's dialect (zero biases).",
    "llada": "The LLaDA-style masked diffusion twin: bidirectional, logits of the same position. LLaDA's dialect.",
}


def write_card(folder: Path, results: Sequence[GateResult]) -> Path:
    """README.md and gates.json of a trained twin, from its log and its gates."""
    log = folder / "log.jsonl"
    if not log.exists():
        raise UserError(f"{folder} has no log.jsonl; only a twin that was trained there has a card.")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    settings, last = rows[0], rows[-1]
    twin = settings["twin"]
    numbers = ", ".join(f"{name} {value}" for name, value in settings.items() if name != "twin")
    text = f"""# twin-{twin}

{_WHAT[twin]}

- Command: `floatscope train --twin {twin} --out DIR`
- {numbers}
- Trained for {last["step"]} steps, {last["tokens"]:,} tokens; last loss {last["loss"]}. Log: log.jsonl.
- World: `fs.world.World(0)`; gates are measured on its test split, whose fresh facts no training saw.

{table(results)}

"right" is exact match after normalisation; MDMs fill one slot a step, the surest first. "guess: type" takes any name of
the answer's type, "guess: relation" any object that the documents state for the asked relation.
"""
    (folder / "gates.json").write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    card = folder / "README.md"
    card.write_text(text)
    return card


def report(
    folder: Path,
    n: int = 500,
    slots: Sequence[int] = SLOTS,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> list[GateResult]:
    """Measure the gates, and the harder cells with half the samples at the fewest slots, and write the twin's card.

    `progress` is told the cell to come, how many are done and how many there are.
    """
    model = load(folder)
    cells = [(gate, n, count) for count in slots for gate in GATES]
    more = PUBLISHED if model.family.name == "dream" else ()
    cells += [(gate, max(1, n // 2), slots[0]) for gate in (*HARDER, *more)]
    results: list[GateResult] = []
    for done, (gate, samples, count) in enumerate(cells):
        progress(f"{gate.name}, {count} slots", done, len(cells))
        results += measure(model, [gate], samples, [count])
    write_card(folder, results)
    return results
