"""Two runs side by side: pairs and counts against plain loops over their rows."""

from dataclasses import replace
from types import SimpleNamespace

import polars as pl
import pytest

from floatscope.errors import UserError
from floatscope.study.comparing import compare, comparison_text
from floatscope.study.plan import ModelPlan, TaskPlan
from floatscope.study.running import run_study
from floatscope.study.store import Run
from tests.study.small_studies import small_study


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    """The small study with one slot fewer and an untrained model under an old name, without traces."""
    study = small_study(slots=3, models=(ModelPlan("twin-arm"), ModelPlan("twin-llada", "twin-llada-untrained")))
    study = replace(study, conditions=tuple(replace(curve, traces=0) for curve in study.conditions))
    return run_study(study, tmp_path_factory.mktemp("runs") / "second").run


@pytest.mark.slow
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


@pytest.mark.slow
def test_runs_without_a_unit_in_common_are_refused(outcome, tmp_path):
    other = small_study(models=(ModelPlan("twin-arm"),), tasks=(TaskPlan("world:rag:3", "other"),))
    other = replace(other, conditions=other.conditions[:1], limit=1)
    with pytest.raises(UserError, match="no unit in common"):
        compare(outcome.run, run_study(other, tmp_path / "other").run)


def written(folder, model, units):
    """As much of a run as is compared: units (task, condition, sample, prediction, accuracy), and a control."""
    folder.mkdir()
    (folder / "study.toml").write_text(f'name = "{folder.name}"\nslots = {len(model)}\n')
    names = ("task", "condition", "sample", "prediction", "accuracy")
    about = {"model": model, "control": "", "question": "Who?", "answers": ["Ann"]}
    rows = [about | dict(zip(names, unit, strict=True)) for unit in units]
    rows.append(rows[0] | {"control": "untrained", "accuracy": 1.0})
    frame = pl.DataFrame(rows, schema_overrides={"accuracy": pl.Float64})
    return SimpleNamespace(folder=folder, results=lambda: frame, manifest={})


def test_two_models_of_other_names_are_compared_cell_by_cell(tmp_path):
    """The second minus the first, of units that both have and that did not fail; one sample is only in each."""
    first = [("t", "c", "1", "no", 0.0), ("t", "c", "2", "no", 0.0), ("t", "c", "3", "Ann", 1.0),
             ("t", "c", "4", "no", 0.0), ("t", "c", "5", "no", 0.0), ("t", "d", "1", "Ann", 1.0)]  # fmt: skip
    second = [("t", "c", "2", "Ann", 1.0), ("t", "c", "1", "Ann!", 1.0), ("t", "c", "3", "Ann.", 1.0),
              ("t", "c", "4", "no", 0.0), ("t", "c", "6", "Ann", 1.0), ("t", "c", "5", None, None),
              ("t", "d", "1", "", 0.0)]  # fmt: skip
    runs = written(tmp_path / "a", "old", first), written(tmp_path / "b", "newer", second)
    changes, cells, turned = compare(*runs)
    assert changes == [["slots", "3", "5"]]  # a name is no change
    assert [list(row.values())[:6] for row in cells.to_dicts()] == [
        ["old", "t", "c", 4, 0.25, 0.75], ["old", "t", "d", 1, 1.0, 0.0],
    ]  # fmt: skip
    row = cells.row(0, named=True)
    assert (row["value"], row["p"]) == (0.5, 0.5)  # two turned right, none wrong: 2 / 2²
    assert (row["low"], row["high"]) == (0.0, 1.0)  # of four differences 1, 1, 0 and 0
    assert [row[name] for name in ("turned right", "turned wrong", "other answers")] == [2, 0, 3]
    assert [cells[1, name] for name in ("turned right", "turned wrong", "other answers")] == [0, 1, 1]
    assert turned.select("condition", "sample").rows() == [("c", "1"), ("c", "2"), ("d", "1")]
    text = comparison_text(*runs)
    assert "| old | t | c | 25.0 | 75.0 | +50.0 [+0.0, +100.0] | 0.500 | 4 | 2 | 0 | 3 |" in text
    assert "| old | t | c | 2 | Who? | Ann | no | Ann | right |" in text
    assert "| old | t | d | 1 | Who? | Ann | Ann |  | wrong |" in text
