"""Attribution as a condition: its methods, a run through the store, and the same scores as from Python."""

import numpy as np
import pytest

import floatscope as fs
from floatscope.attribution import METHODS
from floatscope.qa.metrics import mentions
from floatscope.study.attributions import AttributionOptions, attribution_conditions
from floatscope.study.plan import Curve, ModelPlan, Study, TaskPlan
from floatscope.study.running import run_study
from floatscope.study.store import read_rows
from floatscope.study.units import load_task


def test_all_methods_are_one_condition_and_share_its_answers():
    [found] = attribution_conditions("all", AttributionOptions(documents=5, sentences=True))
    assert (found.name, found.attribution) == ("attribution/5", (*METHODS, "sentences"))
    [own] = attribution_conditions("rollout", AttributionOptions())
    assert (own.name, own.labels) == ("attribution/own", {"documents": None})
    assert own.content != attribution_conditions("attention", AttributionOptions())[0].content
    with pytest.raises(fs.UserError, match="did you mean 'rollout'"):
        attribution_conditions("roll_out", AttributionOptions())


@pytest.mark.slow
def test_a_run_has_the_scores_that_python_gives_and_is_resumed(tmp_path):
    curve = Curve(
        "attribution", "leave_one_out,rollout,retrieval_heads,lexical", options={"documents": 3, "removal": True}
    )
    study = Study(
        name="why", models=(ModelPlan("twin-llada"),), tasks=(TaskPlan("world:rag:3"),), conditions=(curve,),
        limit=3, slots=8, traces=1, controls=(), batch=2,
    )  # fmt: skip
    run = run_study(study, tmp_path / "run").run
    own = run.results().filter(control="")
    assert own["support"].is_not_null().all() and own["entropy"].min() >= 0
    model, sampler = fs.load("twin-llada"), None
    task = load_task(study, study.tasks[0])
    [cell] = study.cells(study.tasks[0])
    rows = [row for row in read_rows(tmp_path / "run") if not row["control"]]
    assert len(rows) == 3
    for row, sample in zip(sorted(rows, key=lambda row: row["number"]), task.samples, strict=True):
        shown = task.under(cell.condition, sample, study.seed)
        prompt = fs.build_prompt(model.tokenizer, shown.question, shown.documents, shown.answers)
        sampler = model.sampler({"steps": 8}, length=8)
        found = fs.attribute(model, prompt, sampler, support=True)
        record = row["scores"]["attribution"]
        assert found.answer == row["prediction"]
        np.testing.assert_allclose(record["methods"]["leave_one_out"]["documents"], found.documents, atol=1e-3)
        assert row["scores"]["support"] == pytest.approx(found.support, abs=1e-3)
        assert record["gold"] == [document.gold for document in shown.documents]
        assert record["stands"] == [mentions(one.title + " " + one.text, [found.answer]) for one in shown.documents]
        np.testing.assert_allclose(record["falls"][:3], found.documents, atol=1e-3)
        masses = np.array(record["heads"])
        attention = fs.attribute(model, prompt, sampler, "attention").documents
        np.testing.assert_allclose(masses.mean((0, 1)), attention, atol=1e-4)
    table = run.attribution()
    assert set(table["method"]) == {"leave_one_out", "rollout", "lexical", "retrieval_heads"} | (
        {"support", "confidence", "entropy"} if own["accuracy"].n_unique() > 1 else set()
    )
    assert (tmp_path / "run" / "tables" / "attribution.parquet").is_file()
    assert run_study(study, tmp_path / "run").done_now == 0
