"""A condition: one labelled way to change a sample before a model sees it, the same in every run."""

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from floatscope.errors import UserError
from floatscope.qa.samples import Document, Sample
from floatscope.qa.stressors.pool import Pool
from floatscope.qa.templates import Placement

Label = str | int | float
Transform = Callable[[Sample, random.Random, Pool], Sample]


def unchanged(sample: Sample, rng: random.Random, pool: Pool) -> Sample:
    """The transform of conditions that change the canvas and not the sample."""
    return sample


@dataclass(frozen=True)
class Condition:
    """What is done to each sample, and what else a run has to change.

    Conditions with the same `stream` get the same random numbers for a sample, so that those of one curve
    differ in nothing but what their labels say: noise levels are nested, places share their distractors.
    """

    name: str
    stressor: str
    labels: Mapping[str, Label] = field(hash=False)
    """Columns of the results table, beside `condition` and `stressor`."""
    stream: str
    transform: Transform = unchanged
    """The sample as it is shown; raises UserError where that cannot be."""
    slots: int | None = None
    """Answer slots in place of the sampler's own number, where the condition is about them."""
    placement: Placement | None = None
    """Where the question stands in the prompt, where the condition is about that."""


def derived_seed(seed: int, *names: str) -> int:
    """A 64-bit seed from a study's seed and names, free of Python's own hash and of any order of work."""
    digest = hashlib.sha256("\x1f".join((str(seed), *names)).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big")


def stress(sample: Sample, condition: Condition, pool: Pool, seed: int) -> Sample:
    """The sample under the condition: a function of the seed, the sample and the condition alone."""
    return condition.transform(sample, random.Random(derived_seed(seed, sample.id, condition.stream)), pool)


def check_conditions(conditions: Iterable[Condition], samples: Iterable[Sample], pool: Pool, seed: int) -> None:
    """Raise, before a run, the error of a condition that none of the samples can be put under."""
    known = tuple(samples)
    for condition in conditions:
        first: UserError | None = None
        for sample in known:
            try:
                stress(sample, condition, pool, seed)
                break
            except UserError as error:
                first = first or error
        else:
            if first is not None:
                raise UserError(f"No sample fits the condition {condition.name!r}. {first}") from first


def gold_of(sample: Sample, wanted: int | None, purpose: str) -> tuple[Document, ...]:
    """The gold documents, of which there must be `wanted`, or any number but none."""
    gold = tuple(document for document in sample.documents if document.gold)
    if not gold:
        raise UserError(
            f"Sample {sample.id!r} has no gold document, which {purpose} needs: give data that marks them, "
            "or mark those that mention an answer (qa.retrieval.mark_gold)."
        )
    if wanted is not None and len(gold) != wanted:
        raise UserError(
            f"Sample {sample.id!r} has {len(gold)} gold document{'s' * (len(gold) > 1)}, but {purpose} needs "
            f"exactly {wanted}: use data whose samples have so many, or another stressor."
        )
    return gold
