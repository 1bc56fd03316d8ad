"""The site: the pages of this folder as they are, and an API reference made from the docstrings of the front page."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer

import floatscope

project = "floatscope"
author = "The floatscope developers"
version = release = floatscope.__version__
extensions = ["myst_parser"]
exclude_patterns = ["conf.py"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"floatscope {version}"
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
API = Path(__file__).parent / "api.md"


def written(text: str) -> str:
    """A docstring as Markdown: `name: what it is` at the start of a line becomes an entry of a list."""
    lines = [re.sub(r"^(`?[\w*]+`?(?:, `?[\w*]+`?)*): (?=\S)", r"- **\1**: ", line) for line in text.splitlines()]
    return "\n".join(re.sub(r"^( {2,})", "    ", line) for line in lines).replace("<", "&lt;")


def signature(name: str, found: Callable[..., Any]) -> str:
    """How it is called, a line for each parameter where there are several; annotations as they are written."""
    known = inspect.signature(found)
    lines = []
    for one in known.parameters.values():
        text = (
            str(one).replace(repr(one.annotation), str(one.annotation)) if isinstance(one.annotation, str) else str(one)
        )
        lines += ["*"] if one.kind is one.KEYWORD_ONLY and not {"*"} & {line[:1] for line in lines} else []
        lines.append(text.replace("floatscope.", "") if one.name != "self" else "self")
    given = known.return_annotation
    back = (
        ""
        if given in (known.empty, None)
        else f" -> {given if isinstance(given, str) else getattr(given, '__name__', given)}"
    )
    return (
        f"{name}({', '.join(lines)}){back}"
        if len(lines) < 3
        else "\n".join([f"{name}(", *(f"    {line}," for line in lines), f"){back}"])
    )


def entry(name: str) -> str:
    """One name of the front page: its signature, its docstring, and for a class its public parts."""
    found = getattr(floatscope, name)
    parts = [f"### `fs.{name}`", ""]
    if callable(found) and not (inspect.isclass(found) and issubclass(found, Exception)):
        parts += ["```python", signature(name, found), "```", ""]
    parts += [written(inspect.getdoc(found) or ""), ""]
    for member, value in vars(found).items() if inspect.isclass(found) else ():
        text = inspect.getdoc(value.fget if isinstance(value, property) else getattr(value, "__func__", value))
        if not member.startswith("_") and text and (callable(value) or isinstance(value, property | classmethod)):
            called = "" if isinstance(value, property) else "(...)"
            parts.append(f"- `.{member}{called}`: {' '.join(written(text).split())}")
    return "\n".join([*parts, ""])


def write_api(_app: object) -> None:
    """docs/api.md, in the order of the front page; it is made anew by every build and kept out of the repository."""
    groups = {
        "Models": ("models",),
        "Decoding": ("decoding",),
        "Tracing": ("tracing", "probe", "traces", "attribution"),
        "Prompts and data": ("canvas", "qa"),
        "Analyses, runs, pages": ("analysis", "study", "reports"),
        "Mistakes": ("errors",),
    }
    pages = ["# API", "", "What `import floatscope as fs` gives; everything loads on first use.", ""]
    for title, rooms in groups.items():
        names = [name for name, module in floatscope._WHERE.items() if module.partition(".")[0] in rooms]
        pages += [
            f"## {title}",
            "",
            *(entry(name) for name in names if not inspect.ismodule(getattr(floatscope, name))),
        ]
    API.write_text("\n".join(pages), encoding="utf-8")


def setup(app):
    app.add_lexer("graph", TextLexer)
    app.connect("config-inited", lambda app, _config: write_api(app))
