"""Table 1 as HTML: models by task, without and with documents, and what documents add, each with its interval."""

from collections.abc import Sequence

import polars as pl
from markupsafe import Markup

from floatscope.reports.markup import render
from floatscope.reports.tables import AVERAGE


def headline_html(scores: pl.DataFrame, models: Sequence[str]) -> Markup:
    """The accuracies and gains of a run (`Run.scores`) with each number of documents: models in order, then guesses."""
    own = scores.filter(stressor="documents", metric="accuracy")
    gained = own.filter(statistic="gain")
    counts, gains = (part["documents"].unique().sort(nulls_last=True).to_list() for part in (own, gained))
    known = gained.drop_nulls("value")
    groups = []
    for task in own["task"].unique(maintain_order=True):
        part = own.filter(pl.col("task").eq_missing(task))
        rows = []
        for statistic in ("score", "guess"):
            names = part.filter(statistic=statistic)["model"].unique(maintain_order=True).to_list()
            for name in sorted(names, key=lambda name: models.index(name) if name in models else len(models)):
                entries = part.filter(model=name).iter_rows(named=True)
                found = {(row["statistic"], row["documents"]): row for row in entries}
                guess = statistic == "guess"  # which has no gains
                rows.append(
                    {
                        "name": name,
                        "guess": guess,
                        "scores": [found.get((statistic, count)) for count in counts],
                        "gains": [None if guess else found.get(("gain", count)) for count in gains],
                    }
                )
        groups.append((AVERAGE if task is None else task, rows))
    return render(
        "headline.html",
        counts=counts,
        gains=gains,
        groups=groups,
        left=min([0.0, *known["low"]]),
        right=max([0.01, *known["high"]]),
    )
