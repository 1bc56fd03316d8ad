"""Stress tests: stressors make conditions, conditions change samples. Running them is left to others.

A stressor is a function and a row; this is the place where the rows are listed.
"""

from floatscope.errors import UserError
from floatscope.qa.stressors.baselines import BASELINES, CLOSED_BOOK, DOCUMENTS, ORACLE, QUESTION, SLOTS
from floatscope.qa.stressors.noise import NOISE
from floatscope.qa.stressors.passage import PASSAGE
from floatscope.qa.stressors.placing import LAYOUT, POSITION
from floatscope.qa.stressors.pool import Pool
from floatscope.qa.stressors.stressor import Axis, Condition, Label, Stressor, check_conditions, derived_seed, stress
from floatscope.registry import Registry

__all__ = [
    "BASELINES",
    "CLOSED_BOOK",
    "ORACLE",
    "STRESSORS",
    "Axis",
    "Condition",
    "Label",
    "Pool",
    "Stressor",
    "check_conditions",
    "derived_seed",
    "label_types",
    "stress",
]

STRESSORS: Registry[Stressor] = Registry(
    "stressor", {row.name: row for row in (DOCUMENTS, NOISE, POSITION, LAYOUT, SLOTS, QUESTION, PASSAGE)}
)


def label_types() -> dict[str, type[Label]]:
    """The labels of all stressors with their types, in the order of the rows."""
    found: dict[str, type[Label]] = {}
    for row in STRESSORS.values():
        for name, kind in row.labels.items():
            if found.setdefault(name, kind) is not kind:
                raise UserError(
                    f"The label {name!r} of the stressor {row.name!r} is {kind.__name__} here and "
                    f"{found[name].__name__} in another stressor: give it another name."
                )
    return found
