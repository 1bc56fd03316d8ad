"""Trace files as a stream: found in a run, a folder or a list, opened one at a time, so that memory stays bounded."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from floatscope.analysis.results import Controls
from floatscope.errors import UserError
from floatscope.registry import did_you_mean
from floatscope.traces import Trace


class TraceFiles:
    """Traces by path; each pass over it opens them again, and arrays are read only if an analysis asks."""

    def __init__(self, paths: Iterable[Path], progress: str | None = None) -> None:
        self.paths = tuple(paths)
        self.progress = progress

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[Trace]:
        paths: Iterable[Path] = self.paths
        if self.progress is not None:
            from rich.progress import track

            paths = track(paths, description=self.progress, transient=True)
        return map(Trace.load, paths)


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


def of_conditions(files: TraceFiles, wanted: Iterable[str] = ()) -> TraceFiles:
    """The traces of the conditions that are named; none need be where there is but one."""
    conditions = [str(Trace.load(path).metadata.get("condition", "")) for path in files.paths]
    known, wanted = dict.fromkeys(conditions), tuple(wanted)
    if not wanted and len(known) > 1:
        raise UserError(
            f"The traces are of {len(known)} conditions ({', '.join(name or 'unnamed' for name in known)}); say which "
            "with --condition (from Python: condition=...): they are measured apart."
        )
    for name in wanted:
        if name not in known:
            raise UserError(f"There is no trace of the condition {name!r}: {did_you_mean(name, known)}.")
    kept = (path for path, name in zip(files.paths, conditions, strict=True) if not wanted or name in wanted)
    return TraceFiles(kept, files.progress)


def split_controls(
    files: TraceFiles, untrained: Iterable[Path] = (), null_query: Iterable[Path] = ()
) -> tuple[TraceFiles, Controls]:
    """A run's own traces apart from those of its control passes (`metadata["control"]`), with further ones given."""
    passes: dict[str, list[Path]] = {"": [], "untrained": list(untrained), "null_query": list(null_query)}
    for path in files.paths:
        control = str(Trace.load(path).metadata.get("control") or "")
        if control not in passes:
            raise UserError(f"{path} is of the control pass {control!r}, which is not known; trace it again.")
        passes[control].append(path)
    if not passes[""]:
        raise UserError("There are only control passes among the traces; give those of the models themselves too.")
    controls = Controls(TraceFiles(passes["untrained"]), TraceFiles(passes["null_query"]))
    return TraceFiles(passes[""], files.progress), controls
