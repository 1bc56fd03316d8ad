"""Gates: what a trained model must be able to do, beside what guessing gives; a missed bar is printed as a miss.

Twins are asked for closed-book facts, binding, noise, two hops and passages in the world's test split, which training
never saw; adapters for what they answer and recover of held-out questions.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from floatscope.decoding import generate
from floatscope.models.model import Model
from floatscope.qa.guesses import most_common_answer
from floatscope.qa.metrics import accuracy, exact_match, f1
from floatscope.qa.prompts import build_canvas, build_prompt, surroundings
from floatscope.qa.samples import Sample
from floatscope.qa.world import World, guess_facts, read_facts, score_facts
from floatscope.qa.world.relations import RELATIONS, UNANSWERABLE
from floatscope.statistics import Interval, mean_interval, paired_difference, proportion_interval

Teller = Callable[[str, int, int], None]
"""Is told the gate to come, how many are done, and how many there are."""
HEADINGS = {"exact": "exact match", "guess_type": "guess: type", "guess_relation": "guess: relation"}
GateResult = dict[str, Any]
"""A record of gates.json: the share of right answers with its 95% interval, other shares beside it (guesses, exact
matches), `least` (the bar; None where there is none, or where it is a guess) and `passed` (None without a bar)."""
NOT_BESIDE = ("gate", "slots", "n", "right", "low", "high", "least", "passed")


def judge(
    gate: str,
    right: Interval,
    beside: Mapping[str, float | None],
    least: float | None = None,
    passed: bool | None = None,
    slots: int | None = None,
) -> GateResult:
    """A result with its shares rounded; without a verdict of its own, the estimate is held against the bar.

    slots: where a gate is measured with several numbers of them.
    """
    if passed is None and least is not None:
        passed = right.estimate >= least
    shares = {"right": right.estimate, "low": right.low, "high": right.high, **beside, "least": least}
    rounded = {name: None if share is None else round(share, 4) for name, share in shares.items()}
    return {"gate": gate, **({"slots": slots} if slots else {}), "n": right.n, **rounded, "passed": passed}


def answer(model: Model, samples: Sequence[Sample], slots: int, batch: int, sampler: str | None = None) -> list[str]:
    """What the model says to each sample, asked in bare prompts, or writes into a passage's gap of so many slots.

    An MDM fills one slot per step; sampler: the name of another than the model's own; `batch`: samples at once.
    """
    chosen = model.sampler({"steps": slots}, name=sampler, length=slots)
    prompts = [
        build_canvas(model.tokenizer, sample.before, slots, sample.after)
        if sample.is_passage
        else build_prompt(model.tokenizer, sample.question, sample.documents, raw=True)
        for sample in samples
    ]
    parts = [prompts[start : start + batch] for start in range(0, len(prompts), batch)]
    return [model.text(found.answer) for part in parts for found in generate(model, part, chosen)]


def table(results: Sequence[GateResult]) -> str:
    """The results as a Markdown table."""
    slots = any("slots" in result for result in results)
    beside = list(dict.fromkeys(name for result in results for name in result if name not in NOT_BESIDE))
    headings = [HEADINGS.get(name, name) for name in beside]
    header = ["gate", *["slots"] * slots, "n", "right (95% interval)", *headings, "bar", ""]
    rows = [header, ["---"] * len(header)]
    for result in results:
        least, passed = result["least"], result["passed"]
        shares = [result.get(name) for name in beside]
        rows.append([
            result["gate"], *[str(result.get("slots", ""))] * slots, str(result["n"]),
            "{right:.3f} ({low:.3f} to {high:.3f})".format(**result),
            *("" if share is None else f"{share:.3f}" for share in shares),
            f"{least:.3f}" if least is not None else "guess" if passed is not None else "",
            {True: "met", False: "missed", None: ""}[passed],
        ])  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


SLOTS = (8, 32)
BATCH = 50
SPLIT = "test"


@dataclass(frozen=True)
class Gate:
    """One cell: which samples, and what share must be right (None: a harder cell that is only watched)."""

    name: str
    kind: str
    documents: int = 0
    least: float | None = None
    at_most_guess: bool = False
    published: bool = False  # with the sampler of the family as published, not with one slot per step
    settings: dict[str, Any] = field(default_factory=dict)


GATES = (
    Gate("stable facts, closed-book", "closed-stable", least=0.95),
    Gate("fresh facts, closed-book", "closed-fresh", at_most_guess=True),
    Gate("binding, k=3", "binding", 3, 0.95),
    Gate("binding, k=10", "binding", 10, 0.85),
    Gate("RAG with mixed noise, k=10", "rag", 10, 0.85),
    Gate("two-hop, k=5", "twohop", 5, 0.7),
)
HARDER = (
    Gate("binding, k=15", "binding", 15),
    Gate("binding, k=20", "binding", 20),
    Gate("near names, k=5", "rag", 5, settings={"noise": "near"}),
    Gate("two-hop, k=10", "twohop", 10),
    Gate("two-hop, k=10, gap 6", "twohop", 10, settings={"gap": 6}),
    Gate("counterfactual, k=5", "counterfactual", 5),
    Gate("stable facts among noise, k=5", "stable-noise", 5),
    Gate("unanswerable, k=5", "unanswerable", 5),
)
# Dream's own schedule commits the last two slots together, whatever the number of steps.
PUBLISHED = (
    Gate("binding, k=10, Dream's schedule", "binding", 10, published=True),
    Gate("two-hop, k=5, Dream's schedule", "twohop", 5, published=True),
)
PASSAGES = (
    Gate("passages continued, 5 facts", "passages", 5, 0.7),
    Gate("passages infilled, 5 facts", "passages-infill", 5, 0.7),
    Gate("passages mirrored, 5 facts", "passages-mirrored", 5, 0.7),
    Gate("passages continued, 8 facts", "passages", 8),
)


def measure_twin(model: Model, n: int, progress: Teller | None = None) -> list[GateResult]:
    """The gates with n samples at each number of slots, the harder cells with half of them at the fewest slots.

    Passages, too, with half of them; each has as many slots as its text has tokens. An ARM can only continue them.
    """
    world = World(0)
    cells: list[tuple[Gate, int, int | None]] = [(gate, n, count) for count in SLOTS for gate in GATES]
    more = PUBLISHED if model.family.name == "dream" else ()
    cells += [(gate, max(1, n // 2), SLOTS[0]) for gate in (*HARDER, *more)]
    written = [gate for gate in PASSAGES if gate.kind == "passages" or model.mask_id is not None]
    cells += [(gate, max(1, n // 2), None) for gate in written]
    results = []
    for done, (gate, count, slots) in enumerate(cells):
        if progress:
            progress(f"{gate.name}, {slots} slots" if slots else gate.name, done, len(cells))
        samples = world.samples(gate.kind, count, split=SPLIT, documents=gate.documents, **gate.settings)
        sampler = None if gate.published or model.mask_id is None else "llada"
        if slots is None:
            results.append(judge_passages(gate, samples, write(model, samples, sampler)))
        else:
            results.append(judge_answers(gate, slots, samples, answer(model, samples, slots, BATCH, sampler), world))
    return results


def write(model: Model, samples: Sequence[Sample], sampler: str | None = None, batch: int = BATCH) -> list[str]:
    """What the model writes into the gap of each passage, in as many slots as its own text has tokens."""
    tokenizer: Any = model.tokenizer
    sizes = [len(tokenizer(sample.answers[0], add_special_tokens=False)["input_ids"]) for sample in samples]
    said: dict[str, str] = {}
    for size in sorted(set(sizes)):
        alike = [sample for sample, own in zip(samples, sizes, strict=True) if own == size]
        said |= zip((sample.id for sample in alike), answer(model, alike, size, batch, sampler), strict=True)
    return [said[sample.id] for sample in samples]


def judge_passages(gate: Gate, samples: Sequence[Sample], said: Sequence[str]) -> GateResult:
    """The mean share of facts that are right, beside those that are wrong, invented, and right by a guess."""
    scores = [score_facts(sample, text) for sample, text in zip(samples, said, strict=True)]
    beside = {name: sum(score[name] for score in scores) / len(scores) for name in ("wrong", "invented")}
    beside["guess_relation"] = sum(map(guess_facts, samples)) / len(samples)
    return judge(gate.name, mean_interval([score["right"] for score in scores]), beside, gate.least)


def judge_answers(gate: Gate, slots: int, samples: Sequence[Sample], said: Sequence[str], world: World) -> GateResult:
    """Exact matches beside guesses: any name of the answer's type; any that is stated for the relation."""
    right = mean_interval([exact_match(text, sample.answers) for text, sample in zip(said, samples, strict=True)])
    guesses = zip(*(guess_in_world(sample, world) for sample in samples), strict=True)
    by_type, by_relation = (sum(chances) / len(samples) for chances in guesses)
    passed = right.low <= by_type if gate.at_most_guess else None
    return judge(gate.name, right, {"guess_type": by_type, "guess_relation": by_relation}, gate.least, passed, slots)


def guess_in_world(sample: Sample, world: World) -> tuple[float, float]:
    """Chances of a right guess: among all names of the answer's type, and among those stated for the asked relation."""
    relation = RELATIONS[str(sample.metadata["relation"]).split()[-1]]
    stable = sample.metadata["kind"] in ("closed-stable", "stable-noise")
    pool = world.stable[relation.object] if stable else world.fresh[SPLIT][relation.object]
    if sample.answers == (UNANSWERABLE,):
        return 0.0, 0.0
    if sample.documents and not any(sample.answers[0] in document.text for document in sample.documents):
        return 1 / len(pool), 0.0  # whatever is stated is wrong
    stated = sum(relation.name in {fact[1] for fact in read_facts(one.text)} for one in sample.documents)
    return 1 / len(pool), (1 / stated if stated else 1 / len(pool))


CLOSED_BOOK, ORACLE, TEXT, WRITTEN = ADAPTER_GATES = (
    "closed-book", "oracle, 1 document", "running text, share of masked tokens recovered", "running text continued, F1"
)  # fmt: skip
ORACLE_BAR = 0.5
ADAPTER_SLOTS = 12
ADAPTER_BATCH = 10
MASKED = 0.15  # share of a held-out text that is masked to be recovered
# A name ("Duke of Wellington", "D.C.") or a number, as a guess takes them out of documents.
_PHRASE = re.compile(r"[A-Z][\w'’.-]*(?: (?:of |the |and )?[A-Z][\w'’.-]*)*|\d[\d,.]*")


def measure_adapter(
    model: Model, untrained: Model, held_out: Sequence[Sample], n: int = 100, progress: Teller | None = None
) -> list[GateResult]:
    """Every gate on the first n held-out questions; `untrained` is the same fork before training."""
    asked = held_out[:n]
    bare = [replace(sample, documents=()) for sample in asked]
    gates = {
        CLOSED_BOOK: lambda: _answered(model, CLOSED_BOOK, bare, None),
        ORACLE: lambda: _answered(model, ORACLE, asked, ORACLE_BAR),
        TEXT: lambda: _above_untrained(TEXT, recover, model, untrained, asked),
        WRITTEN: lambda: _above_untrained(WRITTEN, continue_text, model, untrained, asked),
    }
    results = []
    for done, (name, gate) in enumerate(gates.items()):
        if progress:
            progress(name, done, len(gates))
        results.append(gate())
    return results


def read_out(model: Model, samples: Sequence[Sample]) -> float:
    """The share of samples answered, as they stand."""
    said = answer(model, samples, ADAPTER_SLOTS, ADAPTER_BATCH)
    return sum(accuracy(text, sample.answers) for text, sample in zip(said, samples, strict=True)) / len(samples)


def _answered(model: Model, gate: str, samples: Sequence[Sample], least: float | None) -> GateResult:
    """Answers that hold an accepted one (the paper's accuracy), exact matches, and what a guess gives."""
    pairs = list(zip(answer(model, samples, ADAPTER_SLOTS, ADAPTER_BATCH), samples, strict=True))
    right = proportion_interval([accuracy(text, sample.answers) for text, sample in pairs])
    exact = sum(exact_match(text, sample.answers) for text, sample in pairs) / len(pairs)
    guessed = sum(guess_in_passages(sample, samples) for sample in samples) / len(samples)
    return judge(gate, right, {"exact": exact, "guess": guessed}, least)


def guess_in_passages(sample: Sample, samples: Sequence[Sample]) -> float:
    """The chance of being right with any name or number of the documents; without documents, the commonest answer."""
    if not sample.documents:
        return accuracy(most_common_answer(samples)(sample, random.Random(0)), sample.answers)
    phrases = [phrase for document in sample.documents for phrase in _PHRASE.findall(document.text)]
    return sum(accuracy(phrase, sample.answers) for phrase in phrases) / len(phrases) if phrases else 0.0


def _above_untrained(
    gate: str,
    score: Callable[[Model, Sequence[Sample]], Iterable[float]],
    model: Model,
    untrained: Model,
    samples: Sequence[Sample],
) -> GateResult:
    """A score of held-out text. The bar is what the untrained fork gives; met where the difference lies above 0."""
    after, before = (list(score(one, samples)) for one in (model, untrained))
    passed = paired_difference(after, before).low > 0
    return judge(gate, mean_interval(after), {"exact": None, "guess": None}, sum(before) / len(before), passed)


def continue_text(model: Model, samples: Sequence[Sample]) -> Iterator[float]:
    """F1 of the words that the model writes after the first half of each gold passage, with those of the other half."""
    tokenizer: Any = model.tokenizer
    passages = []
    for sample in samples:
        text = sample.documents[0].text
        places = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        middle = places[len(places) // 2][0] if places else 0
        if middle:
            passages.append(Sample(sample.id, "", (text[middle:],), before=text[:middle]))
    for passage, said in zip(passages, write(model, passages, batch=ADAPTER_BATCH), strict=True):
        yield f1(said, passage.answers)


def recover(model: Model, samples: Sequence[Sample]) -> Iterator[float]:
    """The share of masked tokens recovered in each sample's gold passage in one pass, masked alike for every model.

    An ARM predicts the same tokens from those before them.
    """
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
