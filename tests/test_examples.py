"""The notebooks in examples/ run as they stand, and show the outputs that they were saved with."""

import ast
import json
import re
from pathlib import Path

import pytest

BOOKS = sorted((Path(__file__).parent.parent / "examples").glob("*.ipynb"))


def test_there_are_three():
    assert [book.stem for book in BOOKS] == ["causal_experiment", "first_look", "own_model_and_data"]


@pytest.mark.slow
@pytest.mark.parametrize("book", BOOKS, ids=lambda book: book.stem)
@pytest.mark.filterwarnings("ignore")
def test_a_notebook_runs_and_its_outputs_are_what_comes(book, tmp_path, monkeypatch):
    """Cell by cell in a new folder; where a cell ends in a value whose text was saved, the same text comes."""
    monkeypatch.chdir(tmp_path)
    text = book.read_text(encoding="utf-8")
    found = json.loads(text)
    assert found["nbformat"] == 4 and not re.search(r"/tmp/|/home/|/work/|/root/", text)
    names: dict[str, object] = {}
    compared = 0
    for cell in found["cells"]:
        if cell["cell_type"] != "code":
            continue
        outputs = cell["outputs"]
        assert cell["execution_count"] and not any(one["output_type"] == "error" for one in outputs)
        *lines, last = ast.parse("".join(cell["source"])).body
        value = None
        if isinstance(last, ast.Expr):
            exec(compile(ast.Module(lines, []), book.name, "exec"), names)
            value = eval(compile(ast.Expression(last.value), book.name, "eval"), names)
        else:
            exec(compile(ast.Module([*lines, last], []), book.name, "exec"), names)
        for one in outputs:
            saved = "".join(one.get("data", {}).get("text/plain", ""))
            if saved and value is not None and isinstance(value, str | tuple | dict):
                assert saved == repr(value)
                compared += 1
            if one["output_type"] == "execute_result" and hasattr(value, "_repr_html_"):
                assert "text/html" in one["data"]
    assert compared or book.stem == "own_model_and_data"
