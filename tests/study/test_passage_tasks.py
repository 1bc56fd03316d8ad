"""Passages as tasks: read from texts, filled in by every layout, scored by plain computations, in one machine."""

import json

import numpy as np
import polars as pl
import pytest
import torch

import floatscope as fs
from floatscope.errors import UserError
from floatscope.qa.gaps import build_gap
from floatscope.qa.tasks import read_task
from floatscope.study.plan import Curve, ModelPlan, Study, TaskPlan, read_study, write_study
from floatscope.study.reporting import gather, tables_text
from floatscope.study.running import run_study
from tests.study.small_studies import small_study

pytestmark = pytest.mark.slow

TEXT = """A heading

The founder of Ferrox Steel is Ida Ritter. Ferrox Steel is based in West Marsh. The founder of Calyx Foods is Ada Dorn.
Calyx Foods is based in Port Alden. The founder of Orbis Bank is Olga Hale.

Ida Ritter was born in Selby. Ada Dorn was born in West Marsh. Olga Hale was born in Port Alden. The founder of Orbis
Bank is Olga Hale. Orbis Bank is based in Selby.
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "towns.txt"
    path.write_text(TEXT)
    return path


def passages(text, values="continue,infill,mirrored", **changes) -> Study:
    options = changes.pop("options", {})
    settings = {"limit": 2, "slots": 6, "batch": 4, "tasks": (TaskPlan(f"passages:{text}"),)}
    return small_study(**settings | {"conditions": (Curve("passage", values, options=options),)} | changes)


@pytest.fixture(scope="module")
def run(text, tmp_path_factory):
    study = passages(text, conditions=(Curve("passage", "continue,infill,mirrored", traces=1),))
    return run_study(study, tmp_path_factory.mktemp("run") / "run").run


def test_paragraphs_are_passages_and_headings_are_not(text):
    samples = read_task(f"passages:{text}").samples
    assert [sample.id for sample in samples] == ["towns-2", "towns-3"]
    whole = [sample.before + sample.answers[0] + sample.after for sample in samples]
    assert whole == [part.strip() for part in TEXT.split("\n\n")[1:]]
    counts = [len(part.split()) for part in (samples[0].before, samples[0].answers[0], samples[0].after)]
    assert counts == [12, 13, 13]


def test_any_file_of_questions_has_passages_in_its_documents_each_once(tmp_path):
    words = [" ".join(f"{letter}{number}" for number in range(24)) for letter in "abc"]
    lines = [
        {"question": "A?", "answers": ["x"], "ctxs": [{"text": words[0]}, {"text": words[1]}]},
        {"question": "B?", "answers": ["x"], "ctxs": [{"text": words[1]}, {"text": words[2]}]},
    ]
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    samples = read_task(f"passages:{path}").samples
    assert [sample.before.split()[0] for sample in samples] == ["a0", "b0", "c0"]
    path.write_text('{"text": "too short"}\n{"title": "no text"}\n' + json.dumps({"text": words[0]}))
    with pytest.raises(UserError, match="line 1: its text has 2 words, and a passage needs 24"):
        read_task(f"passages:{path}")
    task = read_task(f"passages:{path}", skip_wrong=True)
    assert len(task.samples) == 1 and "none of the fields text" in task.skipped[1].reason


def by_hand(model, canvas, order):
    """Bits per token of the true text, one slot after the other: each from the logits of a plain forward."""
    tokens, bits = canvas.ids.copy(), []
    tokens[canvas.slots] = model.mask_id if model.mask_id is not None else 0
    for slot in order:
        place = int(canvas.slots[slot])
        row = model.logits(torch.tensor(tokens[None] if model.mask_id is not None else tokens[None, :place]))[0]
        scores = row.clone()[place] if model.mask_id is not None else row[-1]
        if model.mask_id is not None:
            scores[model.mask_id] = -torch.inf  # which is never written
        bits.append(-float(scores.double().log_softmax(-1)[canvas.answer[slot]]) / np.log(2))
        tokens[place] = canvas.answer[slot]
    return np.mean(bits)


@pytest.mark.parametrize("name", ["twin-arm", "twin-llada"])
def test_scores_are_those_of_plain_computations(run, text, name):
    model = fs.load(name, check=False)
    rows = run.results().filter(model=name, control="", task="towns")
    for layout in ("continue", "infill", "mirrored"):
        for sample in read_task(f"passages:{text}").samples:
            (row,) = rows.filter(condition=f"passage/{layout}", sample=sample.id).iter_rows(named=True)
            canvas = build_gap(model.tokenizer, sample, 6, layout=layout)
            if name == "twin-arm" and layout != "continue":
                assert "writes its answer after the prompt" in row["error"] and row["recovered"] is None
                continue
            said = fs.generate(model, canvas, model.sampler({"steps": 6}, length=6)).answer
            assert row["recovered"] == np.mean([a == b for a, b in zip(said, canvas.answer, strict=True)])
            assert row["prediction"] == model.text(said) and row["answers"] == [model.text(canvas.answer)]
            assert row["bits"] == pytest.approx(by_hand(model, canvas, range(6)), rel=1e-4)
            assert row["prompt_tokens"] == len(canvas.ids) - 6
            assert (row["layout"], row["accuracy"], row["question"]) == (layout, None, "")


def test_traces_tables_and_scores_know_passages(run):
    results = run.results()
    assert set(results["control"]) == {"", "untrained"}  # no guess, no null query
    trace = fs.Trace.load(run.traces(model="twin-llada", condition="passage/mirrored")[0])
    assert trace.slots.tolist() == list(range(1, 7)) and trace.metadata["labels"]["layout"] == "mirrored"
    scores = run.scores()
    assert set(scores["metric"]) == {"recovered", "common", "bits"} and set(scores["statistic"]) == {"score"}
    own = results.filter(control="", model="twin-llada", condition="passage/infill")
    row = scores.filter(model="twin-llada", condition="passage/infill", metric="bits").row(0, named=True)
    assert row["value"] == pytest.approx(own["bits"].mean()) and row["n"] == 2
    table = tables_text(run, "markdown")
    share = own["recovered"].mean() * 100
    assert f"| towns | passage/infill | twin-llada | {share:.1f} [" in table and f"{row['value']:.2f} [" in table
    assert "| towns | passage/infill | twin-arm |  |  |  |" in table and "units failed" in table
    assert read_study(run.folder / "study.toml") == run.study


def test_the_report_draws_what_was_recovered(run):
    from floatscope.reports.curves import stress_curves, stress_figure

    points = stress_curves(run.scores(), ("twin-llada", "twin-arm"))
    assert points.filter(model="twin-llada")["x"].to_list() == ["continue", "infill", "mirrored"]
    common = run.results().filter(model="twin-llada", control="", condition="passage/infill")["common"].mean()
    assert points.filter(model="twin-llada", x="infill")["guess"].to_list() == [pytest.approx(common)]
    assert "tokens recovered" in json.dumps(stress_figure(points, ("twin-llada", "twin-arm")).chart)


def test_replay_in_any_order_is_scored_by_its_bits_alone(text, tmp_path):
    options = {"context": 8, "orders": ("left-to-right", "right-to-left"), "replay": True}
    study = passages(text, "continue,mirrored", options=options)
    rows = run_study(study, tmp_path / "run").run.results().filter(control="")
    model = fs.load("twin-llada", check=False)
    sample = read_task(f"passages:{text}").samples[1]
    for layout in ("continue", "mirrored"):
        canvas = build_gap(model.tokenizer, sample, 6, layout=layout, context=8)
        assert len(canvas.ids) == 1 + 8 + 6
        for order, slots in (("left-to-right", range(6)), ("right-to-left", range(6)[::-1])):
            name = f"passage/{layout}/context-8/{order}/replay"
            (row,) = rows.filter(model="twin-llada", condition=name, sample=sample.id).iter_rows(named=True)
            assert row["bits"] == pytest.approx(by_hand(model, canvas, slots), rel=1e-4)
            assert row["recovered"] is None and row["order"] == f"{order}, replayed"
    arm = rows.filter(model="twin-arm", layout="continue").sort("sample", "order")["bits"].to_list()
    assert arm[0] == pytest.approx(arm[1]) and arm[2] == pytest.approx(arm[3])  # it writes in its own order, always


def test_workers_and_batches_change_nothing_and_questions_do_not_mix_with_passages(text, tmp_path):
    tasks = (TaskPlan(f"passages:{text}"), TaskPlan("world:passages"), TaskPlan("world:rag:3"))
    curves = (
        Curve("passage", "continue", ("towns", "passages")),
        Curve("documents", "3", ("rag",)),
        Curve("slots", "6,9", ("towns",)),
    )
    study = passages(text, tasks=tasks, conditions=curves, models=(ModelPlan("twin-llada"),))
    first = run_study(study, tmp_path / "first").run.results()
    assert first["error"].is_null().all()
    other = passages(
        text, tasks=tasks, conditions=curves, models=(ModelPlan("twin-llada"),), batch=1, workers=2
    )  # fmt: skip
    second = run_study(other, tmp_path / "second").run.results()
    same = [name for name in first.columns if name not in ("bits", "trace")]
    assert first.select(same).equals(second.select(same))
    assert np.allclose(first["bits"].drop_nulls(), second["bits"].drop_nulls(), rtol=1e-4)
    own = first.filter(control="")
    assert own.filter(task="rag")["accuracy"].is_not_null().all() and own.filter(task="rag")["bits"].is_null().all()
    facts = own.filter(task="passages")
    assert facts["right"].is_not_null().all() and facts["accuracy"].is_null().all()
    slots = own.filter(task="towns", stressor="slots")
    assert (
        slots.group_by("slots").agg(pl.col("answers").first().list.first().str.split(" ").list.len())["answers"].max()
        <= 9
    )
    assert "closed-book" not in own["condition"]


def test_a_changed_text_is_refused_and_stressors_know_what_they_are_for(text, tmp_path):
    copy = tmp_path / "towns.txt"
    copy.write_text(TEXT)
    study = passages(copy, "continue", models=(ModelPlan("twin-llada"),))
    run_study(study, tmp_path / "run")
    copy.write_text(TEXT.replace("Selby", "Port Alden"))
    with pytest.raises(UserError, match="The samples of the task 'towns' changed"):
        run_study(study, tmp_path / "run")
    with pytest.raises(UserError, match="'noise' is for questions, and the task 'towns' has passages"):
        passages(copy, conditions=(Curve("noise", "1"),))
    with pytest.raises(UserError, match="'passage' is for passages, and the task 'rag' has questions"):
        passages(copy, tasks=(TaskPlan("world:rag"),))
    with pytest.raises(UserError, match="has passages and takes no corpus"):
        TaskPlan(f"passages:{copy}", retrieve=2, corpus="c.jsonl")
    with pytest.raises(UserError, match=r"'passages': No sample fits the condition 'passage/infill'.* no text after"):
        run_study(passages(copy, "infill", tasks=(TaskPlan("world:passages"),)), tmp_path / "none")
    with pytest.raises(UserError, match="no 'middle' here; known are continue, infill, mirrored"):
        passages(copy, "middle")
    written = write_study(passages(copy, options={"context": 20, "replay": True, "orders": ("random",)}))
    (tmp_path / "s.toml").write_text(written)
    assert (
        read_study(tmp_path / "s.toml").conditions[0].conditions[0].name == "passage/continue/context-20/random/replay"
    )


def test_the_page_has_both_sides_of_passages_in_one_order_and_as_many_slots_as_are_asked_for(tmp_path):
    options = {"orders": ("left-to-right", "random"), "replay": True, "longest": 9}
    study = small_study(
        models=(ModelPlan("twin-llada"),),
        tasks=(TaskPlan("world:passages:5"), TaskPlan("world:rag:3")),
        conditions=(
            Curve("passage", "continue,mirrored", ("passages",), traces=1, options=options),
            Curve("documents", "3", ("rag",), traces=1),
        ),
        limit=1,
    )
    run = run_study(study, tmp_path / "run").run
    found = [one for one in gather(run, {}).traces if not one.metadata["control"]]
    orders = [(one.metadata["condition"], len(one.slots)) for one in found]
    sides = [(f"passage/{layout}/left-to-right/replay", 9) for layout in ("continue", "mirrored")]
    assert orders == [*sides, ("documents/3", study.slots)]
    # The same words on the other side: notes, a line's end, the gap's first slots; and the gap, a line's end, notes.
    right, left = (list(one.canvas) for one in found[:2])
    assert right[-9:] == left[1:10] and right[1:-10] == left[-len(right[1:-10]) :]
