"""The plan of units: who is asked what, in which order, with which seed and trace name."""

from collections import Counter

import pytest

from floatscope.errors import UserError
from floatscope.study.plan import Curve, TaskPlan
from floatscope.study.units import Unit, load_task, plan_jobs
from tests.study.small_studies import small_study


def jobs_of(study):
    return plan_jobs(study, [load_task(study, plan) for plan in study.tasks])


def test_every_unit_is_planned_once():
    jobs = jobs_of(small_study())
    units = [job.unit for job in jobs]
    assert len(set(units)) == len(units)
    counted = Counter((unit.model, unit.control) for unit in units)
    assert counted["twin-arm", ""] == counted["twin-llada", ""] == 5 * 2 * 2  # samples, tasks, conditions
    assert counted["twin-arm", "untrained"] == counted["twin-arm", "null_query"] == 1 * 2  # traced samples, tasks
    assert counted["most-common-answer", "guess"] == 5 * 2 * 2
    assert sum(job.traced for job in jobs) == 2 * 2 * 3  # models, tasks, own and two controls


def test_a_curve_can_take_fewer_samples_and_stress_brings_baselines():
    study = small_study(
        conditions=(Curve("position", "1,3", ("rag",), limit=2, options={"documents": 3}), Curve("documents", "3"))
    )
    counted = Counter((job.unit.task, job.unit.condition) for job in jobs_of(study) if job.unit.model == "twin-arm")
    assert counted == {
        ("rag", "closed-book"): 5, ("rag", "oracle"): 5, ("rag", "position/3/1"): 2, ("rag", "position/3/3"): 2,
        ("rag", "documents/3"): 5, ("twohop", "documents/3"): 5,
    }  # fmt: skip


@pytest.mark.slow
def test_a_curve_can_be_for_some_models():
    study = small_study(conditions=(Curve("documents", "0"), Curve("documents", "3", models=("twin-llada",), traces=1)))
    asked = {(job.unit.model, job.unit.condition) for job in jobs_of(study) if job.unit.control in ("", "untrained")}
    assert asked == {("twin-arm", "documents/0"), ("twin-llada", "documents/0"), ("twin-llada", "documents/3")}
    assert ("nearest-sentence", "documents/3") in {(job.unit.model, job.unit.condition) for job in jobs_of(study)}
    with pytest.raises(UserError, match=r"There is no model 'twin-lada'.*twin-llada"):
        small_study(conditions=(Curve("documents", "0", models=("twin-lada",)),))


def test_no_controls_where_none_are_wanted():
    assert {job.unit.control for job in jobs_of(small_study(controls=()))} == {"", "guess"}


def test_seeds_and_names_differ_between_units_and_stay():
    units = [job.unit for job in jobs_of(small_study())]
    assert len({unit.seed(0) for unit in units}) == len({unit.file_name for unit in units}) == len(units)
    unit = Unit("m", "t", "documents/5", "s")
    assert unit.seed(0) == Unit("m", "t", "documents/5", "s").seed(0) != unit.seed(1)
    # the seed is the first 8 bytes of sha256 over the parts, whatever machine or process asks
    assert unit.seed(0) == _seed_by_hand(0, unit)
    alike = (("a b", "t"), ("a-b", "t"), ("a", "b_t"), ("a_b", "t"))
    names = [Unit(model, task, "c", "s").file_name for model, task in alike]
    assert len(set(names)) == 4 and len({name.casefold() for name in names}) == 4
    assert Unit("a/b: c", "../t", "x", "s" * 300).file_name.count("/") == 0
    assert len(Unit("a", "t", "x", "s" * 300).file_name) < 140


def _seed_by_hand(seed, unit):
    import hashlib

    text = "\x1f".join([str(seed), unit.model, unit.task, unit.condition, unit.sample, unit.control])
    return int(hashlib.sha256(text.encode()).hexdigest()[:16], 16)


def test_baselines_are_not_traced_where_the_study_keeps_traces():
    study = small_study(tasks=(TaskPlan("world:rag:3"),), conditions=(Curve("noise", "1"),), traces=2)
    traced = {job.unit.condition for job in plan_jobs(study, [load_task(study, study.tasks[0])]) if job.traced}
    assert traced == {"noise/topical/gold-kept/1"}


def test_controls_have_no_more_samples_than_are_asked():
    study = small_study(tasks=(TaskPlan("world:rag:3"),), conditions=(Curve("documents", "3", limit=2, traces=4),))
    counted = Counter(job.unit.control for job in jobs_of(study) if job.unit.model == "twin-arm")
    assert counted == {"": 2, "untrained": 2, "null_query": 2}
