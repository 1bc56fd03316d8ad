"""Scores as text, whole, from numbers written down by hand."""

import io

import polars as pl
import pytest

from floatscope.errors import UserError
from floatscope.reports.tables import write_tables
from tests.reports.making import score_row, score_table

NAMED = "guess: me_2"
NOTES = {"documents": ["n = 2 to 4 samples per cell."], "stress": ["n = 3 samples per cell."]}


def every_metric(model: str, statistic: str, *numbers, **labels) -> list[dict]:
    """The same numbers for accuracy, half of them for F1, and exact match, which texts leave out."""
    half = [number if number is None else number / 2 for number in numbers]
    return [
        score_row(model, statistic, *values, metric=metric, **labels)
        for metric, values in (("accuracy", numbers), ("em", (0.123, 0.123, 0.123)), ("f1", half))
    ]


def made() -> pl.DataFrame:
    """A model whose name starts as that of a guess, one that lacks task b, a guess; a comparison; two conditions."""
    rows: list[dict] = []
    for model, statistic, cells in (
        (NAMED, "score", {(0, "a"): (0.1, 0.05, 0.3), (0, "b"): (0.0, 0.0, 0.2), (0, None): (0.05, 0.02, 0.1),
                          (5, "a"): (0.9, 0.7, 0.95), (5, "b"): (1.0, 0.8, 1.0), (5, None): (0.95, 0.85, 0.99)}),
        (NAMED, "gain", {(5, "a"): (0.8, 0.5, 0.9), (5, "b"): (1.0, 1.0, 1.0), (5, None): (-0.004, -0.1, 0.95)}),
        ("m|n", "score", {(0, "a"): (0.2, 0.1, 0.4), (0, "b"): (None,), (0, None): (None,),
                          (5, "a"): (0.4, 0.3, 0.5), (5, "b"): (None,), (5, None): (None,)}),
        ("m|n", "gain", {(5, "a"): (0.2, -0.1, 0.4), (5, "b"): (None,), (5, None): (None,)}),
        ("other", "guess", {(0, "a"): (0.0, 0.0, 0.3), (0, "b"): (0.0, 0.0, 0.3), (0, None): (0.0, 0.0, 0.0),
                            (5, "a"): (0.25, 0.1, 0.6), (5, "b"): (0.0, 0.0, 0.3), (5, None): (0.125, 0.0, 0.25)}),
    ):  # fmt: skip
        for (documents, task), numbers in cells.items():
            rows += every_metric(model, statistic, *numbers, documents=documents, task=task)
    pair = {"documents": 5, "beside": "m|n"}
    rows.append(score_row(NAMED, "difference", 0.6, 0.25, 0.75, 0.0004, **pair))
    rows.append(score_row(NAMED, "only right", 0.5, None, None, 0.21875, n=10, **pair))
    rows.append(score_row("m|n", "only right", 0.1, None, None, 0.21875, n=10, documents=5, beside=NAMED))
    rows.append(score_row(NAMED, "difference", -0.05, -0.2, 0.1, 0.333, task=None, **pair))
    for condition, stressor, value in (("oracle", "baseline", 1.0), ("slots/8", "slots", 0.5)):
        for model, statistic in ((NAMED, "score"), ("m|n", "score"), ("other", "guess")):
            rows += every_metric(model, statistic, value, 0.25, 1.0, condition=condition, stressor=stressor)
    return score_table(rows)


MARKDOWN = r"""
**Accuracy and F1 in percent with 95 % intervals; gain: with documents minus without, paired by sample**

| model | documents | a Acc | a F1 | b Acc | b F1 | Avg Acc | Avg F1 |
| --- | --- | --- | --- | --- | --- | --- | --- |
| guess: me_2 | 0 | 10.0 [5.0, 30.0] | 5.0 [2.5, 15.0] | 0.0 [0.0, 20.0] | 0.0 [0.0, 10.0] | 5.0 [2.0, 10.0] | 2.5 [1.0, 5.0] |
| guess: me_2 | 5 | 90.0 [70.0, 95.0] | 45.0 [35.0, 47.5] | 100.0 [80.0, 100.0] | 50.0 [40.0, 50.0] | 95.0 [85.0, 99.0] | 47.5 [42.5, 49.5] |
| guess: me_2 | gain of 5 | +80.0 [+50.0, +90.0] | +40.0 [+25.0, +45.0] | +100.0 [+100.0, +100.0] | +50.0 [+50.0, +50.0] | -0.4 [-10.0, +95.0] | -0.2 [-5.0, +47.5] |
| m\|n | 0 | 20.0 [10.0, 40.0] | 10.0 [5.0, 20.0] |  |  |  |  |
| m\|n | 5 | 40.0 [30.0, 50.0] | 20.0 [15.0, 25.0] |  |  |  |  |
| m\|n | gain of 5 | +20.0 [-10.0, +40.0] | +10.0 [-5.0, +20.0] |  |  |  |  |
| guess: other | 0 | 0.0 [0.0, 30.0] | 0.0 [0.0, 15.0] | 0.0 [0.0, 30.0] | 0.0 [0.0, 15.0] | 0.0 [0.0, 0.0] | 0.0 [0.0, 0.0] |
| guess: other | 5 | 25.0 [10.0, 60.0] | 12.5 [5.0, 30.0] | 0.0 [0.0, 30.0] | 0.0 [0.0, 15.0] | 12.5 [0.0, 25.0] | 6.2 [0.0, 12.5] |

n = 2 to 4 samples per cell.

**Differences of gains in accuracy (first minus second, paired bootstrap), and McNemar's test with documents**

| first | second | task | documents | difference of gains | p | only first right | only second right | McNemar p |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| guess: me_2 | m\|n | a | 5 | +60.0 [+25.0, +75.0] | < 0.001 | 5 | 1 | 0.22 |
| guess: me_2 | m\|n | Avg | 5 | -5.0 [-20.0, +10.0] | 0.33 |  |  |  |

**Accuracy and F1 in percent with 95 % intervals, by condition**

| task | condition | guess: me_2 Acc | guess: me_2 F1 | m\|n Acc | m\|n F1 | guess: other Acc |
| --- | --- | --- | --- | --- | --- | --- |
| a | oracle | 100.0 [25.0, 100.0] | 50.0 [12.5, 50.0] | 100.0 [25.0, 100.0] | 50.0 [12.5, 50.0] | 100.0 [25.0, 100.0] |
| a | slots/8 | 50.0 [25.0, 100.0] | 25.0 [12.5, 50.0] | 50.0 [25.0, 100.0] | 25.0 [12.5, 50.0] | 50.0 [25.0, 100.0] |

n = 3 samples per cell.
"""  # noqa: E501  a table has long lines


def test_markdown_whole():
    assert write_tables(made(), NOTES, "markdown") == MARKDOWN.lstrip("\n")


def test_latex_whole_for_one_model_and_one_task():
    rows = [
        score_row("m_1", "score", 0.5, 0.25, 0.75, documents=0, task="a&b"),
        score_row("m_1", "score", 0.5, 0.25, 0.75, documents=0, task="a&b", metric="f1"),
    ]
    assert write_tables(score_table(rows), {"documents": ["n = 4 samples per cell."], "stress": []}, "latex") == (
        "\\begin{table}\n\\centering\n"
        "\\caption{Accuracy and F1 in percent with 95 \\% intervals; gain: with documents minus without, paired by "
        "sample. n = 4 samples per cell.}\n"
        "\\begin{tabular}{llll}\n\\toprule\n"
        "model & documents & a\\&b Acc & a\\&b F1 \\\\\n\\midrule\n"
        "m\\_1 & 0 & 50.0 [25.0, 75.0] & 50.0 [25.0, 75.0] \\\\\n"
        "\\bottomrule\n\\end{tabular}\n\\end{table}\n"
    )


def test_latex_has_the_cells_of_markdown():
    shown = [
        line.strip("| ").replace(r"\|", "|").split(" | ") for line in MARKDOWN.splitlines() if line.startswith("|")
    ]
    lines = [line for line in write_tables(made(), NOTES, "latex").splitlines() if line.endswith(r" \\")]
    cells = [[cell.replace(r"\_", "_") for cell in line.removesuffix(r" \\").split(" & ")] for line in lines]
    written = [row for row in shown if row[0] != "---"]
    assert [[cell.strip() for cell in row] for row in cells] == [
        [*row, *[""] * (len(found) - len(row))] for row, found in zip(written, cells, strict=True)
    ]


def test_csv_is_the_long_table_itself():
    read = pl.read_csv(io.StringIO(write_tables(made(), NOTES, "csv")), schema=made().schema)
    assert read.equals(made())


def test_names_neither_steer_a_terminal_nor_become_formulas():
    wicked = {"m": "=HYPERLINK(1)", "n": "@n", "o": "+o", "p": "-p", "q": "q\x1b[31m\x9b\r"}
    table = score_table(score_row(name, "score", -0.5, -0.6, 0.7, documents=0) for name in wicked.values())
    lines = write_tables(table, NOTES, "csv").splitlines()[1:]
    assert [line.split(",")[0] for line in lines] == ["'=HYPERLINK(1)", "'@n", "'+o", "'-p", "q\ufffd[31m\ufffd\ufffd"]
    assert {tuple(line.split(",")[8:11]) for line in lines} == {("-0.5", "-0.6", "0.7")}  # numbers stay numbers
    for form in ("markdown", "latex"):
        text = write_tables(table, NOTES, form)
        assert "q\ufffd[31m\ufffd\ufffd" in text and all(letter == "\n" or letter.isprintable() for letter in text)


def test_no_such_format_and_nothing_to_write():
    with pytest.raises(UserError, match="no table format 'html'; known are markdown, latex, csv"):
        write_tables(made(), NOTES, "html")
    with pytest.raises(UserError, match="no results yet"):
        write_tables(made().clear(), NOTES, "markdown")


def effect(metric: str, value: float, p: float | None, beside: str = "unedited", **labels) -> dict:
    """An effect of an edit on a metric, from half of it to twice as much."""
    about = {"stressor": "edit", "condition": "edit/sink/1/all", "panel": "a, sink, all layers", "x": "1"} | labels
    return score_row("m", "effect", value, value / 2, value * 2, p, metric=metric, beside=beside, **about)


def rows_under(text: str, title: str) -> list[list[str]]:
    """The cells of the table whose title begins so, columns first."""
    lines = text.split(f"**{title}", 1)[1].split("\n\n")[1].splitlines()
    return [line[2:-2].split(" | ") for line in (lines[0], *lines[2:])]


def test_outcomes_stand_in_their_own_columns_in_percent_or_as_they_are():
    """Shares in percent, log-probabilities and steps as they are; p to two digits, of the smallest a bound."""
    rows = [
        effect("steps", -3.0, 0.5), effect("log_probability", -0.5, 0.0009), effect("kl", 0.25, 0.001),
        effect("changed", 0.25, 0.0123), effect("removed", 0.125, None), effect("f1", -0.125, 1.0),
        effect("bound", -1.0, 0.04), effect("spread", 0.5, 0.3), effect("log_probability_spread", 2.0, 0.2),
        effect("f1", 0.25, 0.05, "as many"), effect("accuracy", 0.5, 0.2), effect("accuracy", -0.5, 0.0001, "as many"),
    ]  # fmt: skip
    text = write_tables(score_table(rows), NOTES, "markdown")
    assert rows_under(text, "Effects of edits on accuracy") == [
        ["edit", "dose", "model", "beside", "effect", "p"],
        ["a, sink, all layers", "1", "m", "unedited", "+50.0 [+25.0, +100.0]", "0.2"],
        ["a, sink, all layers", "1", "m", "as many", "-50.0 [-25.0, -100.0]", "< 0.001"],
    ]
    names, own, other = rows_under(text, "Effects of edits on other outcomes")
    assert dict(zip(names, own, strict=True)) == {
        "edit": "a, sink, all layers", "dose": "1", "model": "m", "beside": "unedited",
        "F1": "-12.5 [-6.2, -25.0] (1)", "changed answers": "+25.0 [+12.5, +50.0] (0.012)",
        "log-probability": "-0.50 [-0.25, -1.00] (< 0.001)", "bound": "-1.00 [-0.50, -2.00] (0.04)",
        "KL at step 0": "+0.25 [+0.12, +0.50] (0.001)", "removed attention": "+12.5 [+6.2, +25.0] ()",
        "steps": "-3.00 [-1.50, -6.00] (0.5)", "spread over places": "+50.0 [+25.0, +100.0] (0.3)",
        "spread of log-probability": "+2.00 [+1.00, +4.00] (0.2)",
    }  # fmt: skip
    assert [cell for cell in other if cell] == [*own[:3], "as many", "+25.0 [+12.5, +50.0] (0.05)"]


def test_passages_have_their_metrics_in_one_order_and_bits_as_they_are():
    about = {"stressor": "passage", "documents": None}
    rows = [
        score_row("m", "score", 0.25, 0.125, 0.5, metric="recovered", condition="passage/infill", **about),
        score_row("m", "score", 4.25, 4.0, 4.5, metric="bits", condition="passage/infill", **about),
        score_row("m", "score", 0.5, 0.4, 0.6, metric="invented", condition="passage/infill", **about),
        score_row("m", "score", 0.75, 0.5, 1.0, metric="right", condition="passage/infill", **about),
        score_row("m", "score", 3.0, 2.0, 4.0, metric="bits", condition="passage/mirrored", **about),
    ]
    text = write_tables(score_table(rows), NOTES, "markdown")
    assert rows_under(text, "Passages: ") == [
        ["task", "condition", "model", "recovered", "bits per token", "facts right", "invented"],
        ["a", "passage/infill", "m", "25.0 [12.5, 50.0]", "4.25 [4.00, 4.50]", "75.0 [50.0, 100.0]",
         "50.0 [40.0, 60.0]"],
        ["a", "passage/mirrored", "m", "", "3.00 [2.00, 4.00]", "", ""],
    ]  # fmt: skip
