"""Edits of attention as conditions of a study: `floatscope intervene`, and `stressor = "edit"` in a study file.

Every edit that picks tokens or heads brings its control twins along: edits of the same size that pick by chance. What
an edit does to attention is `probe`'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floatscope.errors import UserError
from floatscope.qa.stressors import STRESSORS, Axis, Condition, Stressor
from floatscope.qa.stressors.ranges import check_documents, check_names

if TYPE_CHECKING:
    from floatscope.probe.edits import Edit

UNEDITED = "none"
TWINS = ("as many", "as much", "as much, answer spared", "most recent", "another document", "other heads")
"""Names of control twins, as `Edit.controls` gives them."""
_DOSES = re.compile(r"\b(top|anchors|random|retrieval)\(((?:[^(),]*,)*[^(),]*)\)")
_BY = re.compile(r"(.*) by ([\d.]+(?:\s*,\s*[\d.]+)*)")


@dataclass(frozen=True)
class EditOptions:
    """Where an edit acts and what it is asked among."""

    documents: int = 5
    """Documents that are shown."""
    layers: tuple[str, ...] = ("all",)
    """Layers that are edited: all, shallow, middle, deep, numbers and ranges (0-5); a curve for each."""
    rows: str = "all"
    """Rows whose attention is edited: all, or regions and states such as answer:masked."""
    at: str = "all"
    """Steps that are edited: all, first, last, numbers and ranges, shares of the run (0-50%)."""
    source: str = "previous"
    """Where picks by rank come from: the previous step, the first pass, or the unedited run at the same step."""
    by_head: bool = False
    """Pick tokens for each head apart."""
    controls: bool = True
    """Beside each edit that picks, its control twins."""
    twins: tuple[str, ...] = ()
    """Those that are run: as many, as much, ...; all where none is named."""
    answers: bool = True
    """Answer the questions under the edits too; without it right answers are replayed alone, which costs less."""
    places: tuple[int, ...] = ()
    """Places of the gold document, counted from 1, each with curves of its own; none: wherever it stands."""
    table: str = ""
    """Of heads retrieval(...): what `analyze retrieval_heads` wrote, a file, its folder or a run."""
    draws: int = 0
    """Monte Carlo draws of a bound on the right answer's log-probability, beside its replay; 0: none."""

    def __post_init__(self) -> None:
        check_documents(self.documents)
        if self.twins:
            check_names(self.twins, TWINS, "control twin")
        if self.draws < 0:
            raise UserError(f"draws = {self.draws}: give a number of draws, or 0 for none.")


def edit_conditions(values: str, options: EditOptions) -> tuple[Condition, ...]:
    """Unedited first, then every dose of every edit in every range of layers, each with its control twins."""
    found: list[Condition] = []
    for gold in options.places or (None,):
        if gold is None:
            shown, there = STRESSORS["documents"].conditions(str(options.documents))[0], ""
        else:
            placing = STRESSORS["position"].options(documents=options.documents)
            shown, there = STRESSORS["position"].conditions(str(gold), placing)[0], f", gold at {gold}"

        def condition(
            edit: str, dose: float, layers: str, twin: str, edits: tuple[Edit, ...], shown: Condition = shown,
            there: str = there, gold: int | None = gold,
        ) -> Condition:  # fmt: skip
            labels = {"edit": edit + there, "dose": dose, "layers": layers, "twin": twin, "place": gold}
            parts = ["edit", edit + there, *([f"{dose:g}", layers] if edits else ()), *([twin] if twin else ())]
            return Condition(
                "/".join(parts),
                "edit",
                labels,
                stream=shown.stream,
                transform=shown.transform,
                edits=edits,
                draws=options.draws,
                answered=options.answers or (not edits and gold is None),  # that one is shared by all curves
            )

        found.append(condition(UNEDITED, 0.0, "all", "", ()))
        for text in filter(None, (part.strip() for part in values.split(";"))):
            name = " ".join(_DOSES.sub(r"\1", _BY.sub(r"\1", text)).split())  # without its doses: "block anchors"
            for layers in options.layers:
                for edit, dose in read_doses(text, layers, options):
                    found.append(condition(name, dose, layers, "", (edit,)))
                    found += [
                        condition(name, dose, layers, twin, (one,))
                        for twin, one in edit.controls().items()
                        if options.controls and (not options.twins or twin in options.twins)
                    ]
    return tuple({one.name: one for one in found}.values())


def read_doses(text: str, layers: str, options: EditOptions) -> Iterator[tuple[Edit, float]]:
    """The edits of "block anchors(1,3,5)" or "scale doc 2 by 0.5,2", with the number in which each differs."""
    from floatscope.probe.edits import read_edit

    where: dict[str, Any] = {"layers": layers, "rows": options.rows, "steps": options.at}
    where |= {"source": options.source, "by_head": options.by_head}
    if text.startswith("heads") and Path(options.table).exists():  # one that is not there is told when the run begins
        where["table"] = options.table
    if factors := _BY.fullmatch(text):
        edits = {factor: f"{factors[1]} by {factor:g}" for factor in _numbers(factors[2], text)}
    elif doses := _DOSES.search(text):
        *counts, last = (part.strip() for part in doses[2].split(","))
        pool = f", {last}" if counts and not re.match(r"[\d.]", last) else ""
        edits = {
            number: f"{text[: doses.start()]}{doses[1]}({number:g}{pool}){text[doses.end() :]}"
            for number in _numbers(",".join(counts if pool else [*counts, last]), text)
        }
    else:
        edits = {float((text.startswith("heads") and text.count(".")) or 1): text}
    for dose, edit in edits.items():
        yield replace(read_edit(edit), **where), dose


def _numbers(text: str, whole: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise UserError(
            f"The doses {text!r} of {whole!r} are not numbers: write them as in block anchors(1,3,5)."
        ) from error


STRESSORS.add(
    "edit",
    Stressor(
        name="edit",
        summary="Edits of attention, separated by semicolons",
        example="block anchors(1,3,5); keep top(8,32)",
        make=edit_conditions,
        labels={"edit": str, "dose": float, "layers": str, "twin": str, "place": int},
        axis=Axis("dose", "dose", "{edit}, {layers} layers", twin="twin", shared=("place",)),
        options=EditOptions,
    ),
)
