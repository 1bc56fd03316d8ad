"""Scores as text, whole, from numbers written down by hand."""

import io

import polars as pl
import pytest

from floatscope.errors import UserError
from floatscope.report.tables import write_tables
from tests.report.making import score_row, score_table

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
