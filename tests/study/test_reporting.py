"""From a run to its texts and its page: what is gathered, and the numbers of the page against the rows of the run."""

import html
import json
import re
import sqlite3

import pytest

from floatscope.reports.headline import headline_html
from floatscope.reports.tables import write_tables
from floatscope.study.plan import Curve, ModelPlan, TaskPlan
from floatscope.study.reporting import gather, ordered_models, report, tables_text
from floatscope.study.running import run_study
from floatscope.study.scores import table_notes
from floatscope.study.store import Run
from tests.study.small_studies import small_study


def test_diffusers_come_first():
    assert ordered_models(["a", "x", "m"], {"m": "mdm", "a": "arm"}) == ("x", "m", "a")


@pytest.mark.slow
def test_the_text_of_a_run_is_that_of_its_scores(outcome):
    run = Run(outcome.run.folder)
    for form in ("markdown", "latex", "csv"):
        assert tables_text(run, form) == write_tables(run.scores(), table_notes(run.results()), form)


@pytest.mark.slow
def test_the_page_of_a_run_holds_its_numbers(outcome):
    run = Run(outcome.run.folder)
    content = gather(run, {})
    assert content.models == ("twin-llada", "twin-arm") and content.notes == ("n = 5 samples per cell.",)
    assert content.scores is not None and content.scores.equals(run.scores())
    path = report(run, {})
    page = path.read_text(encoding="utf-8")
    assert path == run.folder / "report.html" and str(run.folder) not in page
    assert headline_html(run.scores(), content.models) in page and "n = 5 samples per cell." in page

    # every share of right answers in Table 1, from the rows of the database
    query = (
        "SELECT model, task, condition, avg(json_extract(scores, '$.accuracy')) FROM results WHERE control = '' "
        "GROUP BY model, task, condition"
    )
    shares = {row[:3]: row[3] for row in sqlite3.connect(run.folder / "results.sqlite").execute(query)}
    table = re.search(r'<table class="headline">.*?</table>', page)
    assert table
    shown = {}
    for row in re.findall(r"<tr.*?</tr>", table[0]):
        name = html.unescape(re.findall(r"<th[^>]*>(.*?)</th>", row)[0])
        if 'class="group"' in row:
            task = name
        elif name in content.models:
            without, having, gain = (float(cell.replace("−", "-")) for cell in re.findall(r'number">([−+\d.]+)', row))
            shown[name, task] = (without, having, gain)
    expected = {}
    for model in content.models:
        own = {task: [shares[model, task, f"documents/{count}"] for count in (0, 3)] for task in ("rag", "twohop")}
        own["Avg"] = [sum(pair) / 2 for pair in zip(*own.values(), strict=True)]
        expected |= {
            (model, task): tuple(round(100 * share, 1) for share in (none, three, three - none))
            for task, (none, three) in own.items()
        }
    assert shown == expected


@pytest.mark.slow
def test_the_page_of_a_run_plays_its_traces(outcome):
    run = Run(outcome.run.folder)
    page = report(run, {}).read_text(encoding="utf-8")
    played = re.search(r'id="player-data">(.*?)</script>', page)
    assert played
    samples = json.loads(played[1])["samples"]
    shown = {(sample["title"], one["model"], one["control"]) for sample in samples for one in sample["runs"]}
    titles = [f"{task} · documents/3 · {task}-test-3-0-0" for task in ("rag", "twohop")]
    assert shown == {
        (title, model, control)
        for title in titles
        for model in ("twin-arm", "twin-llada")
        for control in ("", "untrained")
    }


@pytest.mark.slow
def test_the_player_has_every_condition_that_was_traced(tmp_path):
    curve = Curve("documents", "0,3", traces=1)
    study = small_study(
        models=(ModelPlan("twin-arm"),), tasks=(TaskPlan("world:rag:3"),), conditions=(curve,), limit=1, controls=()
    )
    run = run_study(study, tmp_path / "run").run
    assert len(run.traces()) == 2
    assert [trace.metadata["condition"] for trace in gather(run, {}).traces] == ["documents/0", "documents/3"]


@pytest.mark.slow
def test_a_run_shows_itself_and_its_report_by_its_folder(outcome):
    run = Run(outcome.run.folder)
    rows = run.results()
    assert (
        f"2 models, 2 tasks, {rows['condition'].n_unique()} conditions, {rows.height} of {rows.height} units"
        in repr(run)
    )
    assert report(str(run.folder)) == run.folder / "report.html"
