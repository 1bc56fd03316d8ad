"""Running a study on the twins: rows, traces, resume, refusals; every unit stands on its own."""

import hashlib
import json
import os
from dataclasses import replace

import polars as pl
import pytest

import floatscope as fs
from floatscope.errors import UserError
from floatscope.files import replace_sealed
from floatscope.qa.metrics import score
from floatscope.qa.stressors import STRESSORS, stress
from floatscope.study.analyses import missing_analyses, read_analyses
from floatscope.study.plan import Curve, ModelPlan, PromptPlan, TaskPlan
from floatscope.study.reporting import gather, tables_text
from floatscope.study.running import run_study
from floatscope.study.store import Row, Run, Store
from floatscope.study.units import Unit, load_task
from tests.study.small_studies import small_study

pytestmark = pytest.mark.slow


def predictions(run: Run, control: str = "") -> dict:
    rows = run.results().filter(control=control)
    keys = ("model", "task", "condition", "sample")
    return {row[:-1]: row[-1] for row in rows.select(*keys, "prediction").iter_rows()}


@pytest.mark.slow
def test_every_unit_has_a_row_with_its_scores(outcome):
    rows = outcome.run.results()
    assert (
        outcome.units
        == outcome.done_now
        == rows.height
        == rows.unique(["model", "task", "condition", "sample", "control"]).height
    )
    assert outcome.failed == 0 and rows["error"].is_null().all()
    for row in rows.sample(40, seed=1).iter_rows(named=True):
        wanted = score(row["prediction"], row["answers"])
        assert {metric: row[metric] for metric in ("accuracy", "em", "f1")} == wanted
    models = rows.filter(control="")
    assert models["steps"].min() >= 1 and models["prompt_tokens"].min() > 5 and models["cut"].max() == 0
    assert rows.columns[:4] == ["model", "task", "condition", "stressor"]
    assert rows.filter(condition="documents/3")["documents"].unique().to_list() == [3]
    assert rows["place"].is_null().all()


@pytest.mark.slow
def test_answers_are_those_of_generate_for_one_sample_at_a_time(outcome):
    """Batches of four, sorted by length, and traced units give the tokens that each sample gives alone."""
    study, found = outcome.run.study, predictions(outcome.run)
    conditions = {c.name: c for c in STRESSORS["documents"].conditions("0,3")}
    for plan, sampler in (
        (study.models[0], fs.AutoregressiveSampler(length=4)),
        (study.models[1], fs.LLaDASampler(4, 4)),
    ):
        model = fs.load(plan.source)
        for task in (load_task(study, plan) for plan in study.tasks):
            for name, condition in conditions.items():
                for sample in task.samples:
                    shown = stress(sample, condition, task.pool, study.seed)
                    prompt = fs.build_prompt(model.tokenizer, shown.question, shown.documents)
                    seed = Unit(plan.name, task.plan.name, name, sample.id).seed(study.seed)
                    ids = fs.generate(model, prompt.ids, sampler, [seed]).answer.tolist()
                    text = model.tokenizer.decode(ids[: ids.index(2)] if 2 in ids else ids, skip_special_tokens=True)
                    assert found[plan.name, task.plan.name, name, sample.id] == text.strip()


@pytest.mark.slow
def test_drawn_answers_are_each_units_own_whatever_the_batches_and_processes(tmp_path):
    """At temperature 2 the text hangs on the seed, the sha256 of the study's seed and the unit's parts, alone."""
    hot = (
        ModelPlan("arm", "twin-arm", sampler={"temperature": 2.0}),
        ModelPlan("mdm", "twin-llada", sampler={"temperature": 2.0}),
    )
    changes = {"models": hot, "tasks": (TaskPlan("world:rag:3"),), "seed": 7, "limit": 4}
    runs = [
        run_study(small_study(**changes, **how), tmp_path / name).run
        for name, how in {"four": {}, "one": {"batch": 1}, "many": {"batch": 16, "workers": 2}}.items()
    ]
    first, *others = (run.results() for run in runs)
    assert all(other.equals(first) for other in others)
    texts = first.filter(control="", condition="documents/0")["prediction"].to_list()
    assert len(set(texts)) == len(texts)  # drawn, and each by itself
    study = runs[0].study
    (task,) = (load_task(study, plan) for plan in study.tasks)
    for name, sampler in (("arm", fs.AutoregressiveSampler(4, 2.0)), ("mdm", fs.LLaDASampler(4, 4, temperature=2.0))):
        model = fs.load(next(plan.source for plan in hot if plan.name == name))
        for sample in task.samples:
            prompt = fs.build_prompt(model.tokenizer, sample.question, [])
            parts = "\x1f".join(["7", name, "rag", "documents/0", sample.id, ""])
            seed = int(hashlib.sha256(parts.encode()).hexdigest()[:16], 16)
            ids = fs.generate(model, prompt.ids, sampler, [seed]).answer.tolist()
            text = model.tokenizer.decode(ids[: ids.index(2)] if 2 in ids else ids, skip_special_tokens=True)
            row = first.filter(model=name, condition="documents/0", sample=sample.id, control="")
            assert row["prediction"].to_list() == [text.strip()]


def test_traces_are_kept_with_their_controls(outcome):
    run = outcome.run
    assert len(run.traces()) == len(run.traces(control="untrained")) == len(run.traces(control="null_query")) == 2 * 2
    rows = run.results()
    for path in run.traces(control=None):
        trace = fs.Trace.load(path)
        about = trace.metadata
        row = rows.filter(trace=str(path.relative_to(run.folder))).row(0, named=True)
        assert all(
            about[key] == row[key] for key in ("sample", "task", "condition", "control", "answers", "prediction")
        )
        assert about["control_of"] == row["model"] and about["accuracy"] == row["accuracy"]
        assert trace.model == row["model"] + ("-untrained" if row["control"] == "untrained" else "")
        assert ("evidence" in trace.marks) and len(trace.marks["evidence"]) > 0
        assert trace.slots[0] == row["prompt_tokens"]
    own, untrained = run.traces(model="twin-llada"), run.traces(model="twin-llada", control="untrained")
    first, other = fs.Trace.load(own[0]), fs.Trace.load(untrained[0])
    assert (first.canvas[: first.slots[0]] == other.canvas[: other.slots[0]]).all()
    assert abs(first.received - other.received).max() > 0.01


def test_a_second_call_runs_nothing(outcome):
    again = run_study(outcome.run.study, outcome.run.folder)
    assert again.done_now == 0 and again.units == outcome.units


def test_a_row_of_what_its_condition_once_did_is_not_shown(outcome, tmp_path):
    import shutil

    folder = tmp_path / "run"
    shutil.copytree(outcome.run.folder, folder)
    with Store(folder) as store:
        unit = next(unit for unit in store.done() if unit.model == "twin-arm")
        store.put([Row(replace(unit, content="0" * 16), 0, "documents", {"documents": 0}, "Who?", ("x",), "x")])
        assert len(store.done()) == outcome.units + 1
    assert Run(folder).results().equals(outcome.run.results())


@pytest.mark.slow
def test_only_what_is_missing_is_run(outcome, tmp_path):
    """Some rows and a trace are taken away, another trace is damaged: these units come back as they were."""
    import shutil
    import sqlite3

    folder = tmp_path / "run"
    shutil.copytree(outcome.run.folder, folder)
    traces = Run(folder).traces()
    traces[0].unlink()
    traces[1].write_bytes(traces[1].read_bytes()[:5000])
    kept = {path: path.stat().st_mtime_ns for path in Run(folder).traces(control=None)[2:]}
    database = sqlite3.connect(folder / "results.sqlite")
    with database:
        database.execute("DELETE FROM results WHERE number = 4 AND control = '' AND model = 'twin-llada'")
    database.close()
    again = run_study(outcome.run.study, folder)
    assert again.done_now == 2 + 4  # two traces; one sample of two tasks and two conditions
    assert again.run.results().drop("trace").equals(outcome.run.results().drop("trace"))
    assert all(path.stat().st_mtime_ns == before for path, before in kept.items())
    fs.Trace.load(traces[1])


@pytest.mark.slow
def test_a_run_may_grow(outcome, tmp_path):
    import shutil

    folder = tmp_path / "run"
    shutil.copytree(outcome.run.folder, folder)
    study = outcome.run.study
    more = replace(
        study,
        models=(*study.models, ModelPlan("twin-dream")),
        conditions=(Curve("documents", "0"), Curve("documents", "3", traces=2)),
        controls=("untrained",),
        analyses=("dispersion",),
    )
    grown = run_study(more, folder)
    assert set(grown.run.results().filter(control="")["model"]) == {"twin-arm", "twin-llada", "twin-dream"}
    # two models, two tasks: a sample traced now, and its untrained control; and all of the new model's units
    assert grown.done_now == 2 * 2 * 2 + 20 + 4
    before, after = predictions(outcome.run), predictions(grown.run)
    assert before.items() <= after.items() and len(grown.run.traces(model="twin-arm")) == 4
    assert (folder / "tables" / "dispersion.parquet").exists() and (folder / "figures" / "dispersion.svg").exists()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"seed": 1}, "seed is 0 there and 1 here"),
        ({"limit": 6}, "limit is 5 there and 6 here"),
        ({"slots": 8}, "slots is 4 there"),
        ({"steps": 2}, "steps is None there and 2 here"),
        ({"keep": "heads"}, "keep is 'compact' there and 'heads' here"),
        ({"prompt": PromptPlan(raw=True)}, "prompt is PromptPlan"),
        ({"name": "other"}, "name is 'small' there and 'other' here"),
        ({"tasks": (TaskPlan("world:rag:3", limit=4), TaskPlan("world:twohop:3"))}, "'rag' is described otherwise"),
        ({"models": (ModelPlan("twin-arm"),)}, "model 'twin-llada', which is not asked for"),
        ({"models": (ModelPlan("twin-arm"), ModelPlan("twin-llada", "twin-arm"))}, "is described otherwise"),
        ({"conditions": (Curve("documents", "0"),)}, "condition 'documents/3' of 'rag'"),
        ({"tasks": (TaskPlan("world:rag:3"),)}, "task 'twohop', which is not asked for"),
    ],
)  # fmt: skip
def test_another_study_is_refused(outcome, changes, told):
    with pytest.raises(UserError, match=told):
        run_study(small_study(**changes), outcome.run.folder)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty and holds no run"):
        run_study(small_study(), tmp_path)
    with pytest.raises(UserError, match="no run in"):
        Run(tmp_path)


@pytest.mark.slow
def test_fewer_samples_than_a_run_has_are_refused(tmp_path):
    few = {"models": (ModelPlan("twin-arm"),), "tasks": (TaskPlan("world:rag:3"),)}
    run_study(small_study(**few, conditions=(Curve("documents", "0", limit=3),)), tmp_path)
    with pytest.raises(UserError, match=r"condition 'documents/0' of 'rag' with 3 samples"):
        run_study(small_study(**few, conditions=(Curve("documents", "0", limit=2),)), tmp_path)
    grown = run_study(small_study(**few, conditions=(Curve("documents", "0", limit=4),)), tmp_path)
    assert grown.run.results().filter(control="").height == 4 and grown.done_now < grown.units


def test_samples_that_changed_are_refused(tmp_path):
    file = tmp_path / "mine.jsonl"
    study = small_study(
        models=(ModelPlan("twin-arm"),), tasks=(TaskPlan(str(file)),), conditions=(Curve("documents", "0"),)
    )
    file.write_text(json.dumps({"id": "1", "question": "Who founded Ferrox Steel?", "answers": ["Ida Ritter"]}))
    run_study(study, tmp_path / "run")
    file.write_text(json.dumps({"id": "1", "question": "Who founded Ferrox Steel?", "answers": ["Ada Dorn"]}))
    with pytest.raises(UserError, match=r"The samples of the task 'mine' changed .* another folder"):
        run_study(study, tmp_path / "run")


@pytest.mark.slow
def test_study_and_manifest_are_replaced_in_one_move(outcome, tmp_path):
    """A second name for the old files keeps the old content: nothing is written into a file that is there."""
    import shutil

    folder = tmp_path / "run"
    shutil.copytree(outcome.run.folder, folder)
    names = ("study.toml", "manifest.json")
    old = {name: (folder / name).read_text() for name in names}
    for name in names:
        os.link(folder / name, tmp_path / name)
    run_study(replace(outcome.run.study, models=(*outcome.run.study.models, ModelPlan("twin-dream"))), folder)
    for name in names:
        assert (tmp_path / name).read_text() == old[name] != (folder / name).read_text()
        assert "twin-dream" in (folder / name).read_text()


def test_weights_that_changed_are_refused(outcome, tmp_path):
    import shutil

    folder = tmp_path / "run"
    shutil.copytree(outcome.run.folder, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["versions"]["floatscope"] == fs.__version__
    assert len(manifest["models"]["twin-arm"]["sha256"]["model.safetensors"]) == 64
    manifest["models"]["twin-arm"]["sha256"]["model.safetensors"] = "0" * 64
    del manifest["sha256"]
    replace_sealed(folder / "manifest.json", manifest)
    Run(folder).traces(model="twin-arm")[0].unlink()
    with pytest.raises(UserError, match=r"model\.safetensors of the model 'twin-arm' changed"):
        run_study(outcome.run.study, folder)


@pytest.mark.slow
def test_a_failing_sample_is_a_row_and_the_others_go_on(tmp_path):
    file = tmp_path / "mine.jsonl"
    lines = [
        {"id": "good", "question": "Who is the founder of Ferrox Steel?", "answers": ["Ida Ritter"]},
        {"id": "long", "question": "word " * 3000, "answers": ["x"]},
        {"id": "surrogate \ud800", "question": "Who \ud800?", "answers": ["x"]},
        {"id": "also good", "question": "Who is the founder of Calyx Foods?", "answers": ["Ada Dorn"]},
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    study = small_study(
        models=(ModelPlan("twin-llada"),), tasks=(TaskPlan(str(file)),), conditions=(Curve("documents", "0"),)
    )
    first = run_study(study, tmp_path / "run")
    rows = first.run.results().filter(control="")
    errors = dict(rows.select("sample", "error").iter_rows())
    assert errors["good"] is None and errors["also good"] is None
    assert "too long" in errors["long"] and errors["surrogate ?"] is None
    assert first.failed == 1 and rows.filter(pl.col("error").is_not_null())["accuracy"].is_null().all()
    assert run_study(study, tmp_path / "run").done_now == 0
    assert run_study(study, tmp_path / "run", retry=True).done_now == 1


def test_a_folder_that_can_be_none_is_refused():
    with pytest.raises(UserError, match="can be no folder"):
        run_study(small_study(), "a\0b")


@pytest.mark.slow
def test_a_mistake_in_the_sampler_stops_the_run(tmp_path):
    study = small_study(models=(ModelPlan("twin-llada", sampler={"block": 3}),))
    with pytest.raises(UserError, match="'twin-llada' with 4 slots"):
        run_study(study, tmp_path / "run")


@pytest.mark.slow
def test_stress_labels_become_columns(tmp_path):
    study = small_study(
        models=(ModelPlan("twin-arm"),), tasks=(TaskPlan("world:rag:3"),), limit=2,
        conditions=(
            Curve("slots", "2,4"),
            Curve("question", "before,after"),
            Curve("noise", "0,1", options={"kinds": ("random",)}),
        ),
    )  # fmt: skip
    rows = run_study(study, tmp_path / "run").run.results().filter(control="")
    by_condition = {row["condition"]: row for row in rows.iter_rows(named=True)}
    assert by_condition["slots/2"]["slots"] == 2 and by_condition["slots/2"]["steps"] <= 2
    assert by_condition["question/before"]["placement"] == "before" and by_condition["slots/2"]["placement"] is None
    noisy = by_condition["noise/random/gold-kept/1"]
    assert (noisy["kind"], noisy["gold"], noisy["level"]) == ("random", "kept", 1)
    assert {"closed-book", "oracle"} <= set(by_condition)
    assert by_condition["closed-book"]["prompt_tokens"] < by_condition["oracle"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("manifest.json", '"seed": 0', '"seed": 1'), ("manifest.json", '"units": ', '"units": -'),
        ("manifest.json", '"torch": "', '"torch": "9'), ("manifest.json", '  "sha256"', '  "sha257"'),
        ("study.toml", 'description = ""', 'description = "x"'), ("study.toml", "batch = 4", "batch = 5"),
    ],
)  # fmt: skip
def test_one_value_that_changed_in_the_manifest_or_the_study_of_a_run_is_told(outcome, tmp_path, name, old, new):
    """The report shows both, and the number of units says whether a run is finished."""
    import shutil

    folder = tmp_path / "run"
    shutil.copytree(outcome.run.folder, folder)
    text = (folder / name).read_text()
    assert text.count(old) >= 1
    head, _, tail = text.rpartition(old)
    (folder / name).write_text(f"{head}{new}{tail}")
    with pytest.raises(UserError, match=rf"{name} is (damaged|not what the run was made with)"):
        gather(Run(folder), {})


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        None, "", "{", "[]", '{"units": "x"}', '{"units": null}', '{"models": {"twin-arm": 5}}', '{"tasks": []}',
        '{"tasks": {"rag": {"sha256": 7}}}', '{"templates": {"default": {"sha256": {"The text": 1}}}}',
    ],
)  # fmt: skip
def test_a_manifest_that_is_damaged_or_gone_is_told_and_the_run_is_not_gone_on_with(outcome, tmp_path, text):
    """It holds the hashes of what the run was made of: without them two studies could be mixed."""
    import shutil

    folder = tmp_path / "run"
    shutil.copytree(outcome.run.folder, folder)
    if text is None:
        (folder / "manifest.json").unlink()
        assert Run(folder).unfinished.startswith("manifest.json of this run is gone")
    else:
        (folder / "manifest.json").write_text(text)
        with pytest.raises(UserError, match=r"manifest\.json is damaged \(.*\): put back what was there"):
            Run(folder).manifest  # noqa: B018
    with pytest.raises(UserError, match=r"manifest\.json is (damaged|gone).*another folder"):
        run_study(outcome.run.study, folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may write everywhere")
def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="cannot be used"):
        run_study(small_study(), tmp_path / "run")


@pytest.mark.slow
def test_retrieved_documents_are_shown_and_recall_is_told(tmp_path):
    founders = {"Ferrox Steel": "Ida Ritter", "Calyx Foods": "Ada Dorn", "Orbis Bank": "Olga Hale"}
    corpus = [{"title": name, "text": f"{name} was founded by {who}."} for name, who in founders.items()]
    corpus += [{"title": "Lark", "text": "Rain fell for days."}, {"title": "Selby", "text": "The road is long."}]
    questions = [{"question": f"Who is the founder of {name}?", "answers": [who]} for name, who in founders.items()]
    for name, lines in (("corpus", corpus), ("questions", questions)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    task = TaskPlan(str(tmp_path / "questions.jsonl"), corpus=str(tmp_path / "corpus.jsonl"), retrieve=2)
    study = small_study(models=(ModelPlan("twin-arm"),), tasks=(task,), conditions=(Curve("documents", "2", traces=1),))
    run = run_study(study, tmp_path / "run").run
    assert run.manifest["tasks"]["questions"]["recall"][-1] == {"k": 2, "answer": 1.0, "gold": None}
    shown = fs.Trace.load(run.traces()[0])
    assert {"doc 1", "doc 2"} <= set(shown.region_labels)
    evidence = [shown.texts_or_ids[place] for place in shown.marks["evidence"]]
    assert "Ida" in evidence and "Ritter" in evidence  # no document is marked: the one that has the answer is gold


@pytest.fixture(scope="module")
def analysed(outcome, tmp_path_factory):
    """The small study with an analysis."""
    import shutil

    folder = tmp_path_factory.mktemp("analysed") / "run"
    shutil.copytree(outcome.run.folder, folder)
    return run_study(replace(outcome.run.study, analyses=("dispersion",)), folder).run


@pytest.mark.slow
@pytest.mark.parametrize("part", ["unit", "trace", "table", "figure", "listing"])
def test_what_was_damaged_on_the_disk_is_made_again_and_said(outcome, analysed, tmp_path, part):
    import shutil

    study, folder = analysed.study, tmp_path / "a [run]*"  # no pattern of files, though it looks like one
    shutil.copytree(analysed.folder, folder)  # with the times of its files
    run = Run(folder)
    assert missing_analyses(run) == {} and list(read_analyses(run)) == ["dispersion"]
    result, tables = run.results(), {path.name: path.read_bytes() for path in (folder / "tables").iterdir()}
    path, what = {
        "unit": (folder / "results.sqlite", run.results().filter(control="")["question"][0].encode()),
        "trace": (run.traces()[0], None),
        "table": (folder / "tables" / "dispersion.parquet", None),
        "figure": (folder / "figures" / "dispersion.svg", None),
        "listing": (folder / "tables" / "analyses.json", b"notes"),
    }[part]
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3 if what is None else content.index(what)] ^= 1
    path.write_bytes(content)
    if part in ("table", "figure"):
        assert "is damaged or gone: run the study again" in missing_analyses(run)["dispersion"]
        assert read_analyses(run) == {}
    if part == "unit":
        units = outcome.units
        assert run.unfinished.startswith(f"This run is not finished: {units - 1} of {units} units are done")
    again = run_study(study, folder)
    assert (again.done_now, again.damaged) == {"unit": (1, 1), "trace": (1, 0)}.get(part, (0, 0))
    assert again.run.results().equals(result) and not run.unfinished and missing_analyses(run) == {}
    assert {path.name: path.read_bytes() for path in (folder / "tables").iterdir()} | {
        "analyses.json": b""
    } == tables | {"analyses.json": b""}


@pytest.mark.slow
def test_a_run_that_was_stopped_says_so_in_tables_and_report(tmp_path):
    study = small_study(models=(ModelPlan("twin-arm"),), tasks=(TaskPlan("world:rag:3"),), batch=1)

    def stop(what, done, total):
        if done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path, notify=stop)
    run = Run(tmp_path)
    total = run.manifest["units"]
    said = f"This run is not finished: 20 of {total} units are done, and what is shown is of these alone."
    assert run.unfinished == said and total > 20
    assert tables_text(run, "markdown").startswith(f"**{said}**\n\n") and tables_text(run, "latex").startswith(
        f"% {said}"
    )
    assert gather(run, {}).summary[0] == said
    run_study(study, tmp_path)
    assert Run(tmp_path).unfinished == "" and said not in tables_text(run, "markdown")


@pytest.mark.slow
def test_analyses_are_made_anew_by_other_code(outcome, tmp_path, monkeypatch):
    import shutil

    from floatscope.study import analyses

    study = replace(outcome.run.study, analyses=("dispersion",))
    shutil.copytree(outcome.run.folder, tmp_path / "run")
    made = []
    real = analyses.analyze
    monkeypatch.setattr(analyses, "analyze", lambda name, *rest: made.append(name) or real(name, *rest))
    code = tmp_path / "code.py"
    code.write_text("first")
    monkeypatch.setattr(analyses, "getsourcefile", lambda function: str(code))
    for change, count in (("first", 1), ("first", 1), ("second", 2), ("second", 2)):
        code.write_text(change)
        run_study(study, tmp_path / "run")
        assert made == ["dispersion"] * count
    monkeypatch.setattr(analyses, "__version__", "9.9")
    run_study(study, tmp_path / "run")
    assert len(made) == 3


CHANGES = {
    "tokenizer.json of the model 'mine'": ("model/tokenizer.json", "founder", "fonder"),
    "tokenizer_config.json of the model 'mine'": ("model/tokenizer_config.json", "{", '{"x": 1, '),
    "chat_template.jinja of the model 'mine'": ("model/chat_template.jinja", "a", None),  # removed
    "The family of the model 'mine'": ("family.toml", "mine", "yours"),
    "The text of the template": ("template.txt", "Question:", "Q:"),
    "The corpus of the task 'questions'": ("corpus.jsonl", "Ada", "Eva"),
    "The samples of the task 'questions'": ("questions.jsonl", '"Ida"', '"Eva"'),
    "The pool of distractors of the task 'questions'": (
        "questions.jsonl",
        "Dorn",
        "Horn",
    ),  # of a sample beyond the limit
}


@pytest.mark.slow
@pytest.mark.parametrize("named", CHANGES)
def test_a_run_is_not_gone_on_with_after_anything_changed_that_decides_its_results(tmp_path, named):
    import shutil

    from floatscope.models.shipped import shipped

    shutil.copytree(shipped()["twin-arm"], tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text("a{{ messages }}")
    (tmp_path / "family.toml").write_text('base = "causal"\nname = "mine"\n')
    (tmp_path / "template.txt").write_text("{documents}{text}\n{/documents}Question: {question}\nAnswer:")
    asked = {
        "question": "Who is the founder of Ferrox Steel?",
        "answers": ["Ida"],
        "documents": [{"text": "Ida Ritter."}],
    }
    other = {"question": "Who is the founder of Calyx Foods?", "answers": ["Ada Dorn"], "documents": []}
    (tmp_path / "questions.jsonl").write_text(f"{json.dumps(asked)}\n{json.dumps(other)}")
    (tmp_path / "corpus.jsonl").write_text("\n".join(json.dumps({"title": "", "text": f"Ada {n}"}) for n in range(9)))
    study = small_study(
        models=(ModelPlan("mine", str(tmp_path / "model"), str(tmp_path / "family.toml")),),
        tasks=(TaskPlan(str(tmp_path / "questions.jsonl"), corpus=str(tmp_path / "corpus.jsonl")),),
        conditions=(Curve("documents", "1"),),
        limit=1,
        prompt=PromptPlan(str(tmp_path / "template.txt"), raw=True),
    )  # fmt: skip
    assert run_study(study, tmp_path / "run").failed == 0
    file, old, new = CHANGES[named]
    text = (tmp_path / file).read_text()
    assert old in text
    if new is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(text.replace(old, new))
    grown = replace(study, conditions=(Curve("documents", "1,2"),))
    written = {name: (tmp_path / "run" / name).read_bytes() for name in ("study.toml", "manifest.json")}
    with pytest.raises(UserError, match=rf"^{named}.* changed since this run began"):
        run_study(grown, tmp_path / "run")
    assert written == {name: (tmp_path / "run" / name).read_bytes() for name in written}
    (tmp_path / file).write_text(text)
    assert run_study(grown, tmp_path / "run").failed == 0
