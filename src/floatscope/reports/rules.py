"""Rules of reading: what effect of an edit counts as present, written down before a run, and what its scores say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import polars as pl

LEVEL = 0.05


@dataclass(frozen=True)
class Rule:
    """A claim and the effect that decides it."""

    claim: str
    """What is said where the effect is there, in a sentence."""
    edit: str
    """The edit without its doses, as in the results: "block anchors"."""
    beside: str
    """What it is held to: unedited, or one of its control twins."""
    expect: Literal["lower", "higher"]
    """What the edit must do to the metric."""
    metric: str = "accuracy"
    """accuracy, f1, changed, steps, log_probability, bound, kl, removed; spread or log_probability_spread: of accuracy
    or log-probability over the places of the gold document."""
    layers: str = "all"
    """The range of layers that is edited."""
    models: tuple[str, ...] = ()
    """Models that it is about; all where left out."""

    @property
    def sentence(self) -> str:
        """The rule in words."""
        spreads = {"spread": "spread of accuracy", "log_probability_spread": "spread of log-probability"}
        metric = f"{spreads[self.metric]} over places" if self.metric in spreads else self.metric.replace("_", "-")
        return (
            f"present where {self.edit} ({self.layers} layers) gives a {self.expect} {metric} than {self.beside} at "
            f"one dose at least, with p < {LEVEL} after Holm's correction; reversed where it does the contrary"
        )


def verdicts(scores: pl.DataFrame, rules: Iterable[Rule], models: Sequence[str]) -> Iterator[dict[str, Any]]:
    """For each rule and model the dose that decides (the surest, of equals the strongest) and the verdict."""
    import polars as pl

    effects = scores.filter(pl.col("statistic") == "effect", pl.col("value").is_not_null())
    for rule in rules:
        own = effects.filter(metric=rule.metric, beside=rule.beside)
        for model in rule.models or models:
            doses = [
                row for row in own.filter(model=model).iter_rows(named=True) if _is_of(rule, str(row["condition"]))
            ]
            sign = -1 if rule.expect == "lower" else 1
            sure = [row for row in doses if row["p"] < LEVEL]
            for verdict, rows in (
                ("present", [row for row in sure if sign * row["value"] > 0]),
                ("reversed", sure),
                ("absent", doses),
                ("not measured", [dict.fromkeys(("x", "panel", "value", "low", "high", "p"))]),
            ):
                if rows:
                    best = min(rows, key=lambda row: (row["p"] or 0.0, -abs(row["value"] or 0.0)))
                    shown = {name: best[name] for name in ("panel", "x", "value", "low", "high", "p")}
                    yield {"rule": rule, "model": model, "metric": rule.metric, "verdict": verdict} | shown
                    break


def _is_of(rule: Rule, condition: str) -> bool:
    """Whether a condition, as in edit/block anchors/3/all, is a dose of the rule's edit; at any place of the gold."""
    _, edit, _, layers = condition.split("/")
    return layers == rule.layers and (edit == rule.edit or edit.startswith(f"{rule.edit}, gold at "))
