"""The verbs on studies as a user meets them: evaluate, stress, table, study, report; sentences and exit codes."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from floatscope import cli
from floatscope.study.plan import SHIPPED
from floatscope.study.store import Run

ASKED = ("--model", "twin-arm", "--task", "world:rag:3", "--length", "4", "--limit", "4")


def run(monkeypatch, capsys, *arguments):
    """Exit code, stdout and stderr of one call."""
    monkeypatch.setattr(sys, "argv", ["floatscope", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    told = capsys.readouterr()
    return stopped.value.code, told.out, told.err


@pytest.fixture(scope="module")
def study_file(tmp_path_factory):
    """A study of one twin with a trace, an analysis and a stress curve."""
    path = tmp_path_factory.mktemp("study") / "tiny.toml"
    path.write_text(
        'name = "tiny"\nlimit = 3\nslots = 4\nanalyses = ["dispersion", "flow"]\n'
        '[[models]]\nname = "twin-llada"\n[[tasks]]\nsource = "world:rag:3"\n'
        '[[conditions]]\nstressor = "documents"\nvalues = [0]\n'
        '[[conditions]]\nstressor = "documents"\nvalues = [3]\ntraces = 2\n'
        '[[conditions]]\nstressor = "noise"\nvalues = [1]\n'
    )
    return path


@pytest.mark.slow
def test_evaluate_prints_the_table_that_table_prints_again(monkeypatch, capsys, tmp_path):
    code, shown, told = run(monkeypatch, capsys, "evaluate", *ASKED, "--documents", "0,3", "--out", tmp_path / "qa")
    assert code == 0 and "| twin-arm | gain of 3 |" in shown and "32 units were run" not in shown
    assert "units were run" in told and str(tmp_path / "qa") in told
    code, again, told = run(monkeypatch, capsys, "table", tmp_path / "qa")
    assert (code, again, told) == (0, shown, "")
    assert str(tmp_path) not in again
    code, resumed, told = run(monkeypatch, capsys, "evaluate", *ASKED, "--documents", "0,3", "--out", tmp_path / "qa")
    assert code == 0 and resumed == shown and "0 of" in told
    for form, mark in (("latex", r"\toprule"), ("csv", "twin-arm,rag,documents/0,documents,0,accuracy,score,,")):
        assert mark in run(monkeypatch, capsys, "table", tmp_path / "qa", "--format", form)[1]
    code, _, told = run(monkeypatch, capsys, "evaluate", *ASKED, "--seed", "1", "--out", tmp_path / "qa")
    assert code == 2 and "seed is 0 there and 1 here" in told and "Traceback" not in told


@pytest.mark.slow
def test_a_run_that_is_not_finished_is_told_by_the_exit_code(monkeypatch, capsys, tmp_path):
    folder = tmp_path / "qa"
    assert run(monkeypatch, capsys, "evaluate", *ASKED, "--documents", "0", "--out", folder)[0] == 0
    with closing(sqlite3.connect(folder / "results.sqlite")) as database, database:
        gone = database.execute("DELETE FROM results WHERE number = 3").rowcount
    for verb, shown in (("table", "| twin-arm | 0 |"), ("report", "report.html")):
        code, said, told = run(monkeypatch, capsys, verb, folder)
        assert code == 3 and shown in said
        assert f"This run is not finished: {16 - gone} of 16 units are done" in told and gone == 4


@pytest.mark.slow
def test_stress_gives_each_task_the_curves_that_fit_it(monkeypatch, capsys, tmp_path):
    asked = (*ASKED, "--task", "hops=world:twohop:3", "--position", "1,3", "--layout", "order", "--documents", "3")
    code, shown, _ = run(monkeypatch, capsys, "stress", *asked, "--out", tmp_path / "s")
    assert code == 0
    rows = {tuple(line.split(" | ")[:2]) for line in shown.splitlines() if line.startswith("| ")}
    assert {("| rag", "position/3/3"), ("| hops", "layout/3/order/bridge-first"), ("| hops", "oracle")} <= rows
    assert not {("| hops", "position/3/3"), ("| rag", "layout/3/order/bridge-first")} & rows
    results = Run(tmp_path / "s").results()
    by_hand = results.filter(control="", task="rag", condition="oracle")["accuracy"].mean()
    line = next(line for line in shown.splitlines() if line.startswith("| rag | oracle |"))
    assert line.split(" | ")[2].startswith(f"{100 * by_hand:.1f} [")
    code, _, told = run(monkeypatch, capsys, "stress", *ASKED, "--out", tmp_path / "t")
    assert code == 2 and "--noise" in told
    code, _, told = run(monkeypatch, capsys, "stress", *ASKED, "--layout", "gap", "--out", tmp_path / "t")
    assert code == 2 and "needs 2 gold documents" in told


@pytest.mark.slow
def test_names_and_paths_cannot_steer_the_terminal(monkeypatch, capsys, tmp_path):
    out = tmp_path / "a\x1b[31mb"
    asked = ("--model", "\x1b[31mred\a=twin-arm", *ASKED[2:], "--documents", "0", "--out", out)
    code, shown, told = run(monkeypatch, capsys, "evaluate", *asked)
    assert code == 0 and "\x1b" not in shown + told and "\a" not in shown + told
    assert "\ufffd[31mred\ufffd" in shown and "a\ufffd[31mb" in told
    (tmp_path / "s.toml").write_text(
        'name = "s"\n[[models]]\nname = "\\u001b[31mred"\nsource = "twin-arm"\n[[tasks]]\nsource = "world"\n'
        '[[conditions]]\nstressor = "documents"\nvalues = 0\n'
    )
    code, shown, told = run(monkeypatch, capsys, "study", tmp_path / "s.toml", "--check")
    assert code == 0 and "model \ufffd[31mred" in shown and "\x1b" not in shown + told


@pytest.mark.slow
def test_who_reads_our_output_may_stop_reading_and_the_report_is_there(tmp_path, study_file):
    """As in `floatscope study ... | true`; and a full disk behind the output is one sentence."""
    call = f"{sys.executable} -m floatscope.cli study {study_file} --limit 1 --out {tmp_path / 'run'}"
    done = subprocess.run(
        f"{call} | true; exit ${{PIPESTATUS[0]}}", shell=True, executable="/bin/bash", capture_output=True
    )
    assert done.returncode == 141 and b"Traceback" not in done.stderr and b"Exception" not in done.stderr
    assert (tmp_path / "run" / "report.html").stat().st_size > 0
    done = subprocess.run(f"{call} > /dev/full", shell=True, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.endswith("floatscope: the output: No space left on device.\n")


@pytest.mark.slow
def test_study_runs_analyses_and_report_and_report_makes_it_again(monkeypatch, capsys, tmp_path, study_file):
    out = tmp_path / "run"
    code, shown, told = run(monkeypatch, capsys, "study", study_file, "--out", out)
    assert code == 0 and "noise/topical/gold-kept/1" in shown and "report.html" in told
    for name in ("study.toml", "manifest.json", "tables/dispersion.parquet", "tables/flow.parquet", "figures/flow.svg"):
        assert (out / name).stat().st_size > 0
    table = pl.read_parquet(out / "tables" / "dispersion.parquet")
    assert table["untrained"].is_not_null().any() and table["samples"].max() == 2
    first = (out / "report.html").read_bytes()
    (out / "report.html").unlink()
    written = (out / "tables" / "dispersion.parquet").stat().st_mtime_ns
    code, shown, _ = run(monkeypatch, capsys, "report", out)
    assert code == 0 and str(out / "report.html") in shown and (out / "report.html").read_bytes() == first
    code, _, told = run(monkeypatch, capsys, "study", study_file, "--out", out)
    assert code == 0 and "0 of" in told
    assert (out / "tables" / "dispersion.parquet").stat().st_mtime_ns == written  # the same traces: not made again


def test_check_says_what_is_missing_and_runs_nothing(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, shown, _ = run(monkeypatch, capsys, "study", "paper", "--check")
    assert code == 1 and "9 of its 10 parts are not ready" in shown
    assert "LLaDA-8B-Instruct): its weights are not on this machine" in shown and "no file data/nq.jsonl" in shown
    code, shown, _ = run(monkeypatch, capsys, "study", "demo", "--check")
    assert code == 0 and "all of its parts are ready" in shown
    code, _, told = run(monkeypatch, capsys, "study", "smollm2")
    assert code == 2 and "needs data/smollm2/held_out.jsonl, seen from this folder: docs/howto/study.md says" in told
    assert list(tmp_path.iterdir()) == []
    bad = tmp_path / "bad.toml"
    bad.write_text('name = "x"\n\n[[model]]\nname = "twin-arm"\n')
    code, _, told = run(monkeypatch, capsys, "study", bad, "--check")
    assert code == 2 and "bad.toml, line 3: There is no key 'model' in a study: did you mean 'models'?" in told


@pytest.mark.slow
def test_a_limit_makes_studies_smaller_and_never_larger(monkeypatch, capsys, tmp_path, study_file):
    own = tmp_path / "own.toml"
    own.write_text(study_file.read_text().replace('source = "world:rag:3"', 'source = "world:rag:3"\nlimit = 2'))
    for file, limit, samples in ((study_file, 1, 1), (study_file, 99, 3), (own, 1, 1), (own, 99, 2)):
        _, shown, _ = run(monkeypatch, capsys, "study", file, "--limit", limit, "--check")
        assert f"at most {5 * samples} units" in shown  # closed-book, oracle, 0 and 3 documents, noise


@pytest.mark.slow
def test_dry_run_counts_units_and_estimate_says_what_they_take(monkeypatch, capsys, tmp_path, study_file):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    code, shown, _ = run(monkeypatch, capsys, "study", study_file, "--dry-run")
    # 3 samples under closed-book, oracle, 0 and 3 documents and noise, with three guesses; 2 null queries; 2 untrained
    assert code == 0 and "hours" not in shown
    assert [line.split("│")[2].strip() for line in shown.splitlines() if "│" in line] == ["45", "17", "2", "64"]
    code, shown, _ = run(monkeypatch, capsys, "study", study_file, "--estimate")
    assert code == 0 and "are arithmetic (bfloat16 at 40% of the peak), not measured" in shown and "A100: " in shown
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if "│" in line]
    assert [row[1] for row in rows] == ["17", "2", "19"] and all(len(row) == 7 for row in rows)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_shares_are_run_and_merged_by_their_verbs(monkeypatch, capsys, tmp_path):
    asked = (*ASKED, "--documents", "0", "--out", tmp_path / "run")
    code, shown, told = run(monkeypatch, capsys, "evaluate", *asked, "--share", "1/2")
    assert code == 0 and shown == "" and f"after all 2 shares: floatscope merge {tmp_path}/run" in told
    code, _, told = run(monkeypatch, capsys, "merge", tmp_path / "run")
    assert code == 2 and "1 of the 2 shares" in told and "are not finished (2-of-2)" in told
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "2")
    assert run(monkeypatch, capsys, "evaluate", *asked, "--share", "slurm")[0] == 0
    code, merged, _ = run(monkeypatch, capsys, "merge", tmp_path / "run")
    _, alone, _ = run(monkeypatch, capsys, "evaluate", *asked[:-1], tmp_path / "alone")
    assert code == 0 and merged == alone and (tmp_path / "run" / "report.html").is_file()
    code, script, _ = run(monkeypatch, capsys, "submit", "demo", "--shares", 4, "--partition", "gpu", "--dry-run")
    assert code == 0 and "#SBATCH --array=0-3%4" in script and "#SBATCH --partition=gpu" in script
    code, _, told = run(monkeypatch, capsys, "evaluate", *asked, "--share", "3/2")
    assert code == 2 and "shares are counted from 1" in told


@pytest.mark.slow
@pytest.mark.usefixtures("heard_interrupts")
def test_ctrl_c_ends_cleanly_and_says_how_to_go_on(tmp_path):
    out = tmp_path / "run"
    call = [
        sys.executable,
        "-m",
        "floatscope.cli",
        "evaluate",
        "--model",
        "twin-llada",
        "--task",
        "world",
        "--length",
        "32",
    ]
    call += ["--limit", "400", "--batch", "2", "--out", out]
    process = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and not _answered(out):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    shown, told = process.communicate(timeout=120)
    assert process.returncode == 130 and shown == ""
    assert "the same command goes on from there" in told and "Traceback" not in told
    assert Run(out).results().filter(control="").height > 0


def _answered(out: Path) -> bool:
    try:
        return Run(out).results().filter(control="").height > 0
    except ValueError:  # not there yet
        return False


def test_every_study_that_ships_is_told_by_help(monkeypatch, capsys):
    _, shown, _ = run(monkeypatch, capsys, "study", "--help")
    told = set(re.findall(r"[\w-]+", shown))
    assert {file.stem for file in SHIPPED.glob("*.toml")} <= told and "floating" in told


def test_help_does_not_load_torch():
    code = "import sys; from floatscope import cli; sys.exit('torch' in sys.modules or 'polars' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ}).returncode == 0
