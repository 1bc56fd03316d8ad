"""Flags that come from registries, made when a verb's line is read: `floatscope --help` loads no registry.

A verb annotates its parameters with them; annotations are texts until the verb is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, make_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_type_hints

from cyclopts import Group, Parameter


def __getattr__(name: str) -> Any:
    if name == "SamplerFlags":
        return sampler_flags()
    if name == "TwinFlags":
        return twin_flags()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def sampler_flags() -> type:
    """The sampler's name, and every setting of every sampler; what is not given is None."""
    from floatscope.decoding import SAMPLERS

    names: Any = Literal[tuple(SAMPLERS)]  # pyright: ignore[reportInvalidTypeForm]
    choice = Parameter(name="--sampler", help="How slots are filled; default: the way of the model's family.")
    panel = Group("Settings of the sampler", sort_key=1)
    flags: list[tuple[str, Any, None]] = [("name", Annotated[names | None, choice], None)]
    for setting, (found, told) in shared_fields(SAMPLERS).items():
        kinds = [kind for kind, _ in found.values()]
        flags.append((setting, Annotated[Union[*kinds, None], Parameter(help=told, group=panel)], None))
    return Parameter(name="*")(make_dataclass("SamplerFlags", flags, frozen=True, namespace={"__module__": __name__}))


def shared_fields(owners: Mapping[str, type]) -> dict[str, tuple[dict[str, tuple[Any, Any]], str]]:
    """The fields of some dataclasses by name: type and default for each owner, and one help for all of them."""
    kinds: dict[str, dict[str, tuple[Any, Any]]] = {}
    texts: dict[str, dict[str, list[str]]] = {}
    for owner, settings in owners.items():
        hints, help_of = get_type_hints(settings), texts_under_fields(settings)
        for field in fields(settings):
            kinds.setdefault(field.name, {})[owner] = (hints[field.name], field.default)
            texts.setdefault(field.name, {}).setdefault(help_of.get(field.name) or field.name, []).append(owner)
    helps = {
        name: " ".join(f"{text.rstrip('.')} ({', '.join(names)})." for text, names in said.items())
        for name, said in texts.items()
    }
    return {name: (found, helps[name]) for name, found in kinds.items()}


@cache
def twin_flags() -> type:
    """Every number of a twin's recipe; one that is not given is None."""
    from floatscope.training.recipe import TwinRecipe

    hints, texts = get_type_hints(TwinRecipe), texts_under_fields(TwinRecipe)
    panel = Group("The recipe, where it is not the twin's own", sort_key=1)
    flags: list[tuple[str, Any, None]] = [
        (part.name, Annotated[hints[part.name] | None, Parameter(help=texts[part.name], group=panel)], None)
        for part in fields(TwinRecipe)
    ]
    return Parameter(name="*")(make_dataclass("TwinFlags", flags, frozen=True, namespace={"__module__": __name__}))


def texts_under_fields(settings: type) -> dict[str, str]:
    """The text under each field of a dataclass, on one line; those of its bases too."""
    from docstring_parser import parse_from_object

    found = [entry for cls in reversed(settings.__mro__[:-1]) for entry in parse_from_object(cls).params]
    return {entry.arg_name: " ".join((entry.description or "").split()) for entry in found}


def detectors() -> Parameter:
    """Help that tells every detector of anchors."""
    from floatscope.analysis.anchors import every_detector

    known = "; ".join(f"{written}: {row.description}" for written, row in every_detector().items())
    return Parameter(help=f"What counts as an anchor. {known}.")


def attribution_methods() -> Parameter:
    """Help that tells every method of attribution with its cost."""
    from floatscope.attribution import METHODS

    known = "; ".join(f"{name}: {row.summary} ({row.cost} sequences)" for name, row in METHODS.items())
    return Parameter(help=f"How it is told; D documents, S sentences, C steps with a commit. {known}.")


def studies() -> Parameter:
    """Help that tells every study that comes with the package."""
    names = sorted(file.stem for file in (Path(__file__).parents[1] / "study" / "studies").glob("*.toml"))
    away = [name for name in names if "smollm2" in name or name == "paper"]
    here = [name for name in names if name not in away]
    needs = f"{', '.join(away)}, which need weights and data (docs/howto/study.md)"
    return Parameter(help=f"{', '.join(here)}; {needs}; or a .toml file.")


def analyses() -> Parameter:
    """Help that tells every analysis."""
    from floatscope.analysis import ANALYSES

    return Parameter(help="; ".join(f"{name}: {row.description}" for name, row in ANALYSES.items()) + ".")
