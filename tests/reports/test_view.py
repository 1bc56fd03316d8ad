"""Traces at hand as a page and as a cell: the data of each trace is in it, whole."""

import json
import re

import pytest

import floatscope as fs
from floatscope.cli import app
from tests.traces.full_matrices import full_run, to_trace


def data_of(html: str) -> dict:
    found = re.search(r'<script type="application/json" id="player-data">(.*?)</script>', html, re.S)
    assert found
    return json.loads(found[1])


def test_a_page_of_two_traces_has_them_side_by_side(tmp_path, capsys):
    traces = [to_trace(full_run(kind=kind, layers=14), model=kind) for kind in ("mdm", "arm")]
    paths = [str(trace.save(tmp_path / f"{trace.model}.safetensors")) for trace in traces]
    app(["view", *paths, "--out", str(tmp_path / "v.html")], exit_on_error=False, result_action="return_value")
    assert capsys.readouterr().out.strip() == str(tmp_path / "v.html")
    [sample] = data_of((tmp_path / "v.html").read_text())["samples"]
    assert [run["model"] for run in sample["runs"]] == ["mdm", "arm"]
    assert sample["runs"][0]["layer_names"] == list(range(14))  # a report has fewer of so many, a page of its own all
    assert sample["runs"][0]["commit"]["heads"] == 1 + traces[0].heads


def test_a_notebook_shows_them_and_other_things_are_refused():
    trace = to_trace(full_run())
    assert "floatscope.Player(" in fs.show(trace, trace)._repr_html_()
    with pytest.raises(fs.UserError, match="show takes traces"):
        fs.show()
