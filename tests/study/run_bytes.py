"""The bytes of a run that must not depend on who ran it: everything but the database and the times of files."""

import hashlib
import json
from pathlib import Path

from floatscope.study.analyses import read_analyses
from floatscope.study.reporting import report
from floatscope.study.store import Run, read_rows


def run_bytes(folder: Path) -> dict[str, str]:
    """A hash of each file of a run and its report, which is made anew; of the database, of its rows in order."""
    run = Run(folder)
    report(run, read_analyses(run))
    found = {"rows": digest(json.dumps(sorted(map(json.dumps, read_rows(folder)))).encode())}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not name.startswith(("shares/", "results.sqlite", ".lock")):
            content = path.read_bytes()
            if path.name == "analyses.json":  # its key and seal are made of times
                content = json.dumps(json.loads(content)["analyses"]).encode()
            found[name] = digest(content)
    return found


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
