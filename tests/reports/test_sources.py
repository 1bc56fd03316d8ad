"""Where answers came from: tables and figure of the frame that a run gives, their numbers and their words."""

import json
import re

import polars as pl
import pytest

from floatscope.reports.sources import MEASURES, source_figure, source_tables
from floatscope.reports.tables import markdown
from tests.reports.making import MODELS, made_attribution


def test_tables_have_every_method_by_measure_and_one_guess():
    first, second = source_tables(made_attribution())
    assert first.title.startswith("diffuser, a, attribution/3: ") and second.title.startswith("writer, a, ")
    assert first.columns == ["method", MEASURES["top_gold"], MEASURES["top_stands"], MEASURES["removal"]]
    assert first.rows == [
        ["leave_one_out", "0.90 [0.80, 1.00]", "0.85 [0.70, 1.00]", "12.0 [11.0, 13.0]"],
        ["attention", "0.60 [0.50, 0.70]", "", "8.00 [7.00, 9.00]"],
        ["a guess", "0.33", "0.33", "6.50"],
    ]
    assert first.notes == ["Chance that a right answer is above a wrong one: support 0.70 [0.60, 0.80]."]
    assert second.notes == ["Chance that a right answer is above a wrong one: support 0.55 [0.40, 0.80]."]
    assert "| leave_one_out | 0.90 [0.80, 1.00] |" in markdown(first)
    [wrong] = source_tables(made_attribution(), "wrong")
    assert "wrong answers" in wrong.title and wrong.rows[0] == ["leave_one_out", "0.20 [0.10, 0.30]"]
    assert source_tables(made_attribution().clear()) == []


def test_the_figure_says_whose_order_costs_most_and_what_support_tells():
    figure = source_figure(made_attribution(), MODELS)
    assert figure.finding == (
        "What leave_one_out puts first is what answers hang on most: diffuser 12.0 [11.0, 13.0] (a guess 6.50); writer "
        "10.0 [9.00, 11.0] (a guess 6.50) nats. Support tells right answers from wrong ones in diffuser for sure."
    )
    assert figure.table.height == made_attribution().height  # all of it is saved as CSV
    text = json.dumps(figure.spec())
    for title in (MEASURES["top_gold"], f"wrong answers: {MEASURES['top_gold']}", "right answers above wrong ones"):
        assert f'"{title}"' in text
    assert MEASURES["rank"] not in re.sub(r'"datasets".*', "", text)  # nothing was measured of it


def test_other_measures_where_nothing_was_removed():
    table = made_attribution().filter(pl.col("measure") != "removal", pl.col("measure") != "auroc")
    assert source_figure(table, MODELS).finding == (
        "leave_one_out names the right document most often: diffuser 0.85 [0.70, 1.00] (a guess 0.33)."
    )


@pytest.mark.slow
def test_tasks_and_conditions_have_panels_of_their_own():
    both = pl.concat([made_attribution(), made_attribution().with_columns(task=pl.lit("b"))])
    headings = [part["title"]["text"] for part in source_figure(both, MODELS).spec()["vconcat"]]
    assert "a, attribution/3. All answers" in headings and "b, attribution/3. All answers" in headings
    assert not any(
        "attribution/3" in part["title"]["text"] for part in source_figure(made_attribution(), MODELS).spec()["vconcat"]
    )
