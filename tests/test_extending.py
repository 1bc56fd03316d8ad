"""docs/howto/extend.md, to the letter: each file of the page is run, and what it adds is in help, tables and report."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import save_file

import floatscope as fs
from floatscope.registry import EXTENSIONS
from floatscope.study.store import read_rows

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parent.parent / "docs" / "howto" / "extend.md"
FILES = {
    "family": "net",
    "sampler": "left_to_right",
    "detector": "share",
    "stressor": "echo",
    "analysis": "first_token",
    "method": "keep_one_in",
}
SLOTS, STRIDE = 6, 4
STUDY = """
name = "own"
limit = 3
slots = 6
batch = 2
workers = 2
analyses = ["anchors", "first_token"]

[[models]]
name = "net-twin"
source = "net-twin"
sampler = { name = "left-to-right", stride = 4 }

[[tasks]]
source = "world:rag:2"

[[conditions]]
stressor = "documents"
values = [2]
traces = 2

[[conditions]]
stressor = "echo"
values = "0..2"
word = "please"

[[conditions]]
stressor = "attribution"
values = "keep_one_in, leave_one_out"
documents = 2
"""


def page_files() -> dict[str, str]:
    """The Python file of each section."""
    sections = re.split(r"^## An? ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    found = {section.split()[0]: re.findall(r"```python\n(.*?)```", section, re.DOTALL) for section in sections}
    assert all(len(blocks) == 1 for blocks in found.values())
    return {kind: blocks[0] for kind, blocks in found.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files of the page, and twin-llada as a checkpoint of the page's family."""
    folder = tmp_path_factory.mktemp("own")
    for kind, text in page_files().items():
        (folder / f"{FILES[kind]}.py").write_text(text, encoding="utf-8")
    twin = fs.load("twin-llada", check=False)
    tensors = {re.sub(r"^model\.", "net.", name): t.clone() for name, t in twin.backbone.state_dict().items()}
    config = twin.backbone.config.to_dict() | {"model_type": "net_diffusion", "mask_token_id": twin.mask_id}
    (folder / "net-twin").mkdir()
    save_file(tensors, folder / "net-twin" / "model.safetensors", {"format": "pt"})
    (folder / "net-twin" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    twin.tokenizer.save_pretrained(folder / "net-twin")
    (folder / "own.toml").write_text(STUDY, encoding="utf-8")
    return folder


def call(folder, files, *arguments):
    """What a process says that runs some of the page's files."""
    paths = os.pathsep.join(str(folder / f"{name}.py") for name in files)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "160", EXTENSIONS: paths}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


HELP = {
    "net": (["families"], ["net ", "LlamaForCausalLM, bidirectional, logits same", "sampler llada", "Net-1B"]),
    "left_to_right": (["trace", "--help"], ["autoregressive, left-to-right", "--stride INT Slots that"]),
    "share": (["analyze", "--help"], ["share(0.05): received > a share of all attention"]),
    "echo": (["stress", "--help"], ["--echo", "How often the question is repeated; e.g. 0..3", "--word"]),
    "first_token": (["analyze", "--help"], ["first_token: what the first token receives, by layer"]),
    "keep_one_in": (["explain", "--help"], ["keep_one_in: one document shown at a time (1 + D"]),
}  # fmt: skip


@pytest.mark.parametrize("name", HELP)
def test_help_shows_it(folder, name):
    verb, told = HELP[name]
    shown = re.sub(r"[\s│]+", " ", call(folder, [name], "-m", "floatscope.cli", *verb))
    without = re.sub(r"[\s│]+", " ", call(folder, [], "-m", "floatscope.cli", *verb))
    assert [text for text in told if text.strip() not in shown] == []
    assert told[-1] not in without


def test_the_verb_trace_takes_the_sampler_and_its_setting(folder):
    call(
        folder, ["left_to_right"], "-m", "floatscope.cli", "trace", "twin-llada", "--question", "Who founded Ferrox?",
        "--sampler", "left-to-right", "--stride", STRIDE, "--length", SLOTS, "--out", "t.safetensors",
    )  # fmt: skip
    trace = fs.Trace.load(folder / "t.safetensors")
    assert trace.sampler == {"name": "left-to-right", "length": SLOTS, "stride": STRIDE}
    assert trace.commit_step.tolist() == [0, 0, 0, 0, 1, 1]


SCRIPT = """
import left_to_right
import floatscope as fs

model = fs.load("twin-llada", check=False)
ids = [[1, 9, 12, 7], [1, 30]]
sampler = model.sampler(name="left-to-right", stride=4, length=6)
print([trace.canvas.tolist() for trace in fs.trace(model, ids, sampler)])
print([found.canvas.tolist() for found in fs.generate(model, ids, sampler)])
print(fs.trace(model, ids[1], sampler).canvas.tolist())
"""


def filled(model, prompt, slots=SLOTS, stride=STRIDE):
    """The page's sampler in plain words: the likeliest token of the first masked slots, again and again."""
    canvas = torch.tensor([*prompt, *[model.mask_id] * slots])
    for start in range(len(prompt), len(canvas), stride):
        logits = model.logits(canvas)[0, start : start + stride].clone()
        logits[:, model.mask_id] = -torch.inf
        canvas[start : start + stride] = logits.argmax(dim=-1)
    return canvas.tolist()


def test_python_imports_it(folder):
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    traced, generated, alone = map(json.loads, call(folder, [], "script.py").splitlines())
    model = fs.load("twin-llada", check=False)
    assert traced == generated == [filled(model, [1, 9, 12, 7]), filled(model, [1, 30])]
    assert alone == traced[1]


@pytest.fixture(scope="module")
def run(folder):
    """A study with all of the page's files, in two processes."""
    call(folder, FILES.values(), "-m", "floatscope.cli", "study", "own.toml", "--out", "run")
    read = "from floatscope.study.store import Run\nRun('run').results().write_parquet('results.parquet')"
    call(folder, FILES.values(), "-c", read)
    return folder / "run"


def test_a_study_has_the_family_the_sampler_and_the_stressor(folder, run):
    rows = pl.read_parquet(folder / "results.parquet")
    others = ["closed-book", "oracle", "attribution/2"]
    rows = rows.filter(pl.col("control") == "", ~pl.col("condition").is_in(others))
    assert rows.schema["times"] == pl.Int64 and rows["error"].null_count() == len(rows) == 12
    model = fs.load("twin-llada", check=False)
    samples = {sample.id: sample for sample in fs.world.World(0).samples("rag", 3, documents=2)}
    for row in rows.iter_rows(named=True):
        sample, times = samples[row["sample"]], row["times"] or 0
        assert row["condition"] == ("documents/2" if row["times"] is None else f"echo/{times}")
        question = " please: ".join([sample.question] * (times + 1))
        prompt = fs.build_prompt(model.tokenizer, question, sample.documents)
        assert row["prompt_tokens"] == len(prompt.ids)
        assert row["prediction"] == model.text(filled(model, prompt.ids.tolist())[len(prompt.ids) :])
        assert row["steps"] == 2
    assert sorted(rows["times"].unique().to_list(), key=str) == [0, 1, 2, None]


def traces_of(run, control=""):
    """The traces of the model itself, or of one of its controls."""
    traces = [fs.Trace.load(path) for path in sorted((run / "traces").glob("*.safetensors"))]
    return [trace for trace in traces if trace.metadata["control"] == control]


def test_tables_hold_the_detector(run):
    traces = traces_of(run)
    assert [(trace.family, trace.sampler["name"]) for trace in traces] == [("net", "left-to-right")] * 2
    table = pl.read_parquet(run / "tables" / "anchors.parquet").filter(detector="share(0.05)", normalisation="rows")
    count = table.filter(measure="count").sort("layer")["value"].to_numpy()
    expected = np.mean([(trace.received > 0.05).sum(axis=-1).mean(axis=0) for trace in traces], axis=0)
    assert expected.any()
    np.testing.assert_allclose(count, expected, rtol=1e-5)


def test_tables_hold_the_analysis(run):
    table = pl.read_parquet(run / "tables" / "first_token.parquet").sort("layer")
    for column, control in (("value", ""), ("untrained", "untrained")):
        expected = np.mean([trace.received[:, :, 0].mean(axis=0) for trace in traces_of(run, control)], axis=0)
        np.testing.assert_allclose(table[column], expected, rtol=1e-5)
    even = np.mean([1 / len(trace.canvas) for trace in traces_of(run)])  # every token receives the same
    np.testing.assert_allclose(table["uniform"], even, rtol=1e-5)


def test_a_study_has_the_method_of_attribution(run):
    """Of two documents, showing one is hiding the other: its effect is the support less that of hiding the other."""
    rows = [row["scores"] for row in read_rows(run) if row["condition"] == "attribution/2" and not row["control"]]
    own = [one for one in rows if "attribution" in one]
    assert len(own) == 3
    for one in own:
        methods = one["attribution"]["methods"]
        expected = one["support"] - np.array(methods["leave_one_out"]["documents"])[::-1]
        np.testing.assert_allclose(methods["keep_one_in"]["documents"], expected, atol=2e-3)
    table = pl.read_parquet(run / "tables" / "attribution.parquet").filter(method="keep_one_in", measure="top_gold")
    assert table["n"].max() == 3


def test_the_report_shows_all_of_it(run):
    page = (run / "report.html").read_text(encoding="utf-8")
    told = ["net-twin", "left-to-right", "share(0.05)", "repetitions of the question"]
    told += ["<td>keep_one_in</td>", "What the first token receives", "Share of all attention on position 0, by layer"]
    assert [text for text in told if text not in page] == []
