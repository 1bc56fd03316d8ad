"""The registry of stressors. To add one is to write a function that yields conditions and a row here."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from floatscope.errors import UserError
from floatscope.qa.samples import Sample
from floatscope.qa.stressors import layout, noise, position
from floatscope.qa.stressors.baselines import BASELINES, documents_conditions
from floatscope.qa.stressors.canvas_settings import question_conditions, slots_conditions
from floatscope.qa.stressors.condition import Condition, stress
from floatscope.qa.stressors.options import StressOptions
from floatscope.qa.stressors.pool import Pool


@dataclass(frozen=True)
class Stressor:
    """A way to make question answering harder; `conditions` reads values as the command line has them."""

    name: str
    summary: str
    example: str
    conditions: Callable[[str, StressOptions], tuple[Condition, ...]]


_ROWS = (
    Stressor("documents", "number of documents shown, as retrieved", "0,5", documents_conditions),
    Stressor("noise", "number of distractors, by kind, gold kept or removed", "0..10", noise.conditions),
    Stressor("position", "place of the gold document, counted from 0", "all", position.conditions),
    Stressor("layout", "two-hop evidence: gap, order, split, duplicated", "gap,order", layout.conditions),
    Stressor("slots", "answer slots, i.e. masks to fill; a range doubles", "8,32,128", slots_conditions),
    Stressor("question", "question before or after the documents", "before,after", question_conditions),
)
STRESSORS: dict[str, Stressor] = {stressor.name: stressor for stressor in _ROWS}


def build_conditions(
    values: Mapping[str, str], options: StressOptions | None = None, baselines: bool = True
) -> tuple[Condition, ...]:
    """The baselines, then the conditions of each stressor with its values ({"noise": "0..10"})."""
    conditions = list(BASELINES) if baselines else []
    for name, text in values.items():
        if name not in STRESSORS:
            close = get_close_matches(name, STRESSORS, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise UserError(f"There is no stressor {name!r}: {hint}Known: {', '.join(STRESSORS)}.")
        conditions += STRESSORS[name].conditions(text, options or StressOptions())
    return tuple(conditions)


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
