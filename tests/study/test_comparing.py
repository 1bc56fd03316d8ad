"""Two runs side by side: pairs and counts against plain loops over their rows."""

from dataclasses import replace

import pytest

from floatscope.errors import UserError
from floatscope.study.comparing import compare, comparison_text
from floatscope.study.plan import ModelPlan, TaskPlan
from floatscope.study.running import run_study
from floatscope.study.store import Run
from tests.study.small_studies import small_study

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    """The small study with one slot fewer and an untrained model under an old name, without traces."""
    study = small_study(slots=3, models=(ModelPlan("twin-arm"), ModelPlan("twin-llada", "twin-llada-untrained")))
    study = replace(study, conditions=tuple(replace(curve, traces=0) for curve in study.conditions))
    return run_study(study, tmp_path_factory.mktemp("runs") / "second").run


def test_scores_are_paired_by_unit(outcome, second):
    first = Run(outcome.run.folder)
    changes, cells, turned = compare(first, second)
    keys = ("model", "task", "condition", "sample")
    rows = [
        {tuple(row[key] for key in keys): row for row in run.results().filter(control="").to_dicts()}
        for run in (first, second)
    ]
    for cell in cells.iter_rows(named=True):
        units = [key for key in rows[0] if key[:3] == (cell["model"], cell["task"], cell["condition"])]
        pairs = [(rows[0][key], rows[1][key]) for key in units if key in rows[1]]
        gains = [b["accuracy"] - a["accuracy"] for a, b in pairs]
        assert cell["n"] == len(pairs) == 5
        assert cell["value"] == pytest.approx(sum(gains) / len(gains))
        assert (cell["turned right"], cell["turned wrong"]) == (gains.count(1), gains.count(-1))
        assert cell["other answers"] == sum(a["prediction"] != b["prediction"] for a, b in pairs)
    assert turned.height == cells["turned right"].sum() + cells["turned wrong"].sum() > 0
    said = {name: [before, after] for name, before, after in changes}
    assert said["slots"] == ["4", "3"] and said["models twin-llada, source"] == ["twin-llada", "twin-llada-untrained"]
    assert not any("seed" in name or "task" in name for name in said)
    text = comparison_text(first, second)
    assert "| slots | 4 | 3 |" in text and "Samples that turned" in text and turned["question"][0] in text


def test_runs_without_a_unit_in_common_are_refused(outcome, tmp_path):
    other = small_study(models=(ModelPlan("twin-arm"),), tasks=(TaskPlan("world:rag:3", "other"),))
    other = replace(other, conditions=other.conditions[:1], limit=1)
    with pytest.raises(UserError, match="no unit in common"):
        compare(outcome.run, run_study(other, tmp_path / "other").run)
