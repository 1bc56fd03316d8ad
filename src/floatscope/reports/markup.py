"""The files that pages are made of, and the one way in which texts get into them: through templates, which escape."""

from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup


@cache
def asset(name: str, room: str = "reports") -> str:
    """The text of a file among the assets of a room: a template, CSS or JavaScript."""
    return files(f"floatscope.{room}").joinpath("assets", name).read_text(encoding="utf-8")


def script_json(data: Any) -> Markup:
    """JSON that may stand inside a script element: no text can end the element or open a comment."""
    return htmlsafe_json_dumps(data, separators=(",", ":"), allow_nan=False)


def render(template: str, **values: Any) -> Markup:
    """A template with its values, each escaped unless it is Markup already."""
    return Markup(_TEMPLATES.get_template(template).render(values))


_TEMPLATES = Environment(
    autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=FunctionLoader(asset)
)
_TEMPLATES.filters["script_json"] = script_json
