"""The tables of "Floating" in docs/findings.md, from runs of the studies floating and floating-smollm2.

    floatscope study floating
    python benchmarks/floating.py runs/floating --write docs/findings.md

The rules of reading stand at the top of the study files; the verdicts are those of `analyze drift`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import polars as pl

from findings import write
from findings_tables import interval, number

ORDERS = ("left-to-right", "random", "right-to-left")
SIDES = {"right": "continue", "left": "mirrored"}
MEASURES = {
    ("turnover", "all"): "turnover of anchors",
    ("correlation", "all"): "correlation of received attention",
    ("correlation", "context"): "the same, over the context's columns only",
    ("total_variation", "context"): "total variation, over the context's columns only",
    ("top_moved", "all"): "top position moved, share of layers and samples",
}


def main() -> None:
    """Print the tables of each run, or put them between the markers of a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of finished runs")
    parser.add_argument("--write", type=Path, help="a page with the markers of floating")
    arguments = parser.parse_args()
    text = "\n\n".join(chapter(folder) for folder in arguments.runs)
    if arguments.write is None:
        print(text)
    else:
        write(arguments.write, "floating", text)


def chapter(folder: Path) -> str:
    """From the first step to the last; where to; and what the rules say."""
    names = ("drift", "drift_depth", "drift_ends_depth", "drift_states", "drift_verdicts")
    tables = {name: pl.read_parquet(folder / "tables" / f"{name}.parquet") for name in names}
    ends = tables["drift_ends_depth"].filter(depth="all", rows="all")
    models = ends["model"].unique(maintain_order=True).to_list()
    first = next(name for name in ends["condition"].unique(maintain_order=True) if "left-to-right" in name)
    right = ends.filter(condition=first)
    rows = [
        [title, *(cell(right.filter(model=model, measure=measure, columns=columns)) for model in models)]
        for (measure, columns), title in MEASURES.items()
    ]
    states = tables["drift_states"].filter(condition=first, state="context")
    for percent, when in ((0, "first"), (100, "last")):
        inside = [states.filter(model=model, percent=percent) for model in models]
        rows.append([f"anchors inside the answer at the {when} step", *(cell(flipped(part)) for part in inside)])
    step = tables["drift_depth"].filter(condition=first, measure="turnover", depth="all")
    rows.append(["turnover from one step to the next", *(cell(step.filter(model=model)) for model in models)])
    verdicts = tables["drift_verdicts"]
    written = [model for model in models if verdicts.filter(model=model).height]
    ways = []
    for order in (*ORDERS, ""):
        for side, layout in SIDES.items():
            own = ends.filter(pl.col("condition").str.contains(f"/{layout}"), measure="rightward", side=side)
            chosen = pl.col("condition").str.contains(order) if order else ~pl.col("condition").str.contains("replay")
            found = [cell(own.filter(chosen, model=model), signed=True) for model in written]
            if any(part != "–" for part in found):
                ways.append([order or "its own words, surest first", side, *found])
    told = [
        [row["model"], row["claim"], row["verdict"]]
        for row in verdicts.filter(pl.col("claim") != "floating").unique(["model", "claim"], keep="first",
                                                                          maintain_order=True).iter_rows(named=True)
    ]  # fmt: skip
    for row in verdicts.filter(claim="floating", condition=first, measure="turnover", columns="all").iter_rows(
        named=True
    ):
        told.append([row["model"], f"floating, against {row['beside']}", f"{interval(row, 2)}: {row['verdict']}"])
    samples = right["samples"].max()
    return "\n\n".join(
        [
            f"### {folder.name}: first step against last step (n = {samples}, true text filled in left to right)",
            grid(["answer at the right", *models], rows),
            "In brackets 95 % intervals over samples, then the control: the same before training.",
            "### Where the most attended position goes (Spearman with the step, positive: to the right)",
            grid(["order of commits", "answer at the", *written], ways),
            "### By the rules of the study file",
            grid(["model", "claim", "verdict"], told),
        ]
    )


def flipped(part: pl.DataFrame) -> pl.DataFrame:
    """Shares outside of the context in place of those inside."""
    outside = {"value": "value", "low": "high", "high": "low", "untrained": "untrained"}
    return part.with_columns(**{name: (1 - pl.col(other)).clip(0) for name, other in outside.items()})


def cell(part: pl.DataFrame, signed: bool = False) -> str:
    """A value with its interval and its untrained control."""
    if part.is_empty() or part["value"][0] is None:
        return "–"
    row = part.row(0, named=True)
    control = "" if signed or row["untrained"] is None else f", {number(row['untrained'], 2)}"
    return f"{interval(row, 2)}{control}"


def grid(columns: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *rows))


if __name__ == "__main__":
    main()
