"""What an attempt came to, and the two ways to make it: with a clock, its output caught, its errors told apart."""

from __future__ import annotations

import io
import os
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from floatscope.errors import UserError

SECONDS, WAITING, MEMORY = 60, 600, 8 * 2**30
os.environ["HF_HUB_OFFLINE"] = "1"  # before the hub's client is imported: no attempt leaves this machine
ACCEPTED, REFUSED, REDONE = "accepted", "refused", "redone"
TRACEBACK, SILENT, SCRIPT, CODE = "traceback", "silent change", "script ran", "code ran"
LET_IN, HANGS = "let in", "hangs"
GOOD, BAD = (ACCEPTED, REFUSED, REDONE), (TRACEBACK, SILENT, SCRIPT, CODE, LET_IN, HANGS)
"""Accepted: it gives what the undamaged thing gives, or is another valid thing. Redone: noticed, and made again, the
same. Silent change: the result is another one, and nothing says so. Let in: a stranger was served, or a file was
written where no one asked for it."""


@dataclass(frozen=True)
class Attempt:
    """Something hostile that was tried."""

    what: str
    outcome: str
    detail: str = ""


@dataclass
class Counts:
    """How often each outcome was met, and the attempts that went wrong."""

    by_outcome: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*GOOD, *BAD), 0))
    wrong: list[Attempt] = field(default_factory=list)

    def add(self, attempt: Attempt) -> None:
        self.by_outcome[attempt.outcome] += 1
        if attempt.outcome in BAD:
            self.wrong.append(attempt)

    @property
    def attempts(self) -> int:
        return sum(self.by_outcome.values())


class TooLong(BaseException):
    """No program catches this: it is no Exception."""


@contextmanager
def clock() -> Iterator[None]:
    """Whatever takes longer is stopped with TooLong: by the processor's time, so that a busy machine accuses nobody."""

    def ring(*_: object) -> None:
        raise TooLong

    clocks = {signal.ITIMER_PROF: (signal.SIGPROF, SECONDS), signal.ITIMER_REAL: (signal.SIGALRM, WAITING)}
    before = {number: signal.signal(number, ring) for number, _ in clocks.values()}
    for timer, (_, seconds) in clocks.items():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for timer, (number, _) in clocks.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def attempt(what: str, call: Callable[[], Any], judge: Callable[[Any], str] = lambda found: ACCEPTED) -> Attempt:
    """Call something of the library: a UserError is a refusal; `judge` says what a result is worth, and ": why"."""
    try:
        with clock(), quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = call()
    except UserError:
        return Attempt(what, REFUSED)
    except TooLong:
        return Attempt(what, HANGS)
    except BaseException:  # a panic of a library in Rust is no Exception
        return Attempt(what, TRACEBACK, traceback.format_exc(limit=-3))
    outcome, _, detail = judge(found).partition(": ")
    return Attempt(what, outcome, detail)


def command(arguments: list[str]) -> Attempt:
    """Run the command line in this process: a refusal is exit code 2 and one line on stderr."""
    from floatscope.cli import main

    what, said = f"floatscope {' '.join(map(repr, arguments))}"[:300], io.StringIO()
    before = sys.argv
    sys.argv = ["floatscope", *arguments]
    try:
        with clock(), redirect_stdout(io.StringIO()), redirect_stderr(said), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            main()
    except SystemExit as end:
        if end.code != 2:
            return Attempt(what, ACCEPTED)
        sentence = [line for line in said.getvalue().splitlines() if line.startswith("floatscope: ")]
        wrong = len(sentence) != 1 or "\x1b" in sentence[0]
        return Attempt(what, TRACEBACK if wrong else REFUSED, said.getvalue()[-500:])
    except TooLong:
        return Attempt(what, HANGS)
    except BaseException:
        return Attempt(what, TRACEBACK, traceback.format_exc(limit=-3))
    finally:
        sys.argv = before
    return Attempt(what, TRACEBACK, "no exit")


@contextmanager
def sandbox(folder: Path) -> Iterator[None]:
    """Relative paths, ~ and the cache lead into a folder of scratch, and no attempt takes the machine's memory."""
    here = folder / "some" / "where"
    here.mkdir(parents=True)
    before, cwd, limit = dict(os.environ), Path.cwd(), resource.getrlimit(resource.RLIMIT_DATA)
    os.environ |= {"HOME": str(folder), "FLOATSCOPE_CACHE": str(folder / "cache"), "XDG_CACHE_HOME": str(folder)}
    os.chdir(here)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limit)
        os.chdir(cwd)
        os.environ.clear()
        os.environ |= before


@contextmanager
def quiet() -> Iterator[None]:
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield
