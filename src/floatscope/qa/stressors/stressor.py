"""What a stressor is: a row with everything that flags, study files, results, tables and curves need of it."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from string import Formatter
from typing import Any

from floatscope.errors import UserError
from floatscope.qa.stressors.condition import Condition, Label


@dataclass(frozen=True)
class Axis:
    """How a stressor's curve is drawn."""

    label: str
    """The label that the curve runs over."""
    title: str
    """What the axis is called."""
    panel: str = ""
    """What tells one curve from another, with labels in braces: "among {documents} documents"."""


@dataclass(frozen=True)
class NoOptions:
    """A stressor that has nothing but its values."""


@dataclass(frozen=True)
class Stressor:
    """A way to make question answering harder, step by step."""

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

    def __post_init__(self) -> None:
        used = [] if self.axis is None else [self.axis.label, *_names_in(self.axis.panel)]
        if unknown := [name for name in used if name not in self.labels]:
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


def _names_in(template: str) -> list[str]:
    return [name for _, name, _, _ in Formatter().parse(template) if name is not None]
