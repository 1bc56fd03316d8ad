"""From flags to the study that is run: every flag arrives where it should, and what is printed is arithmetic."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from floatscope import cli
from floatscope.attribution.attributed import Attribution, Scores
from floatscope.canvas import Region
from floatscope.cli.explaining import _show as show
from floatscope.errors import UserError
from floatscope.qa.world.vocabulary import make_tokenizer
from floatscope.study.division import Division
from floatscope.study.estimating import Estimate
from floatscope.study.plan import Curve, ModelPlan, PromptPlan, Study, TaskPlan, find_study, read_study
from floatscope.study.running import Outcome
from floatscope.study.submitting import Resources


@pytest.fixture
def asked(monkeypatch):
    """The studies that verbs would run, with folder, retry and division; nothing is run."""
    found = []
    for place in ("evaluation", "studies"):
        monkeypatch.setattr(f"floatscope.cli.{place}.run_shown", lambda *given, **_: found.append(given) or 0)
    return found


def call(*words: object) -> object:
    plain = {"exit_on_error": False, "print_error": False, "result_action": "return_value"}
    return cli.app([str(word) for word in words], **plain)


def test_every_flag_of_evaluate_reaches_the_study(asked):
    call(
        "evaluate", "--model", "a=twin-arm", "--model", "twin-llada", "--task", "mine=some.jsonl", "--task",
        "world:rag:4", "--documents", "0,2", "--out", "there", "--limit", 7, "--seed", 3, "--length", 5, "--steps", 2,
        "--trace", 1, "--trace-wrong", 2, "--batch", 6, "--workers", 4, "--corpus", "c.jsonl", "--retrieve", 3,
        "--retriever", "dense:m", "--shape", "squad", "--prompt", "paper", "--raw", "--skip-wrong", "--retry",
        "--family", "llada", "--dtype", "float16", "--device", "cpu", "--mask-id", 9, "--block-size", 8,
        "--share", "2/3", "--engine", "ray", "--address", "auto", "--actor-gpus", 0.5,
    )  # fmt: skip
    loaded = {"family": "llada", "dtype": "float16", "device": "cpu", "mask_id": 9, "block": 8}
    corpus = {"shape": "squad", "corpus": "c.jsonl", "retrieve": 3, "retriever": "dense:m", "skip_wrong": True}
    expected = Study(
        "evaluate",
        (ModelPlan("a", "twin-arm", **loaded), ModelPlan("twin-llada", **loaded)),
        (TaskPlan("some.jsonl", "mine", **corpus), TaskPlan("world:rag:4", "rag")),
        (Curve("documents", "0,2", ("mine", "rag")),),
        seed=3, limit=7, slots=5, steps=2, batch=6, traces=1, trace_wrong=2, prompt=PromptPlan("paper", raw=True),
    )  # fmt: skip
    [(study, folder, retry, division)] = asked
    assert study == expected and study.workers == 4
    assert (folder, retry, division) == (Path("there"), True, Division(2, 3, "ray", "auto", 0.5))


@pytest.mark.parametrize(
    ("tasks", "curves"),
    [
        (["world"], [("documents", "0,5", ("rag",))]),
        (["a.jsonl"], [("documents", "0,own", ("a",))]),
        (["world:twohop", "a.jsonl"], [("documents", "0,own", ("twohop", "a"))]),
        (["passages:t.txt"], [("passage", "continue,infill,mirrored", ("t",))]),
        (["world:passages", "world"], [("documents", "0,5", ("rag",)), ("passage", "continue", ("passages",))]),
    ],
)  # fmt: skip
def test_without_documents_named_each_task_is_asked_in_its_own_way(asked, tasks, curves):
    call("evaluate", "--model", "twin-arm", *(word for task in tasks for word in ("--task", task)), "--out", "o")
    [(study, _, retry, division)] = asked
    assert [(curve.stressor, curve.values, curve.tasks) for curve in study.conditions] == curves
    assert (study.limit, study.slots, study.steps, study.batch, study.workers) == (100, 32, None, 16, 1)
    assert (study.seed, study.traces, study.trace_wrong, retry, division) == (0, 0, 0, False, Division())


@pytest.mark.slow
@pytest.mark.parametrize(("task", "documents"), [("world:rag:3", 5), ("some.jsonl", 0)])
def test_explain_asks_a_whole_task_by_its_method(asked, task, documents):
    call("explain", "twin-llada", "--task", task, "--out", "o", "--method", "lexical", "--sentences", "--limit", 4,
         "--length", 6, "--steps", 3, "--seed", 2)  # fmt: skip
    [(study, folder, retry, _)] = asked
    assert (study.name, study.limit, study.slots, study.steps, study.seed) == ("explain", 4, 6, 3, 2)
    assert study.models == (ModelPlan("twin-llada"),) and folder == Path("o") and retry is False
    [curve] = study.conditions
    assert (curve.stressor, curve.values) == ("attribution", "lexical")
    assert curve.options == {"documents": documents, "sentences": True, "removal": False}
    with pytest.raises(UserError, match="--temperature is set in a study's file"):
        call("explain", "twin-llada", "--task", task, "--out", "o", "--temperature", 1)


def test_flags_of_a_study_go_before_what_its_file_says(asked, tmp_path):
    text = find_study("demo").read_text()
    plan = read_study(find_study("demo"))
    path = tmp_path / "mine.toml"
    path.write_text(text.replace("[[tasks]]\n", "[[tasks]]\nlimit = 3\n", 1))
    more = ("--seed", 5, "--batch", 6, "--workers", 2, "--trace-wrong", 1)
    call("study", path, "--limit", 4, *more, "--retry", "--share", "1/2")
    [(study, folder, retry, division)] = asked
    limits = [min(4, task.limit or 4) for task in study.tasks]
    assert study.limit == min(4, plan.limit) and limits[0] == study.tasks[0].limit == 3
    assert replace(study, limit=plan.limit, tasks=plan.tasks) == replace(plan, seed=5, batch=6, trace_wrong=1)
    assert study.workers == 2 and folder == Path("runs") / plan.name
    assert (retry, division) == (True, Division(1, 2))
    call("study", "demo", "--out", "there", "--limit", 10**6)
    assert asked[1] == (plan, Path("there"), False, Division()) and asked[1][0].workers == plan.workers


def test_submit_asks_slurm_for_what_its_flags_say(monkeypatch, capsys):
    given = []
    jobs = [SimpleNamespace(job_id=name) for name in ("7_0", "7_1", "8")]
    monkeypatch.setattr("floatscope.study.submitting.submit", lambda *asked: given.append(asked) or jobs)
    call("submit", "demo", "--shares", 2, "--out", "there", "--partition", "gpu", "--account", "lab", "--gpus", 3,
         "--cpus", 5, "--memory", 64, "--hours", 1.5, "--limit", 4)  # fmt: skip
    [(study, folder, shares, resources)] = given
    assert (study.limit, folder, shares) == (4, Path("there"), 2)
    assert resources == Resources(partition="gpu", account="lab", gpus=3, cpus=5, memory=64, hours=1.5)
    assert capsys.readouterr().out == ("floatscope: submitted 2 shares and the job that merges them: 7_0 to 8\n")
    call("submit", "demo", "--shares", 2)
    assert given[1][1:] == (Path("runs/demo"), 2, Resources(None, None, 1, 4, 32, 4))


def test_an_estimate_is_summed_and_divided_among_gpus(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "160")
    made = [Estimate("one", 10, 2, 30.4, 1_500_000, (7200.0, 3600.0)), Estimate("two", 5, 1, 60, 0, (3600.0, 1800.0))]
    monkeypatch.setattr("floatscope.study.estimating.estimate", lambda plan, notify: made)
    assert call("study", "demo", "--estimate") == 0
    shown = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if "│" in line]
    assert rows == [
        ["one", "10", "2", "0:00:30", "1.5 MB", "2", "1"],
        ["two", "5", "1", "0:01:00", "0.0 MB", "1", "0.5"],
        ["all", "15", "3", "0:01:30", "1.5 MB", "3", "1.5"],
    ]
    assert "A100: 3 h on 1, 0.75 h on 4, 0.19 h on 16, 0.047 h on 64\n" in shown
    assert "H100: 1.5 h on 1, 0.38 h on 4, 0.094 h on 16, 0.023 h on 64\n" in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("done", "failed", "damaged", "told"),
    [
        (3, 0, 0, "3 of 5 units were run, the others were there"),
        (5, 0, 0, "5 units were run"),
        (3, 2, 1, "3 of 5 units were run, the others were there; 2 failed (see the column error; --retry runs them "
                  "again); 1 rows had changed on the disk and were run again"),
    ],
)  # fmt: skip
def test_a_run_ends_in_a_sentence(monkeypatch, capsys, done, failed, damaged, told):
    run = SimpleNamespace(folder=Path("there/shares/1-of-2"))
    outcome = Outcome(run, 5, done, failed, damaged)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr("floatscope.study.running.run_study", lambda *_, **__: outcome)
    assert call("study", "demo", "--out", "there", "--share", "1/2") == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("floatscope:")]
    assert lines[-2:] == [
        f"floatscope: {told}; the run is there/shares/1-of-2",
        "floatscope: after all 2 shares: floatscope merge there",
    ]


def test_explain_shows_each_token_in_the_colour_of_its_document_and_bars_to_scale(monkeypatch, capsys):
    tokenizer = make_tokenizer()
    words = "The founder of Ferrox Steel is Ida Ritter . Calyx Foods is based in Port Alden . Olga Hale".split()
    ids = np.array(tokenizer.convert_tokens_to_ids(words))
    spans = (Region("doc 1", 0, 9), Region("doc 2", 9, 12), Region("doc 2", 12, 17), Region("doc 3", 17, 19))
    case = SimpleNamespace(
        model=SimpleNamespace(tokenizer=tokenizer), canvas=SimpleNamespace(ids=ids), slots=np.arange(3),
        generation=SimpleNamespace(answer=np.array([*ids[6:8], ids[8], 2])),
        documents={"doc 1": np.arange(9), "doc 2": np.arange(9, 17), "doc 3": np.arange(17, 19)},
    )  # fmt: skip
    by_token = Scores(np.array([[0.5, 0.1, 0], [0, 1.9, -1], [-1, 0, -2]]), np.zeros((3, 4)), np.zeros((3, 19)))
    told = Attribution(
        "leave_one_out", "Ida Ritter.", np.array([0.5, 2.0, -3.0]), np.array([9.0, 0.4, 1.6, -3.0]), np.zeros(19),
        by_token, ("Ida", "Ritter", "."), spans, sequences=5, support=2.5,
    )  # fmt: skip
    console = Console(force_terminal=True, color_system="standard", width=160, highlight=False, markup=False)
    monkeypatch.setattr("floatscope.cli.explaining.literal_console", lambda: console)
    show(case, told, ["first", "second one", "c"])  # pyright: ignore[reportArgumentType]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "\x1b[1manswer: \x1b[0m\x1b[36mIda\x1b[0m\x1b[35m Ritter\x1b[0m."
    assert lines[1] == f"doc 1 first      \x1b[36m{'█' * 8}{' ' * 22}\x1b[0m 0.500"
    assert lines[2] == f"doc 2 second one \x1b[35m{'█' * 30}\x1b[0m 2.000"
    assert lines[3] == f"doc 3 c          \x1b[33m{' ' * 30}\x1b[0m -3.000"
    assert lines[4] == "most of it: \x1b[35mbased in Port Alden.\x1b[0m (1.600)"  # of the best document's sentences
    assert lines[5] == (
        "leave_one_out: nats of log-probability lost when it is hidden, 5 sequences beside the answer; all documents: "
        "2.50 nats"
    )
