"""Studies as TOML: what is written is read again, and every mistake is named with its key, line and nearest name."""

import pytest

from floatscope.errors import UserError
from floatscope.models.shipped import shipped
from floatscope.study.plan import (
    SHIPPED,
    Curve,
    ModelPlan,
    PromptPlan,
    Study,
    TaskPlan,
    find_study,
    read_study,
    write_study,
)

TEXT = """\
name = "mine"            # a comment with [brackets] and a = sign
seed = 3
analyses = [
  "drift",
  "flow",
]
traces = 2

[prompt]
template = "default"

[[models]]
name = "twin-arm"

[[models]]
name = "other"
source = "twin-llada"
sampler = { remasking = "random" }

[[tasks]]
source = "world:rag"

[[tasks]]
source = "world:twohop"

[[conditions]]
stressor = "documents"
values = [0, 5]

[[conditions]]
stressor = "position"
values = "all"
tasks = ["rag"]
documents = 5
"""


def read(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return read_study(path)


def test_a_study_is_read_with_its_defaults(tmp_path):
    study = read(tmp_path, TEXT)
    assert [model.source for model in study.models] == ["twin-arm", "twin-llada"]
    assert [task.name for task in study.tasks] == ["rag", "twohop"]
    assert study.analyses == ("drift", "flow") and study.seed == 3 and study.slots == 32
    assert [cell.condition.name for cell in study.cells(study.tasks[0])] == [
        "closed-book", "oracle", "documents/0", "documents/5", *(f"position/5/{place}" for place in range(1, 6)),
    ]  # fmt: skip
    assert [cell.condition.name for cell in study.cells(study.tasks[1])] == ["documents/0", "documents/5"]


def test_what_is_written_is_read_again(tmp_path):
    study = Study(
        "a näme-2 of 0.5",
        (ModelPlan("m", "twin-dream", sampler={"alg": "origin", "temperature": 0.5, "hold_eos": False}),),
        (TaskPlan("some file.jsonl", skip_wrong=True, limit=7, corpus="c.jsonl", retrieve=3),),
        (
            Curve("noise", "0..4..2", (), 1, 3, {"kinds": ("random", "topical"), "gold": ("kept", "removed")}),
            Curve("slots", "8,16"),
        ),
        steps=16,
        workers=2,
        analyses=("qk",),
        controls=("untrained",),
        prompt=PromptPlan("own.txt", raw=True),
    )
    assert read(tmp_path, write_study(study)) == study
    assert read(tmp_path, write_study(read(tmp_path, TEXT))) == read(tmp_path, TEXT)


@pytest.mark.parametrize(
    ("old", "new", "line", "told"),
    [
        ('name = "mine"', 'name = "../../evil"', 1, "cannot be called '../../evil', since its run's folder"),
        ('name = "mine"', 'name = "/tmp/evil"', 1, "cannot be called '/tmp/evil'"),
        ("seed = 3", "sed = 3", 2, "'sed' in a study: did you mean 'seed'?"),
        ("seed = 3", 'seed = "3"', 2, "seed should be a whole number, not '3'"),
        ("seed = 3", "seed = -1", 2, "seed = -1"),
        ('  "flow",', '  "flwo",', 3, "'flwo': did you mean 'flow'?"),
        ("traces = 2", "traces = 0", 3, "Analyses need traces"),
        ('template = "default"', 'templat = "default"', 10, "did you mean 'template'?"),
        ('name = "other"', 'nane = "other"', 16, "'nane' in [models]: did you mean 'name'?"),
        ('name = "other"', 'name = "twin-arm"', 16, "called 'twin-arm'"),
        ('remasking = "random"', 'remaskin = "random"', 18, "did you mean 'remasking'?"),
        ('remasking = "random"', 'name = "lada"', 18, "did you mean 'llada'?"),
        ('remasking = "random"', "length = 3", 18, "as 'slots'"),
        ('source = "twin-llada"', 'device = "cpu"\ndevice_map = "auto"', 18, "device or device_map"),
        ('source = "world:twohop"', 'source = "world:twohp"', 24, "did you mean 'twohop'?"),
        ('source = "world:twohop"', 'source = "a.jsonl"\nretrieve = 3', 25, "from which corpus"),
        ('source = "world:twohop"', 'source = "world"\ncorpus = "a.json"', 25, "takes no corpus"),
        ('stressor = "position"', 'stressor = "positoin"', 31, "did you mean 'position'?"),
        ('stressor = "position"', 'stressor = "own"\nmine = 1', 31, "no stressor 'own'"),
        ('stressor = "position"', "stressor = []", 31, "stressor should be a text, not []"),
        ('stressor = "position"\n', "", 30, "needs the key 'stressor'"),
        ('values = "all"', 'values = "9"', 32, "no place 9 among 5"),
        ('tasks = ["rag"]', 'tasks = ["rga"]', 33, "did you mean 'rag'?"),
        ('tasks = ["rag"]', "", 30, "'position' needs 1 gold document in a sample, and the task 'twohop' has 2"),
        ('values = "all"', "", 30, "needs the key 'values'"),
        ('tasks = ["rag"]\n', 'tasks = ["rag"]\ndistractors = "tropical"\n', 34, "one of topical, random"),
        ("documents = 5", "docments = 5", 34, "'docments' in [conditions]: did you mean 'documents'?"),
        ("documents = 5", 'documents = "5"', 34, "documents should be a whole number, not '5'"),
        ("documents = 5", "documents = 0", 34, "0 documents are too few"),
        ("documents = 5", "options = {}", 34, "There is no key 'options'"),
        ("documents = 5", 'kinds = ["random"]', 34, "There is no key 'kinds'"),  # that is an option of noise
        (
            'stressor = "position"\nvalues = "all"', 'stressor = "noise"\nvalues = 1\nkinds = "loud"', 33,
            "no kind of noise 'loud'",
        ),
        ('stressor = "position"\nvalues = "all"', 'stressor = "documents"\nvalues = 5', 30, "'rag' comes twice"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line_and_the_nearest_name(tmp_path, old, new, line, told):
    assert old in TEXT
    with pytest.raises(UserError) as error:
        read(tmp_path, TEXT.replace(old, new))
    assert f"mine.toml, line {line}: " in str(error.value)
    assert told in str(error.value)


def test_what_is_no_toml_is_told_with_its_place(tmp_path):
    with pytest.raises(UserError, match=r"not valid TOML: .*line 2"):
        read(tmp_path, 'name = "x"\nseed = = 3\n')
    with pytest.raises(UserError, match=r"write \[\[models\]\]"):
        read(tmp_path, 'name = "x"\n[models]\nname = "twin-arm"\n')


@pytest.mark.parametrize(
    ("lines", "lacks", "below"),
    [
        ("", "models", 'name = "twin-llada"'),
        ('[[models]]\nname = "twin-arm"\n', "tasks", 'source = "world:rag:5"'),
        ('[[models]]\nname = "twin-arm"\n[[tasks]]\nsource = "world"\n', "conditions", "values = [0, 5]"),
    ],
)
def test_what_a_study_lacks_is_told_with_what_to_write(tmp_path, lines, lacks, below):
    with pytest.raises(UserError, match="A study needs") as error:
        read(tmp_path, f'name = "x"\n{lines}')
    assert f"needs {lacks}: write [[{lacks}]] and, below it, " in str(error.value) and below in str(error.value)


def test_the_shipped_studies_are_valid_and_found_by_name():
    assert {path.stem for path in SHIPPED.glob("*.toml")} == {
        "attribution", "attribution-smollm2", "causal", "causal-smollm2", "demo", "floating", "floating-smollm2",
        "heads", "heads-smollm2", "paper", "smollm2",
    }  # fmt: skip
    checked = ("attribution", "attribution-smollm2", "causal", "causal-smollm2", "floating-smollm2", "heads")
    for name in (*checked, "heads-smollm2"):
        assert read_study(find_study(name)).name == name
    demo, floating, paper, smollm2 = (read_study(find_study(name)) for name in ("demo", "floating", "paper", "smollm2"))
    (passages,) = floating.tasks
    cells = {cell.condition.name: cell for cell in floating.cells(passages)}
    for side, models in (("continue", ()), ("mirrored", ("twin-dream", "twin-llada"))):  # an ARM writes at the right
        for order in ("left-to-right", "random", "right-to-left"):
            assert cells[f"passage/{side}/{order}/replay"].models == models
    assert {cell.limit for cell in cells.values()} == {cell.traces for cell in cells.values()} == {50}
    assert demo.limit >= 40 and [model.name for model in demo.models] == ["twin-arm", "twin-dream", "twin-llada"]
    assert [model.source for model in paper.models] == [
        "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2.5-7B-Instruct", "Dream-org/Dream-v0-Instruct-7B",
        "GSAI-ML/LLaDA-8B-Instruct",
    ]  # fmt: skip
    assert [task.name for task in paper.tasks] == ["NQ", "TQA", "MarcoQA", "HotpotQA", "T-REx"]
    assert (paper.slots, paper.steps) == (32, 32)
    assert {curve.stressor for curve in paper.conditions} == {"documents", "position", "noise"}
    (task,) = smollm2.tasks
    cells = {cell.condition.name: cell for cell in smollm2.cells(task)}
    assert {"closed-book", "oracle", "noise/topical/gold-kept/4", "noise/topical/gold-kept/9"} <= cells.keys()
    assert {"smollm2-135m", *(name for name in shipped() if name.startswith("smollm2"))} == {
        model.name for model in smollm2.models
    } and smollm2.prompt.raw
    assert cells["noise/topical/gold-kept/4"].traces >= 50 and "untrained" in smollm2.controls
    with pytest.raises(UserError, match="did you mean 'paper'"):
        find_study("papr")
    with pytest.raises(UserError, match="no study file"):
        find_study("none.toml")


def test_other_numbers_of_slots_scale_the_steps():
    parts = ((ModelPlan("twin-arm"),), (TaskPlan("world"),), (Curve("documents", "0"),))
    scaled, one_per_slot = Study("s", *parts, slots=32, steps=12), Study("s", *parts, slots=32)
    assert [scaled.steps_for(slots) for slots in (32, 64, 8, 1)] == [12, 24, 3, 1]
    assert [scaled.steps_for(slots) for slots in (10, 9)] == [4, 3]  # of 3.75 and 3.375: the nearest
    assert [one_per_slot.steps_for(slots) for slots in (32, 64, 1)] == [32, 64, 1]


def test_a_task_is_called_after_its_source_and_takes_what_fits_it():
    assert TaskPlan("hf:owner/data.v2:test").name == "hf:owner/data.v2:test"
    assert TaskPlan("data/some.v2.jsonl").name == "some"
    with pytest.raises(UserError, match="has passages and takes no corpus"):
        TaskPlan("passages:t.txt", corpus="c.jsonl")
    parts = ((ModelPlan("twin-arm"),), (TaskPlan("world"),), (Curve("documents", "0", limit=50),))
    study = Study("s", *parts, limit=9)
    assert [cell.limit for cell in study.cells(study.tasks[0])] == [9]  # no more than the task has
