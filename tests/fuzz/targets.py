"""What is attacked: a small run with traces, and its study, made once on the twins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from floatscope.study.analyses import read_analyses
from floatscope.study.plan import write_study
from floatscope.study.reporting import report
from floatscope.study.running import run_study
from tests.study.small_studies import small_study


@dataclass(frozen=True)
class Targets:
    """Paths of things that are whole; whoever damages one works on a copy."""

    run: Path
    trace: Path
    study: Path

    @classmethod
    def make(cls, folder: Path) -> Targets:
        study = small_study(limit=2, analyses=("drift", "anchors"))
        run = run_study(study, folder / "run").run
        report(run, read_analyses(run))
        file = folder / "study.toml"
        file.write_text(write_study(study))
        return cls(run.folder, run.traces()[0], file)
