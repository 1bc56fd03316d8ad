"""Trace files as a stream: found in a run, a folder or a list, opened one at a time, so that memory stays bounded."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from floatscope.errors import UserError
from floatscope.traces import Trace


class TraceFiles:
    """Traces by path; each pass over it opens them again, and arrays are read only if an analysis asks."""

    def __init__(self, paths: Iterable[Path], progress: str | None = None) -> None:
        self.paths = tuple(paths)
        self._progress = progress

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[Trace]:
        if self._progress is None:
            yield from map(Trace.load, self.paths)
            return
        from rich.progress import track

        yield from map(Trace.load, track(self.paths, description=self._progress, transient=True))


def find_traces(*places: str | Path, progress: str | None = None) -> TraceFiles:
    """The trace files of runs (their `traces` folder), folders and single files, in the order given, then by name."""
    paths: list[Path] = []
    for place in map(Path, places):
        if place.is_dir():
            inside = place / "traces" if (place / "traces").is_dir() else place
            found = sorted(inside.glob("*.safetensors"))
            if not found:
                raise UserError(f"There is no trace (*.safetensors) in {inside}; trace some samples first.")
            paths += found
        elif place.exists():
            paths.append(place)
        else:
            raise UserError(f"There is nothing at {place}; give a run, a folder of traces or trace files.")
    return TraceFiles(paths, progress)
