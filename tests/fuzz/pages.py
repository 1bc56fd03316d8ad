"""Names and texts of other people in the report, in single figures, in notebooks and in tables: none of them runs."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

from floatscope.analysis import ANALYSES, Controls, Options, analyze, draw
from floatscope.reports.page import Content, build_page, figure_page
from floatscope.reports.tables import write_tables
from floatscope.traces import Trace
from tests.fuzz.outcomes import ACCEPTED, SCRIPT, Attempt, attempt
from tests.fuzz.scripts import foreign_scripts, own_scripts
from tests.fuzz.targets import Targets
from tests.reports.making import MODELS, made_scores, made_trace

PANEL = made_scores()["panel"].drop_nulls()[0]
RUN = "document.title='ran'"
PAYLOADS = (
    f"</script><script>{RUN}</script>", f"</SCRIPT ><sCRIPT>{RUN}</SCRIPT>", f"<!--<script>{RUN}</script>-->",
    f'<img src=x onerror="{RUN}">', f'"><svg onload={RUN}>', f"'-({RUN})-'", f'"+({RUN})+"', f"\\'+({RUN})//",
    f"javascript:{RUN}", f'" onmouseover="{RUN}', f"</style><script>{RUN}</script>", f"</title><script>{RUN}</script>",
    f"]]><script>{RUN}</script>", f"\u2028{RUN}\u2029", f"{{{{ {RUN} }}}}", "{% for x in y %}", "${1}", "`${1}`",
    "&lt;script&gt;", "\x00<script>", "datum['model']", "a'b\"c\\d", "'; drop", "a.b[c]", "[x]", "=1+1", "+1", "-1",
    "@x",
    "=HYPERLINK(\"http://evil.example\")", "\t=1", "|", "\\\\", "\\input{x}", "%", "\x1b[31mred", "\u202eevil",
    "a" * 3000, "",
    "__proto__", "constructor", "\n\n# x", "é\u0301", "🙂" * 50,
)  # fmt: skip


def attempts(rng: random.Random, folder: Path, targets: Targets) -> Iterator[Attempt]:
    """Endless: everything that has a name gets a hostile one."""
    own = own_scripts(page_of(MODELS, lambda: "a text", "drift")[0]) | own_scripts(figure_of("drift", MODELS))
    while True:
        names = tuple(f"{rng.choice(PAYLOADS)}{number}" for number in range(2))
        analysis = rng.choice(list(ANALYSES))
        text = lambda: rng.choice(PAYLOADS)  # noqa: E731
        yield attempt(
            f"{analysis}: {names}"[:200],
            lambda names=names, analysis=analysis, text=text: show(names, text, analysis),
            lambda shown: f"{SCRIPT}: {found}" if (found := runs(*shown, own)) else ACCEPTED,
        )


def traces_of(names: tuple[str, ...], text) -> list[Trace]:
    found = []
    for place, name in enumerate(names):
        for seed in range(2):
            trace = made_trace(MODELS[place], seed)
            about = trace.metadata | {"question": text(), "sample": text(), "task": text(), "prediction": text()}
            texts = tuple(text() if number % 3 == 0 else one for number, one in enumerate(trace.texts or ()))
            about |= {"answers": [text()], "control_of": name}
            found.append(dataclasses.replace(trace, model=name, texts=texts, metadata=about))
    return found


def page_of(names: tuple[str, ...], text, analysis: str) -> tuple[str, list[str]]:
    """A report, and beside it a page of each of its figures and a notebook's view of one of its traces."""
    traces = traces_of(names, text)
    results = {analysis: analyze(analysis, traces, Options(detector="zscore(1)", draws=20), Controls())}
    scores = made_scores()
    for before, name in zip(MODELS, names, strict=True):
        scores = scores.with_columns(scores["model"].replace(before, name))
    scores = scores.with_columns(scores["task"].replace("a", text()), scores["panel"].replace(PANEL, text()))
    content = Content(
        title=text(), question=text(), summary=(f"{names[0]} gains 0.7. {text()}",), models=names, scores=scores,
        notes=(text(),), traces=tuple(traces), results=results, missing={"qk": text()}, command=text(),
        manifest={"seed": text(), "versions": {text(): text()}}, study=f"name = {text()!r}",
    )  # fmt: skip
    figure = draw(analysis, results, names)
    beside = [figure_page(figure), figure._repr_html_(), traces[0]._repr_html_()]
    return build_page(content), [*beside, write_tables(scores, {"documents": (text(),)}, "csv")]


def figure_of(analysis: str, names: tuple[str, ...]) -> str:
    results = {analysis: analyze(analysis, traces_of(names, lambda: "a text"), Options(draws=20), Controls())}
    return figure_page(draw(analysis, results, names))


def show(names: tuple[str, ...], text, analysis: str) -> tuple[str, list[str]]:
    page, beside = page_of(names, text, analysis)
    for one in (page, *beside):
        one.encode()  # as a file it is UTF-8
    return page, beside


def runs(page: str, beside: list[str], own: set[str]) -> str:
    """What a browser or a spreadsheet would run that is not ours, or nothing."""
    figure, drawing, notebook, table = beside
    found = foreign_scripts(page, own) + foreign_scripts(figure, own) + foreign_scripts(drawing, ())
    found += [script for script in foreign_scripts(notebook, own) if not only_data(script)]
    cells = [cell for row in csv.reader(io.StringIO(table)) for cell in row if cell]
    found += [cell for cell in cells if cell[0] in "=@\t" or (cell[0] in "+-" and not cell[1:2].isdigit())]
    return ", ".join(found)


def only_data(script: str) -> bool:
    """Whether a script starts the player with data that is JSON, and does nothing else."""
    found = re.fullmatch(r'new floatscope\.Player\(document\.getElementById\("[\w-]+"\), (.*)\);', script, re.DOTALL)
    try:
        return found is not None and isinstance(json.loads(found[1]), dict)
    except ValueError:
        return False
