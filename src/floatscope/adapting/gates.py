"""The gates of a fork: what it answers and recovers of held-out questions, beside guesses. Training: `training`.

All MDMs are decoded alike, one slot a step, the surest first and eos last; a missed bar is printed as a miss.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from floatscope.decoding import AutoregressiveSampler, LLaDASampler, generate
from floatscope.errors import UserError
from floatscope.models.model import Model
from floatscope.qa.guesses import most_common_answer
from floatscope.qa.metrics import accuracy, exact_match
from floatscope.qa.prompts import build_prompt, surroundings
from floatscope.qa.samples import Sample
from floatscope.statistics import Interval, mean_interval, paired_difference, proportion_interval

SLOTS = 12
BATCH = 10
MASKED = 0.15  # share of a held-out text that is masked to be recovered
TEXT_GATE = "running text, share of masked tokens recovered"
# A name ("Duke of Wellington", "D.C.") or a number, as a guess takes them out of documents.
_PHRASE = re.compile(r"[A-Z][\w'’.-]*(?: (?:of |the |and )?[A-Z][\w'’.-]*)*|\d[\d,.]*")


@dataclass(frozen=True)
class Gate:
    """Held-out questions with or without their gold passage; what share must be right (None: only watched)."""

    name: str
    documents: bool
    least: float | None = None


GATES = (Gate("closed-book", False), Gate("oracle, 1 document", True, 0.5))


@dataclass(frozen=True)
class GateResult:
    """A share of right answers (the paper's accuracy) with its 95% interval, exact matches, and what a guess gives.

    `passed` is None where there is no bar.
    """

    gate: str
    n: int
    right: float
    low: float
    high: float
    exact: float | None
    guess: float | None
    least: float | None
    passed: bool | None


Teller = Callable[[str, int, int], None]
"""Is told the gate to come, how many are done, and how many there are."""


def measure(
    model: Model, untrained: Model, held_out: Sequence[Sample], n: int = 100, progress: Teller | None = None
) -> list[GateResult]:
    """Every gate on the first n held-out questions; `untrained` is the same fork before training."""
    if n < 1:
        raise UserError(f"Gates need at least one sample each, not {n}.")
    told = progress or (lambda name, done, total: None)
    results = []
    for done, gate in enumerate(GATES):
        told(gate.name, done, len(GATES) + 1)
        asked = [sample if gate.documents else replace(sample, documents=()) for sample in held_out[:n]]
        results.append(_answered(model, gate, asked))
    told("running text", len(GATES), len(GATES) + 1)
    return [*results, _recovered(model, untrained, held_out[:n])]


def answer(model: Model, samples: Sequence[Sample], slots: int = SLOTS) -> list[str]:
    """What the model says to each sample, up to its first eos."""
    tokenizer: Any = model.tokenizer
    sampler: Any = (
        AutoregressiveSampler(length=slots)
        if model.mask_id is None
        else LLaDASampler(steps=slots, length=slots, hold_eos=True)
    )
    prompts = [build_prompt(tokenizer, sample.question, sample.documents, raw=True).ids for sample in samples]
    texts = []
    for start in range(0, len(prompts), BATCH):
        done = generate(model, prompts[start : start + BATCH], sampler)
        for generation in done if isinstance(done, list) else [done]:
            ids = generation.answer.tolist()
            stop = next((place for place, token in enumerate(ids) if token in model.eos_ids), len(ids))
            texts.append(tokenizer.decode(ids[:stop], skip_special_tokens=True).strip())
    return texts


def read_out(model: Model, samples: Sequence[Sample]) -> float:
    """The share of samples answered, as they stand."""
    texts = answer(model, samples)
    return sum(accuracy(text, sample.answers) for text, sample in zip(texts, samples, strict=True)) / len(samples)


def _answered(model: Model, gate: Gate, samples: Sequence[Sample]) -> GateResult:
    pairs = list(zip(answer(model, samples), samples, strict=True))
    right = proportion_interval([accuracy(text, sample.answers) for text, sample in pairs])
    exact = sum(exact_match(text, sample.answers) for text, sample in pairs) / len(pairs)
    guessed = sum(guess(sample, samples) for sample in samples) / len(samples)
    passed = None if gate.least is None else right.estimate >= gate.least
    return _rounded(gate.name, right, exact, guessed, gate.least, passed)


def guess(sample: Sample, samples: Sequence[Sample]) -> float:
    """The chance of being right with any name or number of the documents; without documents, the commonest answer."""
    if not sample.documents:
        return accuracy(most_common_answer(sample, samples, random.Random(0)), sample.answers)
    phrases = [phrase for document in sample.documents for phrase in _PHRASE.findall(document.text)]
    return sum(accuracy(phrase, sample.answers) for phrase in phrases) / len(phrases) if phrases else 0.0


def _recovered(model: Model, untrained: Model, samples: Sequence[Sample]) -> GateResult:
    """Masked tokens of held-out passages recovered in one pass; of an ARM, the same tokens after those before them."""
    after, before = (list(recover(one, samples)) for one in (model, untrained))
    gained = paired_difference(after, before)
    return _rounded(TEXT_GATE, mean_interval(after), None, None, sum(before) / len(before), gained.low > 0)


def recover(model: Model, samples: Sequence[Sample]) -> Iterator[float]:
    """The share of masked tokens recovered in each sample's gold passage, masked alike for every model."""
    tokenizer: Any = model.tokenizer
    bos = surroundings(tokenizer)[0]
    for sample in samples:
        ids = [*bos, *tokenizer(sample.documents[0].text, add_special_tokens=False)["input_ids"]]
        places = list(range(max(1, len(bos)), len(ids)))
        if not places:
            continue
        chosen = sorted(random.Random(f"mask {sample.id}").sample(places, max(1, round(MASKED * len(places)))))
        tokens = torch.tensor([ids])
        labels = tokens[0, chosen].clone()
        if model.mask_id is not None:
            tokens[0, chosen] = model.mask_id
        with torch.inference_mode():
            logits = model.score(tokens, torch.zeros(1, dtype=torch.long), torch.tensor([chosen]))
        yield float((logits[0].argmax(-1).cpu() == labels).float().mean())


def _rounded(
    name: str, right: Interval, exact: float | None, guessed: float | None, least: float | None, passed: bool | None
) -> GateResult:
    exact, guessed, least = (None if share is None else round(share, 4) for share in (exact, guessed, least))
    estimate, low, high = (round(share, 4) for share in (right.estimate, right.low, right.high))
    return GateResult(name, right.n, estimate, low, high, exact, guessed, least, passed)


def table(results: Sequence[GateResult]) -> str:
    """The results as a Markdown table."""
    lines = [
        "| gate | n | right (95% interval) | exact match | guess | bar | |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in results:
        exact, guessed, bar = ("" if share is None else f"{share:.3f}" for share in (r.exact, r.guess, r.least))
        verdict = {True: "met", False: "missed", None: ""}[r.passed]
        right = f"{r.right:.3f} ({r.low:.3f} to {r.high:.3f})"
        lines.append(f"| {r.gate} | {r.n} | {right} | {exact} | {guessed} | {bar} | {verdict} |")
    return "\n".join(lines)
