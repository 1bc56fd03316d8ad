"""The long table of scores against numbers worked out by hand and resamples that are all counted."""

import itertools
import json
import math
import sqlite3

import numpy as np
import polars as pl
import pytest

from floatscope.study.scores import METRICS, score_frame, table_notes
from floatscope.study.store import Run

pytestmark = pytest.mark.slow

LABELS = {"documents": pl.Int64, "place": pl.Int64, "level": pl.Int64, "slots": pl.Int64} | dict.fromkeys(
    ("kind", "gold", "layout", "value", "placement"), pl.String
)
NONE, FIVE = "documents/0", "documents/5"

# stressor and labels of each condition, and its place on a curve: panel, title of the axis, x
CONDITIONS = {
    NONE: ("documents", {"documents": 0}, None),
    FIVE: ("documents", {"documents": 5}, None),
    "closed-book": ("baseline", {}, None),
    "oracle": ("baseline", {}, None),
    "noise/topical/kept/2": (
        "noise",
        {"kind": "topical", "gold": "kept", "level": 2},
        ("t, topical distractors, gold kept", "distractors", "2"),
    ),
    "position/3/0": (
        "position",
        {"documents": 3, "place": 0},
        ("t, among 3 documents", "place of the gold document", "0"),
    ),
    "layout/3/gap/1": ("layout", {"layout": "gap", "value": "1", "documents": 3}, ("t, gap", "layout", "1")),
    "slots/8": ("slots", {"slots": 8}, ("t", "answer slots", "8")),
    "question/before": ("question", {"placement": "before"}, ("t", "the question stands", "before")),
}

# accuracy by model (and its control), task and condition, sample after sample; None: the unit failed.
# Task b is smaller than a, so that an average over tasks is not one over samples. A model may be called "guess...".
RIGHT = {
    ("guess-me", ""): {("a", NONE): (0, 0, 1, 0), ("a", FIVE): (1, 1, 1, 0), ("b", NONE): (0, 0), ("b", FIVE): (1, 0)},
    ("m", ""): {("a", NONE): (0, 0, 0, 0), ("a", FIVE): (1, 1, 0, 1), ("b", NONE): (0, 1), ("b", FIVE): (1, 1)},
    ("z", ""): {("a", NONE): (1, 0, 0, 0), ("a", FIVE): (None, 0, 0, 0), ("b", NONE): (0, 0), ("b", FIVE): (0, 0)},
    ("m", "untrained"): {("a", FIVE): (1, 1, 1, 1)},
    ("other-answer", "guess"): {
        ("a", NONE): (0, 0, 0, 0), ("a", FIVE): (0, 1, 0, 0), ("b", NONE): (0, 0), ("b", FIVE): (0, 0)
    },
}  # fmt: skip


def made(cells, f1=lambda right: right / 2) -> pl.DataFrame:
    """Results as a run gives them, as far as scores read them."""
    rows = []
    for (model, control), conditions in cells.items():
        for (task, condition), scores in conditions.items():
            stressor, labels, _ = CONDITIONS[condition]
            for sample, right in enumerate(scores):
                about = {"model": model, "control": control, "task": task, "condition": condition}
                known = {} if right is None else {"accuracy": right, "em": right, "f1": f1(right)}
                error = "no room" if right is None else None
                rows.append(about | labels | known | {"stressor": stressor, "sample": f"s{sample}", "error": error})
    texts = dict.fromkeys(("model", "control", "task", "condition", "stressor", "sample", "error"), pl.String)
    return pl.DataFrame(rows, schema=texts | LABELS | dict.fromkeys(METRICS, pl.Float64))


def one(frame: pl.DataFrame, **wanted) -> dict:
    """The only row with these labels; a task of None is the average."""
    for name, value in wanted.items():
        frame = frame.filter(pl.col(name).eq_missing(pl.lit(value)))
    assert frame.height == 1, frame
    return frame.row(0, named=True)


def counted(*groups) -> tuple[float, float]:
    """The 2.5 and 97.5 percentiles of the mean of group means, over all resamples there are, each as likely."""
    means = [[np.mean(drawn) for drawn in itertools.product(group, repeat=len(group))] for group in groups]
    alls = np.array([np.mean(parts) for parts in itertools.product(*means)])
    bounds = []
    for level in (0.025, 0.975):
        low, high = np.quantile(alls, [level - 0.006, level + 0.006], method="inverted_cdf")
        assert low == pytest.approx(high), "too near a step for 5000 draws to tell"
        bounds.append(low)
    return bounds[0], bounds[1]


def numbers(row: dict) -> tuple[float, float, float]:
    return row["value"], row["low"], row["high"]


@pytest.fixture(scope="module")
def frame() -> pl.DataFrame:
    return score_frame(made(RIGHT))


def test_columns_and_the_order_of_rows(frame):
    assert frame.columns == [
        "model", "task", "condition", "stressor", "documents", "metric", "statistic", "beside",
        "value", "low", "high", "n", "p", "panel", "axis", "x",
    ]  # fmt: skip
    shown = frame.filter(metric="accuracy").select("model", "statistic", "documents", "task", "beside").rows()
    tasks = ("a", "b", None)
    expected = []
    for model in ("guess-me", "m", "z"):
        expected += [(model, "score", count, task, None) for count in (0, 5) for task in tasks]
        expected += [(model, "gain", 5, task, None) for task in tasks]
    expected += [("other-answer", "guess", count, task, None) for count in (0, 5) for task in tasks]
    for first, second in (("guess-me", "m"), ("guess-me", "z"), ("m", "z")):
        for task in tasks:
            expected.append((first, "difference", 5, task, second))
            if task:
                expected += [(first, "only right", 5, task, second), (second, "only right", 5, task, first)]
    assert shown == expected
    assert frame.filter(pl.col("statistic").is_in(["score", "gain", "guess"]))["metric"].to_list()[:6] == [
        "accuracy", "em", "f1", "accuracy", "em", "f1"
    ]  # fmt: skip
    assert frame["panel"].is_null().all() and frame["condition"].unique().sort().to_list() == [
        "documents/0", "documents/5"
    ]  # fmt: skip


def test_accuracy_and_exact_match_of_a_task_have_wilsons_interval(frame):
    """k of n: the roots of (k/n - p)² = z² p (1 - p) / n."""
    z = 1.959963984540054
    for model, task, documents, k, n in (("guess-me", "a", 5, 3, 4), ("m", "b", 0, 1, 2), ("z", "a", 5, 0, 3)):
        low, high = sorted(np.roots([1 + z * z / n, -2 * k / n - z * z / n, (k / n) ** 2]))
        for metric in ("accuracy", "em"):
            row = one(frame, model=model, task=task, documents=documents, metric=metric, statistic="score")
            assert numbers(row) == pytest.approx((k / n, low, high), abs=1e-9) and (row["n"], row["p"]) == (n, None)


def test_f1_is_resampled(frame):
    row = one(frame, model="guess-me", task="a", documents=5, metric="f1", statistic="score")
    assert numbers(row) == pytest.approx((0.375, *counted((0.5, 0.5, 0.5, 0)))) and row["n"] == 4


def test_averages_are_over_tasks_and_not_over_samples(frame):
    row = one(frame, model="guess-me", task=None, documents=5, metric="accuracy", statistic="score")
    assert numbers(row) == pytest.approx(((3 / 4 + 1 / 2) / 2, *counted((1, 1, 1, 0), (1, 0))))  # over samples: 4/6
    assert row["n"] == 6
    guess = one(frame, model="other-answer", task=None, documents=5, metric="accuracy", statistic="guess")
    assert guess["value"] == (1 / 4 + 0) / 2


def test_gains_are_paired_by_sample(frame):
    row = one(frame, model="m", task="a", metric="accuracy", statistic="gain")
    assert numbers(row) == pytest.approx((3 / 4, *counted((1, 1, 0, 1)))) and (row["documents"], row["n"]) == (5, 4)
    assert row["p"] == pytest.approx(2 * (1 / 4) ** 4, abs=0.01)  # all four draws are the sample without a gain
    average = one(frame, model="m", task=None, metric="accuracy", statistic="gain")
    assert numbers(average) == pytest.approx(((3 / 4 + 1 / 2) / 2, *counted((1, 1, 0, 1), (1, 0))))
    paired = one(frame, model="z", task="a", metric="accuracy", statistic="gain")
    assert (paired["value"], paired["n"]) == (0, 3)  # the one that failed with documents, right without, is left out


def test_differences_of_gains_are_first_minus_second(frame):
    """Gains of guess-me on a: 1, 1, 0, 0; of m: 1, 1, 0, 1; on b: 1, 0 and 1, 0."""
    row = one(frame, model="guess-me", beside="m", task="a", statistic="difference")
    assert numbers(row) == pytest.approx((-1 / 4, *counted((0, 0, 0, -1)))) and row["n"] == 4
    assert row["p"] == pytest.approx(2 * (3 / 4) ** 4, abs=0.03)
    average = one(frame, model="guess-me", beside="m", task=None, statistic="difference")
    assert numbers(average) == pytest.approx((-1 / 8, *counted((0, 0, 0, -1), (0, 0)))) and average["n"] == 6
    assert one(frame, model="m", beside="z", task="a", statistic="difference")["n"] == 3


def test_who_alone_is_right_and_mcnemars_p(frame):
    """m against z on a, where both have an answer: 1, 0, 1 and 0, 0, 0, so 2 to 0 and p = 2 / 2²."""
    first = one(frame, model="m", beside="z", task="a", statistic="only right")
    second = one(frame, model="z", beside="m", task="a", statistic="only right")
    assert (first["value"], first["n"], first["p"]) == (2 / 3, 3, 0.5)
    assert (second["value"], second["n"], second["p"]) == (0, 3, 0.5)
    assert first["low"] is None and first["documents"] == 5
    ones = [
        one(frame, model=m, beside=b, task="b", statistic="only right")
        for m, b in (("guess-me", "m"), ("m", "guess-me"))
    ]
    assert [(row["value"], row["p"]) for row in ones] == [(0, 1), (1 / 2, 1)]


def test_a_number_that_cannot_be_had_is_null_of_no_samples():
    """Nothing of b with five documents: no score there, no average, no gain; and controls are not scores."""
    lacking = {("m", ""): {key: value for key, value in RIGHT["m", ""].items() if key != ("b", FIVE)}}
    frame = score_frame(made(lacking))
    for task, statistic in (("b", "score"), (None, "score"), ("b", "gain"), (None, "gain")):
        row = one(frame, model="m", task=task, documents=5, metric="accuracy", statistic=statistic)
        assert (*numbers(row), row["n"], row["p"]) == (None, None, None, 0, None)
    assert one(frame, model="m", task="a", documents=5, metric="accuracy", statistic="score")["value"] == 3 / 4
    alone = score_frame(made({("m", "untrained"): RIGHT["m", "untrained"]}))
    assert alone.is_empty() and alone.columns == frame.columns


def test_a_guess_and_a_model_of_the_same_name_are_apart():
    cells = {("other-answer", ""): {("a", FIVE): (1, 1)}, ("other-answer", "guess"): {("a", FIVE): (0, 0)}}
    frame = score_frame(made(cells)).filter(metric="accuracy")
    assert frame.select("statistic", "value", "n").rows() == [("score", 1, 2), ("guess", 0, 2)]


def test_stress_conditions_have_their_place_on_a_curve():
    stressed = {name: about for name, about in CONDITIONS.items() if about[0] != "documents"}
    cells = {("t", name): (1, 0) for name in stressed}
    frame = score_frame(made({("m", ""): cells, ("g", "guess"): dict.fromkeys(cells, (0, 0))}))
    assert frame.height == len(stressed) * 2 * len(METRICS)
    for name, (stressor, labels, place) in stressed.items():
        for model, statistic, value in (("m", "score", 0.5), ("g", "guess", 0.0)):
            row = one(frame, condition=name, model=model, metric="accuracy")
            assert (row["stressor"], row["statistic"], row["value"], row["n"]) == (stressor, statistic, value, 2)
            assert row["documents"] == labels.get("documents")
            assert (row["panel"], row["axis"], row["x"]) == (place or (None, None, None))


def test_notes_tell_how_many_samples_and_what_failed():
    notes = table_notes(made(RIGHT | {("m", ""): RIGHT["m", ""] | {("a", "position/3/0"): (1, 0, 1)}}))
    assert notes == {
        "documents": (
            "n = 2 to 4 samples per cell.",
            "1 of 36 units failed and are left out; the first (z, a, documents/5, s0): no room",
        ),
        "stress": ("n = 3 samples per cell.",),
    }
    assert table_notes(made({("m", ""): {("a", FIVE): (1, 0)}})) == {
        "documents": ("n = 2 samples per cell.",), "stress": ()
    }  # fmt: skip


def test_a_run_gives_its_scores_and_keeps_them(outcome):
    run = Run(outcome.run.folder)
    frame = run.scores()
    assert pl.read_parquet(run.folder / "tables" / "scores.parquet").equals(frame)
    query = "SELECT model, task, condition, scores FROM results WHERE control = ''"
    values: dict = {}
    for model, task, condition, scores in sqlite3.connect(run.folder / "results.sqlite").execute(query):
        for metric, score in json.loads(scores).items():
            values.setdefault((model, task, condition, metric), []).append(score)
    told = frame.filter(statistic="score").drop_nulls("task")
    assert told.height == len(values) == 2 * 2 * 2 * 3
    for row in told.iter_rows(named=True):
        own = values[row["model"], row["task"], row["condition"], row["metric"]]
        assert row["n"] == len(own) == 5 and math.isclose(row["value"], sum(own) / 5, abs_tol=1e-12)
    assert set(frame.filter(statistic="guess")["model"]) == {"most-common-answer", "other-answer", "nearest-sentence"}


def test_every_guess_of_a_run_is_a_draw_of_its_own(outcome):
    """Which of the other four answers "other-answer" took, counted among the others: not always the same one."""
    guesses = outcome.run.results().filter(control="guess", model="other-answer", task="rag", condition="documents/0")
    answers = guesses["answers"].list.first().to_list()
    places = [
        [answer for other, answer in enumerate(answers) if other != number].index(prediction)
        for number, prediction in enumerate(guesses["prediction"])
    ]
    assert len(places) == 5 and len(set(places)) > 1
