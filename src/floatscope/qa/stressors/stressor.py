"""What a condition and a stressor are: one labelled way to change a sample, and the row that makes such ways."""

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property, partial
from string import Formatter
from typing import Any

from floatscope.errors import UserError
from floatscope.qa.gaps import Layout
from floatscope.qa.samples import Document, Sample
from floatscope.qa.stressors.pool import Pool
from floatscope.qa.templates import Placement

Label = str | int | float


def unchanged(sample: Sample, rng: random.Random, pool: Pool) -> Sample:
    """The transform of conditions that change the canvas and not the sample."""
    return sample


@dataclass(frozen=True)
class Condition:
    """What is done to each sample before a model sees it, and what else a run has to change.

    Conditions with the same `stream` get the same random numbers for a sample, so that those of one curve
    differ in nothing but what their labels say: noise levels are nested, places share their distractors.
    """

    name: str
    stressor: str
    labels: Mapping[str, Label | None] = field(hash=False)
    """Columns of the results table, beside `condition` and `stressor`; None where a label says nothing."""
    stream: str
    transform: Callable[[Sample, random.Random, Pool], Sample] = unchanged
    """The sample as it is shown; raises UserError where that cannot be."""
    slots: int | None = None
    """Answer slots in place of the sampler's own number, where the condition is about them."""
    placement: Placement | None = None
    """Where the question stands in the prompt, where the condition is about that."""
    sampler: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Settings of the sampler in place of the model's own, where the condition is about them."""
    edits: tuple[Any, ...] = ()
    """Changes of attention while the sample is answered."""
    layout: Layout | None = None
    """Where the slots of a passage stand; None: between the texts that it has."""
    context: int = 0
    """Tokens of a passage to show around its slots; 0: all there are."""
    replay: bool = False
    """Whether the slots of a passage take its own tokens, whatever the model would choose."""
    draws: int | None = None
    """How the log-probability of the right answer is measured: None: it is not; 0: by a replay; more: also by a bound
    from so many Monte Carlo draws."""
    attribution: tuple[str, ...] = ()
    """Methods by which the answer is attributed to its documents, and what else is measured of it."""
    answered: bool = True
    """Whether the question is answered; without it the right answer alone is replayed."""
    patch: tuple[str, ...] = ()
    """What is patched into its replay from the sample as it is: patterns, outputs."""

    @cached_property
    def content(self) -> str:
        """A hash of all that the condition does, whatever it is called."""
        done = (self.stream, _described(self.transform), self.slots, self.placement, dict(self.sampler), self.edits)
        done += tuple(
            filter(None, (self.layout, self.context, self.replay, self.attribution, self.patch, not self.answered))
        )  # so that others stay what they were
        done += () if self.draws is None else (f"draws {self.draws}",)
        return hashlib.sha256(repr(done).encode()).hexdigest()[:16]


def _described(function: Any) -> str:
    """A function by its name, with the arguments that are bound to it."""
    if isinstance(function, partial):
        bound = {name: _described(value) if callable(value) else value for name, value in function.keywords.items()}
        return f"{_described(function.func)}{function.args}{sorted(bound.items())}"
    return f"{function.__module__}.{function.__qualname__}"


@dataclass(frozen=True)
class Axis:
    """How a stressor's curve is drawn."""

    label: str
    """The label that the curve runs over."""
    title: str
    """What the axis is called."""
    panel: str = ""
    """What tells one curve from another, with labels in braces: "among {documents} documents"."""
    twin: str = ""
    """The label that is empty for what is tried and names its control twins, which have all other labels in common."""
    shared: tuple[str, ...] = ()
    """Labels that what is tried has in common with the condition without it, where there are several of these."""


@dataclass(frozen=True)
class NoOptions:
    """A stressor that has nothing but its values."""


@dataclass(frozen=True)
class Stressor:
    """A way to make question answering harder: all that flags, study files, results, tables and curves need of it."""

    name: str
    """Its flag of `floatscope stress`, and `stressor = ...` in a study."""
    summary: str
    """Help of the flag: what the values are."""
    example: str
    """Values as the command line has them."""
    make: Callable[[str, Any], tuple[Condition, ...]]
    """From values and options to conditions; `conditions` calls it."""
    labels: Mapping[str, type[Label]] = field(hash=False)
    """The labels of its conditions with their types: columns of the results."""
    axis: Axis | None
    """None for conditions that are no stress: they stand in the table of scores and have no curve and no baselines."""
    options: type[Any] = NoOptions
    """A frozen dataclass of settings with defaults: each field is a flag and a key, and its docstring their help."""
    gold_documents: int | None = None
    """How many gold documents a sample must have; None where any number will do."""
    passages: bool | None = False
    """Whether it is for passages, and not for questions; None where both will do."""

    def __post_init__(self) -> None:
        used = [self.axis.label, *(name for _, name, *_ in Formatter().parse(self.axis.panel))] if self.axis else []
        if unknown := [name for name in used if name is not None and name not in self.labels]:
            raise UserError(
                f"The axis of the stressor {self.name!r} names {unknown[0]!r}, which is none of its labels."
            )
        for part in fields(self.options):
            if part.default is MISSING:
                raise UserError(f"The option {part.name!r} of the stressor {self.name!r} needs a default.")

    def conditions(self, values: str, options: Any = None) -> tuple[Condition, ...]:
        """The conditions of values as the command line has them ("0..10"), with its own options or their defaults."""
        made = self.make(values, self.options() if options is None else options)
        for condition in made:
            if condition.stressor != self.name or condition.labels.keys() != self.labels.keys():
                raise UserError(
                    f"The stressor {self.name!r} with the labels {', '.join(self.labels)} makes the condition "
                    f"{condition.name!r} of {condition.stressor!r} with {', '.join(condition.labels)}: let them agree."
                )
        return made


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
