"""The kinds of faults. Each makes so many, lets every run end in peace, and has it judged."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from floatscope.study.plan import Curve, ModelPlan, Study, TaskPlan, write_study
from tests.faults.judging import Counts, Judge
from tests.faults.processes import Call

STUDY = Study(
    name="faults",
    models=(ModelPlan("twin", "./weights"),),
    tasks=(TaskPlan("world:rag:3"),),
    conditions=(Curve("documents", "0"), Curve("documents", "3", traces=2)),
    limit=5,
    slots=4,
    batch=2,
)
"""Without analyses, which cost more than all of its units: `tests/study/test_killing.py` kills those."""
PEACE, REFUSED = 0, 2


class Ground:
    """A folder with the study, its weights and the undisturbed run, and fresh folders beside it. Calls run in it."""

    def __init__(self, scratch: Path, seed: int) -> None:
        from floatscope.models.loading import resolve

        self.scratch, self.rng, self._runs = scratch, random.Random(seed), 0
        os.chdir(scratch)
        shutil.copytree(resolve("twin-llada"), "weights")
        Path("study.toml").write_text(write_study(STUDY))
        self.log = scratch / "log"
        self.seconds = 0.0
        """Of a whole run; the first one pays for imports."""
        for folder in ("first", "whole"):
            started = time.monotonic()
            code = Call(self.words(scratch / folder), self.log).wait()
            assert code == PEACE, f"the undisturbed run failed: {self.log.read_text()[-500:]}"
            self.seconds = time.monotonic() - started
        self.judge = Judge(scratch / "whole").judge

    def words(self, folder: Path, *more: str) -> list[str]:
        return ["study", "study.toml", "--out", str(folder), *more]

    def fresh(self) -> Path:
        self._runs += 1
        return self.scratch / f"run{self._runs}"

    def finished(self) -> Path:
        """A copy of the undisturbed run, with the times of its files."""
        return shutil.copytree(self.scratch / "whole", self.fresh())

    def end(self, folder: Path, counts: Counts, *more: str, fresh: bool = False) -> None:
        """Run without a disturbance, and judge."""
        call = Call(self.words(folder, *more), self.log, fresh)
        counts.unfinished += call.wait() != PEACE
        counts.left_over += call.left_over() if fresh else 0
        self.judge(folder, counts)

    def disturb(self, words: list[str], number: int, twice: bool = False) -> bool:
        """Start a forked call and send it a signal at a random moment; whether it was still running."""
        call = Call(words, self.log)
        if call.wait(self.rng.random() * self.seconds) is not None:
            return False
        call.send(number)
        if twice:
            time.sleep(self.rng.random() * 0.1)
            call.send(number)
        call.wait()
        return True


def drivers(ground: Ground, faults: int) -> Counts:
    """kill -9 of a run at random moments."""
    return _signalled(ground, faults, [(signal.SIGKILL, False)])


def signals(ground: Ground, faults: int) -> Counts:
    """SIGTERM and SIGINT, once and twice."""
    ways = [(number, twice) for number in (signal.SIGTERM, signal.SIGINT) for twice in (False, True)]
    return _signalled(ground, faults, ways)


def _signalled(ground: Ground, faults: int, ways: list[tuple[int, bool]]) -> Counts:
    counts = Counts()
    while counts.faults < faults:
        folder, here = ground.fresh(), 0
        while counts.faults < faults and here < 6:
            number, twice = ways[counts.faults % len(ways)]
            if not ground.disturb(ground.words(folder), number, twice):
                break  # it came to its end before
            here += 1
            counts.faults += 1
        ground.end(folder, counts)
    return counts


def shares(ground: Ground, faults: int) -> Counts:
    """kill -9 and SIGTERM of shares, kill -9 of the merge."""
    counts = Counts()
    while counts.faults < faults:
        folder = ground.fresh()
        for _ in range(3):
            for share in ("1/2", "2/2"):
                number = ground.rng.choice((signal.SIGKILL, signal.SIGTERM))
                counts.faults += ground.disturb(ground.words(folder, "--share", share), number)
        for share in ("1/2", "2/2"):
            counts.unfinished += Call(ground.words(folder, "--share", share), ground.log).wait() != PEACE
        for _ in range(2):
            counts.faults += ground.disturb(["merge", str(folder)], signal.SIGKILL)
        counts.unfinished += Call(["merge", str(folder)], ground.log).wait() != PEACE
        ground.judge(folder, counts)
    return counts


def workers(ground: Ground, faults: int) -> Counts:
    """kill -9 of one of two worker processes, and of the process that started them."""
    counts = Counts()
    while counts.faults < faults:
        folder = ground.fresh()
        call = Call(ground.words(folder, "--workers", "2"), ground.log, fresh=True)
        found = _await(call, "spawn_main", 2)
        time.sleep(ground.rng.random() * 4)
        victim = call.pid if counts.faults % 2 else (found[0] if found else call.pid)
        if call.wait(0) is None:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                counts.faults += 1
        call.wait()
        counts.left_over += call.left_over()
        ground.end(folder, counts)
    return counts


def ray(ground: Ground, faults: int) -> Counts:
    """kill -9 of actors, and of a raylet or the driver at the end of each round."""
    counts, rounds = Counts(), 0
    while counts.faults < faults:
        folder, rounds = ground.fresh(), rounds + 1
        call = Call(ground.words(folder, "--engine", "ray", "--workers", "2"), ground.log, fresh=True)
        for _ in range(3):
            if found := _await(call, "ray::Holder", 1):
                time.sleep(ground.rng.random() * 2)
                counts.faults += _killed(ground.rng.choice(found))
        last = _await(call, "raylet/raylet", 1)[:1] if rounds % 2 else [call.pid]
        time.sleep(ground.rng.random() * 2)
        if call.wait(0) is None:
            counts.faults += sum(map(_killed, last))
        call.wait()
        counts.left_over += call.left_over()
        ground.end(folder, counts)
    return counts


def _killed(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def _await(call: Call, name: str, number: int) -> list[int]:
    """So many processes of a call by name, as soon as they are there; fewer where it ends before."""
    while len(found := call.others(name)) < number and call.wait(0.1) is None:
        pass
    return found


def damage(ground: Ground, faults: int) -> Counts:
    """A bit flipped in, or the end cut off, traces, the store, tables and weights."""
    counts = Counts()
    kinds = ("traces/*.safetensors", "results.sqlite", "tables/*.parquet", "report.html")
    for number in range(faults):
        folder = ground.finished()
        counts.faults += 1
        if number % 5 == 4:  # the run is refused with other weights, and goes on with its own
            weights, trace = Path("weights/model.safetensors"), next((folder / "traces").iterdir())
            kept = weights.read_bytes()
            trace.unlink()
            _spoil(weights, ground.rng)
            counts.unfinished += Call(ground.words(folder), ground.log).wait() != REFUSED
            weights.write_bytes(kept)
        else:
            _spoil(ground.rng.choice(sorted(folder.glob(kinds[number % 5]))), ground.rng)
        code = Call(ground.words(folder), ground.log).wait()
        if code == REFUSED:  # a store that cannot be opened at all: told, and begun anew
            (folder / "results.sqlite").unlink()
        ground.end(folder, counts)
    return counts


def _spoil(file: Path, rng: random.Random) -> None:
    content = bytearray(file.read_bytes())
    if rng.random() < 0.3:
        file.write_bytes(content[: rng.randrange(len(content))])
        return
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def locks(ground: Ground, faults: int) -> Counts:
    """A store that another process holds; two drivers on one folder."""
    counts = Counts()
    for number in range(faults):
        folder = ground.fresh()
        counts.faults += 1
        if number % 2:
            (folder / "traces").mkdir(parents=True)
            with closing(sqlite3.connect(folder / ".lock", isolation_level=None)) as lock:
                lock.execute("BEGIN EXCLUSIVE")
                counts.unfinished += Call(ground.words(folder), ground.log).wait() != REFUSED
        else:
            calls = [Call(ground.words(folder), ground.log) for _ in range(2)]
            counts.unfinished += not {call.wait() for call in calls} <= {PEACE, REFUSED}
        ground.end(folder, counts)
    return counts


def clocks(ground: Ground, faults: int) -> Counts:
    """Files from the future and from long ago, as after a clock that jumped, in a run that was killed."""
    counts = Counts()
    for _ in range(faults):
        folder = ground.fresh()
        ground.disturb(ground.words(folder), signal.SIGKILL)
        for path in folder.rglob("*") if folder.exists() else ():
            moment = time.time() + ground.rng.choice((-1, 1)) * ground.rng.random() * 1e9
            os.utime(path, (moment, moment))
        counts.faults += 1
        ground.end(folder, counts)
    return counts


def disks(ground: Ground, faults: int) -> Counts:
    """A disk that is full at a random moment; without the right to mount one, none."""
    counts, place = Counts(), ground.scratch / "disk"
    place.mkdir()
    needed = sum(path.stat().st_size // 4096 + 1 for path in (ground.scratch / "whole").rglob("*")) * 4
    for _ in range(faults):
        size = ground.rng.randrange(8, needed)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "none", str(place)]
        if subprocess.run(mount, capture_output=True).returncode:
            break
        try:
            code = Call(ground.words(place / "run"), ground.log).wait()
            counts.faults += code == REFUSED
            subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
            ground.end(place / "run", counts)
        finally:
            subprocess.run(["umount", str(place)], check=True)
    return counts


KINDS: dict[str, tuple[Callable[[Ground, int], Counts], int]] = {
    "drivers": (drivers, 90),
    "shares": (shares, 60),
    "signals": (signals, 24),
    "workers": (workers, 16),
    "ray": (ray, 40),
    "damage": (damage, 40),
    "locks": (locks, 8),
    "clocks": (clocks, 8),
    "disks": (disks, 10),
}
"""Each kind with how many faults the long form makes; most of the first five kinds are kills."""
