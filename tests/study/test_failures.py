"""Failures: frames against the samples themselves, the second phase of traces, and what the verb prints and writes."""

import dataclasses

import polars as pl
import pytest

from floatscope.cli import app
from floatscope.qa.metrics import standing
from floatscope.qa.samples import Document
from floatscope.study.analyses import read_analyses
from floatscope.study.failures import chosen, counts, unit_frame, units_to_trace
from floatscope.study.plan import Curve, ModelPlan, TaskPlan
from floatscope.study.running import run_study
from floatscope.study.store import Run
from floatscope.study.units import load_task, plan_jobs
from tests.study.small_studies import small_study

pytestmark = pytest.mark.slow

WRONG = 2


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    """The ARM alone with and without documents; without them it is wrong."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    run_study(made_study(), folder)
    return Run(folder)


def made_study(**changes):
    settings = {
        "models": (ModelPlan("twin-arm"), ModelPlan("twin-llada")),
        "tasks": (TaskPlan("world:rag:3"),),
        "conditions": (Curve("documents", "0,3"),),
        "limit": 6,
        "trace_wrong": WRONG,
    }
    return small_study(**settings | changes)


def test_a_prediction_stands_where_its_words_stand_in_a_row():
    texts = {"Uffizi": "In Florence.", "Prado": "It is in Madrid, the capital.", "": "x"}
    documents = [Document(title, text) for title, text in texts.items()]
    assert standing("the Capital", documents) == [2]
    assert standing("Madrid capital", documents) == [2]  # articles and signs do not count, as in all scores
    assert standing("Flo", documents) == [] and standing("Prado", documents) == [2]
    assert standing("", documents) == [] and standing("in", documents) == [1, 2]


@pytest.mark.slow
def test_every_answer_has_its_documents_and_its_place(run):
    frame = unit_frame(run)
    assert frame.height == 2 * 2 * 6
    task = load_task(run.study, run.study.tasks[0])
    conditions = {cell.condition.name: cell.condition for cell in run.study.cells(run.study.tasks[0])}
    samples = {sample.id: sample for sample in task.samples}
    for row in frame.iter_rows(named=True):
        shown = task.under(conditions[row["condition"]], samples[row["sample"]], run.study.seed)
        assert row["gold"] == [place for place, one in enumerate(shown.documents, 1) if one.gold]
        holds = [place for place, one in enumerate(shown.documents, 1) if row["prediction"].lower() in one.text.lower()]
        assert row["stands_in"] == holds
        if not shown.documents:
            assert row["place"] is None
        else:
            expected = "gold" if set(holds) & set(row["gold"]) else "another document" if holds else "nowhere"
            assert row["place"] == expected
    told = counts(frame)
    assert told["answers"].to_list() == [6] * 4
    for row in told.iter_rows(named=True):
        own = frame.filter(model=row["model"], condition=row["condition"])
        assert row["wrong"] == own.filter(pl.col("accuracy") == 0).height == chosen(own, "wrong").height


@pytest.mark.slow
def test_failing_samples_are_traced_beside_right_ones_under_every_model(run):
    rows = run.results().filter(control="")
    for (condition,), part in rows.group_by(["condition"]):
        wrong = part.group_by("sample", maintain_order=True).agg((pl.col("accuracy") == 0).sum())
        traced = part.drop_nulls("trace")
        per_sample = traced.group_by("sample").len()
        assert (per_sample["len"] == 2).all(), "both models"
        failing = wrong.filter(pl.col("accuracy") > 0)["sample"].to_list()[:WRONG]
        assert set(failing) <= set(per_sample["sample"])
        others = wrong.filter(~pl.col("sample").is_in(failing), pl.col("accuracy") < 2)
        assert per_sample.height == len(failing) + min(len(failing), others.height), condition
    assert run.traces() and not run.traces(planned=True)  # chosen by their answers: no analysis takes them
    again = run_study(made_study(), run.folder)
    assert again.done_now == 0


@pytest.mark.slow
def test_analyses_take_none_that_was_chosen_by_its_answers(tmp_path):
    made = made_study(models=(ModelPlan("twin-arm"),), conditions=(Curve("documents", "0", traces=1),))
    run_study(dataclasses.replace(made, analyses=("absorption",)), tmp_path / "run")
    run = Run(tmp_path / "run")
    assert len(run.traces()) > len(run.traces(planned=True)) == 1
    assert read_analyses(run)["absorption"].tables["absorption"]["samples"].unique().to_list() == [1]


@pytest.mark.slow
def test_the_chosen_ones_are_the_same_by_several_processes_and_when_asked_for_later(run, tmp_path):
    run_study(made_study(trace_wrong=0), tmp_path / "later")
    run_study(made_study(workers=2), tmp_path / "later")
    later = Run(tmp_path / "later")
    assert [path.name for path in later.traces()] == [path.name for path in run.traces()]
    for name in ("prediction", "accuracy"):
        assert later.results()[name].to_list() == run.results()[name].to_list()


def test_the_verb_prints_counts_and_answers_and_writes_files(run, tmp_path, capsys):
    frame = unit_frame(run)

    def call(*words: str) -> str:
        app(["failures", str(run.folder), *words], exit_on_error=False, print_error=False, result_action="return_value")
        return capsys.readouterr().out

    text = call()
    for row in chosen(frame, "wrong").iter_rows(named=True):
        assert row["question"] in text
    assert "| rag | documents/0 | twin-arm | 6 | 6 |" in text
    call("--which", "all", "--model", "twin-arm", "--out", str(tmp_path / "f.parquet"))
    assert pl.read_parquet(tmp_path / "f.parquet").equals(frame.filter(model="twin-arm"))
    call("--which", "all", "--out", str(tmp_path / "f.csv"))
    assert pl.read_csv(tmp_path / "f.csv")["prediction"].to_list() == frame["prediction"].to_list()


def test_what_models_disagree_on_is_found_before_one_of_them_is_chosen(run, tmp_path, monkeypatch):
    first = (pl.col("model") == "twin-arm") & (pl.col("sample") == unit_frame(run)["sample"][0])
    frame = unit_frame(run).with_columns(accuracy=pl.when(first).then(1 - pl.col("accuracy")).otherwise("accuracy"))
    monkeypatch.setattr("floatscope.study.failures.unit_frame", lambda _: frame)
    words = [
        "failures",
        str(run.folder),
        "--which",
        "disagree",
        "--model",
        "twin-arm",
        "--out",
        str(tmp_path / "f.csv"),
    ]
    app(words, exit_on_error=False, print_error=False, result_action="return_value")
    wanted = frame.filter(first)["question"].to_list()
    assert wanted and pl.read_csv(tmp_path / "f.csv")["question"].to_list() == wanted


@pytest.mark.parametrize(
    ("wrong", "count", "expected"),
    [
        ([0, 1, 2, 0, 1, 0], 2, [1, 2, 0, 3]),  # the first that fail, and as many that all get right
        ([1, 1, 2, 1, 0, 1], 1, [0, 4]),  # beside it the one that fewest got wrong
        ([0, 0, 0, 2, 0, 0], 3, [3, 0]),  # no more right ones than wrong ones
        ([2, 2, 2, 2, 2, 1], 2, [0, 1, 5]),  # what all got wrong is no right one
        ([0] * 6, 2, []),
    ],
)
def test_samples_are_chosen_by_how_many_models_got_them_wrong(wrong, count, expected):
    """By hand: how many of two models got each of six samples wrong, and which are to be traced under both."""
    study = made_study(conditions=(Curve("documents", "3"),))
    tasks = [load_task(study, plan) for plan in study.tasks]
    jobs = plan_jobs(study, tasks)
    place = {"twin-arm": 0, "twin-llada": 1}  # who comes first is wrong first, and guesses always are
    scores = [float(place.get(job.unit.model, -1) >= wrong[job.number]) for job in jobs]
    rows = [vars(job.unit) | {"scores": {"accuracy": score}} for job, score in zip(jobs, scores, strict=True)]
    found = units_to_trace(jobs, reversed(rows), tasks, count)
    names = [sample.id for sample in tasks[0].samples]
    assert {(unit.model, unit.control, unit.sample) for unit in found} == {
        (model, "", names[place]) for model in ("twin-arm", "twin-llada") for place in expected
    }


@pytest.mark.slow
def test_passages_have_no_place_among_answers(tmp_path):
    study = made_study(
        models=(ModelPlan("twin-llada"),), tasks=(TaskPlan("world:rag:3"), TaskPlan("world:passages:5")), limit=2,
        conditions=(Curve("documents", "3", ("rag",)), Curve("passage", "continue", ("passages",))), trace_wrong=1,
        slots=8,
    )  # fmt: skip
    found = run_study(study, tmp_path / "run").run
    assert unit_frame(found)["task"].to_list() == ["rag", "rag"]
    assert found.results().filter(task="passages", control="")["trace"].to_list() == [None, None]


def test_filters_and_counts_by_hand():
    rows = [
        ("s1", "a", 1.0, "gold"),
        ("s1", "b", 0.0, "nowhere"),
        ("s2", "a", 1.0, "gold"),
        ("s2", "b", 1.0, "nowhere"),
    ]
    frame = pl.DataFrame(rows, schema=["sample", "model", "accuracy", "place"], orient="row")
    frame = frame.with_columns(task=pl.lit("t"), condition=pl.lit("c"))
    assert chosen(frame, "disagree")["sample"].to_list() == ["s1", "s1"]
    assert counts(frame).select("model", "answers", "wrong", "nowhere").rows() == [("a", 2, 0, 0), ("b", 2, 1, 1)]


def test_each_filter_takes_its_own_rows_and_cells_are_counted_apart():
    rows = [
        ("t", "c", "s1", "a", 1.0, "gold"),
        ("t", "c", "s1", "b", 0.0, "another document"),
        ("t", "d", "s1", "a", 0.0, "nowhere"),  # under another condition nobody disagrees
        ("t", "d", "s1", "b", 0.0, None),
        ("u", "c", "s1", "a", 0.0, "gold"),
        ("u", "c", "s1", "b", 0.5, "another document"),
    ]
    names = ["task", "condition", "sample", "model", "accuracy", "place"]
    frame = pl.DataFrame(rows, schema=names, orient="row").with_row_index("row")
    found = {
        which: chosen(frame, which)["row"].to_list()
        for which in ("all", "wrong", "right", "disagree", "another-document", "nowhere")
    }
    assert found == {
        "all": [0, 1, 2, 3, 4, 5], "wrong": [1, 2, 3, 4, 5], "right": [0], "disagree": [0, 1],
        "another-document": [1, 5], "nowhere": [2],
    }  # fmt: skip
    told = counts(frame.drop("row"))
    assert told.columns[-3:] == ["in another document", "nowhere", "in a gold document"]
    assert told.rows()[:2] == [("t", "c", "a", 1, 0, 0, 0, 0), ("t", "c", "b", 1, 1, 1, 0, 0)]
    assert told.filter(task="u").rows() == [("u", "c", "a", 1, 1, 0, 0, 1), ("u", "c", "b", 1, 0, 0, 0, 0)]
