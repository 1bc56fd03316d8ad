"""Whatever is called the same is the same thing: no two files and no two classes of the package share a name."""

import ast
from collections import Counter

import pytest

from tests.import_graph import SOURCE


def twice(names):
    return [name for name, count in Counter(names).items() if count > 1]


def test_no_two_files_have_one_name():
    assert twice(path.name for path in SOURCE.rglob("*.py") if path.stem not in ("__init__", "__main__")) == []


@pytest.mark.slow
def test_no_two_classes_have_one_name():
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")]
    assert twice(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)) == []
