"""No code that comes with a checkpoint is ever run: not by default, and not when somebody answers yes."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import floatscope

SOURCE = Path(floatscope.__file__).parent
LOADERS = ("from_pretrained", "from_config")


def loading_calls(tree: ast.AST):
    """Calls of transformers' loading methods."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOADERS:
            yield node


def refuses_code(call: ast.Call) -> bool:
    return any(
        keyword.arg == "trust_remote_code" and isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        for keyword in call.keywords
    )


@pytest.mark.slow
def test_every_loading_call_says_so():
    calls = [
        (path.relative_to(SOURCE), call)
        for path in SOURCE.rglob("*.py")
        for call in loading_calls(ast.parse(path.read_text()))
    ]
    assert len(calls) >= 7
    assert [f"{path}:{call.lineno}" for path, call in calls if not refuses_code(call)] == []


def test_the_search_finds_a_call_without_it():
    (call,) = loading_calls(ast.parse("AutoTokenizer.from_pretrained(folder, trust_remote_code=given)"))
    assert not refuses_code(call)


@pytest.fixture()
def hostile(tmp_path: Path) -> Path:
    """A checkpoint whose tokenizer is a Python file beside it, as remote code has it."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}})
    )
    (tmp_path / "evil.py").write_text(
        "from pathlib import Path\n"
        f"Path({str(tmp_path / 'owned')!r}).touch()\n"
        "from transformers import PreTrainedTokenizer\n"
        "class Evil(PreTrainedTokenizer):\n    pass\n"
    )
    return tmp_path


@pytest.mark.slow
def test_code_beside_a_checkpoint_is_not_run_even_when_the_answer_is_yes(hostile: Path, tmp_path_factory):
    cache = tmp_path_factory.mktemp("modules")
    done = subprocess.run(
        [sys.executable, "-m", "floatscope.cli", "check", str(hostile)],
        input="y\n" * 20,
        capture_output=True,
        text=True,
        env={**os.environ, "HF_MODULES_CACHE": str(cache), "HF_HUB_OFFLINE": "1"},
    )
    assert not (hostile / "owned").exists()
    assert "y/N" not in done.stdout + done.stderr and "Traceback" not in done.stderr
