"""The verbs `stress` and `intervene`. Their flags are rows of stressors', so this is imported when one is used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, make_dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from floatscope.cli.evaluation import Asking, ask
from floatscope.cli.flags import shared_fields
from floatscope.cli.shared import REPEATED
from floatscope.cli.studies import DivisionFlags
from floatscope.errors import UserError
from floatscope.qa.stressors import STRESSORS, Stressor
from floatscope.study.plan import Curve

Flag = tuple[str, Any, Any]
"""Name, type with its help, default."""


def _flag_name(option: str, default: Any) -> str:
    """An option that takes several values is a flag to repeat: `kinds` is given as --kind random --kind topical."""
    return option.removesuffix("s") if isinstance(default, tuple) else option


def _option_flags(rows: Sequence[Stressor]) -> Iterator[Flag]:
    """A flag for each option; stressors that have the same option share it."""
    for name, (found, told) in shared_fields({row.name: row.options for row in rows}).items():
        (first, (hint, default)), *others = found.items()
        for other, kind in others:
            if kind != (hint, default):
                raise UserError(f"The stressors {first!r} and {other!r} have different options {name!r}: rename one.")
        repeated = (REPEATED,) if isinstance(default, tuple) else ()
        yield _flag_name(name, default), Annotated[(hint, *repeated, Parameter(help=told))], default


def flags_of(rows: Sequence[Stressor]) -> type[Any]:
    """The flags of all stressors as one dataclass."""
    flags: list[Flag] = []
    for row in rows:
        need = row.gold_documents
        samples = "" if need is None else f", for samples with {need} gold document{'s' * (need > 1)}"
        told = Parameter(help=f"{row.summary}; e.g. {row.example}{samples}.")
        flags.append((row.name.replace("-", "_"), Annotated[str | None, told], None))
    flags += _option_flags(rows)
    names = [part.name for part in (*fields(Asking), *fields(DivisionFlags))]
    for name, _, _ in flags:
        if name in names:
            raise UserError(f"A stressor's flag --{name} is taken: give that stressor or its option another name.")
        names.append(name)
    here = {"__module__": __name__}
    return Parameter(name="*")(make_dataclass("Stressing", flags, namespace=here, frozen=True, kw_only=True))


ROWS = [row for row in STRESSORS.values() if row.axis is not None and not row.axis.twin]
Stressing = flags_of(ROWS)
_NOTHING = Stressing()
Editing = Parameter(name="*")(
    make_dataclass(
        "Editing", [*_option_flags([STRESSORS["edit"]])], namespace={"__module__": __name__}, frozen=True, kw_only=True
    )
)
_ALL = Editing()


def stress(asking: Asking, stressing: Stressing = _NOTHING) -> int:  # pyright: ignore[reportInvalidTypeForm]
    """Each stressor that was given values becomes a curve; what the verb says of itself stands in `floatscope.cli`."""
    curves = []
    for row in ROWS:
        values = getattr(stressing, row.name.replace("-", "_"))
        if values is not None:
            options = {one.name: getattr(stressing, _flag_name(one.name, one.default)) for one in fields(row.options)}
            curves.append(Curve(row.name, values, options=options))
    if not curves:
        raise UserError(f"Say what to stress with at least one of {', '.join(f'--{row.name}' for row in ROWS)}.")
    return ask("stress", asking, curves)


def intervene(asking: Asking, *, do: Annotated[tuple[str, ...], REPEATED], editing: Editing = _ALL) -> int:  # pyright: ignore[reportInvalidTypeForm]
    """Every edit becomes a curve over its doses, beside its control twins; `floatscope.cli` says what the verb does.

    Parameters
    ----------
    do
        An edit and its doses: block anchors(1,3,5), keep top(8,32), zero doc 1, scale evidence by 0.5,2, sink, heads
        2.0,5.3; or patch patterns, patch outputs: a map of the layers and steps that bring the answer back, once the
        gold document is exchanged for another; repeat for more.
    """
    edits = ";".join(text for text in do if text.split()[:1] != ["patch"])
    patches = ",".join(text.split(maxsplit=1)[-1] for text in do if text.split()[:1] == ["patch"])
    curves = []
    for name, values in (("edit", edits), ("patch", patches)):
        if values:
            settings = fields(STRESSORS[name].options)
            options = {one.name: getattr(editing, _flag_name(one.name, one.default)) for one in settings}
            curves.append(Curve(name, values, options=options))
    return ask("intervene", asking, curves)
