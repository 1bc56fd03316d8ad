"""The engine: which units make a batch, prompts built once, a batch that fails, a worker that dies."""

import dataclasses
import multiprocessing
import shutil
import sqlite3

import pytest

import floatscope as fs
from floatscope.errors import UserError
from floatscope.qa.stressors import STRESSORS, Axis, Condition, Stressor
from floatscope.study import answering, engine
from floatscope.study.checking import check_study
from floatscope.study.engine import Loading, Size, batches
from floatscope.study.plan import Curve, ModelPlan, TaskPlan
from floatscope.study.running import run_study
from floatscope.study.units import load_task, plan_jobs
from tests.study.small_studies import small_study


def one_model(**changes):
    settings = {
        "models": (ModelPlan("twin-llada"),),
        "tasks": (TaskPlan("world:rag:3"),),
        "conditions": (Curve("documents", "0,3"),),
        "batch": 2,
    }
    return small_study(**settings | changes)


def jobs_of(study):
    return [job for job in plan_jobs(study, [load_task(study, task) for task in study.tasks]) if job.unit.control == ""]


@pytest.fixture
def begun(monkeypatch):
    """The units of every batch that is run, in order, as the engine hands them over."""
    seen: list[list] = []
    real = answering.answer

    def answer(study, model, sampler, batch):
        seen.append([prepared.job.unit for prepared in batch])
        return real(study, model, sampler, batch)

    monkeypatch.setattr(answering, "answer", answer)
    return seen


@pytest.fixture
def built(monkeypatch):
    """The questions of which prompts were built."""
    seen: list[str] = []
    real = answering.build_prompt

    def build_prompt(tokenizer, question, *rest, **settings):
        seen.append(question)
        return real(tokenizer, question, *rest, **settings)

    monkeypatch.setattr(answering, "build_prompt", build_prompt)
    return seen


def test_batches_hold_like_with_like_and_the_shortest_first():
    jobs = jobs_of(one_model(conditions=(Curve("documents", "0,3", traces=1),)))
    tokens = [30, 10, 20, 40, 25, 5, 15, 35, 12, 22]
    sizes = [Size(job, 4, count) for job, count in zip(jobs, tokens, strict=True)]
    sizes[9] = Size(jobs[9], 8, 22)
    shown = [[(size.job.traced, size.slots, size.tokens) for size in batch] for batch in batches(sizes, 3)]
    assert shown == [  # places 0 and 5 are the first samples of the two conditions, which are traced
        [(False, 4, 10), (False, 4, 12), (False, 4, 15)],
        [(False, 4, 20), (False, 4, 25), (False, 4, 35)],
        [(False, 4, 40)],
        [(False, 8, 22)],
        [(True, 4, 5), (True, 4, 30)],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_the_shares_of_all_workers_are_every_batch_once(tmp_path, begun, workers):
    """Nine units and a batch of sixteen are three batches here: traced or not, and two numbers of slots."""
    curves = (Curve("documents", "0"), Curve("documents", "3", traces=1), Curve("slots", "2", limit=1))
    study = one_model(conditions=curves, controls=(), batch=16, workers=workers, limit=2)
    jobs = jobs_of(study)
    assert engine.batch_count(study, jobs) == 3
    rows: list = []
    (tmp_path / "traces").mkdir()
    for share in range(workers):
        engine.run_share(
            study, tmp_path, jobs, {job.unit for job in jobs}, lambda _, done: rows.extend(done), share, workers
        )
    assert len(begun) == 3
    assert sorted(row.unit.parts for row in rows) == sorted(job.unit.parts for job in jobs)


@pytest.mark.slow
def test_batches_are_run_in_an_order_that_is_not_by_length_and_stays(tmp_path, begun):
    """So that a run which is stopped has no more short prompts than long ones."""
    study = one_model(conditions=(Curve("documents", "0..3"),), limit=4, batch=1)
    rows = run_study(study, tmp_path / "first").run.results().filter(control="")
    tokens = dict(zip(zip(rows["condition"], rows["sample"], strict=True), rows["prompt_tokens"], strict=True))
    first = [batch[0] for batch in begun]
    lengths = [tokens[unit.condition, unit.sample] for unit in first]
    assert len(lengths) == 16 and lengths not in (sorted(lengths), sorted(lengths)[::-1])
    assert max(lengths[:8]) > min(lengths[8:]) and max(lengths[8:]) > min(lengths[:8])
    begun.clear()
    run_study(study, tmp_path / "second")
    assert [batch[0] for batch in begun] == first


@pytest.mark.slow
def test_what_is_left_is_run_in_the_batches_of_the_full_plan(tmp_path, begun):
    study = one_model()
    run_study(study, tmp_path)
    whole = [list(batch) for batch in begun]
    assert [len(batch) for batch in whole] == [2] * 5
    begun.clear()
    database = sqlite3.connect(tmp_path / "results.sqlite")
    with database:
        for batch in whole[:4]:  # one unit of each
            database.execute(
                "DELETE FROM results WHERE model = ? AND task = ? AND condition = ? AND sample = ? AND control = ?",
                batch[1].parts,
            )
    database.close()
    assert run_study(study, tmp_path).done_now == 4
    assert begun == whole[:4]  # each whole, so that its samples have the numbers that they had


@pytest.mark.slow
def test_a_prompt_is_built_once_unless_memory_is_short(tmp_path, begun, built, monkeypatch):
    study = one_model()
    first = run_study(study, tmp_path / "kept").run.results()
    assert len(built) == 10
    built.clear()
    shortest = sorted(first.filter(control="")["prompt_tokens"])
    monkeypatch.setattr(engine, "KEPT_TOKENS", shortest[0] + shortest[1])  # all of one sample or two, no more
    again = run_study(study, tmp_path / "short").run.results()
    assert 10 + 8 <= len(built) < 10 + 10
    assert again.equals(first)
    built.clear()
    run_study(study, tmp_path / "kept")
    assert built == []


def test_guesses_are_handed_over_a_few_at_a_time(monkeypatch):
    """So that they are committed as they are made: each row once, of one guess and task at a time."""
    study = one_model(tasks=(TaskPlan("world:rag:3"), TaskPlan("world:twohop:3")))
    jobs = plan_jobs(study, [load_task(study, task) for task in study.tasks])
    wanted = [job.unit for job in jobs if job.unit.control == "guess"]
    monkeypatch.setattr(engine, "GUESSES_AT_ONCE", 4)
    made = [[row.unit for row in rows] for rows in engine.run_guesses(study, jobs, {*wanted})]
    assert [unit for units in made for unit in units] == wanted
    assert [len(units) for units in made] == [4, 4, 2] * 6  # 10 samples and conditions, three guesses, two tasks
    assert all(len({(unit.model, unit.task) for unit in units}) == 1 for units in made)
    left = [[row.unit for row in rows] for rows in engine.run_guesses(study, jobs, {*wanted[-3:]})]
    assert left == [wanted[-3:]]


@pytest.mark.slow
def test_a_batch_that_fails_is_run_one_by_one_and_only_the_wrong_sample_fails():
    study = one_model()
    jobs = jobs_of(study)[:3]
    model = Loading(study.models[0], False, tuple(jobs)).load()
    template = answering.choose_template(study, model, jobs)
    batch = [answering.prepare(study, model, template, job) for job in jobs]
    sampler = answering.build_sampler(study, study.models[0], model.family, 4)
    alone = [answering.answer(study, model, sampler, [prepared])[0][0] for prepared in batch]
    assert batch[1].prompt is not None
    ids = batch[1].prompt.ids.copy()
    ids[2] = 10**6  # a token that the model does not have
    wrong = dataclasses.replace(batch[1], prompt=dataclasses.replace(batch[1].prompt, ids=ids))
    rows = [row for row, _ in answering.answer(study, model, sampler, [batch[0], wrong, batch[2]])]
    assert [row.unit for row in rows] == [job.unit for job in jobs]
    assert (rows[0], rows[2]) == (alone[0], alone[2]) and rows[0].prediction
    assert rows[1].error and "1000000" in rows[1].error and rows[1].prediction is None and rows[1].scores == {}


@pytest.mark.slow
def test_a_condition_sets_the_sampler_of_models_that_have_the_setting(tmp_path, monkeypatch, begun):
    """An order as a condition: commits go that way, batches are of one order, and an ARM answers in its own."""
    orders = ("left-to-right", "right-to-left")
    row = Stressor(
        "way", "Orders of commits", "left-to-right",
        lambda values, _: tuple(
            Condition(f"way/{order}", "way", {"way": order}, stream="way", sampler={"order": order}) for order in orders
        ),
        {"way": str}, Axis("way", "order"),
    )  # fmt: skip
    monkeypatch.setitem(STRESSORS._rows, "way", row)
    study = one_model(
        models=(ModelPlan("twin-llada"), ModelPlan("twin-arm")), conditions=(Curve("way", "all", traces=1),), limit=2
    )
    run = run_study(study, tmp_path).run
    assert {len({unit.condition for unit in batch if unit.condition.startswith("way")}) for batch in begun} == {0, 1}
    steps = {
        (path.stem.split("-rag-")[0], order): fs.Trace.load(path).commit_step.tolist()
        for order in orders
        for path in run.traces(condition=f"way/{order}")
    }
    assert steps["twin-llada", "left-to-right"] == [0, 1, 2, 3] and steps["twin-llada", "right-to-left"] == [3, 2, 1, 0]
    first, second = (steps["twin-arm", order] for order in orders)
    assert first == second == list(range(len(first)))  # it may have ended early
    assert check_study(study)[0].lacks == ""


@pytest.mark.slow
def test_a_worker_that_dies_is_noticed_and_what_is_done_is_kept(tmp_path):
    study = one_model(workers=2, batch=1, limit=20)
    done_before = []

    def kill_workers(what, done, total):
        if what == "twin-llada" and not done_before:
            done_before.append(done)
            for child in multiprocessing.active_children():
                child.kill()

    with pytest.raises(UserError, match="A worker process ended before its work was done; what is done is kept"):
        run_study(study, tmp_path / "run", notify=kill_workers)
    assert multiprocessing.active_children() == []
    again = run_study(dataclasses.replace(study, workers=1), tmp_path / "run")
    assert 0 < again.done_now < 40 and again.failed == 0
    assert again.run.results().height == again.units


def test_more_workers_than_a_machine_can_hold_are_refused(tmp_path):
    with pytest.raises(UserError, match="workers = 100000: ask for at most"):
        run_study(one_model(workers=100_000), tmp_path / "run")


@pytest.mark.slow
def test_a_sentence_of_a_worker_stops_the_run(tmp_path):
    study = one_model(workers=2, models=(ModelPlan("twin-llada", sampler={"block": 3}),))
    with pytest.raises(UserError, match="'twin-llada' with 4 slots"):
        run_study(study, tmp_path / "run")


@pytest.mark.slow
def test_a_trace_that_was_moved_away_is_made_again_to_the_same_bytes(outcome, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(outcome.run.folder, folder)
    path = folder / outcome.run.traces()[0].relative_to(outcome.run.folder)
    before = path.read_bytes()
    path.unlink()
    assert run_study(outcome.run.study, folder).done_now == 1
    assert path.read_bytes() == before
