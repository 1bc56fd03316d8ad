"""Tables recomputed by hand from the rows of the database, and their three forms."""

import csv
import io
import random
import sqlite3
from itertools import combinations

import polars as pl
import pytest

from floatscope.errors import UserError
from floatscope.qa.statistics import Difference, Interval
from floatscope.study.store import Row, Store
from floatscope.study.table_text import write_tables
from floatscope.study.tables import tables
from floatscope.study.units import Unit


def by_name(results):
    return {table.name: table for table in tables(results)}


def cells(table):
    """{(row's leading texts): {column: value}}"""
    return {tuple(v for v in row[:2]): dict(zip(table.columns, row, strict=True)) for row in table.rows}


def test_scores_and_gains_are_those_of_the_rows(outcome):
    database = sqlite3.connect(outcome.run.folder / "results.sqlite")
    query = "SELECT model, task, condition, sample, accuracy, f1 FROM results WHERE control = ''"
    values = {row[:4]: row[4:] for row in database.execute(query)}
    table = by_name(outcome.run.results())["headline"]
    found = cells(table)
    for model in ("twin-arm", "twin-llada"):
        means = {}
        for task in ("rag", "twohop"):
            for count in (0, 3):
                own = [v for (m, t, c, _), v in values.items() if (m, t, c) == (model, task, f"documents/{count}")]
                assert len(own) == 5
                for place, metric in enumerate(("Acc", "F1")):
                    mean = means[task, count, metric] = sum(v[place] for v in own) / 5
                    cell = found[model, str(count)][f"{task} {metric}"]
                    assert cell.estimate == pytest.approx(mean) and cell.n == 5
                    assert cell.low - 1e-9 <= mean <= cell.high + 1e-9
            gain = found[model, "gain of 3"][f"{task} Acc"]
            assert gain.interval.estimate == pytest.approx(means[task, 3, "Acc"] - means[task, 0, "Acc"])
        average = (means["rag", 3, "F1"] + means["twohop", 3, "F1"]) / 2
        assert found[model, "3"]["Avg F1"].estimate == pytest.approx(average)
    assert ("guess: nearest-sentence", "3") in found


def made(cases) -> pl.DataFrame:
    """A results table of (model, condition, sample, accuracy) rows, by way of a real store."""
    rows = []
    for model, condition, sample, accuracy in cases:
        labels = {"documents": int(condition.split("/")[1])}
        unit = Unit(model, "t", condition, f"s{sample}")
        scores = {"error": "x"} if accuracy is None else {"accuracy": accuracy, "f1": accuracy}
        rows.append(Row(unit, sample, "documents", labels, "q", ("a",), **scores))
    return rows


@pytest.fixture
def results(tmp_path):
    """Two models, 40 samples; accuracies by a seeded coin; two units failed."""
    coin = random.Random(4)
    chances = {("a", 0): 0.1, ("a", 5): 0.5, ("b", 0): 0.1, ("b", 5): 0.9}
    cases = []
    for (model, count), chance in chances.items():
        for sample in range(40):
            failed = (model, count, sample) in (("a", 5, 3), ("b", 0, 7))
            cases.append((model, f"documents/{count}", sample, None if failed else float(coin.random() < chance)))
    with Store(tmp_path) as store:
        store.put(made(cases))
    found = sqlite3.connect(tmp_path / "results.sqlite").execute(
        "SELECT model, task, condition, stressor, control, sample, accuracy, f1, error FROM results"
    )
    names = ("model", "task", "condition", "stressor", "control", "sample", "accuracy", "f1", "error")
    frame = pl.DataFrame([dict(zip(names, row, strict=True)) for row in found], infer_schema_length=None)
    documents = pl.col("condition").str.split("/").list.last().cast(pl.Int64)
    return frame.with_columns(documents.alias("documents"), (pl.col("error").cast(pl.String)))


def test_differences_of_gains_and_mcnemar_by_hand(results):
    table = by_name(results)["comparisons"]
    (row,) = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    value = {(m, c, s): v for m, c, s, v in results.select("model", "documents", "sample", "accuracy").iter_rows()}
    whole = [s for s in {s for *_, s in value} if all(value[m, c, s] is not None for m in "ab" for c in (0, 5))]
    assert len(whole) == 38
    by_hand = sum((value["a", 5, s] - value["a", 0, s]) - (value["b", 5, s] - value["b", 0, s]) for s in whole) / 38
    found = row["difference of gains"]
    assert isinstance(found, Difference) and found.interval.estimate == pytest.approx(by_hand)
    assert found.interval.low < by_hand < found.interval.high and found.interval.n == 38
    both = [s for s in {s for *_, s in value} if None not in (value["a", 5, s], value["b", 5, s])]
    only_b = sum(value["b", 5, s] > value["a", 5, s] for s in both)
    only_a = sum(value["a", 5, s] > value["b", 5, s] for s in both)
    assert (row["only first right"], row["only second right"]) == (str(only_a), str(only_b))
    # the exact two-sided binomial by counting: all outcomes of n fair coins at most as likely as this
    n = only_a + only_b
    chance = (
        sum(len(list(combinations(range(n), k))) for k in range(min(only_a, only_b) + 1)) / 2**n if n < 16 else None
    )
    assert row["McNemar p"] == pytest.approx(min(1, 2 * chance)) if chance is not None else row["McNemar p"] < 0.05


def test_failed_units_are_told_and_left_out(results):
    table = by_name(results)["headline"]
    assert any("2 of 160 units failed" in note and "x" in note for note in table.notes)
    assert cells(table)["a", "5"]["t Acc"].n == 39


def test_markdown_latex_and_csv_hold_the_same_numbers(results):
    made_tables = tables(results)
    acc = cells(made_tables[0])["b", "5"]["t Acc"]
    assert isinstance(acc, Interval)
    shown = f"{100 * acc.estimate:.1f} [{100 * acc.low:.1f}, {100 * acc.high:.1f}]"
    assert shown in write_tables(made_tables, "markdown")
    latex = write_tables(made_tables, "latex")
    assert shown in latex and r"\begin{tabular}" in latex and "95 \\%" in latex
    lines = list(csv.reader(io.StringIO(write_tables(made_tables, "csv").split("\n\n")[0])))
    row = next(line for line in lines if line[1:3] == ["b", "5"])
    numbers = dict(zip(lines[0], row, strict=True))
    assert [float(numbers[f"t Acc{end}"]) for end in ("", " low", " high")] == pytest.approx(
        [acc.estimate, acc.low, acc.high], rel=1e-5
    )
    with pytest.raises(UserError, match="no table format"):
        write_tables(made_tables, "html")


def test_a_run_without_results_says_so():
    with pytest.raises(UserError, match="no results yet"):
        write_tables([], "markdown")
