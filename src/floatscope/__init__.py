"""floatscope: where attention goes while a masked diffusion language model denoises, and what that does to its answers.

    import floatscope as fs

    model = fs.load("path/or/hub-id")
    prompt = fs.build_prompt(model.tokenizer, "Who ...?", [fs.Document("title", "text", gold=True)])
    trace = fs.trace(model, prompt)    # or token ids, or a text as it stands; or a list of these
    trace.received                     # [step, layer, token]
    fs.analyze("drift", [trace])       # a table with controls, and its figure

    run = fs.Run("runs/demo")          # the folder that `floatscope study demo` writes
    run.results(), run.scores(), fs.analyze("drift", run.folder), fs.report(run)

Everything loads on first use, so that `import floatscope` and `floatscope --help` are quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from floatscope.registry import ELSEWHERE

if TYPE_CHECKING:  # what type checkers read; at run time `_NAMES` says the same
    from floatscope.analysis import analyze as analyze
    from floatscope.attribution import attribute as attribute
    from floatscope.canvas import Prompt as Prompt
    from floatscope.decoding import AutoregressiveSampler as AutoregressiveSampler
    from floatscope.decoding import DreamSampler as DreamSampler
    from floatscope.decoding import Generation as Generation
    from floatscope.decoding import LLaDASampler as LLaDASampler
    from floatscope.decoding import ThresholdSampler as ThresholdSampler
    from floatscope.decoding import generate as generate
    from floatscope.errors import UserError as UserError
    from floatscope.models.check import check as check
    from floatscope.models.families import FAMILIES as FAMILIES
    from floatscope.models.family import Family as Family
    from floatscope.models.loading import load as load
    from floatscope.models.model import Model as Model
    from floatscope.models.patching import patch as patch
    from floatscope.models.visibility import Visibility as Visibility
    from floatscope.probe.edits import Edit as Edit
    from floatscope.qa import world as world
    from floatscope.qa.prompts import build_canvas as build_canvas
    from floatscope.qa.prompts import build_prompt as build_prompt
    from floatscope.qa.samples import Document as Document
    from floatscope.qa.samples import Sample as Sample
    from floatscope.qa.tasks import read_task as read_task
    from floatscope.reports.view import show as show
    from floatscope.study.reporting import report as report
    from floatscope.study.store import Run as Run
    from floatscope.traces import Trace as Trace
    from floatscope.traces import import_reference as import_reference
    from floatscope.tracing import replay as replay
    from floatscope.tracing import trace as trace

__version__ = "0.1.0"

_NAMES = {  # in the order of the work: load, decode, trace, ask, study
    "models.loading": ("load",),
    "models.check": ("check",),
    "models.model": ("Model",),
    "models.families": ("Family", "FAMILIES"),
    "models.visibility": ("Visibility",),
    "decoding": (
        "generate", "Generation", "LLaDASampler", "DreamSampler", "ThresholdSampler", "AutoregressiveSampler",
    ),
    "tracing": ("trace", "replay"),
    "probe.edits": ("Edit",),
    "models.patching": ("patch",),
    "attribution": ("attribute",),
    "traces": ("Trace", "import_reference"),
    "analysis": ("analyze",),
    "reports.view": ("show",),
    "qa.samples": ("Sample", "Document"),
    "canvas": ("Prompt",),
    "qa.prompts": ("build_prompt", "build_canvas"),
    "qa.tasks": ("read_task",),
    "qa": ("world",),
    "study.store": ("Run",),
    "study.reporting": ("report",),
    "errors": ("UserError",),
}  # fmt: skip
_WHERE = {name: module for module, names in _NAMES.items() for name in names}

ELSEWHERE |= {
    "load": "floatscope.models.loading:load",
    "prompt": "floatscope.qa.prompts:text_prompt",
    "player": "floatscope.reports.player:trace_html",
    "heatmap": "floatscope.analysis.heatmap:heatmap",
}

__all__ = list(_WHERE)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'floatscope' has no attribute {name!r}")
    return getattr(import_module(f"floatscope.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
