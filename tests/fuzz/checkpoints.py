"""Folders and GGUF files of models: damaged, contradictory, and with code that would like to run."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import floatscope as fs
from floatscope.models.shipped import shipped
from tests.fuzz.damage import change_a_value, damage
from tests.fuzz.outcomes import CODE, Attempt, attempt
from tests.models.plain_transformer import random_weights
from tests.models.test_gguf import SHAPE, write_gguf

TWINS = ("twin-arm", "twin-dream", "twin-llada")


class Planted:
    """Unpickling it writes the file that it names."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return Path.touch, (self.marker,)


def folders(rng: random.Random, folder: Path) -> Iterator[Attempt]:
    """Endless: a twin's folder with a damaged file, changed JSON, or code planted in it."""
    copy, marker = folder / "model", folder / "code ran"
    while True:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(shipped()[rng.choice(TWINS)], copy)
        chance = rng.random()
        if chance < 0.4:
            name = rng.choice(("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"))
            what = f"{name}: {damage(rng, copy / name)}"
        elif chance < 0.8:
            name = rng.choice(("config.json", "config.json", "tokenizer_config.json", "tokenizer.json"))
            table = json.loads((copy / name).read_text())
            what = f"{name}: {change_a_value(rng, table)}"
            (copy / name).write_text(json.dumps(table))
        else:
            what = plant(rng, copy, marker)
        made = attempt(f"folder, {what}", lambda: load_and_ask(copy))
        if marker.exists():
            marker.unlink()
            made = replace(made, outcome=CODE)
        yield made


def plant(rng: random.Random, copy: Path, marker: Path) -> str:
    """Code under every name that a loader might look for."""
    (copy / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Evil: pass\n")
    for name in ("config.json", "tokenizer_config.json"):
        table = json.loads((copy / name).read_text())
        keys = ("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoTokenizer")
        table["auto_map"] = dict.fromkeys(keys, rng.choice(("evil.Evil", ["evil.Evil", "evil.Evil"])))
        if rng.random() < 0.5:
            table["model_type" if name == "config.json" else "tokenizer_class"] = "Evil"
        (copy / name).write_text(json.dumps(table))
    if rng.random() < 0.5:
        (copy / "tokenizer.json").unlink()
        (copy / "vocab.json").write_text("{}")
    if rng.random() < 0.5:
        (copy / "model.safetensors").unlink()
        (copy / "pytorch_model.bin").write_bytes(pickle.dumps(Planted(marker)))
    return "planted code"


def gguf_files(rng: random.Random, folder: Path) -> Iterator[Attempt]:
    """Endless: a GGUF file that is damaged, at its beginning mostly, where its structure is."""
    whole, copy = write_gguf(folder / "whole.gguf", random_weights(SHAPE)), folder / "model.gguf"
    content = whole.read_bytes()
    while True:
        if rng.random() < 0.7:
            changed = bytearray(content)
            for _ in range(rng.choice((1, 1, 4))):
                changed[rng.randrange(3000)] ^= 1 << rng.randrange(8)
            copy.write_bytes(changed)
            what = "structure"
        else:
            shutil.copy(whole, copy)
            what = damage(rng, copy)
        yield attempt(f"gguf, {what}", lambda: load_and_ask(copy))


def load_and_ask(path: Path) -> None:
    """As a user would: load it, then a few tokens."""
    model = fs.load(str(path), device="cpu")
    fs.generate(model, [1, 2, 3], model.sampler({"steps": 2}, length=2))
