"""Folders and GGUF files of models: damaged, contradictory, and with code that would like to run."""

from __future__ import annotations

import io
import json
import pickle
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import floatscope as fs
from floatscope.models.shipped import shipped
from floatscope.study.plan import ModelPlan
from floatscope.study.store import describe_model
from tests.fuzz.damage import change_a_json, damage
from tests.fuzz.outcomes import ACCEPTED, CODE, REDONE, SILENT, Attempt, attempt
from tests.fuzz.targets import Targets
from tests.models.plain_transformer import random_weights
from tests.models.test_gguf import SHAPE, write_gguf

TWINS = ("twin-arm", "twin-dream", "twin-llada")


class Planted:
    """Unpickling it writes the file that it names."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return Path.touch, (self.marker,)


def folders(rng: random.Random, folder: Path, targets: Targets) -> Iterator[Attempt]:
    """Endless: a twin's folder with a damaged file, changed JSON, or code planted in it."""
    copy, marker, whole_answer = folder / "model", folder / "code ran", cache(load_and_ask)
    while True:
        whole = shipped()[rng.choice(TWINS)]
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(whole, copy)
        chance = rng.random()
        if chance < 0.4:
            name = rng.choice(("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"))
            what = f"{name}: {damage(rng, copy / name)}"
        elif chance < 0.8:
            name = rng.choice(("config.json", "config.json", "tokenizer_config.json", "tokenizer.json"))
            what = f"{name}: {change_a_json(rng, copy / name)}"
        else:
            what = plant(rng, copy, marker)
        made = attempt(f"folder, {what}", lambda: load_and_ask(copy), told_by_hash(copy, whole, whole_answer))
        if marker.exists():
            marker.unlink()
            made = replace(made, outcome=CODE)
        yield made


def told_by_hash(path: Path, whole: Path, whole_answer: Callable[[Path], object]) -> Callable[[object], str]:
    """Files of others have no checksum of ours: another answer is told by the hashes that a run keeps, or silent."""

    def judge(found: object) -> str:
        return ACCEPTED if found == whole_answer(whole) or hashes(path) != hashes(whole) else SILENT

    return judge


def hashes(source: Path) -> list[str]:
    return sorted(describe_model(ModelPlan("a model", str(source)))["sha256"].values())


def plant(rng: random.Random, copy: Path, marker: Path) -> str:
    """One way, or several at once, to have code run that lies beside the weights."""
    chosen = rng.sample(TRAPS, rng.choice((1, 1, 2, 3)))
    for trap in chosen:
        trap(rng, copy, marker)
    return " and ".join(trap.__name__ for trap in chosen)


def remote_code(rng: random.Random, copy: Path, marker: Path) -> None:
    """Under every name that transformers might look for."""
    (copy / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Evil: pass\n")
    for name in ("config.json", "tokenizer_config.json"):
        table = read(copy / name)
        keys = ("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoTokenizer")
        table["auto_map"] = dict.fromkeys(keys, rng.choice(("evil.Evil", ["evil.Evil", "evil.Evil"], "a/b--evil.Evil")))
        if rng.random() < 0.5:
            table["model_type" if name == "config.json" else "tokenizer_class"] = "Evil"
        (copy / name).write_text(json.dumps(table))


def other_tokenizer(rng: random.Random, copy: Path, marker: Path) -> None:
    """No tokenizer.json: transformers looks for other files, and for code."""
    (copy / "tokenizer.json").unlink(missing_ok=True)
    (copy / "vocab.json").write_text(rng.choice(("{}", '{"a": 0}', "[" * 100_000)))
    (copy / "merges.txt").write_text("#version: 0.2\n")
    (copy / "tokenizer.model").write_bytes(rng.randbytes(200))


def pickled_weights(rng: random.Random, copy: Path, marker: Path) -> None:
    if rng.random() < 0.5:
        (copy / "model.safetensors").unlink(missing_ok=True)
    for name in rng.sample(("pytorch_model.bin", "model.pt", "model.ckpt", "training_args.bin", "optimizer.pt"), 2):
        (copy / name).write_bytes(pickle.dumps(Planted(marker)))


def pickled_safetensors(rng: random.Random, copy: Path, marker: Path) -> None:
    """A pickle under the name of what is read."""
    (copy / "model.safetensors").write_bytes(pickle.dumps(Planted(marker)))


def shards_elsewhere(rng: random.Random, copy: Path, marker: Path) -> None:
    """An index that leads out of the folder, or to a pickle."""
    (copy / "evil.bin").write_bytes(pickle.dumps(Planted(marker)))
    target = rng.choice(("../../evil.safetensors", "evil.bin", "/etc/passwd", "", "model.safetensors"))
    index = {"metadata": {}, "weight_map": {"model.embed_tokens.weight": target, "lm_head.weight": target}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))


def adapter(rng: random.Random, copy: Path, marker: Path) -> None:
    """An adapter whose weights are a pickle, or whose parent is nowhere or itself."""
    parent = rng.choice(("../../evil", str(copy), "twin-arm", "", "a/b", None, ["x"]))
    about = {"peft_type": "LORA", "r": 4, "base_model_name_or_path": parent, "auto_mapping": {"x": "evil.Evil"}}
    (copy / "adapter_config.json").write_text(json.dumps(about))
    (copy / "adapter_model.bin").write_bytes(pickle.dumps(Planted(marker)))
    (copy / "floatscope.json").write_text(
        json.dumps({"parent": parent, "family": rng.choice(("dream", "../x.toml", 3))})
    )


def chat_template(rng: random.Random, copy: Path, marker: Path) -> None:
    """Jinja that reaches for the system."""
    reach = (
        f"{{{{ cycler.__init__.__globals__.os.system('touch {marker}') }}}}",
        f"{{{{ self.__init__.__globals__.__builtins__.open('{marker}', 'w') }}}}",
        "{% for c in ''.__class__.__mro__[1].__subclasses__() %}{{ c }}{% endfor %}",
        "{% include '/etc/passwd' %}",
        "{{ raise_exception('no') }}",
        "{{ messages[99].content }}",
        "{% for",
        "{{ 'a' * 999999999999 }}",
        "no question in it",
    )
    (copy / "chat_template.jinja").write_text(rng.choice(reach))


def family_of_a_fork(rng: random.Random, copy: Path, marker: Path) -> None:
    table = read(copy / "config.json")
    table["floatscope_family"] = rng.choice(("../../evil.toml", "dream", {}, 3, "\0", "sdar", "bert"))
    (copy / "config.json").write_text(json.dumps(table))


def bomb(rng: random.Random, copy: Path, marker: Path) -> None:
    """Sizes that no machine holds."""
    table = read(copy / "config.json")
    sizes = "hidden_size num_hidden_layers vocab_size intermediate_size max_position_embeddings head_dim".split()
    table |= {rng.choice(sizes): rng.choice((10**6, 10**9, 2**31, 2**63, 10**30)) for _ in range(2)}
    (copy / "config.json").write_text(json.dumps(table))


TRAPS = (
    remote_code, remote_code, other_tokenizer, pickled_weights, pickled_safetensors, shards_elsewhere, adapter,
    chat_template, family_of_a_fork, bomb,
)  # fmt: skip


def read(path: Path) -> dict:
    return json.loads(path.read_text())


def gguf_files(rng: random.Random, folder: Path, targets: Targets) -> Iterator[Attempt]:
    """Endless: a GGUF file that is damaged, mostly at its beginning, in its structure; or what was cached of it."""
    whole, copy = write_gguf(folder / "whole.gguf", random_weights(SHAPE)), folder / "model.gguf"
    content, answer = whole.read_bytes(), load_and_ask(whole)
    kept = next((folder / "cache" / "gguf").iterdir())
    while True:
        chance = rng.random()
        if chance < 0.2:
            name = rng.choice(sorted(file for file in kept.rglob("*") if file.is_file()))
            what = f"gguf, cached {name.name}: {damage(rng, name)}"
            yield attempt(what, lambda: load_and_ask(whole), lambda found: REDONE if found == answer else SILENT)
            continue
        if chance < 0.8:
            changed = bytearray(content)
            for _ in range(rng.choice((1, 1, 4))):
                changed[rng.randrange(3000)] ^= 1 << rng.randrange(8)
            copy.write_bytes(changed)
            what = "structure"
        else:
            shutil.copy(whole, copy)
            what = damage(rng, copy)
        yield attempt(f"gguf, {what}", lambda: load_and_ask(copy), told_by_hash(copy, whole, lambda _: answer))


def load_and_ask(path: Path) -> object:
    """As a user would, who says yes to everything: load it, then a question; what it answers, and how surely."""
    before, sys.stdin = sys.stdin, io.StringIO("y\n" * 50)
    try:
        model = fs.load(str(path), device="cpu")
        prompt = fs.build_prompt(model, "Who founded it?", [fs.Document("", "Ida did.")]) if model.tokenizer else [1, 2]
        found = fs.generate(model, getattr(prompt, "ids", prompt), model.sampler({"steps": 2}, length=2))
    finally:
        sys.stdin = before
    return found.canvas.tobytes(), found.confidence.tobytes()
