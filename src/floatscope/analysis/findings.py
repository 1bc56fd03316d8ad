"""Numbers as people read them, and the sentence with the numbers of a run that stands under a figure's title."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl


def number_text(value: float | None, digits: int = 3) -> str:
    """A number for people: significant digits, a real minus sign, a dash for none."""
    if value is None:
        return "–"
    if value and abs(value) < 10**-digits / 2:
        return f"{value:.1g}".replace("-", "−")
    text = f"{value:.{digits}f}" if abs(value) < 10 else f"{value:.1f}"
    return text.replace("-", "−")


def interval_text(value: float | None, low: float | None, high: float | None, digits: int = 2) -> str:
    """0.93 [0.85, 0.98]"""
    if low is None or high is None:
        return number_text(value, digits)
    return f"{number_text(value, digits)} [{number_text(low, digits)}, {number_text(high, digits)}]"


def by_model(table: pl.DataFrame, models: Sequence[str], column: str = "value") -> dict[str, float]:
    """Mean over layers of one column, by model."""
    known = table.drop_nulls(column).group_by("model").agg(pl.col(column).mean())
    means = dict(known.iter_rows())
    return {model: means[model] for model in models if model in means}


def rows_by_model(table: pl.DataFrame, models: Sequence[str], digits: int = 3) -> dict[str, str]:
    """The one row of each model, with its interval and, where there is one, its p."""
    found = {}
    for row in table.drop_nulls("value").iter_rows(named=True):
        p = f", p = {number_text(row['p'])}" if row.get("p") is not None else ""
        found[row["model"]] = interval_text(row["value"], row["low"], row["high"], digits) + p
    return {model: found[model] for model in models if model in found}


def sentence(
    what: str, values: Mapping[str, Any], controls: Mapping[str, Mapping[str, Any]] | None = None, digits: int = 2
) -> str:
    """`what`: model value (control value, ...), ...; values are numbers, or texts as they are."""
    if not values:
        return ""

    def written(value: Any) -> str:
        return value if isinstance(value, str) else number_text(value, digits)

    parts = []
    for model, value in values.items():
        beside = [f"{name} {written(known[model])}" for name, known in (controls or {}).items() if model in known]
        parts.append(f"{model} {written(value)}" + (f" ({', '.join(beside)})" if beside else ""))
    return f"{what}: {'; '.join(parts) if any(', ' in part for part in parts) else ', '.join(parts)}."
