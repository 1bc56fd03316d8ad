"""A stressor of one's own: one file, and it is in the help, in studies, in results, in tables and on the page."""

import subprocess
import sys
from dataclasses import dataclass

import polars as pl
import pytest

from floatscope.errors import UserError
from floatscope.qa.stressors import STRESSORS, Axis, Condition, Stressor, label_types
from floatscope.registry import EXTENSIONS
from floatscope.study.plan import Curve

OWN = '''
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from floatscope.qa.stressors import STRESSORS, Axis, Condition, Stressor
from floatscope.qa.stressors.ranges import parse_integers


@dataclass(frozen=True)
class EchoOptions:
    words: Literal["again", "please"] = "again"
    """What stands before the question when it is repeated."""


def repeat(sample, rng, pool, times, word):
    return replace(sample, question=" ".join([sample.question, *[f"{word}: {sample.question}"] * times]))


def conditions(values, options):
    return tuple(
        Condition(
            f"echo/{options.words}/{times}", "echo", {"word": options.words, "times": times}, stream="echo",
            transform=partial(repeat, times=times, word=options.words),
        )
        for times in parse_integers(values, everything=range(4), least=0)
    )


STRESSORS.add("echo", Stressor(
    "echo", "How often the question is repeated", "0..3", conditions, {"word": str, "times": int},
    Axis("times", "repetitions", "{word}"), EchoOptions,
))
'''
TABLE = """
import sys
from floatscope.study.store import Run
run = Run(sys.argv[1])
run.results().write_parquet(sys.argv[2])
print([dict(curve.options) for curve in run.study.conditions])
"""


@pytest.fixture(scope="module")
def called(tmp_path_factory):
    """What a process with the stressor says; `own=False` leaves the stressor out."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "echo.py").write_text(OWN)

    def call(*arguments, own=True):
        environment = {"PYTHONPATH": ":".join(sys.path), "FLOATSCOPE_CACHE": str(folder / "cache"), "COLUMNS": "120"}
        environment |= {EXTENSIONS: str(folder / "echo.py")} if own else {}
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)

    return call


@pytest.mark.slow
def test_it_is_in_help_results_tables_and_page(called, tmp_path):
    told = called("-m", "floatscope.cli", "stress", "--help").stdout
    assert "How often the question is repeated; e.g. 0..3." in told
    assert "What stands before the question when it is repeated (echo)" in told and "again, please" in told
    assert "echo" not in called("-m", "floatscope.cli", "stress", "--help", own=False).stdout

    asked = ("--model", "twin-arm", "--task", "world:rag:3", "--length", "4", "--limit", "4", "--out", tmp_path / "run")
    asked = ("-m", "floatscope.cli", "stress", *asked, "--workers", "2", "--batch", "2")
    done = called(*asked, "--echo", "0..2", "--words", "please")
    assert done.returncode == 0, done.stderr
    shown = [line.split(" | ")[1] for line in done.stdout.splitlines() if line.startswith("| rag")]
    assert shown == ["closed-book", "oracle", "echo/please/0", "echo/please/1", "echo/please/2"]

    read = called("-c", TABLE, tmp_path / "run", tmp_path / "results.parquet")
    assert read.stdout == "[{'words': 'please'}]\n", read.stderr
    rows = pl.read_parquet(tmp_path / "results.parquet").filter(control="")
    assert (rows.schema["word"], rows.schema["times"]) == (pl.String, pl.Int64)
    of = {key: part for (key,), part in rows.group_by("condition", maintain_order=True)}
    assert [(set(of[f"echo/please/{n}"]["word"]), set(of[f"echo/please/{n}"]["times"])) for n in range(3)] == [
        ({"please"}, {0}), ({"please"}, {1}), ({"please"}, {2}),
    ]  # fmt: skip
    assert set(of["oracle"]["times"]) == {None}
    tokens = [of[f"echo/please/{n}"]["prompt_tokens"].to_numpy() for n in range(3)]
    assert (tokens[1] > tokens[0]).all() and (tokens[2] - tokens[1] == tokens[1] - tokens[0]).all()

    made = called("-m", "floatscope.cli", "report", tmp_path / "run")
    assert made.returncode == 0, made.stderr
    page = (tmp_path / "run" / "report.html").read_text()
    assert "repetitions" in page and "rag, please" in page

    refused = called("-m", "floatscope.cli", "table", tmp_path / "run", own=False)
    assert refused.returncode == 2 and "There is no stressor 'echo'" in refused.stderr
    refused = called(*asked, "--echo", "0..2", "--words", "loudly")
    assert refused.returncode == 2 and "Traceback" not in refused.stderr


def stressor(**changes) -> Stressor:
    made = {"name": "own", "summary": "s", "example": "1", "labels": {"times": int}, "axis": Axis("times", "times")}
    return Stressor(**made | {"make": lambda values, options: ()} | changes)


def condition(of: str, **labels) -> Condition:
    return Condition("own/1", of, labels, stream="own")


@dataclass(frozen=True)
class Required:
    times: int


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"axis": Axis("time", "times")}, "names 'time', which is none of its labels"),
        ({"axis": Axis("times", "times", "{kind} of it")}, "names 'kind', which is none of its labels"),
        ({"options": Required}, "The option 'times' of the stressor 'own' needs a default"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused(changes, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        stressor(**changes)


@pytest.mark.parametrize(
    "made", [condition("own", time=1), condition("own", times=1, kind=2), condition("my", times=1)]
)
def test_conditions_that_are_not_what_the_row_says_are_refused(made: Condition) -> None:
    right = condition("own", times=1)
    assert stressor(make=lambda values, options: (right,)).conditions("1") == (right,)
    with pytest.raises(UserError, match="let them agree"):
        stressor(make=lambda values, options: (right, made)).conditions("1")


def test_labels_of_one_name_have_one_type(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(label_types())[:9] == [
        "documents", "kind", "gold", "level", "place", "layout", "value", "slots", "placement",
    ]  # fmt: skip
    row = stressor(labels={"times": int, "kind": int})
    monkeypatch.setattr(STRESSORS, "_rows", {**STRESSORS, "own": row})
    with pytest.raises(UserError, match="The label 'kind' of the stressor 'own' is int here and str in another"):
        label_types()


@pytest.mark.slow
def test_a_label_that_all_results_have_is_refused(monkeypatch: pytest.MonkeyPatch, outcome) -> None:
    row = stressor(labels={"times": int, "steps": int})
    monkeypatch.setattr(STRESSORS, "_rows", {**STRESSORS, "own": row})
    with pytest.raises(UserError, match="label 'steps', which all results have"):
        outcome.run.results()


@dataclass(frozen=True)
class Limited:
    limit: int = 1


@dataclass(frozen=True)
class OtherGold:
    gold: bool = True


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"options": Limited}, "--limit is taken"),
        ({"options": OtherGold}, "'noise' and 'own' have different options 'gold'"),
        ({"name": "documents"}, "--documents is taken"),
    ],
)
def test_flags_that_collide_are_refused(changes, sentence: str) -> None:
    from floatscope.cli.stressing import ROWS, flags_of

    with pytest.raises(UserError, match=sentence):
        flags_of([*ROWS, stressor(**changes)])


def test_an_option_that_is_a_key_of_every_curve_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STRESSORS, "_rows", {**STRESSORS, "own": stressor(options=Limited)})
    with pytest.raises(UserError, match="The option 'limit' of 'own' is a key of every curve"):
        Curve("own", "1")
