"""Runs on the hub: a dataset with a card, pushed from a run folder and pulled into one. The hub's own client does it.

The report is not pulled but made again: a page of somebody else's may run anything in a browser.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from floatscope.errors import UserError
from floatscope.study.reporting import REPORT, tables_text
from floatscope.study.store import MANIFEST, RESULTS, STUDY_FILE, TRACES, Run

PULLED = [STUDY_FILE, MANIFEST, RESULTS, f"{TRACES}/*.safetensors", "tables/*.parquet"]
PUSHED = [*PULLED, REPORT]
CARD = "README.md"


def push_run(run: Run, repository: str, private: bool = False) -> str:
    """Upload a finished run as a dataset of the hub, with a card; its address."""
    if run.unfinished:
        raise UserError(f"{run.unfinished} Run the rest first.")
    _named(repository)
    from huggingface_hub import HfApi

    hub: Any = HfApi()
    with _hub_errors(repository), TemporaryDirectory() as folder:
        address = hub.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
        hub.upload_folder(repo_id=repository, folder_path=run.folder, repo_type="dataset", allow_patterns=PUSHED)
        card = Path(folder) / CARD
        card.write_text(card_text(run, repository), encoding="utf-8")
        hub.upload_file(path_or_fileobj=card, path_in_repo=CARD, repo_id=repository, repo_type="dataset")
    return str(address)


def pull_run(repository: str, folder: Path, revision: str | None = None) -> Run:
    """Download a run that was pushed; what is there already is kept."""
    _named(repository)
    from huggingface_hub import snapshot_download

    if folder.exists() and any(folder.iterdir()) and not (folder / STUDY_FILE).is_file():
        raise UserError(f"{folder} is not empty and holds no run: give another folder with --out.")
    with _hub_errors(repository):
        snapshot_download(
            repository, repo_type="dataset", revision=revision, local_dir=folder, allow_patterns=PULLED
        )  # fmt: skip
    run = Run(folder)
    run.results()  # a dataset of another kind, or a damaged one, is told here
    return run


def card_text(run: Run, repository: str) -> str:
    """What stands on the dataset's page: what was asked, of whom, and the tables."""
    study = run.study
    models = "\n".join(f"- `{model.name}`: {model.source}" for model in study.models)
    tasks = "\n".join(f"- `{task.name}`: {task.source}" for task in study.tasks)
    return f"""---
tags: [floatscope, attention, diffusion-language-models]
---
# {study.name}

{study.description or "A run of floatscope."}

Models:

{models}

Tasks:

{tasks}

{tables_text(run, "markdown")}
To read it: `floatscope pull {repository}`, then `floatscope report` for its page. `study.toml` runs it again,
`manifest.json` has versions, seeds and hashes; traces are safetensors files. Questions and documents are those of the
tasks, under their own licences.
"""


def _named(repository: str) -> None:
    if repository.count("/") != 1 or not all(repository.split("/")):
        raise UserError(f"{repository!r} is no dataset of the hub: write owner/name.")


@contextmanager
def _hub_errors(repository: str) -> Iterator[None]:
    """Whatever the hub's client raises, which changes with its version, as one sentence."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise UserError(f"The hub did not take or give {repository}: {reason}; `hf auth login` signs in.") from error
