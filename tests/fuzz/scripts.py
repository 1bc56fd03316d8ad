"""Whether a page would run anything but its own scripts: read as a browser reads it, without one."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Collection
from html.parser import HTMLParser

CARRIERS = {"iframe", "object", "embed", "base", "form", "frame", "portal"}

ADDRESSES = {"href", "src", "action", "formaction", "data", "xlink:href", "poster", "background"}


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.found: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._inside = tag == "script" and given.get("type") in (None, "", "module", "text/javascript")
        if self._inside:
            self.scripts.append("")
        if tag in CARRIERS or (tag == "script" and "src" in given):
            self.found.append(f"<{tag}>")
        for name, value in attrs:
            leads = name in ADDRESSES and re.match(r"\s*(javascript|vbscript|data:text)", value or "", re.IGNORECASE)
            if name.startswith("on") or leads or name == "srcdoc":
                self.found.append(f"{tag} {name}={value}")

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


def digest(script: str) -> str:
    """As a policy names a script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def foreign_scripts(page: str, allowed: Collection[str]) -> list[str]:
    """What would run in a page beside the scripts whose digests are allowed."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return reader.found + [script for script in reader.scripts if digest(script) not in allowed]


def own_scripts(page: str) -> set[str]:
    """The digests of the scripts of a page that is known to be clean."""
    reader = _Reader()
    reader.feed(page)
    return {digest(script) for script in reader.scripts}
