"""floatscope: where attention goes while a masked diffusion language model denoises, and what that does to its answers.

    import floatscope as fs

    model = fs.load("path/or/hub-id")
    trace = fs.trace(model, prompt_ids)
    trace.received                     # [step, layer, token]

Everything loads on first use, so that `import floatscope` and `floatscope --help` are quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from floatscope.registry import NOTEBOOK_VIEWS

if TYPE_CHECKING:
    from floatscope.canvas import Prompt
    from floatscope.decoding import (
        AutoregressiveSampler,
        DreamSampler,
        Generation,
        LLaDASampler,
        ThresholdSampler,
        generate,
    )
    from floatscope.errors import UserError
    from floatscope.models.check import check
    from floatscope.models.families import FAMILIES, Family
    from floatscope.models.loading import load
    from floatscope.models.model import Model
    from floatscope.models.visibility import Visibility
    from floatscope.qa import world
    from floatscope.qa.prompts import build_canvas, build_prompt
    from floatscope.qa.samples import Document, Sample
    from floatscope.traces import Trace, import_reference
    from floatscope.tracing import trace

__version__ = "0.1.0"

_NAMES = {
    "canvas": ("Prompt",),
    "decoding": (
        "AutoregressiveSampler", "DreamSampler", "Generation", "LLaDASampler", "ThresholdSampler", "generate",
    ),
    "errors": ("UserError",),
    "models.check": ("check",),
    "models.families": ("FAMILIES", "Family"),
    "models.loading": ("load",),
    "models.model": ("Model",),
    "models.visibility": ("Visibility",),
    "qa": ("world",),
    "qa.prompts": ("build_canvas", "build_prompt"),
    "qa.samples": ("Document", "Sample"),
    "traces": ("Trace", "import_reference"),
    "tracing": ("trace",),
}  # fmt: skip
_WHERE = {name: module for module, names in _NAMES.items() for name in names}

NOTEBOOK_VIEWS["Trace"] = "floatscope.report.player:trace_html"

__all__ = [  # noqa: RUF022  the order of the public API: load, decode, trace, ask, errors
    "load",
    "check",
    "Model",
    "Family",
    "FAMILIES",
    "Visibility",
    "generate",
    "Generation",
    "LLaDASampler",
    "DreamSampler",
    "ThresholdSampler",
    "AutoregressiveSampler",
    "trace",
    "Trace",
    "import_reference",
    "Sample",
    "Document",
    "Prompt",
    "build_prompt",
    "build_canvas",
    "world",
    "UserError",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'floatscope' has no attribute {name!r}")
    return getattr(import_module(f"floatscope.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
