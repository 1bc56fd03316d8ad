"""Calls of the command line with hostile words and files in place of one or two of their arguments."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

from tests.fuzz.damage import change_a_line, change_a_value
from tests.fuzz.outcomes import LET_IN, Attempt, command
from tests.fuzz.targets import Targets

WORDS = (
    "", " ", ".", "..", "-", "--", "--help", "-1", "0", "1", "2", "1.5", "0.5", "1e3", "1e999", "nan", "inf",
    "-inf", "True", "None", "null", "[]", "{}", "0..5", "5..0", "0..999999999999", "0,0", "0,1,", ",", "all", "a,b",
    "0x10", "1_0", "9" * 30, "9" * 5000, "-" + "9" * 400, "a" * 300, "a" * 5000, "a/" * 600, "\0", "a\0b", "\ud800",
    "é", "\x1b[31mred", "[bold]x[/bold]", "[/x]", "%s%n", "${HOME}", "~", "../../evil", "/dev/null", "/dev/zero",
    "/dev/full", "/proc", "/proc/self/mem", "/proc/version", "con:x", "hf:", "hf:x", "hf:../..", "NAME=", "=x", "a=b=c",
    "world:", "world:rag:0", "world:rag:-1", "world:rag:99999999", "world:nothing", "zscore(nan)", "zscore()",
    "zscore(1e400)", "topk(-1)", "llada", "twin-llada", "dream", "auto", "cpu", "cuda:99", "meta", "float8",
    "float64", "bfloat16", "18446744073709551616", "-9223372036854775809",
)  # fmt: skip


def hostile_files(folder: Path) -> list[str]:
    """Files of many wrong kinds, written once."""
    contents = {
        "empty.json": b"",
        "empty.toml": b"",
        "binary.safetensors": bytes(range(256)) * 8,
        "long_header.safetensors": (2**62).to_bytes(8, "little") + b"{}",
        "deep.json": b"[" * 100_000,
        "deep.toml": b"a = " + b"[" * 50_000,
        "dots.toml": b"a." * 20_000 + b"b = 1",
        "digits.json": b'{"question": ' + b"9" * 10_000 + b"}",
        "digits.toml": b"seed = " + b"9" * 10_000,
        "surrogate.jsonl": b'{"question": "a \\ud800 b", "answers": ["\\udfff"]}\n',
        "nan.jsonl": b'{"question": NaN, "answers": [1e999]}\n',
        "list.json": b"[1, 2, [3]]",
        "latin.jsonl": "{'question': 'é'}".encode("latin-1"),
        "fake.jsonl.gz": b"\x1f\x8b\x08\x00 no gzip at all",
        "fake.gguf": b"GGUF" + bytes(60),
        "evil.toml": b'name = "../../evil"\n[[models]]\nname = "twin-arm"\n[[tasks]]\nsource = "world"\n'
        b'[[conditions]]\nstressor = "documents"\nvalues = [0]\n',
        "escape.toml": b'name = "a\\u001b[31m"\n',
        "one.txt": b"Ferrox Steel was founded by Ida Ritter.",
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    (folder / "a folder").mkdir(exist_ok=True)
    (folder / "a folder" / "config.json").write_text(json.dumps({"model_type": ["llama"], "hidden_size": -1}))
    link = folder / "loop"
    if not link.is_symlink():
        link.symlink_to(link)
    if not (folder / "pipe").exists():
        os.mkfifo(folder / "pipe")
    return [str(folder / name) for name in (*contents, "a folder", "loop", "nothing", "one.txt/x")]


def calls(targets: Targets, folder: Path, number: int) -> list[list[str]]:
    """Calls that work, or would but for one word; small, so that a change that is harmless costs little."""
    out, run, study = folder / f"out-{number}", str(targets.run), str(targets.study)
    asking = ["--model", "twin-arm", "--task", "world", "--limit", "2", "--length", "4", "--out", str(out)]
    document = str(folder / "one.txt")
    return [
        ["trace", "twin-llada", "--question", "Who?", "--doc", document, "--out", f"{out}.safetensors",
         "--length", "4", "--steps", "4", "--keep", "compact", "--temperature", "0", "--gold", "1", "--answer", "Ida"],
        ["check", "twin-arm", "--family", "causal", "--dtype", "float32", "--device", "cpu"],
        ["families"],
        ["analyze", "drift", str(targets.trace), "--out", str(out), "--detector", "zscore(3)", "--seed", "0",
         "--layer", "-1", "--normalisation", "rows", "--theme", "light"],
        ["evaluate", *asking, "--documents", "0,1", "--seed", "0", "--batch", "2", "--workers", "1", "--trace", "0",
         "--prompt", "default", "--steps", "4"],
        ["stress", *asking, "--position", "1", "--documents", "2", "--noise", "0", "--kind", "random"],
        ["intervene", *asking, "--do", "block anchors(1,2)", "--documents", "2", "--layer", "deep", "--rows", "all",
         "--source", "first", "--seed", "0"],
        ["table", run, "--format", "csv"],
        ["report", run],
        ["study", study, "--out", str(out), "--limit", "1", "--seed", "0", "--batch", "1"],
        ["study", study, "--check"],
        ["adapt", "twin-arm", "--to", "dream", "--data", document, "--out", str(out), "--split-only",
         "--held-out", "1"],
        ["serve", "no such model", "--port", "0", "--host", "127.0.0.1"],
        ["train", "--twin", "no", "--out", str(out), "--seed", "0", "--samples", "0"],
        ["pull", "no such parent", "--from", "pypi"],
    ]  # fmt: skip


SAMPLE = {
    "id": "about Ferrox",
    "question": "Who founded Ferrox Steel?",
    "answers": ["Ida Ritter"],
    "documents": [
        {"title": "Ferrox Steel", "text": "Ferrox Steel was founded by Ida Ritter.", "gold": True},
        {"title": "Hydrax", "text": "Hydrax was founded by Otto Brandt.", "gold": False},
    ],
}
STUDY = """name = "small"
description = "A small one."
seed = 0
limit = 2
slots = 4
steps = 4
batch = 2
workers = 1
traces = 0
analyses = ["drift"]
[[models]]
name = "arm"
source = "twin-arm"
dtype = "float32"
[[tasks]]
source = "world:rag:3"
name = "rag"
limit = 1
[[conditions]]
stressor = "documents"
values = "0,1"
traces = 1
[[conditions]]
stressor = "noise"
values = "1"
kinds = ["random"]
gold = ["kept"]
[prompt]
template = "default"
raw = false
"""
FAMILY = """name = "mine"
base = "causal"
backbone = "AutoModelForCausalLM"
visibility = "causal"
logits = "next"
mask_id = 5
eos_ids = [2]
sampler = { name = "autoregressive", temperature = 0.0 }
keys = { "^net" = "model." }
"""
STRESS = (
    ["--position", "1,2", "--documents", "2"], ["--noise", "0,2"], ["--noise", "1", "--kind", "topical"],
    ["--slots", "2,4"], ["--question", "all"], ["--layout", "all"],
)  # fmt: skip
EDITS = (
    "block anchors(1)", "keep top(8)", "zero doc 1", "scale evidence by 2", "sink", "heads 0.0", "block", "", "x y z",
    "block anchors", "keep top(-1)", "scale doc 9 by nan", "heads 99.99", "zero doc 99999999999999999999", "heads 0",
    "block anchors(1,1,1)", "scale evidence by 1e999", "block top(0)", "pin bos to 2", "(((((", "block bos by 2", "\0",
)  # fmt: skip
TEMPLATE = "{before}\nQ: {question}\n{/before}\n{documents}\n{number}: [{title}. ]{text}\n{/documents}\nAnswer:\n"


def plausible_files(rng: random.Random, folder: Path) -> dict[str, str]:
    """Files that would be right but for one or two things: samples, a study, a family, a template of a prompt."""
    records = [json.loads(json.dumps(SAMPLE).replace("Ferrox", f"Ferrox {number}")) for number in range(3)]
    corpus = [{"title": f"Firm {number}", "text": f"Firm {number} was founded by nobody."} for number in range(4)]
    change_a_value(rng, records)
    change_a_value(rng, corpus)
    texts = {
        "corpus.jsonl": "\n".join(map(json.dumps, corpus)),
        "samples.jsonl": "\n".join(map(json.dumps, records)),
        "study.toml": change_a_line(rng, STUDY),
        "family.toml": change_a_line(rng, FAMILY),
        "template.txt": damaged_text(rng, TEMPLATE),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", errors="replace")
    return {name: str(folder / name) for name in texts}


def damaged_text(rng: random.Random, text: str) -> str:
    place = rng.randrange(len(text))
    odd = (
        "{",
        "}",
        "{x}",
        "{/documents}",
        "{question}",
        "[",
        "]",
        "\0",
        "\x1b[31m",
        "{" * 500,
        "a" * 50_000,
        "{0.x}",
        "",
    )
    return text[:place] + rng.choice(odd) + text[place + rng.choice((0, 0, 1, 20)) :]


def attempts(rng: random.Random, folder: Path, targets: Targets) -> Iterator[Attempt]:
    """Endless: a call with a few words exchanged, dropped or said twice, or with a file that is a little wrong."""
    files, evil = hostile_files(folder), folder / "evil"  # where ../../evil leads from a run folder's parent
    for number in count():
        out = str(folder / f"out-{number}")
        if rng.random() < 0.4:
            words = call_with_file(rng, plausible_files(rng, folder), out)
        else:
            words = call_with_words(rng, calls(targets, folder, number), files)
        made = command(words)
        if evil.exists() and "../../evil" not in words:
            made = replace(made, outcome=LET_IN)
        yield made
        for left in (out, evil):
            shutil.rmtree(left, ignore_errors=True)


def call_with_file(rng: random.Random, files: dict[str, str], out: str) -> list[str]:
    few = ["--limit", "2", "--length", "4", "--steps", "4", "--out", out]
    own = ["--model", "twin-arm", "--task", files["samples.jsonl"]]
    shown = ["--documents", rng.choice(("0", "own", "0,1", "2"))]
    known = (
        ["evaluate", *own, *shown, *few, *rng.choice(([], ["--skip-wrong"], ["--trace", "1"]))],
        ["evaluate", *own, *shown, *few, "--corpus", files["corpus.jsonl"], "--retrieve", "1"],
        ["stress", *own, *few, "--corpus", files["corpus.jsonl"], *rng.choice(STRESS)],
        ["intervene", *own, *few, "--documents", "2", "--do", rng.choice(EDITS)],
        ["study", files["study.toml"], "--out", out],
        ["study", files["study.toml"], rng.choice(("--check", "--dry-run"))],
        ["check", "twin-arm", "--family", files["family.toml"]],
        ["evaluate", "--model", "twin-llada", "--task", "world", *few, "--prompt", files["template.txt"]],
        ["trace", "twin-arm", "--question", "Who?", "--family", files["family.toml"], "--out", f"{out}.safetensors"],
        ["adapt", "twin-arm", "--to", "dream", "--data", files["samples.jsonl"], "--out", out, "--split-only",
         "--held-out", "1"],
    )  # fmt: skip
    return rng.choice(known)


def call_with_words(rng: random.Random, known: list[list[str]], files: list[str]) -> list[str]:
    words = rng.choice(known)
    fixed = {"serve": {1}, "train": {2, 8}, "pull": {1, 3}}.get(words[0], set())  # so that none of these begins
    for _ in range(rng.choice((1, 1, 2))):
        free = [place for place in range(len(words)) if place not in fixed]
        if rng.random() < 0.85:  # mostly values, seldom verbs and names of flags
            free = [place for place in free[1:] if not words[place].startswith("--")] or free
        place = rng.choice(free)
        change = rng.random()
        if change < 0.8:
            words[place] = rng.choice((*WORDS, *files) if rng.random() < 0.7 else files)
        elif change < 0.9 and not fixed:
            words.pop(place)
        else:
            words.insert(place, words[place])
        if not words:
            break
    return words
