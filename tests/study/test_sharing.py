"""Runs on the hub, against an imitation of it: a folder behind the hub client's calls, with its real arguments."""

import inspect
import shutil
from fnmatch import fnmatch
from pathlib import Path

import huggingface_hub
import pytest

from floatscope.errors import UserError
from floatscope.study.reporting import report, tables_text
from floatscope.study.sharing import pull_run, push_run
from floatscope.study.store import Run

pytestmark = pytest.mark.slow


def like(real, method=True):
    """Calls that the real function would not take fail here too."""

    def decorate(imitation):
        def call(*given, **options):
            inspect.signature(real).bind(*((None, *given[1:]) if method else given), **options)
            return imitation(*given, **options)

        return call

    return decorate


@pytest.fixture
def hub(tmp_path, monkeypatch):
    real, place = huggingface_hub.HfApi, tmp_path / "hub"

    def copy(source: Path, target: Path, patterns):
        for file in sorted(path for path in source.rglob("*") if path.is_file()):
            name = file.relative_to(source)
            if any(fnmatch(str(name), pattern) for pattern in patterns):
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, target / name)

    class Imitation:
        @like(real.create_repo)
        def create_repo(self, repo_id, repo_type, private, exist_ok):
            (place / repo_type / repo_id).mkdir(parents=True, exist_ok=exist_ok)
            return f"imitation/{repo_id}"

        @like(real.upload_folder)
        def upload_folder(self, repo_id, folder_path, repo_type, allow_patterns):
            copy(Path(folder_path), place / repo_type / repo_id, allow_patterns)

        @like(real.upload_file)
        def upload_file(self, path_or_fileobj, path_in_repo, repo_id, repo_type):
            shutil.copy(path_or_fileobj, place / repo_type / repo_id / path_in_repo)

    @like(huggingface_hub.snapshot_download, method=False)
    def snapshot_download(repo_id, repo_type, revision, local_dir, allow_patterns):
        if not (place / repo_type / repo_id).is_dir():
            raise ValueError("404: no such dataset")
        copy(place / repo_type / repo_id, Path(local_dir), allow_patterns)

    monkeypatch.setattr("huggingface_hub.HfApi", Imitation)
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return place / "dataset" / "me" / "small"


def test_a_run_comes_back_as_it_was_pushed(outcome, hub, tmp_path):
    run = Run(outcome.run.folder)
    report(run)
    assert push_run(run, "me/small") == "imitation/me/small"
    names = {path.name for path in hub.iterdir()}
    assert {"README.md", "study.toml", "manifest.json", "results.sqlite", "traces", "report.html"} <= names
    assert not any(name.startswith(".") for name in names)
    card = (hub / "README.md").read_text(encoding="utf-8")
    assert tables_text(run, "markdown") in card and "`twin-llada`: twin-llada" in card and str(run.folder) not in card
    back = pull_run("me/small", tmp_path / "back")
    assert back.results().equals(run.results()) and back.scores().equals(run.scores())
    for old, new in zip(run.traces(control=None), back.traces(control=None), strict=True):
        assert old.read_bytes() == new.read_bytes()
    assert not (tmp_path / "back" / "report.html").exists()
    assert report(back).is_file()


@pytest.mark.usefixtures("hub")
def test_mistakes_are_sentences(outcome, tmp_path):
    with pytest.raises(UserError, match="did not take or give me/none: 404: no such dataset"):
        pull_run("me/none", tmp_path / "none")
    with pytest.raises(UserError, match="'small' is no dataset of the hub: write owner/name"):
        push_run(outcome.run, "small")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(UserError, match="not empty and holds no run"):
        pull_run("me/none", tmp_path / "full")
