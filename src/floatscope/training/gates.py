"""Gates: what a trained model must be able to do, beside what guessing gives; a missed bar is printed as a miss.

What is asked is left to `world_gates`, for twins, and to `passage_gates`, for adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from floatscope.decoding import generate
from floatscope.models.model import Model
from floatscope.qa.prompts import build_prompt
from floatscope.qa.samples import Sample
from floatscope.statistics import Interval

Teller = Callable[[str, int, int], None]
"""Is told the gate to come, how many are done, and how many there are."""
HEADINGS = {"exact": "exact match", "guess_type": "guess: type", "guess_relation": "guess: relation"}


@dataclass(frozen=True)
class GateResult:
    """A share of right answers with its 95% interval, other shares to compare it with, the bar and the verdict."""

    gate: str
    slots: int | None
    """Answer slots, where a gate is measured with several numbers of them."""
    n: int
    right: float
    low: float
    high: float
    beside: dict[str, float | None]
    """Guesses, exact matches."""
    least: float | None
    """The bar; None where there is none, or where it is a guess."""
    passed: bool | None
    """None without a bar."""

    def row(self) -> dict[str, Any]:
        """As one flat record, for gates.json."""
        told: dict[str, Any] = {}
        for name, value in vars(self).items():
            told |= value if name == "beside" else {name: value}
        return told if self.slots is not None else {name: told[name] for name in told if name != "slots"}


def judge(
    gate: str,
    right: Interval,
    beside: dict[str, float | None],
    least: float | None = None,
    passed: bool | None = None,
    slots: int | None = None,
) -> GateResult:
    """A result with its shares rounded; without a verdict of its own, the estimate is held against the bar."""
    if passed is None and least is not None:
        passed = right.estimate >= least
    estimate, low, high = (round(share, 4) for share in (right.estimate, right.low, right.high))
    shares = {name: None if share is None else round(share, 4) for name, share in beside.items()}
    bar = None if least is None else round(least, 4)
    return GateResult(gate, slots, right.n, estimate, low, high, shares, bar, passed)


def answer(model: Model, samples: Sequence[Sample], slots: int, batch: int, sampler: str | None = None) -> list[str]:
    """What the model says to each sample, asked in bare prompts; an MDM fills one slot per step.

    sampler: the name of another than the model's own; `batch`: samples at once.
    """
    chosen = model.sampler({"steps": slots}, name=sampler, length=slots)
    prompts = [build_prompt(model.tokenizer, sample.question, sample.documents, raw=True) for sample in samples]
    parts = [prompts[start : start + batch] for start in range(0, len(prompts), batch)]
    return [model.text(found.answer) for part in parts for found in generate(model, part, chosen)]


def table(results: Sequence[GateResult]) -> str:
    """The results as a Markdown table."""
    slots = any(result.slots is not None for result in results)
    beside = list(dict.fromkeys(name for result in results for name in result.beside))
    headings = [HEADINGS.get(name, name) for name in beside]
    header = ["gate", *["slots"] * slots, "n", "right (95% interval)", *headings, "bar", ""]
    rows = [header, ["---"] * len(header)]
    for result in results:
        shares = [result.beside.get(name) for name in beside]
        bar = f"{result.least:.3f}" if result.least is not None else "guess" if result.passed is not None else ""
        rows.append([
            result.gate, *[str(result.slots)] * slots, str(result.n),
            f"{result.right:.3f} ({result.low:.3f} to {result.high:.3f})",
            *("" if share is None else f"{share:.3f}" for share in shares),
            bar, {True: "met", False: "missed", None: ""}[result.passed],
        ])  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
