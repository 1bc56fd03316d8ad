"""What the pages tell a reader to type: Python passes a type checker and runs, commands have flags that exist and run.

A comment before a block, `<!-- docs: needs a GPU -->`, says why it is not run; flags and types are checked yet.
"""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
from cyclopts import CycloptsError

import floatscope
from floatscope import cli

ROOT = Path(__file__).parent.parent
PAGES = sorted({ROOT / "README.md", *(ROOT / "docs").rglob("*.md")} - {ROOT / "docs" / "api.md"})  # that one is made
FENCE = re.compile(r"(?:<!-- docs: (?P<why>.*?) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```", re.M | re.S)
INDENTED = re.compile(r"(?:^    (?:floatscope|python|pip|make) .*\n(?:^     +.*\n)*)+", re.M)
NOT_RUN = {
    "serve": "serves until it is stopped",
    "pull": "fetches weights",
    "train": "trains for minutes",
    "adapt": "trains for minutes",
    "submit": "needs Slurm",
}
LIMITED = ("evaluate", "stress", "intervene", "explain", "study")
"""Verbs that are run with --limit 1, so that a page takes seconds."""
STUDY = """name = "mine"
limit = 1
slots = 4
traces = 1
controls = []
models = [{ name = "twin-llada" }]
tasks = [{ source = "world:rag:2" }]
conditions = [{ stressor = "documents", values = "2" }]
"""


@dataclass(frozen=True)
class Block:
    """A fenced or indented block of a page, and why it is not run."""

    kind: str
    text: str
    why: str = ""


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    fenced = [Block(found["kind"], found["text"], found["why"] or "") for found in FENCE.finditer(text)]
    loose = [Block("", found[0], "stands in a text as an aside") for found in INDENTED.finditer(FENCE.sub("", text))]
    return fenced + loose


def commands(block: Block) -> list[list[str]]:
    """The words of each command; lines that end in a backslash go on, and a semicolon divides."""
    lines = block.text.replace("\\\n", " ").splitlines()
    parts = [shlex.split(line.removeprefix("srun "), comments=True) for line in lines]
    found: list[list[str]] = []
    for words in parts:
        cut = [place for place, word in enumerate(words) if word.endswith(";")]
        for first, last in zip(
            [0, *(place + 1 for place in cut)], [*(place + 1 for place in cut), len(words)], strict=True
        ):
            found.append([word.removesuffix(";") for word in words[first:last]])
    return [words for words in found if words]


SHOWN = [(page, block) for page in PAGES for block in blocks_of(page) if block.kind == ""]


@pytest.mark.slow
def test_every_command_of_the_pages_exists_with_its_flags():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
    for page, block in SHOWN:
        for program, *rest in commands(block):
            told = f"{page.name}: {program} {' '.join(rest)}"
            if program == "floatscope":
                try:
                    cli.app.parse_args(rest, exit_on_error=False, print_error=False)
                except CycloptsError as error:
                    pytest.fail(f"{told}: {error}")
            elif program == "make":
                assert rest[0] in targets, told
            elif program == "pip":
                wanted = re.findall(r"floatscope\[(\S+)\]", " ".join(rest))
                assert all(extra in extras for one in wanted for extra in one.split(",")), told
            elif program == "python":
                assert rest[0] == "-m" or (ROOT / rest[0]).is_file(), told
            else:
                assert block.why and program in ("export", "curl"), f"{told}: no command, so mark the block as ```text"


def reason(words: list[str], not_run: set[str]) -> str:
    """Why a command is not run, or nothing; what reads a folder that was not made is not run either."""
    verb, *rest = words[1:] if words[0] == "floatscope" else ["", *words]
    if words[0] != "floatscope":
        return "no verb of floatscope"
    if verb in NOT_RUN:
        return NOT_RUN[verb]
    if verb == "study" and "mine.toml" not in rest and not {"--check", "--dry-run"} & set(rest):
        not_run.add(rest[rest.index("--out") + 1] if "--out" in rest else f"runs/{rest[0]}")
        return "takes minutes"
    return "reads what takes minutes" if not_run & set(rest) else ""


def limited(words: list[str]) -> list[str]:
    """The command, of a verb that takes a number of samples with one."""
    if words[1] not in LIMITED or (words[1] == "explain" and "--task" not in words) or "--check" in words:
        return words[1:]
    kept = words[1:]
    if "--limit" in kept:
        place = kept.index("--limit")
        kept = kept[:place] + kept[place + 2 :]
    return [*kept, "--limit", "1"]


@pytest.fixture
def readers_folder(tmp_path, monkeypatch):
    """What a reader has: the examples, and the own files that pages speak of."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "mine.toml").write_text(STUDY)
    documents = [
        {"title": name, "text": (ROOT / "examples" / f"{name}.txt").read_text()} for name in ("ferrox", "xanto")
    ]
    (tmp_path / "wiki.jsonl").write_text("\n".join(map(json.dumps, documents)))
    asked = {"question": "Who founded Ferrox Steel?", "answers": ["Ida Ritter"], "documents": documents}
    (tmp_path / "my_nq.jsonl").write_text("\n".join(json.dumps(asked | {"id": str(n)}) for n in range(5)))
    (tmp_path / "my.txt").write_text(
        "\n\n".join(" ".join(["Ida Ritter founded Ferrox Steel ."] * 12) for _ in range(2))
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


RUN_PAGES = [page for page in PAGES if any(not block.why and block.kind in ("", "python") for block in blocks_of(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN_PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_runs(page, readers_folder, monkeypatch):
    """Commands and Python of a page in their order, in one folder and one namespace; extend.md has its own test."""
    if page.name == "extend.md":
        pytest.skip("each block is a file: tests/test_extending.py")
    for name in ("runs/first", "runs/untrained", "one.safetensors"):
        if name in page.read_text(encoding="utf-8"):
            made = readers_folder / name / "traces" if name.startswith("runs/") else readers_folder
            made.mkdir(parents=True, exist_ok=True)
            trace = floatscope.trace("twin-llada", "Ida Ritter founded Ferrox Steel.", floatscope.LLaDASampler(4, 4))
            trace.save(made / "one.safetensors")
    names: dict[str, object] = {}
    not_run: set[str] = set()
    for block in blocks_of(page):
        if block.why:
            continue
        if block.kind == "python":
            exec(compile(block.text, str(page), "exec"), names)
        for words in commands(block) if block.kind == "" else ():
            if not reason(words, not_run):
                monkeypatch.setattr(sys, "argv", ["floatscope", *limited(words)])
                with pytest.raises(SystemExit) as ended:
                    cli.main()
                assert ended.value.code in (0, 1) if "--check" in words else ended.value.code == 0, " ".join(words)


def count() -> dict[str, int]:
    """How many commands and Python blocks are run, checked for flags or types only, and neither."""
    found = dict.fromkeys(("run", "flags only", "neither"), 0)
    for page in PAGES:
        not_run: set[str] = set()
        for block in blocks_of(page):
            if block.kind == "python":
                found["flags only" if block.why else "run"] += 1
            for words in commands(block) if block.kind == "" else ():
                why = block.why or reason(words, not_run)
                checked = words[0] in ("floatscope", "make", "pip", "python")
                found["run" if not why else "flags only" if checked else "neither"] += 1
    return found


def test_most_of_what_is_shown_is_run():
    assert (found := count())["run"] >= 55 and found["neither"] <= 3, found


@pytest.mark.slow
def test_the_code_of_the_pages_passes_pyright(tmp_path):
    """Blocks of a page follow one another, but for extend.md, where each is a file; they may use names of its text."""
    for page in PAGES:
        found = [block.text for block in blocks_of(page) if block.kind == "python"]
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
