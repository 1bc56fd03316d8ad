"""The Python code of the pages is right to a type checker, so that what a reader copies is what an editor accepts."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import floatscope

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.slow
def test_the_code_of_the_pages_passes_pyright(tmp_path):
    """Blocks of a page follow one another, but for extend.md, where each is a file; they may use names of its text."""
    blocks = {page: re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL) for page in PAGES}
    for page, found in blocks.items():
        files = found if page.name == "extend.md" else ["\n".join(found)] if found else []
        whole = "# pyright: reportUndefinedVariable=true\n" if page.name in ("README.md", "extend.md") else ""
        for number, text in enumerate(files):
            (tmp_path / f"{page.stem}_{number}.py").write_text(whole + text, encoding="utf-8")
    assert len(list(tmp_path.glob("extend_*.py"))) == 6 and (tmp_path / "README_0.py").exists()
    source = str(Path(floatscope.__file__).parent.parent)
    settings = {"typeCheckingMode": "standard", "extraPaths": [source], "reportUndefinedVariable": False}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
