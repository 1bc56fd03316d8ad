"""Edits as conditions: doses and twins by hand, effects worked out by hand, a run through the store, resumed."""

import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import floatscope as fs
from floatscope.models.likelihood import Pair, log_likelihoods
from floatscope.qa.stressors import STRESSORS
from floatscope.reports.curves import edit_curves, stress_curves
from floatscope.reports.page import Content, build_page
from floatscope.reports.rules import Rule, verdicts
from floatscope.reports.tables import readings, write_tables
from floatscope.statistics import holm, mcnemar
from floatscope.study.interventions import TWINS, EditOptions, edit_conditions
from floatscope.study.plan import Curve, ModelPlan, Study, TaskPlan, find_study, read_study, write_study
from floatscope.study.running import run_study
from floatscope.study.scores import score_frame


def names(values, **options):
    return [condition.name for condition in edit_conditions(values, EditOptions(**options))]


def test_every_dose_and_range_of_layers_is_a_condition_with_its_twins():
    found = edit_conditions("block anchors(1,3)", EditOptions(layers=("all", "deep")))
    assert [one.name for one in found][:5] == [
        "edit/none",
        "edit/block anchors/1/all",
        "edit/block anchors/1/all/as many",
        "edit/block anchors/1/all/as much",
        "edit/block anchors/1/all/as much, answer spared",
    ]
    assert len(found) == 1 + 2 * 2 * 4
    edit = found[-4].edits[0]
    assert (edit.op, edit.keys, edit.layers) == ("block", "anchors(3)", "deep")
    assert found[-4].labels == {"edit": "block anchors", "dose": 3.0, "layers": "deep", "twin": "", "place": None}
    assert found[-2].edits[0].keys == "like(anchors(3))" and found[-2].labels["twin"] == "as much"


def test_an_edit_and_its_twins_act_where_the_options_say():
    where = {"rows": "answer:masked", "source": "first", "by_head": True}
    found = edit_conditions("block anchors(1)", EditOptions(layers=("deep",), at="0-50%", **where))
    edits = [edit for one in found for edit in one.edits]
    assert len(edits) == 4
    for edit in edits:
        assert (edit.layers, edit.steps) == ("deep", "0-50%")
        assert {name: getattr(edit, name) for name in where} == where


def test_doses_are_counts_factors_or_one():
    assert names("scale evidence by 0.5,2", controls=False) == [
        "edit/none", "edit/scale evidence/0.5/all", "edit/scale evidence/2/all",
    ]  # fmt: skip
    assert names("sink; keep top(8) or bos", controls=False) == [
        "edit/none",
        "edit/sink/1/all",
        "edit/keep top or bos/8/all",
    ]
    assert names("zero doc 2") == ["edit/none", "edit/zero doc 2/1/all", "edit/zero doc 2/1/all/another document"]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ("blok bos", "did you mean 'block'"),
        ("block anchors(one)", "are not numbers"),
        ("block anchors(0)", "from 1 up"),
        ("block", "name some"),
    ],
)
def test_a_mistake_in_an_edit_is_told_when_the_study_is_written(values, sentence):
    with pytest.raises(fs.UserError, match=sentence):
        Curve("edit", values)


def test_conditions_with_other_edits_have_other_contents():
    contents = [one.content for one in edit_conditions("block top(1,2)", EditOptions())]
    assert len(set(contents)) == len(contents)


def results(right, values="block anchors(2)", **options):
    """Rows of results: accuracy of 4 samples by condition, for one model."""
    known = {one.name: one.labels for one in edit_conditions(values, EditOptions(**options))}
    rows = []
    for condition, values in right.items():
        for sample, value in enumerate(values):
            scores = {"accuracy": float(value), "em": float(value), "f1": float(value)}
            about = {"model": "m", "control": "", "task": "t", "condition": condition, "stressor": "edit"}
            told = {"prediction": f"answer {value}", "steps": 4, "log_probability": -1.0 - sample * value}
            rest = {"sample": str(sample), "documents": None, "error": None}
            rows.append(about | rest | scores | told | known[condition])
    return pl.DataFrame(rows, schema_overrides={"documents": pl.Int64, "error": pl.String})


RIGHT = {
    "edit/none": [1, 1, 1, 0],
    "edit/block anchors/2/all": [1, 0, 0, 0],
    "edit/block anchors/2/all/as many": [1, 1, 1, 1],
    "edit/block anchors/2/all/as much": [0, 0, 1, 0],
    "edit/block anchors/2/all/as much, answer spared": [1, 1, 0, 0],
}


def test_an_effect_is_the_edit_minus_what_it_is_held_to_paired_by_sample():
    scores = score_frame(results(RIGHT))
    effects = scores.filter(statistic="effect", metric="accuracy")
    assert dict(effects.select("beside", "value").iter_rows()) == {
        "unedited": -0.5, "as many": -0.75, "as much": 0.0, "as much, answer spared": -0.25,
    }  # fmt: skip
    assert set(effects["condition"]) == {"edit/block anchors/2/all"} and set(effects["n"]) == {4}
    assert set(effects["panel"]) == {"t, block anchors, all layers"} and set(effects["x"]) == {"2"}
    plain = [mcnemar(RIGHT["edit/block anchors/2/all"], RIGHT[name]).p for name in RIGHT if name.count("/") != 3]
    assert effects["p"].to_list() == pytest.approx(holm(plain))
    table = edit_curves(scores, ["m"])
    row = table.row(0, named=True)
    assert table.height == 1 and (row["value"], row["x"]) == (0.25, "2")
    assert [row[name] for name in effects["beside"]] == [0.75, 1.0, 0.25, 0.5]
    assert stress_curves(scores, ["m"]).is_empty()  # edits have a section of their own
    page = build_page(Content("t", "q", models=("m",), scores=scores))
    parts = re.findall(r'<h2 id="(?:edits|stress)">(.*?)</h2>|<figure [^>]*id="(figure-\w+)"', page)
    assert parts == [("What attention does", ""), ("", "figure-edits"), ("", "figure-edits_log_probability")]
    assert '<a href="#edits">Edits</a>' in page and '<a href="#stress">' not in page
    text = write_tables(scores, {"documents": (), "stress": ()}, "markdown")
    assert "| t, block anchors, all layers | 2 | m | as many | -75.0 [" in text


def test_outcomes_have_effects_of_their_own():
    """Log-probabilities are -1 - sample * right; an answer is changed where it is right once and wrong once."""
    scores = score_frame(results(RIGHT)).filter(statistic="effect")
    found = {
        metric: dict(scores.filter(metric=metric).select("beside", "value").iter_rows())
        for metric in ("log_probability", "changed", "steps")
    }
    assert found["log_probability"] == {
        "unedited": 0.75, "as many": 1.5, "as much": 0.5, "as much, answer spared": 0.25,
    }  # fmt: skip
    # of the four answers the edit changes two, its twins one, two and one
    assert found["changed"] == {
        "unedited": 0.5, "as many": 0.25, "as much": 0.0, "as much, answer spared": 0.25,
    }  # fmt: skip
    assert set(found["steps"].values()) == {0.0}
    for metric in found:  # corrected within a metric
        own = scores.filter(metric=metric)["p"].to_list()
        assert len(own) == 4 and max(own) <= 1


def test_an_answer_whose_unedited_unit_failed_counts_neither_as_changed_nor_as_kept():
    rows = results(RIGHT).with_columns(
        prediction=pl.when(condition="edit/none", sample="2").then(None).otherwise("prediction")
    )
    changed = score_frame(rows).filter(metric="changed", statistic="effect", beside="unedited").row(0, named=True)
    assert (changed["value"], changed["n"]) == (pytest.approx(1 / 3), 3)  # of samples 0, 1 and 3 only 1 is changed


def test_edits_at_a_place_of_the_gold_document_are_held_to_the_same_place():
    found = edit_conditions("pin bos", EditOptions(places=(1, 3), documents=3))
    assert [one.name for one in found] == [
        "edit/none, gold at 1",
        "edit/pin bos, gold at 1/1/all",
        "edit/none, gold at 3",
        "edit/pin bos, gold at 3/1/all",
    ]
    rows = [
        {"model": "m", "control": "", "task": "t", "condition": one.name, "stressor": "edit", "sample": "0"}
        | {"documents": None, "error": None, "prediction": "", "steps": 1, "em": 0.0, "f1": 0.0, "accuracy": right}
        | dict(one.labels)
        for one, right in zip(found, (1.0, 1.0, 1.0, 0.0), strict=True)
    ]
    frame = pl.DataFrame(rows, schema_overrides={"documents": pl.Int64, "error": pl.String})
    effects = score_frame(frame).filter(statistic="effect", metric="accuracy")
    assert dict(effects.select("condition", "value").iter_rows()) == {found[1].name: 0.0, found[3].name: -1.0}


@pytest.mark.slow
def test_the_spread_over_places_is_held_to_that_of_the_unedited_model_and_of_the_twins():
    """Highest minus lowest accuracy over three places; the interval by drawing samples with all their places."""
    found = edit_conditions("pin anchors(5)", EditOptions(places=(1, 3, 5)))
    rng = np.random.default_rng(3)
    levels = {"none": (0.9, 0.9, 0.9), "edit": (0.9, 0.2, 0.9), "twin": (0.6, 0.6, 0.6)}
    right, rows = {}, []
    for one in found:
        kind = "none" if not one.labels["dose"] else "twin" if one.labels["twin"] else "edit"
        right[one.name] = (rng.random(40) < levels[kind][one.labels["place"] // 2]).astype(float)
        for sample, value in enumerate(right[one.name]):
            about = {"model": "m", "control": "", "task": "t", "condition": one.name, "stressor": "edit"}
            rest = {"sample": str(sample), "documents": None, "error": None, "prediction": "", "steps": 1}
            rows.append(about | rest | dict.fromkeys(("accuracy", "em", "f1"), value) | dict(one.labels))
    frame = pl.DataFrame(rows, schema_overrides={"documents": pl.Int64, "error": pl.String})
    scores = score_frame(frame)
    effects = scores.filter(metric="spread")
    assert set(effects["condition"]) == {"edit/pin anchors/5/all"}
    assert effects["beside"].to_list() == ["unedited", "as many", "as much", "as much, answer spared"]
    edited = [right[f"edit/pin anchors, gold at {place}/5/all"] for place in (1, 3, 5)]
    for row in effects.iter_rows(named=True):
        twin = "" if row["beside"] == "unedited" else f"/{row['beside']}"
        others = [
            right[f"edit/pin anchors, gold at {place}/5/all{twin}" if twin else f"edit/none, gold at {place}"]
            for place in (1, 3, 5)
        ]

        def apart(chosen, others=others):
            ends = [[one[chosen].mean() for one in side] for side in (edited, others)]
            return max(ends[0]) - min(ends[0]) - (max(ends[1]) - min(ends[1]))

        assert row["value"] == pytest.approx(apart(np.arange(40))) and row["n"] == 40
        draws = [apart(rng.integers(0, 40, 40)) for _ in range(2000)]
        np.testing.assert_allclose([row["low"], row["high"]], np.quantile(draws, [0.025, 0.975]), atol=0.04)
        assert row["p"] < 0.05 and row["low"] > 0
    rule = Rule("It suffers", "pin anchors", "unedited", "higher", metric="spread")
    assert [one["verdict"] for one in verdicts(scores, [rule], ["m"])] == ["present"]
    text = write_tables(scores, {"documents": (), "stress": ()}, "markdown", [rule])
    assert "spread over places" in text and "gives a higher spread of accuracy over places than unedited" in text


def test_doses_keep_their_pool():
    found = edit_conditions("keep top(8, 32, not answer) or answer", EditOptions(controls=False))
    assert [one.edits[0].keys for one in found[1:]] == ["top(8, not answer) or answer", "top(32, not answer) or answer"]
    assert found[1].labels["edit"] == "keep top or answer"
    heads = edit_conditions("heads retrieval(2,4, copy)", EditOptions(controls=False))
    assert [(one.labels["dose"], one.edits[0].heads) for one in heads[1:]] == [
        (2.0, "retrieval(2, copy)"),
        (4.0, "retrieval(4, copy)"),
    ]


def test_curves_share_the_unedited_condition_and_no_other():
    task = TaskPlan("world:rag:3")
    curves = [Curve("edit", "block bos", limit=2), Curve("edit", "sink", limit=3, options={"at": "first"})]
    made = Study("s", (ModelPlan("twin-arm"),), (task,), tuple(curves), limit=4)
    cells = {cell.condition.name: cell.limit for cell in made.cells(task) if cell.condition.stressor == "edit"}
    assert cells == {"edit/none": 3, "edit/block bos/1/all": 2, "edit/sink/1/all": 3}
    with pytest.raises(fs.UserError, match="comes twice"):
        Study("s", (ModelPlan("twin-arm"),), (task,), (curves[0], Curve("edit", "block bos", options={"at": "first"})))


@pytest.mark.slow
def test_each_dose_and_range_of_layers_is_held_to_its_own_twins():
    values, options = "block anchors(2,5)", {"layers": ("all", "deep")}
    rng = np.random.default_rng(0)
    right = {one.name: rng.integers(0, 2, 16).tolist() for one in edit_conditions(values, EditOptions(**options))}
    effects = score_frame(results(right, values, **options)).filter(statistic="effect", metric="accuracy")
    assert effects.height == 2 * 2 * 4
    for condition, beside, value in effects.select("condition", "beside", "value").iter_rows():
        held_to = "edit/none" if beside == "unedited" else f"{condition}/{beside}"
        assert value == pytest.approx(np.mean(right[condition]) - np.mean(right[held_to]))


def test_holm_is_bonferroni_for_the_smallest_and_never_falls():
    rng = np.random.default_rng(0)
    for count in (1, 2, 7):
        chances = rng.uniform(size=count).tolist()
        found = holm(chances)
        for number, p in enumerate(chances):
            # by the definition: the largest corrected chance among those that are no greater
            below = [q for q in chances if q <= p]
            by_rank = [(count - sum(other < q for other in chances)) * q for q in below]
            assert found[number] == pytest.approx(min(1.0, max(by_rank)))
    assert holm([]) == []


def study(*models):
    return Study(
        "edits",
        tuple(ModelPlan(name) for name in models),
        (TaskPlan("world:rag:3"),),
        (Curve("edit", "block anchors(2); zero doc 1", options={"documents": 3, "draws": 3}, limit=2),),
        limit=2,
        slots=4,
    )


def check_log_probability(run, row):
    """The chain rule over the answer's tokens in one causal pass of the model itself."""
    from floatscope.study.units import load_task

    model = fs.load("twin-arm")
    task = load_task(run.study, TaskPlan("world:rag:3"))
    sample = next(one for one in task.samples if one.id == row["sample"])
    shown = task.under(STRESSORS["edit"].conditions("sink", EditOptions(documents=3))[0], sample, 0)
    prompt = fs.build_prompt(model.tokenizer, shown.question, shown.documents)
    answer = model.tokenizer(f" {row['answers'][0]}", add_special_tokens=False)["input_ids"][:4]
    logits = model.logits([*prompt.ids.tolist(), *answer])[0].log_softmax(-1)
    places = range(len(prompt.ids) - 1, len(prompt.ids) + len(answer) - 1)
    expected = sum(float(logits[place, token]) for place, token in zip(places, answer, strict=True))
    assert row["log_probability"] == pytest.approx(expected, abs=1e-3)


@pytest.mark.slow
def test_a_run_of_edits_is_stored_and_resumed(tmp_path):
    made = run_study(study("twin-arm", "twin-llada"), tmp_path / "run")
    rows = made.run.results().filter(control="")
    assert rows["error"].is_null().all()
    own = rows.filter(stressor="edit")
    assert own["log_probability"].is_not_null().all() and (own["log_probability"] < 0).all()
    assert (own.filter(own["dose"] > 0)["kl"] > 0).all() and own.filter(dose=0)["kl"].is_null().all()
    assert own.filter(own["dose"] > 0)["removed"].is_between(0, 1).all()
    assert (
        own.filter(model="twin-llada")["bound"].is_not_null().all()
        and own.filter(model="twin-arm")["bound"].is_null().all()
    )
    check_log_probability(made.run, own.filter(model="twin-arm", dose=0).to_dicts()[0])
    model = fs.load("twin-llada")
    edited = rows.filter(model="twin-llada", condition="edit/block anchors/2/all")
    task = STRESSORS["edit"].conditions("block anchors(2)", EditOptions(documents=3))
    from floatscope.study.units import load_task, plan_jobs

    jobs = {job.unit: job for job in plan_jobs(made.run.study, [load_task(made.run.study, TaskPlan("world:rag:3"))])}
    for unit, job in jobs.items():
        if unit.model != "twin-llada" or unit.condition != task[1].name:
            continue
        shown = job.task.under(job.condition, job.sample, 0)
        prompt = fs.build_prompt(model.tokenizer, shown.question, shown.documents, shown.answers)
        alone = fs.generate(model, prompt, model.sampler(length=4, steps=4), seeds=[unit.seed(0)], edits=task[1].edits)
        assert edited.filter(sample=unit.sample)["prediction"].item() == model.text(alone.answer)
    again = run_study(study("twin-arm", "twin-llada"), tmp_path / "run")
    assert again.done_now == 0 and again.run.scores().equals(made.run.scores())


def test_rules_of_reading_are_judged_by_the_dose_that_decides():
    def effect(condition, value, p, model="m", metric="accuracy"):
        about = {"statistic": "effect", "metric": metric, "beside": "as much", "model": model, "condition": condition}
        return about | {"x": condition.split("/")[2], "panel": "t", "value": value, "low": value, "high": value, "p": p}

    scores = pl.DataFrame(
        [
            effect("edit/block top/1/all", -0.1, 0.2),
            effect("edit/block top/3/all", -0.2, 0.03),
            effect("edit/block top/5/all", -0.4, 0.01),
            effect("edit/block top/5/deep", 0.4, 0.001),
            effect("edit/block top, gold at 2/9/all", 0.4, 0.04, "n"),
            effect("edit/block top/1/all", -0.3, 0.06, "o"),
            effect("edit/block top/1/all", -0.3, 0.01, "o", "f1"),
            effect("edit/block bos/1/all", -0.3, 0.001, "q"),
        ]
    )
    rule = Rule("It matters", "block top", "as much", "lower")
    found = list(verdicts(scores, [rule], ["m", "n", "o", "q"]))
    assert [(one["verdict"], one["x"]) for one in found] == [
        ("present", "5"), ("reversed", "9"), ("absent", "1"), ("not measured", None),
    ]  # fmt: skip
    edge = [effect("edit/block top/2/all", -0.1, 0.04), effect("edit/block top/4/all", -0.3, 0.04)]
    edge += [effect("edit/block top/1/all", -0.3, 0.05, "n")]  # just not sure enough
    told = [(one["verdict"], one["x"]) for one in verdicts(pl.DataFrame(edge), [rule], ["m", "n"])]
    assert told == [("present", "4"), ("absent", "1")]  # of doses that are as sure, the strongest
    only = Rule("It matters", "block top", "as much", "higher", layers="deep", models=("m",))
    assert [(one["verdict"], one["p"]) for one in verdicts(scores, [only], ["m", "n"])] == [("present", 0.001)]
    row = readings(scores, [rule]).rows[0]
    assert row[2] == "present: -40.0 [-40.0, -40.0] at 5, p 0.01" and row[-1] == "not measured"
    assert "block top (all layers) gives a lower accuracy than as much" in row[1]


@pytest.mark.parametrize("name", ["causal", "causal-smollm2"])
def test_a_study_keeps_its_rules_in_its_file(tmp_path, name):
    shipped = read_study(find_study(name))
    (tmp_path / "again.toml").write_text(write_study(shipped))
    assert read_study(tmp_path / "again.toml") == shipped and len(shipped.rules) > 5
    edits = [(curve, one) for curve in shipped.conditions if curve.stressor == "edit" for one in curve.conditions]
    for rule in shipped.rules:  # each is about something that is run, under the models that it is about, and measured
        own = [(curve, one) for curve, one in edits if str(one.labels["edit"]).partition(", gold")[0] == rule.edit]
        own = [(curve, one) for curve, one in own if one.labels["layers"] == rule.layers]
        assert own and rule.beside in {"unedited", *(one.labels["twin"] for _, one in own)}, rule
        assert all(not curve.models or {*rule.models} <= {*curve.models} for curve, _ in own), rule
        assert rule.metric.startswith("log_") or all(one.answered for _, one in own), rule
        assert "spread" not in rule.metric or len({one.labels["place"] for _, one in own}) > 1, rule
    with pytest.raises(fs.UserError, match="no model 'twin-amr'"):
        replace(shipped, rules=(Rule("c", "sink", "unedited", "lower", models=("twin-amr",)),))


def test_heads_without_their_table_are_refused_before_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    curve = Curve("edit", "heads retrieval(1)", options={"documents": 3, "table": "runs/heads"})
    made = Study("heads", (ModelPlan("twin-arm"),), (TaskPlan("world:rag:3"),), (curve,), limit=1)
    with pytest.raises(fs.UserError, match="needs a table of heads"):
        run_study(made, tmp_path / "run")


def test_what_curves_share_is_run_for_all_their_models_and_the_most_samples():
    plain = {"documents": 2, "controls": False}

    def shared(*about):
        curves = tuple(Curve("edit", f"block {number}", options=plain, **one) for number, one in enumerate(about))
        models = tuple(ModelPlan(f"twin-{name}") for name in ("arm", "llada", "dream"))
        study = Study("s", models, (TaskPlan("world:rag:2"),), curves, limit=9)
        (cell,) = (cell for cell in study.cells(study.tasks[0]) if cell.condition.name == "edit/none")
        return cell.limit, cell.traces, cell.models

    one, other = {"models": ("twin-arm",), "limit": 3, "traces": 1}, {"models": ("twin-llada",), "limit": 5}
    assert shared(one, other) == (5, 1, ("twin-arm", "twin-llada"))
    assert shared(one, {"traces": 2, "limit": 2}) == (3, 2, ())  # which is all of them
    assert shared({}, one) == (9, 1, ())


def test_the_dose_of_heads_is_their_number():
    found = edit_conditions("heads 0.1; heads 0.1,2.3,3.0", EditOptions(controls=False))
    assert [one.labels["dose"] for one in found] == [0, 1, 3]


def test_draws_reach_every_condition_and_are_no_less_than_none():
    assert {one.draws for one in edit_conditions("block anchors(1)", EditOptions(draws=7))} == {7}
    with pytest.raises(fs.UserError, match="draws = -1"):
        EditOptions(draws=-1)


def test_only_the_twins_that_are_named_are_run():
    assert names("block anchors(1)", twins=("as much",)) == [
        "edit/none", "edit/block anchors/1/all", "edit/block anchors/1/all/as much",
    ]  # fmt: skip
    with pytest.raises(fs.UserError, match="no control twin 'as few'"):
        EditOptions(twins=("as few",))
    twins = {name for keys in ("top(2)", "doc 1", "class lexical") for name in fs.Edit("block", keys=keys).controls()}
    twins |= {*fs.Edit("keep", keys="top(2)").controls(), *fs.Edit("heads", heads="0.1").controls()}
    assert twins == {*TWINS}


@pytest.mark.slow
def test_without_answers_the_right_ones_are_replayed_all_the_same(tmp_path):
    """The unedited questions are answered; under the edits log-probabilities are those of a run that answers too."""
    options = {"documents": 3, "controls": False}
    plain = Study(
        "s", (ModelPlan("twin-llada"),), (TaskPlan("world:rag:3"),),
        (Curve("edit", "block doc 1", options=options),), limit=3, slots=4,
    )  # fmt: skip
    fewer = replace(plain, conditions=(Curve("edit", "block doc 1", options=options | {"answers": False}),))
    rows = {
        name: run_study(made, tmp_path / name).run.results().filter(control="", stressor="edit")
        for name, made in (("all", plain), ("fewer", fewer))
    }
    both = rows["all"].join(rows["fewer"], on=["condition", "sample"])
    assert both["log_probability"].to_list() == pytest.approx(both["log_probability_right"].to_list(), abs=1e-5)
    edited = rows["fewer"].filter(dose=1)
    assert edited["prediction"].is_null().all() and edited["kl"].is_not_null().all()
    assert rows["fewer"].filter(dose=0)["prediction"].is_not_null().all()


@pytest.mark.slow
def test_the_bound_is_that_of_the_model_as_it_is_edited(tmp_path):
    """An answer of so few tokens has all of its masked canvases counted, so the bound hangs on no draw."""
    from floatscope.study.units import load_task

    options, task = {"documents": 3, "controls": False, "answers": False, "draws": 15}, TaskPlan("world:rag:3")
    curve = Curve("edit", "block evidence", options=options)
    made = Study("s", (ModelPlan("twin-llada"),), (task,), (curve,), limit=2, slots=4)
    rows = run_study(made, tmp_path / "run").run.results().filter(control="", stressor="edit")
    model, loaded = fs.load("twin-llada"), load_task(made, task)
    _, condition = curve.conditions
    for sample in loaded.samples:
        shown = loaded.under(condition, sample, 0)
        prompt = fs.build_prompt(model.tokenizer, shown.question, shown.documents, shown.answers)
        answer = model.tokenizer(shown.answers[0], add_special_tokens=False)["input_ids"]
        pair = Pair(tuple(prompt.ids.tolist()), tuple(answer), prompt)
        assert 2 ** len(answer) - 1 <= 15
        [edited], [plain] = (log_likelihoods(model, [pair], 15, edits=edits) for edits in (condition.edits, ()))
        assert edited < plain - 1  # without its evidence the answer is much less likely
        bounds = dict(rows.filter(sample=sample.id).select("dose", "bound").iter_rows())
        assert bounds == pytest.approx({0: plain, 1: edited}, abs=1e-3)


@pytest.mark.slow
def test_a_study_edits_all_its_answers(tmp_path):
    """`evaluate --edit`: the answers of generate under the same edit, and other units than without it."""
    curve, task = Curve("documents", "3"), TaskPlan("world:rag:3")
    made = Study("s", (ModelPlan("twin-llada"),), (task,), (curve,), limit=4, slots=4, edits=("block evidence",))
    (tmp_path / "again.toml").write_text(write_study(made))
    assert read_study(tmp_path / "again.toml") == made
    [cell], [plain] = made.cells(task), replace(made, edits=()).cells(task)
    assert cell.condition.edits == (fs.Edit("block", keys="evidence"),)
    assert cell.condition.content != plain.condition.content
    rows = run_study(made, tmp_path / "run").run.results().filter(control="")
    from floatscope.study.units import load_task

    model, loaded = fs.load("twin-llada"), load_task(made, task)
    for sample in loaded.samples:
        shown = loaded.under(cell.condition, sample, 0)
        prompt = fs.build_prompt(model.tokenizer, shown.question, shown.documents, shown.answers)
        alone = fs.generate(model, prompt, model.sampler(length=4, steps=4), edits=[fs.Edit("block", keys="evidence")])
        assert rows.filter(sample=sample.id)["prediction"].item() == model.text(alone.answer)
    with pytest.raises(fs.UserError, match="did you mean 'block'"):
        replace(made, edits=("blok doc 1",))


def test_the_spread_of_log_probability_over_places_is_highest_minus_lowest_of_means():
    """Two places, three samples of which one has no log-probability under the edit at one place: two are left."""
    found = edit_conditions("pin bos", EditOptions(places=(1, 3), documents=3))
    values = dict(
        zip([one.name for one in found], ([-1, -2, -9], [-3, -5, -9], [-1, -4, -9], [-2, -2, None]), strict=True)
    )
    rows = [
        {"model": "m", "control": "", "task": "t", "condition": one.name, "stressor": "edit", "sample": str(sample)}
        | {"documents": None, "error": None, "prediction": "", "steps": 1, "em": 0.0, "f1": 0.0, "accuracy": 0.0}
        | {"log_probability": value, **one.labels}
        for one in found
        for sample, value in enumerate(values[one.name])
    ]  # fmt: skip
    types = {"documents": pl.Int64, "error": pl.String, "log_probability": pl.Float64}
    frame = score_frame(pl.DataFrame(rows, schema_overrides=types))
    row = frame.filter(metric="log_probability_spread").row(0, named=True)
    # edited: means -4 and -2, 2 apart; unedited: -1.5 and -2.5, 1 apart
    assert (row["value"], row["n"], row["beside"], row["x"]) == (pytest.approx(1.0), 2, "unedited", "1")
    assert row["condition"] == "edit/pin bos/1/all" and row["panel"] == "t, pin bos, all layers"


def test_bounds_removed_attention_and_kl_have_effects_beside_what_has_them():
    """KL and removed attention are of edits alone, so they are held to twins and never to the unedited model."""
    rows = results(RIGHT)
    edited = pl.col("condition") != "edit/none"
    own = pl.col("condition") == "edit/block anchors/2/all"
    rows = rows.with_columns(
        kl=pl.when(edited).then(pl.when(own).then(0.75).otherwise(0.25)),
        removed=pl.when(edited).then(pl.when(own).then(0.5).otherwise(0.125)),
        bound=pl.when(own).then(-6.0).otherwise(-4.0) + pl.col("sample").cast(pl.Float64),
    )
    effects = score_frame(rows).filter(statistic="effect")
    twins = ["as many", "as much", "as much, answer spared"]
    for metric, value, beside in (
        ("kl", 0.5, twins), ("removed", 0.375, twins), ("bound", -2.0, ["unedited", *twins]),
    ):  # fmt: skip
        found = effects.filter(metric=metric)
        assert found["beside"].to_list() == beside and found["value"].to_list() == pytest.approx([value] * len(beside))
