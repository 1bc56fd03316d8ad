"""A disk that fills up while a run is written, and a cache that cannot be: a sentence, and nothing done is lost."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from floatscope.errors import UserError
from floatscope.study.analyses import missing_analyses
from floatscope.study.plan import ModelPlan, TaskPlan
from floatscope.study.reporting import tables_text
from floatscope.study.running import run_study
from floatscope.study.store import Run
from tests.study.small_studies import small_study

pytestmark = pytest.mark.slow
SMALL = {"limit": 1, "analyses": ("drift",), "models": (ModelPlan("twin-llada"),), "tasks": (TaskPlan("world:rag:3"),)}


class Disk:
    """A file system in memory of a size that can be changed."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def resize(self, size: str, also: str = "") -> None:
        words = ["mount", "-t", "tmpfs", "-o", f"{also}size={size}", "none", str(self.place)]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode and not also:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path) -> Iterator[Disk]:
    found = Disk(tmp_path / "disk")
    found.place.mkdir()
    found.resize("1m")
    yield found
    subprocess.run(["umount", found.place], check=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Run:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("FLOATSCOPE_CACHE", str(tmp_path_factory.mktemp("cache")))
        return run_study(small_study(**SMALL), tmp_path_factory.mktemp("runs") / "whole").run


PARTS = ("study.toml", "manifest.json", "results.sqlite", "traces", "tables/scores.parquet", "tables", "figures")
"""What a run writes, in this order."""


def used_before(whole: Run, name: str) -> int:
    """Kilobytes that a run needs, in pages of 4, before the moment at which a part of it is written."""
    parts = [whole.folder / part for part in PARTS[: PARTS.index(name)]]
    files = {path for part in parts for path in (part, *part.rglob("*")) if path.is_file()}
    return sum(-(-path.stat().st_size // 4096) * 4 for path in files)


@pytest.mark.parametrize("name", ["study.toml", "results.sqlite", "traces", "tables/scores.parquet", "figures"])
def test_a_run_on_a_full_disk_is_a_sentence_and_goes_on_when_there_is_room(whole, disk, name):
    disk.resize(f"{used_before(whole, name) + 4}k", also="remount,")
    folder = disk.place / "run"
    with pytest.raises(UserError, match=r"(cannot be (written|used)|full).*(space|room|run again)") as told:
        run_study(small_study(**SMALL), folder)
    assert "another process" not in str(told.value) and "\n" not in str(told.value)
    disk.resize("64m", also="remount,")
    run = run_study(small_study(**SMALL), folder).run
    assert tables_text(run, "csv") == tables_text(whole, "csv") and not missing_analyses(run)
    assert not list(folder.rglob("*.partial"))


def test_nothing_at_all_fits_on_the_disk(disk):
    with pytest.raises(OSError, match="No space left"):
        (disk.place / "other").write_bytes(bytes(2**21))
    with pytest.raises(UserError, match=r"full|No space left") as told:
        run_study(small_study(**SMALL), disk.place / "run")
    assert "another process" not in str(told.value)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch, workers):
    """A file stands where the folder should be: rights alone do not stop root. The untrained controls live there."""
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("FLOATSCOPE_CACHE", str(tmp_path / "file"))
    with pytest.raises(
        UserError, match=rf"{tmp_path}/file/twins/.* cannot be written \(Not a directory\): check its folder"
    ):
        run_study(small_study(**SMALL, workers=workers), tmp_path / "run")
