"""Calls of the command line in processes of their own, and whatever processes those leave behind."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

MARK = "FLOATSCOPE_FAULTS"
"""Variable of the environment that tells the processes of one call from all others."""
PATIENCE = 600
LAST_SECONDS = 90
"""After which a process counts as left over: agents of Ray look for the cluster of a killed driver for a minute."""


def child(words: list[str], log: str) -> None:
    """The command line in this process, which was forked from one with everything imported."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["floatscope", *words]
    from floatscope import cli

    cli.main()


class Call:
    """One call of `floatscope`: forked at once, or started anew where it starts processes itself."""

    def __init__(self, words: list[str], log: Path, fresh: bool = False) -> None:
        self.mark = secrets.token_hex(8)
        self._forked: BaseProcess | None = None
        self._fresh: subprocess.Popen[bytes] | None = None
        if fresh:
            with log.open("ab") as file:
                self._fresh = subprocess.Popen(
                    [sys.executable, "-m", "floatscope.cli", *words],
                    stdout=file,
                    stderr=file,
                    env=os.environ | {MARK: self.mark},
                )
            self.pid = self._fresh.pid
        else:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(
                ["floatscope.cli", "floatscope.models.loading", "floatscope.tracing", "floatscope.study.merging",
                 "floatscope.study.reporting", "tests.faults.processes"]
            )  # fmt: skip
            self._forked = context.Process(target=child, args=(words, str(log)))
            self._forked.start()
            assert self._forked.pid is not None
            self.pid = self._forked.pid

    def wait(self, seconds: float = PATIENCE) -> int | None:
        """The exit code; None where it still runs."""
        if self._forked is not None:
            self._forked.join(seconds)
            return self._forked.exitcode
        assert self._fresh is not None
        with suppress(subprocess.TimeoutExpired):
            return self._fresh.wait(seconds)
        return None

    def send(self, number: int) -> None:
        """A signal; it may be over already."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def others(self, name: str = "") -> list[int]:
        """Processes of this call beside the first, whose command line has a name in it."""
        return [pid for pid in marked(self.mark) if pid != self.pid and name in command_of(pid)]

    def left_over(self) -> int:
        """After it ended: how many of its processes have not ended with it, which are told and ended here."""
        deadline = time.monotonic() + LAST_SECONDS
        while (left := marked(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.2)
        for pid in left:
            print(f"left over: {command_of(pid)[:300]}", file=sys.stderr, flush=True)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(left)


def marked(mark: str) -> list[int]:
    """Living processes with this mark in their environment."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it ended meanwhile
            if f"{MARK}={mark}".encode() in environment.read_bytes():  # empty where it is dead and not waited for
                found.append(int(environment.parent.name))
    return found


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    except OSError:
        return ""
