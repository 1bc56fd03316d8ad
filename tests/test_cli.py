"""The command line as a user meets it: verbs, files, sentences and exit codes."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import polars as pl
import pytest
import torch
import transformers
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

import floatscope as fs
from floatscope import cli
from floatscope.study.estimating import expected_trace_bytes

WORDS = "Document Question Answer : . , ? \n 1 2 3 who wrote the book Ada Mars it was by in of a city".split(" ")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A tiny Llama with a word-level tokenizer: as it is an ARM, with mdm.toml an MDM."""
    folder = tmp_path_factory.mktemp("checkpoint")
    specials = ["<bos>", "<eos>", "<mask>", "<unk>"]
    vocabulary = {word: number for number, word in enumerate([*specials, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n|\w+|[^\w\s]"), behavior="removed", invert=True)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", mask_token="<mask>", unk_token="<unk>"
    )
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=len(vocabulary), max_position_embeddings=96, bos_token_id=0, eos_token_id=1,
        floatscope_family="causal",
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    (folder / "mdm.toml").write_text('base = "llada"\nkeys = {}\nconfig = {}\nmask_id = 2\n')
    (folder / "a.txt").write_text("Mars:\nthe book was by Ada in Mars")
    (folder / "b.txt").write_text("it was a city")
    return folder


def run(monkeypatch, capsys, *arguments):
    """Exit code, stdout and stderr of one call."""
    monkeypatch.setattr(sys, "argv", ["floatscope", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    told = capsys.readouterr()
    return stopped.value.code, told.out, told.err


@pytest.mark.slow
@pytest.mark.parametrize(("family", "kind"), [((), "arm"), (("--family", "mdm.toml"), "mdm")])
def test_trace_writes_a_trace_and_shows_the_answer(monkeypatch, capsys, tmp_path, checkpoint, family, kind):
    family = [checkpoint / part if part.endswith(".toml") else part for part in family]
    out = tmp_path / "t.safetensors"
    call = ["trace", checkpoint, "--question", "who wrote the book ?", "--doc", checkpoint / "a.txt", "--out", out]
    call += ["--doc", checkpoint / "b.txt", "--gold", 1, "--answer", "Ada", "--length", 4, *family]
    code, shown, _ = run(monkeypatch, capsys, *call, *(["--steps", 4] if kind == "mdm" else []))
    assert code == 0
    assert "answer:" in shown and "most attended" in shown and str(out) in shown
    trace = fs.Trace.load(out)
    assert (trace.metadata["sample"], trace.metadata["answers"]) == ("who wrote the book ?", ["Ada"])
    assert f"answer: {trace.metadata['prediction']!r}" in shown
    assert trace.kind == kind
    assert [label for label in trace.region_labels if label.startswith("doc")] == ["doc 1", "doc 2"]
    assert trace.texts is not None
    assert [trace.texts[k] for k in trace.marks["gold_answer"]] == ["Ada"]
    assert "Mars" in [trace.texts[k] for k in trace.marks["evidence"]]  # in the text; the title is no evidence
    assert [trace.texts[k] for k in trace.marks["evidence"]].count("Mars") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("family", "order"), [((), (0, 1, 2)), (("--family", "mdm.toml"), (2, 1, 0))])
def test_a_text_is_replayed(monkeypatch, capsys, tmp_path, checkpoint, family, order):
    family = [checkpoint / part if part.endswith(".toml") else part for part in family]
    call = ["trace", checkpoint, "--question", "who wrote the book ?", "--replay", "Ada the book", *family]
    call += ["--out", tmp_path / "t", *(["--order", "right-to-left"] if family else [])]
    code, shown, _ = run(monkeypatch, capsys, *call)
    assert code == 0 and "answer: 'Ada the book'" in shown
    trace = fs.Trace.load(tmp_path / "t")
    assert trace.texts is not None and [trace.texts[k] for k in trace.slots] == ["Ada", "the", "book"]
    assert trace.commit_step.tolist() == list(order) and trace.sampler["replay"] is True
    code, _, told = run(monkeypatch, capsys, *call, "--length", 5)
    assert code == 2 and "has 3 answer slots and the sampler fills 5" in told
    code, _, told = run(monkeypatch, capsys, *call[:5], " ", "--out", tmp_path / "t")
    assert code == 2 and "The text that is to stand in the slots is empty" in told


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes(monkeypatch, capsys, tmp_path, checkpoint):
    call = ["trace", checkpoint, "--question", "who ?", "--family", checkpoint / "mdm.toml", "--length", 4]
    call += ["--temperature", 1.0, "--steps", 2]
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        assert run(monkeypatch, capsys, *call, "--seed", seed, "--out", tmp_path / name)[0] == 0
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_check_reports_every_finding(monkeypatch, capsys, checkpoint):
    code, shown, _ = run(monkeypatch, capsys, "check", checkpoint)
    assert code == 0
    for name in ("rows sum to 1", "output equals SDPA", "attention follows visibility", "left pads change nothing"):
        assert name in " ".join(shown.replace("│", " ").split())


def test_check_tells_which_fields_of_the_config_are_not_read(monkeypatch, capsys, tmp_path, checkpoint):
    """No tensor's shape tells a forgotten rms_norm_eps, so no check can fail for it."""
    shutil.copytree(checkpoint, tmp_path / "own")
    kept = "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads vocab_size head_dim"
    config = "".join(f"{name} = '{name}'\n" for name in kept.split())
    (tmp_path / "own.toml").write_text(f"base = 'llada'\nmask_id = 2\nkeys = {{}}\n[config]\n{config}")
    code, shown, _ = run(monkeypatch, capsys, "check", tmp_path / "own", "--family", tmp_path / "own.toml")
    told = " ".join(shown.partition("Fields of config.json that family own does not read: ")[2].split())
    assert code == 0 and "rms_norm_eps" in told and "eos_token_id" in told
    assert "hidden_size" not in told and "model_type" not in told and told.endswith(".")


@pytest.mark.slow
def test_brackets_and_colons_of_a_path_are_printed_as_they_are(monkeypatch, capsys, tmp_path, checkpoint):
    folder = tmp_path / "a[bold]b[red]:smile:"
    folder.mkdir()
    for file in checkpoint.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    monkeypatch.setenv("COLUMNS", "400")
    code, shown, _ = run(monkeypatch, capsys, "check", folder)
    assert code == 0 and "Model(a[bold]b[red]:smile:, family" in shown
    out = folder / "t.safetensors"
    code, shown, _ = run(monkeypatch, capsys, "trace", folder, "--question", "who", "--length", 2, "--out", out)
    assert code == 0 and shown.count("a[bold]b[red]:smile:") >= 2  # the table's title, and where the file is


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "settings", "steps"),
    [
        ((), {"length": 3}, 3),
        (("--family", "mdm.toml"), {"length": 4, "steps": 64}, 4),  # no step without a slot to fill
        (("--family", "mdm.toml"), {"length": 4, "steps": 2}, 2),
        (("--family", "mdm.toml", "--sampler", "dream"), {"length": 2, "steps": 9}, 9),
    ],
)
def test_the_progress_bar_counts_the_steps_that_are_run(
    monkeypatch, capsys, tmp_path, checkpoint, family, settings, steps
):
    totals = []
    from rich.progress import Progress

    original = Progress.update
    monkeypatch.setattr(Progress, "update", lambda self, task, **to: totals.append(to) or original(self, task, **to))
    family = [checkpoint / part if part.endswith(".toml") else part for part in family]
    flags = [part for name, value in settings.items() for part in (f"--{name}", value)]
    out = tmp_path / "t"
    assert run(monkeypatch, capsys, "trace", checkpoint, "--question", "who", *family, *flags, "--out", out)[0] == 0
    assert [update["total"] for update in totals if "total" in update][:2] == [steps, fs.Trace.load(out).steps]


def test_check_shows_what_fails(monkeypatch, capsys, tmp_path, checkpoint):
    for file in checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_key_value_heads": 1, "rms_norm_eps": 1e30}))
    code, shown, _ = run(monkeypatch, capsys, "check", tmp_path)  # normed to nothing: tokens no longer matter
    assert code == 1
    assert "failed" in shown
    code, _, told = run(monkeypatch, capsys, "trace", tmp_path, "--question", "who", "--out", tmp_path / "t")
    assert code == 2
    assert "cannot be traced faithfully" in told


def test_families_lists_the_registry(monkeypatch, capsys):
    code, shown, _ = run(monkeypatch, capsys, "families")
    assert code == 0
    assert all(name in shown for name in fs.FAMILIES)


MISTAKES = {
    "unknown verb": (["tarce"], 'Did you mean "trace"'),
    "unknown model": (["check", "nosuch"], "no model at 'nosuch'"),
    "a typo": (["trace", "twin-lada", "--question", "a", "--out", "OUT"], "did you mean 'twin-llada'?"),
    "a typo among several": (
        ["evaluate", "--model", "twin-arm", "--model", "twin-dreem", "--task", "nosuch.jsonl", "--out", "OUT"],
        "did you mean 'twin-dream'?",
    ),
    "a question and a text": (
        ["trace", "CHECKPOINT", "--question", "a", "--text", "b", "--out", "OUT"],
        "or a text alone with --text",
    ),
    "unknown flag": (["families", "--verbose"], "--verbose"),
    "no question": (["trace", "CHECKPOINT", "--question", " ", "--out", "OUT"], "question is empty"),
    "no document": (["trace", "CHECKPOINT", "--question", "a", "--doc", "no.txt", "--out", "OUT"], "cannot be read"),
    "gold of nothing": (["trace", "CHECKPOINT", "--question", "a", "--gold", "2", "--out", "OUT"], "0 documents"),
    "folder missing": (["trace", "CHECKPOINT", "--question", "a", "--out", "no/t"], "in an existing folder"),
    "setting of another": (
        ["trace", "CHECKPOINT", "--question", "a", "--steps", "4", "--out", "OUT"],
        "no setting 'steps'",
    ),
    "sampler of another": (
        ["trace", "CHECKPOINT", "--question", "a", "--sampler", "llada", "--out", "OUT"],
        "leave the sampler out",
    ),
    "too long": (["trace", "CHECKPOINT", "--question", "a", "--length", "500", "--out", "OUT"], "context of 96"),
    "unknown family": (["check", "CHECKPOINT", "--family", "lada"], "did you mean 'llada'"),
    "unknown dtype": (["check", "CHECKPOINT", "--dtype", "float33"], "unknown dtype"),
    "whole dtype": (["check", "CHECKPOINT", "--dtype", "int8"], "unknown dtype 'int8': use float32, bfloat16"),
    "unknown device": (["check", "CHECKPOINT", "--device", "gpu"], "unknown device 'gpu'"),
    "meta device": (["check", "CHECKPOINT", "--device", "meta"], "device 'meta' holds no numbers"),
    "another encoding": (["trace", "CHECKPOINT", "--question", "caf\udce9", "--out", "OUT"], "is not UTF-8 text"),
    "half a slot": (
        ["trace", "CHECKPOINT", "--question", "a", "--length", "1.5", "--out", "OUT"],
        "a whole number is needed",
    ),
    "a name too long": (["trace", "CHECKPOINT", "--question", "a", "--out", "n" * 300], "name too long"),
    "a pipe": (["trace", "CHECKPOINT", "--question", "a", "--out", "PIPE"], "pipe cannot be written: name a file"),
    "far too long": (
        ["trace", "CHECKPOINT", "--question", "a", "--length", "1000000000000", "--out", "OUT"],
        "context of 96",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_code_2(monkeypatch, capsys, tmp_path, checkpoint, mistake):
    arguments, expected = MISTAKES[mistake]
    os.mkfifo(tmp_path / "pipe")
    places = {"CHECKPOINT": checkpoint, "OUT": tmp_path / "t.safetensors", "PIPE": tmp_path / "pipe"}
    code, _, told = run(monkeypatch, capsys, *(places.get(part, part) for part in arguments))
    assert code == 2
    lines = [line for line in told.splitlines() if line.startswith("floatscope:")]
    assert len(lines) == 1
    assert expected in lines[0]
    assert "Traceback" not in told
    assert not (tmp_path / "t.safetensors").exists()


@pytest.mark.parametrize(
    "call",
    [
        ["evaluate", "--model", "twin-arm", "--task", "world", "--out"],
        ["study", "demo", "--out"],
        ["trace", "twin-arm", "--question", "who", "--out"],
        ["analyze", "drift", ".", "--out"],
        ["table"],
        ["report"],
    ],
)
def test_an_empty_path_is_refused_and_nothing_is_written_here(monkeypatch, capsys, tmp_path, call):
    monkeypatch.chdir(tmp_path)
    code, shown, told = run(monkeypatch, capsys, *call, "")
    assert code == 2 and shown == "" and "it is empty, and a path is needed" in told and len(told.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("heard_interrupts")
def test_ctrl_c_leaves_no_file(monkeypatch, capsys, tmp_path, checkpoint):
    """A real interrupt, in the middle of the run and while the file is written."""
    from floatscope.decoding import denoising
    from floatscope.traces import storage

    def interrupt(*_):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)

    call = ["trace", checkpoint, "--question", "who", "--family", checkpoint / "mdm.toml", "--out", tmp_path / "t"]
    for module, name in ((denoising, "require_finite"), (storage, "save_file")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, interrupt)
            code, _, told = run(patch, capsys, *call, "--length", 4)
        assert code == 130 and "Traceback" not in told
        assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_model_whose_units_all_failed_is_told_by_the_exit_code(monkeypatch, capsys, tmp_path, checkpoint):
    """The checkpoint has a context of 96 tokens, the twin one of 2048."""
    file = tmp_path / "questions.jsonl"
    call = ["evaluate", "--model", "twin-arm", "--model", f"small={checkpoint}", "--task", file, "--documents", "0"]
    for number, (lengths, failed, expected) in enumerate((([10], 0, 0), ([200], 1, 1), ([10, 200], 1, 0))):
        asked = ({"id": str(words), "question": "who " * words, "answers": ["Ada"]} for words in lengths)
        file.write_text("\n".join(map(json.dumps, asked)))
        code, shown, told = run(monkeypatch, capsys, *call, "--length", "4", "--out", tmp_path / str(number))
        assert code == expected and ("1 failed" in told) == ("too long" in shown) == bool(failed)


def test_text_needs_a_tokenizer_and_says_so(monkeypatch, capsys, tmp_path, checkpoint):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((checkpoint / name).read_bytes())
    code, _, told = run(monkeypatch, capsys, "trace", tmp_path, "--question", "who", "--out", tmp_path / "t")
    assert code == 2
    assert "has no tokenizer" in told


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["trace", "check", "families", "analyze"])
def test_every_verb_has_help_with_an_example(monkeypatch, capsys, verb):
    _, shown, _ = run(monkeypatch, capsys, verb, "--help")
    assert f"Example: floatscope {verb}" in shown


@pytest.mark.slow
def test_help_loads_nothing_heavy():
    heavy = "{'torch', 'transformers', 'scipy', 'polars', 'altair', 'numpy'}"
    code = f"import sys; from floatscope import cli; cli.app(['--help']); sys.exit(bool({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


@pytest.mark.slow
def test_analyze_writes_tables_and_a_figure(monkeypatch, capsys, tmp_path, checkpoint):
    traces = tmp_path / "traces"
    traces.mkdir()
    for number, question in enumerate(("who wrote the book ?", "who was in the city ?")):
        call = ["trace", checkpoint, "--question", question, "--doc", checkpoint / "a.txt", "--gold", 1]
        call += [
            "--family",
            checkpoint / "mdm.toml",
            "--length",
            4,
            "--steps",
            4,
            "--out",
            traces / f"{number}.safetensors",
        ]
        assert run(monkeypatch, capsys, *call)[0] == 0
    code, shown, _ = run(monkeypatch, capsys, "analyze", "drift", traces, "--out", tmp_path / "drift")
    assert code == 0
    for name in ("drift.parquet", "drift.svg", "drift.pdf", "drift.html"):
        assert (tmp_path / "drift" / name).stat().st_size > 0
        assert name in shown
    assert "untrained" in shown  # the control that nobody gave is named
    code, _, told = run(monkeypatch, capsys, "analyze", "drifft", traces, "--out", tmp_path / "x")
    assert code == 2
    assert "There is no analysis 'drifft': did you mean 'drift'? Known are drift, absorption" in told


@pytest.mark.slow
@pytest.mark.parametrize("family", [(), ("--family", "mdm.toml", "--steps", 4)])
def test_explain_shows_the_answer_with_a_bar_for_each_document(monkeypatch, capsys, tmp_path, checkpoint, family):
    family = [checkpoint / part if str(part).endswith(".toml") else part for part in family]
    call = ["explain", checkpoint, "--question", "who wrote the book ?", "--length", 4, *family]
    call += ["--doc", checkpoint / "a.txt", "--doc", checkpoint / "b.txt"]
    code, shown, _ = run(monkeypatch, capsys, *call, "--sentences", "--out", tmp_path / "t.safetensors")
    assert code == 0
    lines = shown.splitlines()
    assert lines[0].startswith("answer:") and lines[1].startswith("doc 1 Mars") and lines[2].startswith("doc 2 b")
    assert ("most of it:" in shown) == ("█" in shown)  # not where no document did anything for the answer
    assert "5 sequences beside the answer" in " ".join(shown.split())  # 1 + 2 + all, and a sentence that is no document
    assert fs.Trace.load(tmp_path / "t.safetensors").rollout.shape[-1] > 2
    code, shown, _ = run(monkeypatch, capsys, *call, "--method", "attention")
    assert code == 0 and "share of attention" in shown
    _, without, _ = run(monkeypatch, capsys, *call)
    assert "most of it" not in without


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--question", "who ?"], "Give a question and documents"),
        (["--task", "world"], "name it, with --out"),
        (["--question", "who ?", "--doc", "a.txt", "--method", "atention"], "did you mean 'attention'"),
    ],
)
def test_mistakes_in_explain_are_sentences(monkeypatch, capsys, checkpoint, arguments, sentence):
    arguments = [checkpoint / one if one == "a.txt" else one for one in arguments]
    code, _, told = run(monkeypatch, capsys, "explain", checkpoint, *arguments)
    assert code == 2 and sentence in told


@pytest.mark.slow
def test_trace_takes_a_text_as_it_stands_and_a_template(monkeypatch, capsys, tmp_path, checkpoint):
    out = tmp_path / "t.safetensors"
    assert run(monkeypatch, capsys, "trace", checkpoint, "--text", "the book was", "--length", 2, "--out", out)[0] == 0
    trace = fs.Trace.load(out)
    assert trace.texts is not None and list(trace.texts[:-2]) == ["<bos>", "the", "book", "was"]
    (tmp_path / "mine.txt").write_text("the city : {documents}{text}{/documents}{question}")
    call = ["trace", checkpoint, "--question", "who wrote the book ?", "--prompt", tmp_path / "mine.txt", "--raw"]
    assert run(monkeypatch, capsys, *call, "--length", 2, "--out", out)[0] == 0
    trace = fs.Trace.load(out)
    assert trace.texts is not None and list(trace.texts[1:4]) == ["the", "city", ":"]


@pytest.mark.slow
def test_a_log_has_lines_of_progress_and_the_cost_of_traces(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("floatscope.cli.shared.SECONDS", 0.0)
    call = ["evaluate", "--model", "twin-llada", "--task", "world", "--documents", 0, "--limit", 3, "--length", 2]
    code, _, told = run(monkeypatch, capsys, *call, "--trace", 1, "--batch", 1, "--out", tmp_path / "run")
    assert code == 0 and "floatscope: up to 1 answers are traced, and 1 more under each control" in told
    assert re.search(r"floatscope: twin-llada.*: \d+ of \d+, 0:00:\d\d left", told)
    assert re.search(r"\d traces \(0\.\d MB\) are in .*: floatscope analyze drift", told)
    expected = expected_trace_bytes(fs.Run(tmp_path / "run").study)
    real = sum(path.stat().st_size for path in fs.Run(tmp_path / "run").traces(control=None))
    assert expected is not None and real / 2 < expected < 2 * real
    assert f"each takes a file, about {expected / 1e6:,.1f} MB in all, and longer" in told


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_printed_table_fits_the_terminal(width):
    from floatscope.cli.analyzing import fitting

    table = pl.DataFrame({"model": ["m"] * 20, **{f"column {k}": [k + 0.123456] * 19 + [0.0] for k in range(12)}})
    lines = fitting(table, width).splitlines()
    assert max(map(len, lines)) <= width and lines[0] == "model: m"
    assert "8 more rows" in fitting(table, width)
    shown = [name.strip() for name in re.findall(r"column \d+", lines[1])]
    left = re.findall(r"column \d+", " ".join(lines[14:]))
    assert shown + left == [f"column {k}" for k in range(12)] and "0.123" in lines[2]


def test_each_layer_shows_what_received_most_at_its_first_and_last_step(monkeypatch, capsys, tmp_path):
    from floatscope.cli.loaded import _show_trace
    from tests.traces.full_matrices import full_run, to_trace

    trace = to_trace(full_run())
    open_slot = int(trace.slots[trace.commit_step.argmax()])  # still masked in the last forward
    filled = int(trace.slots[trace.commit_step.argmin()])
    received = trace.arrays["received"] * 0
    received[0, :, 5], received[0, 1, 9] = 0.5, 0.625
    received[-1, 0, open_slot], received[-1, 1, filled], received[-1, 2, 4] = 0.4, 0.3, 0.25
    trace = to_trace(full_run(), arrays={**trace.arrays, "received": received})
    monkeypatch.setenv("COLUMNS", "200")
    _show_trace(trace, trace.save(tmp_path / "t.safetensors"))
    shown = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if line.startswith("│")]
    assert rows == [
        ["0", "' Paris' at 5: 50.0%", f"still masked at {open_slot}: 40.0%"],
        ["1", "' king' at 9: 62.5%", f"' Ann' at {filled}: 30.0%"],
        ["2", "' Paris' at 5: 50.0%", "'\\n' at 4: 25.0%"],
    ]
    assert "tiny-mdm: 4 steps x 3 layers x 15 tokens" in shown and "(0.0" in shown and " MB)" in shown


def test_texts_for_a_terminal():
    from floatscope.cli.explaining import one_line_kept
    from floatscope.cli.shared import LoadFlags, given, one_line, printable

    assert printable("a\x1b[31mb\tc\n") == "a\ufffd[31mb\tc\n" and one_line(" a\n\tb  c ") == "a b c"
    kept = ("  a ", "a", " ", "\nb c\n")
    assert [one_line_kept(text) for text in kept] == [" a ", "a", " ", " b c "]
    flags = LoadFlags(family="llada", mask_id=0, block_size=4)
    expected = {"revision": None, "family": "llada", "dtype": None, "device": None, "mask_id": 0, "block": 4}
    assert flags.how == expected
    assert given(None) == {} and given(flags) == {"family": "llada", "mask_id": 0, "block_size": 4}
