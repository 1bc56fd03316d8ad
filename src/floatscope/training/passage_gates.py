"""The gates of an adapter: what it answers and recovers of held-out questions. Training is left to `runs`.

All forks are decoded by the sampler of their family: an MDM fills the surest slot first, and eos last.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from floatscope.models.model import Model
from floatscope.qa.guesses import most_common_answer
from floatscope.qa.metrics import accuracy, exact_match
from floatscope.qa.prompts import surroundings
from floatscope.qa.samples import Sample
from floatscope.statistics import mean_interval, paired_difference, proportion_interval
from floatscope.training.gates import GateResult, Teller, answer, judge

CLOSED_BOOK, ORACLE, TEXT = GATES = (
    "closed-book", "oracle, 1 document", "running text, share of masked tokens recovered"
)  # fmt: skip
ORACLE_BAR = 0.5
SLOTS = 12
BATCH = 10
MASKED = 0.15  # share of a held-out text that is masked to be recovered
# A name ("Duke of Wellington", "D.C.") or a number, as a guess takes them out of documents.
_PHRASE = re.compile(r"[A-Z][\w'’.-]*(?: (?:of |the |and )?[A-Z][\w'’.-]*)*|\d[\d,.]*")


def measure(
    model: Model, untrained: Model, held_out: Sequence[Sample], n: int = 100, progress: Teller | None = None
) -> list[GateResult]:
    """Every gate on the first n held-out questions; `untrained` is the same fork before training."""
    asked = held_out[:n]
    bare = [replace(sample, documents=()) for sample in asked]
    gates = {
        CLOSED_BOOK: lambda: _answered(model, CLOSED_BOOK, bare, None),
        ORACLE: lambda: _answered(model, ORACLE, asked, ORACLE_BAR),
        TEXT: lambda: _recovered(model, untrained, asked),
    }
    results = []
    for done, (name, gate) in enumerate(gates.items()):
        if progress:
            progress(name, done, len(gates))
        results.append(gate())
    return results


def read_out(model: Model, samples: Sequence[Sample]) -> float:
    """The share of samples answered, as they stand."""
    said = answer(model, samples, SLOTS, BATCH)
    return sum(accuracy(text, sample.answers) for text, sample in zip(said, samples, strict=True)) / len(samples)


def _answered(model: Model, gate: str, samples: Sequence[Sample], least: float | None) -> GateResult:
    """Answers that hold an accepted one (the paper's accuracy), exact matches, and what a guess gives."""
    pairs = list(zip(answer(model, samples, SLOTS, BATCH), samples, strict=True))
    right = proportion_interval([accuracy(text, sample.answers) for text, sample in pairs])
    exact = sum(exact_match(text, sample.answers) for text, sample in pairs) / len(pairs)
    guessed = sum(guess(sample, samples) for sample in samples) / len(samples)
    return judge(gate, right, {"exact": exact, "guess": guessed}, least)


def guess(sample: Sample, samples: Sequence[Sample]) -> float:
    """The chance of being right with any name or number of the documents; without documents, the commonest answer."""
    if not sample.documents:
        return accuracy(most_common_answer(sample, samples, random.Random(0)), sample.answers)
    phrases = [phrase for document in sample.documents for phrase in _PHRASE.findall(document.text)]
    return sum(accuracy(phrase, sample.answers) for phrase in phrases) / len(phrases) if phrases else 0.0


def _recovered(model: Model, untrained: Model, samples: Sequence[Sample]) -> GateResult:
    """Masked tokens of held-out passages recovered in one pass; of an ARM, the same tokens after those before them.

    The bar is what the untrained fork gives; it is met where the interval of the difference lies above 0.
    """
    after, before = (list(recover(one, samples)) for one in (model, untrained))
    passed = paired_difference(after, before).low > 0
    nothing: dict[str, float | None] = {"exact": None, "guess": None}
    return judge(TEXT, mean_interval(after), nothing, sum(before) / len(before), passed)


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
            pads = torch.zeros(1, dtype=torch.long)
            logits = model.forward(tokens, pads, model.rows(torch.tensor([chosen]), pads))
        yield float((logits[0].argmax(-1).cpu() == labels).float().mean())
