"""The short form of `make fuzz`: a few attempts of every kind. And each judge sees what it is there to see."""

import json
import pickle
import random
import shutil
import sqlite3

import pytest

from floatscope.models import loading
from floatscope.models.shipped import shipped
from floatscope.study import store
from floatscope.study.plan import read_study
from floatscope.study.store import Run
from floatscope.traces import Trace
from tests.fuzz import checkpoints, run_files, traces
from tests.fuzz.__main__ import KINDS, make
from tests.fuzz.outcomes import ACCEPTED, SILENT, TRACEBACK, attempt, command
from tests.fuzz.scripts import foreign_scripts
from tests.fuzz.targets import Targets

FEW = {"calls": 70, "traces": 80, "runs": 2, "folders": 60, "gguf": 60, "pages": 1, "http": 30}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("FLOATSCOPE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        return Targets.make(tmp_path_factory.mktemp("targets"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_hostile_attempts_of_every_kind_are_refused_redone_or_harmless(kind, targets, tmp_path):
    counts = make(kind, FEW[kind], 0, tmp_path, targets)
    assert counts.wrong == [] and counts.attempts == FEW[kind]


def test_the_same_seed_makes_the_same_attempts(targets, tmp_path):
    made = []
    for folder, seed in ((tmp_path / "a", 1), (tmp_path / "b", 1), (tmp_path / "c", 2)):
        folder.mkdir()
        stream = traces.attempts(random.Random(seed), folder, targets)
        made.append([next(stream) for _ in range(20)])
    assert made[0] == made[1] != made[2]


def test_a_row_that_was_forged_with_its_checksum_is_a_silent_change(targets, tmp_path):
    """Nothing in the run can tell; only the comparison with the undamaged one does."""
    shutil.copytree(targets.run, folder := tmp_path / "run")
    wanted = run_files.shown(Run(targets.run))
    database = sqlite3.connect(folder / "results.sqlite")
    columns = ", ".join(store._COLUMNS)
    row = dict(
        zip(
            store._COLUMNS,
            database.execute(f"SELECT {columns} FROM results WHERE control = ''").fetchone(),
            strict=True,
        )
    )
    row["scores"] = json.dumps({name: 1 - value for name, value in json.loads(row["scores"]).items()})
    with database:
        marks = ", ".join("?" * (len(row) + 1))
        values = tuple(row.values())
        database.execute(
            f"REPLACE INTO results ({columns}, checksum) VALUES ({marks})", (*values, store._checksum(values))
        )
    database.close()
    found = run_files.read_and_resume(folder, read_study(targets.study), wanted, targets.run)
    assert found.startswith(SILENT)


def test_a_trace_of_other_numbers_is_not_the_same(targets, tmp_path):
    traces.rewrite(random.Random(0), targets.trace, tmp_path / "a.safetensors", lambda *_: "")
    assert traces.same(traces.read(tmp_path / "a.safetensors"), Trace.load(targets.trace))

    def one_seed_more(rng, header, tensors):
        header["seed"] += 1
        return "seed"

    traces.rewrite(random.Random(0), targets.trace, tmp_path / "b.safetensors", one_seed_more)
    assert not traces.same(traces.read(tmp_path / "b.safetensors"), Trace.load(targets.trace))


def test_another_answer_that_no_hash_tells_of_is_a_silent_change(tmp_path, monkeypatch):
    whole = shipped()["twin-dream"]
    shutil.copytree(whole, copy := tmp_path / "model")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(
        json.dumps(config | {"rope_theta": 77.0, "rope_parameters": {"rope_theta": 77.0}})
    )
    judge = checkpoints.told_by_hash(copy, whole, checkpoints.load_and_ask)
    assert attempt("", lambda: checkpoints.load_and_ask(copy), judge).outcome == ACCEPTED
    monkeypatch.setattr(loading, "DECIDING", ("*.safetensors",))
    assert attempt("", lambda: checkpoints.load_and_ask(copy), judge).outcome == SILENT


def test_code_scripts_and_tracebacks_are_seen(tmp_path, monkeypatch):
    pickle.loads(pickle.dumps(checkpoints.Planted(tmp_path / "ran")))
    assert (tmp_path / "ran").exists()
    for page in ("<p><script>x</script>", "<img src=x onerror=x>", "<a href=' JavaScript:x'>", "<iframe>"):
        assert foreign_scripts(page, allowed=())
    assert foreign_scripts("<p>&lt;script&gt; onerror=x</p>", allowed=()) == []
    assert attempt("", lambda: 1 / 0).outcome == TRACEBACK
    monkeypatch.setattr("floatscope.cli.one_line", lambda text: f"{text}\nfloatscope: and more")
    assert command(["no such verb"]).outcome == TRACEBACK
