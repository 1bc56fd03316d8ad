"""The verb `stress`. Its flags come from the rows of the stressors, so this is imported only when the verb is used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import Field, fields, make_dataclass
from typing import Annotated, Any, get_type_hints

from cyclopts import Parameter
from docstring_parser import parse_from_object

from floatscope.cli.evaluation import REPEATED, Asking, ask
from floatscope.errors import UserError
from floatscope.qa.stressors import STRESSORS, Stressor
from floatscope.study.plan import Curve

Flag = tuple[str, Any, Any]
"""Name, type with its help, default."""


def _values_flag(row: Stressor) -> Flag:
    """The flag with the values of a stressor."""
    need = row.gold_documents
    samples = "" if need is None else f", for samples with {need} gold document{'s' * (need > 1)}"
    text = f"{row.summary}; e.g. {row.example}{samples}."
    return row.name.replace("-", "_"), Annotated[str | None, Parameter(help=text)], None


def _flag_name(option: Field[Any]) -> str:
    """An option that takes several values is a flag to repeat: `kinds` is given as --kind random --kind topical."""
    return option.name.removesuffix("s") if isinstance(option.default, tuple) else option.name


def _option_flags(rows: Sequence[Stressor]) -> Iterator[Flag]:
    """A flag for each option; stressors that have the same option share it."""
    options: dict[str, list[tuple[Stressor, Field[Any]]]] = {}
    for row in rows:
        for option in fields(row.options):
            options.setdefault(option.name, []).append((row, option))
    for name, uses in options.items():
        first, option = uses[0]
        hint = get_type_hints(first.options)[name]
        helps: dict[str, list[str]] = {}
        for row, other in uses:
            if get_type_hints(row.options)[name] != hint or other.default != option.default:
                raise UserError(
                    f"The stressors {first.name!r} and {row.name!r} have different options {name!r}: rename one."
                )
            documented = {part.arg_name: part.description for part in parse_from_object(row.options).params}
            helps.setdefault(documented.get(name) or name, []).append(row.name)
        text = " ".join(f"{said.rstrip('.')} ({', '.join(names)})." for said, names in helps.items())
        repeated = (REPEATED,) if isinstance(option.default, tuple) else ()
        yield _flag_name(option), Annotated[(hint, *repeated, Parameter(help=text))], option.default


def flags_of(rows: Sequence[Stressor]) -> type[Any]:
    """The flags of all stressors as one dataclass."""
    flags = [*map(_values_flag, rows), *_option_flags(rows)]
    names = [part.name for part in fields(Asking)]
    for name, _, _ in flags:
        if name in names:
            raise UserError(f"A stressor's flag --{name} is taken: give that stressor or its option another name.")
        names.append(name)
    here = {"__module__": __name__}
    return Parameter(name="*")(make_dataclass("Stressing", flags, namespace=here, frozen=True, kw_only=True))


ROWS = [row for row in STRESSORS.values() if row.axis is not None]
Stressing = flags_of(ROWS)
_NOTHING = Stressing()


def stress(asking: Asking, stressing: Stressing = _NOTHING) -> int:  # pyright: ignore[reportInvalidTypeForm]
    """Each stressor that was given values becomes a curve; what the verb says of itself stands in `floatscope.cli`."""
    curves = []
    for row in ROWS:
        values = getattr(stressing, row.name.replace("-", "_"))
        if values is not None:
            options = {option.name: getattr(stressing, _flag_name(option)) for option in fields(row.options)}
            curves.append(Curve(row.name, values, options=options))
    if not curves:
        raise UserError(f"Say what to stress with at least one of {', '.join(f'--{row.name}' for row in ROWS)}.")
    return ask("stress", asking, curves)
