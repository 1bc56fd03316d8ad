"""An analysis of one's own: one file, and it is in the help, in studies, in tables, in figures and on the page."""

import json
import re
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from floatscope.registry import EXTENSIONS
from floatscope.traces import Trace

OWN = """
import numpy as np

from floatscope.analysis import ANALYSES, Analysis
from floatscope.analysis.drawing import arrange, lines
from floatscope.analysis.figure import Figure, by_model, sentence
from floatscope.analysis.results import analyse
from floatscope.analysis.uniform import uniform_layers
from floatscope.errors import UserError


def peak(traces, options, controls):
    def measure(trace, rng, panel):
        even, kinds = uniform_layers(trace)
        return {
            "layer": np.arange(trace.layers),
            "value": trace.received.max(axis=-1).mean(axis=0),
            "uniform": even.received.max(axis=-1).mean(axis=0)[kinds],
        }

    return analyse("peak", traces, ("layer",), measure, options, controls)[0]


def figure(result, models):
    table = result.table
    return Figure(
        "peak", "The highest share", arrange([lines(table, "peak", {}, models)], {"table": table}), table,
        "The share of the position that receives most. Thin lines are controls.",
        finding=sentence("Highest share, mean over layers", by_model(table, models), digits=4),
    )


def refused(traces, options, controls):
    raise UserError("There is too little of it; trace more.")


ANALYSES.add("peak", Analysis("peak", "the largest share that any position receives", peak, figure))
ANALYSES.add("scarce", Analysis("scarce", "what there is too little of", refused, figure))
"""
STUDY = """
name = "own"
limit = 2
slots = 4
workers = 2
analyses = ["all"]
models = [{ name = "twin-arm" }]
tasks = [{ source = "world:rag:3" }]
conditions = [{ stressor = "documents", values = [3], traces = 2 }]
"""


@pytest.fixture(scope="module")
def called(tmp_path_factory):
    """What a process with the analysis says; `own=False` leaves it out."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "peak.py").write_text(OWN)
    (folder / "own.toml").write_text(STUDY)

    def call(*arguments, own=True):
        environment = {"PYTHONPATH": ":".join(sys.path), "FLOATSCOPE_CACHE": str(folder / "cache"), "COLUMNS": "120"}
        environment |= {EXTENSIONS: str(folder / "peak.py")} if own else {}
        command = [sys.executable, "-m", "floatscope.cli", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)

    return call


@pytest.mark.slow
def test_it_is_in_help_tables_figures_and_page(called, tmp_path):
    told = " ".join(called("analyze", "--help").stdout.replace("│", " ").split())
    assert "peak: the largest share that any position receives" in told
    assert "peak" not in called("analyze", "--help", own=False).stdout
    refused = called("analyze", "peek", tmp_path, "--out", tmp_path / "out")
    assert refused.returncode == 2 and "did you mean 'peak'?" in refused.stderr

    run = tmp_path / "run"
    done = called("study", "own.toml", "--out", run)
    assert done.returncode == 0, done.stderr
    table = pl.read_parquet(run / "tables" / "peak.parquet")
    traces = [trace for trace in map(Trace.load, (run / "traces").iterdir()) if not trace.metadata.get("control")]
    highest = np.mean([trace.received.max(axis=-1).mean(axis=0) for trace in traces], axis=0)
    assert len(traces) == 2 and table["value"].to_list() == pytest.approx(highest.tolist(), rel=1e-5)
    assert table["untrained"].null_count() == 0
    assert "The highest share" in (run / "figures" / "peak.svg").read_text()

    page = (run / "report.html").read_text()
    assert f"Highest share, mean over layers: twin-arm {table['value'].mean():.4f}." in page
    order = re.findall(r'<figure class="fs-figure card" id="figure-(\w+)"', page)
    assert order[-1] == "peak" and '<a href="#figure-peak">The highest share</a>' in page
    for name, reason in (
        ("scarce", "There is too little of it; trace more."),
        ("task_dependence", "Task dependence needs traces of at least two tasks and found 1 (rag)"),
    ):
        assert f'id="figure-{name}"' in page and f"This figure is missing: {reason}" in page
    listed = json.loads((run / "tables" / "analyses.json").read_text())["analyses"]
    assert listed["scarce"] == {"error": "There is too little of it; trace more."}

    done = called("analyze", "peak", run, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert pl.read_parquet(tmp_path / "out" / "peak.parquet").drop("random").equals(table.drop("random"))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("peak.parquet", "peak.svg", "peak.pdf", "peak.html")
    }
