"""From a run to its page: numbers of the page against the rows of the run, sentences whatever the numbers say."""

import json
import re

import polars as pl
import pytest

from floatscope.analysis import Result
from floatscope.qa.statistics import Difference, Interval
from floatscope.study.reporting import gather, headline_frame, ordered_models, stress_frame, write_report
from floatscope.study.running import Run
from floatscope.study.summary import summary_sentences
from tests.study.small_studies import small_study  # noqa: F401  the study behind `outcome`

KINDS = {"m": "mdm", "a": "arm"}


def headline(m: float, a: float) -> pl.DataFrame:
    rows = [
        ("t", model, documents, "Acc", value, value - 0.1, value + 0.1, 50)
        for model, gain in (("a", a), ("m", m))
        for documents, value in (("0", 0.1), ("5", 0.1 + gain), ("gain of 5", gain))
    ]
    names = ("task", "model", "documents", "metric", "value", "low", "high", "samples")
    return pl.DataFrame(rows, schema=names, orient="row")


def compared(estimate: float, low: float, high: float) -> list[tuple]:
    """The ARM stands first, as in a study that names it first."""
    return [("a", "m", "t", "5", Difference(Interval(estimate, low, high, 0.95, 50), 0.01), 0.01, "1", "2", 0.5)]


@pytest.mark.parametrize(
    ("difference", "told"),
    [
        ((-0.2, -0.3, -0.1), "m gains more than a, by +20 [+10, +30]"),
        ((0.2, 0.1, 0.3), "m gains less than a, by −20 [−30, −10]"),
        ((0.05, -0.1, 0.2), "between m and a no difference can be told, −5 [−20, +10]"),
    ],
)
def test_the_verdict_follows_the_interval(difference, told):
    scores, gains = summary_sentences(headline(0.7, 0.5), compared(*difference), {}, KINDS)
    assert (
        scores
        == "With 5 documents m answers 80 % [70, 90] of 50 questions right and a 60 % [50, 70]; without documents 10 %."
    )
    assert gains == f"Documents add +70 points to m and +50 points to a; {told}."


def test_attention_is_told_with_its_controls():
    drift = pl.DataFrame(
        {
            "model": ["m", "m", "a"],
            "measure": ["turnover"] * 3,
            "value": [0.1, 0.3, None],
            "untrained": [0.5, 0.7, None],
        }
    )
    told = summary_sentences(headline(0.7, 0.5), [], {"drift": Result("drift", {"drift": drift})}, KINDS)[-1]
    assert told == "From step to step the share of anchors that change is 20.0 % in m (untrained 60.0 %)."


def test_nothing_to_sum_up():
    assert summary_sentences(headline(0.7, 0.5).clear(), [], {}, {}) == ()


def test_table_1_in_long_form():
    interval = Interval(0.5, 0.4, 0.6, 0.95, 10)
    rows = [("m", "5", interval, None), ("m", "gain of 5", Difference(interval, 0.1), None)]
    found = headline_frame(rows, ("model", "documents", "two words Acc", "two words F1"))
    assert found["task"].unique().to_list() == ["two words"] and found.height == 4
    assert found.filter(metric="Acc")["low"].to_list() == [0.4, 0.4]
    assert found.filter(metric="F1")["value"].to_list() == [None, None]


def test_diffusers_come_first():
    assert ordered_models(["a", "x", "m"], KINDS) == ("x", "m", "a")


def test_curves_with_their_baselines():
    rows = [
        (model, control, condition, stressor, place, right)
        for model, control in (("m", ""), ("g", "guess"))
        for condition, stressor, place, scores in (
            ("closed-book", "baseline", None, (0.0, 0.0)),
            ("oracle", "baseline", None, (1.0, 1.0)),
            ("position/3/0", "position", 0, (1.0, 0.0)),
        )
        for right in scores
    ]
    table = pl.DataFrame(rows, schema=["model", "control", "condition", "stressor", "place", "accuracy"], orient="row")
    nothing = {name: pl.lit(None, pl.String).alias(name) for name in ("kind", "gold", "layout")}
    found = stress_frame(table.with_columns(pl.lit("t").alias("task"), pl.lit(3).alias("documents"), **nothing), ["m"])
    assert found.select("x", "value", "closed-book", "oracle", "guess", "samples").rows() == [
        ("0", 0.5, 0.0, 1.0, 0.5, 2)
    ]
    assert found["panel"].to_list() == ["t, among 3 documents"]


@pytest.mark.slow
def test_the_page_of_a_run_holds_its_numbers(outcome):
    run = Run(outcome.run.folder)
    content = gather(run, {})
    rows = run.results().filter(pl.col("error").is_null())
    assert content.headline is not None
    for task, model, documents, value in (
        content.headline.filter(metric="Acc")
        .drop_nulls("value")
        .select("task", "model", "documents", "value")
        .iter_rows()
    ):
        if documents.isdigit() and not model.startswith("guess"):
            cell = rows.filter(task=task, model=model, condition=f"documents/{documents}", control="")
            assert cell.is_empty() or value == pytest.approx(cell["accuracy"].mean())
    assert set(content.models) == {model.name for model in run.study.models}
    path = write_report(run, {})
    page = path.read_text(encoding="utf-8")
    assert path == run.folder / "report.html" and str(run.folder) not in page
    played = re.search(r'getElementById\("player-root"\), (.*?)\);</script>', page)
    kept = {path.name for path in run.traces()}
    if kept:
        assert played and json.loads(played[1])["samples"]
