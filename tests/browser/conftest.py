"""A browser without network, and one report made of real traces; skipped where there is no Chromium.

A page answers an action when it gets to it, so a test waits for what it expects: `expect` for what a locator finds,
`eventually` for what a script or a method returns. Nothing is counted or read at once after an action.
"""

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

import floatscope as fs
from floatscope.qa.samples import Sample
from floatscope.qa.world import World
from floatscope.reports.page import build_page
from floatscope.reports.player import moved
from floatscope.traces import Trace
from tests.reports.making import MODELS, made_content

PATIENCE = 60  # seconds until what a test expects has to be there: a busy machine is no failure
TWINS = ("twin-llada", "twin-arm")
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
expect.set_options(timeout=1000 * PATIENCE)


def eventually(read: Callable, *arguments, equals) -> None:
    """Wait until read(*arguments) equals a value; if it never does, fail with the last value that was read."""
    deadline = time.monotonic() + PATIENCE
    while (found := read(*arguments)) != equals and time.monotonic() < deadline:
        time.sleep(0.05)
    assert found == equals


def find_chromium() -> str | None:
    """The one that CHROMIUM names, else the system's."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)


@pytest.fixture(scope="session")
def browser() -> Iterator:
    path = find_chromium()
    if path is None:
        pytest.skip(f"no Chromium: install one (apt-get install chromium) or name it in CHROMIUM; looked for {_NAMES}")
    with sync_playwright() as running:
        started = running.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def twin_traces() -> list[Trace]:
    """Two samples under an MDM and an ARM, and the first under the untrained MDM, in the order of the player."""

    def traced(name: str, samples: list[Sample], control: str = "") -> list[Trace]:
        model = fs.load(f"{name}-{control}" if control else name)
        sampler = fs.LLaDASampler(steps=8, length=8) if name == TWINS[0] else fs.AutoregressiveSampler(length=8)
        found = []
        for sample in samples:
            prompt = fs.build_prompt(model.tokenizer, sample.question, sample.documents, sample.answers)
            about = {"sample": sample.id, "question": sample.question, "answers": list(sample.answers)}
            about |= {"control": control, "control_of": name, "accuracy": 1.0}
            found.append(fs.trace(model, prompt, sampler, metadata=about))
        return found

    samples = World(0).samples("rag", 2, documents=3)
    own = dict(zip((sample.id for sample in samples), traced(TWINS[0], samples), strict=True))
    samples.sort(key=lambda sample: moved(own[sample.id]), reverse=True)  # the player begins with what moves most
    return [
        *(own[sample.id] for sample in samples),
        *traced(TWINS[1], samples),
        *traced(TWINS[0], samples[:1], "untrained"),
    ]


@pytest.fixture(scope="session")
def report(tmp_path_factory, twin_traces) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    content = replace(made_content(), traces=tuple(twin_traces), models=(*TWINS, *MODELS))
    path.write_text(build_page(content), encoding="utf-8")
    return path


class Opener:
    """Pages that may ask for nothing but `home`; whatever they complain of is kept. Files have the network off."""

    def __init__(self, browser, home: str = "file:") -> None:
        self.browser, self.home = browser, home
        self.contexts = []
        self.complaints: list[str] = []

    def __call__(
        self, address: Path | str, width: int = 1280, height: int = 900, dark: bool = False, motion: bool | None = None
    ):
        """motion: whether the reader wants any; where that is said, on a clock that the test can move."""
        context = self.browser.new_context(
            viewport={"width": width, "height": height},
            offline=self.home == "file:",
            color_scheme="dark" if dark else "light",
            reduced_motion="no-preference" if motion else "reduce",
        )
        if motion is not None:
            context.clock.install(time=0)
        context.set_default_timeout(1000 * PATIENCE)
        self.contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: self.complain(said.text, said.type in ("error", "warning")))
        page.on("pageerror", lambda error: self.complain(str(error), True))
        allowed = (self.home, "data:", "blob:")
        page.on("request", lambda asked: self.complain(asked.url, not asked.url.startswith(allowed)))
        page.goto(address.as_uri() if isinstance(address, Path) else address)
        return page

    def complain(self, text: str, wrong: bool) -> None:
        if wrong:
            self.complaints.append(text)

    def close(self) -> None:
        for context in self.contexts:
            context.close()


@pytest.fixture
def open_page(browser) -> Iterator[Opener]:
    """open_page(path, width=..., dark=...): a page of its own, which must stay without errors and requests."""
    opener = Opener(browser)
    yield opener
    opener.close()
    assert opener.complaints == []


@pytest.fixture(scope="module")
def shared(browser, report) -> Iterator:
    """The report opened once for the tests of a module."""
    opener = Opener(browser)
    yield opener(report), opener
    opener.close()


@pytest.fixture
def page(shared) -> Iterator:
    """The shared page with the player at its first sample and step; nothing may go wrong in it."""
    opened, opener = shared
    opened.evaluate(
        "() => { floatscope.player.pause(); floatscope.player.setControl(false); floatscope.player.go(0); }"
    )
    opened.evaluate("() => { const box = document.querySelector('.fs-switch input'); box.checked = false; }")
    expect(opened.locator(".fs-slider-step output")).to_have_text(re.compile("^0 / "))
    yield opened
    assert opener.complaints == []
