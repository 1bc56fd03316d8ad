"""Tables as text: Markdown, LaTeX or CSV. What the numbers are is left to `tables`."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence

from floatscope.errors import UserError
from floatscope.qa.statistics import Difference, Interval
from floatscope.study.tables import Table, Value

_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"} | {
    c: f"\\{c}" for c in "&%$#_{}"
}


def write_tables(tables: Sequence[Table], form: str) -> str:
    """All tables in one text."""
    if form not in FORMS:
        raise UserError(f"There is no table format {form!r}; known are {', '.join(FORMS)}.")
    if not tables:
        raise UserError("The run has no results yet: there is nothing to make a table of.")
    return "\n".join(FORMS[form](table) for table in tables)


def _markdown(table: Table) -> str:
    lines = [f"**{table.title}**", "", _pipes(table.columns), _pipes(["---"] * len(table.columns))]
    lines += [_pipes([_text(value).replace("|", "\\|") for value in row]) for row in table.rows]
    return "\n".join([*lines, "", *(f"{note}\n" for note in table.notes)])


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _latex(table: Table) -> str:
    """A booktabs table."""
    names = [name for name in table.columns]
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_escaped(' '.join([table.title + '.', *table.notes]))}}}"]
    lines += [
        rf"\begin{{tabular}}{{{'l' * len(names)}}}",
        r"\toprule",
        rf"{' & '.join(map(_escaped, names))} \\",
        r"\midrule",
    ]
    lines += [rf"{' & '.join(_escaped(_text(value)) for value in row)} \\" for row in table.rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _escaped(text: str) -> str:
    return re.sub(r"[\\~^&%$#_{}]", lambda found: _LATEX[found[0]], text)


def _csv(table: Table) -> str:
    """Numbers in columns of their own: X, X low, X high; shares, not percent."""
    spread = [
        any(isinstance(row[place], Interval | Difference) for row in table.rows) for place in range(len(table.columns))
    ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    header: list[str] = []
    for name, wide in zip(table.columns, spread, strict=True):
        header += [name, f"{name} low", f"{name} high"] if wide else [name]
    writer.writerow(["table", *header])
    for row in table.rows:
        cells: list[str] = []
        for value, wide in zip(row, spread, strict=True):
            cells += _numbers(value) if wide else ["" if value is None else str(value)]
        writer.writerow([table.name, *cells])
    return out.getvalue()


def _numbers(value: Value) -> list[str]:
    found = value.interval if isinstance(value, Difference) else value
    if not isinstance(found, Interval):
        return ["", "", ""]
    return [f"{round(number, 9):.6g}" for number in (found.estimate, found.low, found.high)]


def _text(value: Value) -> str:
    if isinstance(value, Difference):
        inside = value.interval
        return f"{100 * inside.estimate:+.1f} [{100 * inside.low:+.1f}, {100 * inside.high:+.1f}]"
    if isinstance(value, Interval):
        return f"{100 * value.estimate:.1f} [{100 * value.low:.1f}, {100 * value.high:.1f}]"
    if isinstance(value, float):
        return f"{value:.2g}" if value >= 0.001 else "< 0.001"
    return "" if value is None else str(value)


FORMS: dict[str, Callable[[Table], str]] = {"markdown": _markdown, "latex": _latex, "csv": _csv}
