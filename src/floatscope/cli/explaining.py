"""The verb `explain`: which document an answer came from, on screen; or for all samples of a task, into a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from floatscope.cli import flags
from floatscope.cli.evaluation import Asking, ask
from floatscope.cli.loaded import read_documents
from floatscope.cli.shared import FLAG, LOAD_BY_DEFAULT, REPEATED, LoadFlags, given, literal_console, one_line
from floatscope.errors import UserError

if TYPE_CHECKING:
    from floatscope.attribution.attributed import Attribution
    from floatscope.attribution.case import Case

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red", "bright_cyan", "bright_magenta")
_BAR = 30


def explain(
    model: str,
    *,
    question: str | None = None,
    doc: Annotated[tuple[Path, ...], REPEATED] = (),
    task: str | None = None,
    out: Path | None = None,
    method: Annotated[str, flags.attribution_methods()] = "leave_one_out",
    sentences: Annotated[bool, FLAG] = False,
    heads: str | None = None,
    limit: int = 100,
    settings: flags.SamplerFlags | None = None,
    loading: LoadFlags = LOAD_BY_DEFAULT,
) -> int:
    """Say which document an answer came from: the answer in the documents' colours, and a bar for each document.

    Example: floatscope explain twin-llada --question "Who founded Ferrox Steel?" --doc examples/ferrox.txt --doc examples/hydrax.txt --length 8

    Parameters
    ----------
    model
        A folder, a .gguf file, a hub id or a twin.
    question
        The question to answer.
    doc
        A text file to show before the question; repeat for more. A first line that ends in a colon is its title.
    task
        In place of a question, samples to run through a run folder, as `evaluate` takes them.
    out
        With a task the run folder; with a question a file for the trace of the answer.
    sentences
        Score every sentence by hiding it (leave_one_out): a sequence more for each.
    heads
        Of retrieval_heads: 3.1,5.0, or retrieval_heads_top.parquet of a run.
    limit
        Samples of the task.
    """  # noqa: E501  an example must stay on one line to be copied
    if task is not None:
        return _explain_task(model, task, out, method, sentences, limit, settings, loading)
    if question is None or not doc:
        raise UserError("Give a question and documents, with --question and --doc, or a task, with --task.")
    from floatscope.attribution import METHODS
    from floatscope.attribution import explain as run
    from floatscope.attribution.case import Case
    from floatscope.decoding import generate
    from floatscope.files import writable
    from floatscope.qa.prompts import build_prompt
    from floatscope.traces import Trace
    from floatscope.tracing import trace

    METHODS.named(method)
    documents = read_documents(doc, ())
    if out is not None:
        writable(out)
    loaded = loading.load(model)
    prompt = build_prompt(loaded, question, documents)
    sampler = loaded.sampler(**given(settings))
    if out is None:
        found = generate(loaded, prompt, sampler)
    else:
        found = trace(loaded, prompt, sampler, keep="rollout", metadata={"sample": question})
    case: Any = Case.of(loaded, prompt, sampler, found, sampler.seed)  # pyright: ignore[reportArgumentType]
    options = {"heads": heads} if heads is not None else {"sentences": True} if sentences else {}
    told = run(case, method, support=True, **options)
    _show(case, told, [document.title or path.stem for document, path in zip(documents, doc, strict=True)])
    if out is not None and isinstance(found, Trace):
        found.save(out)
        print(f"{out}: its trace; open it with floatscope.Trace.load")
    return 0


def _explain_task(
    model: str, task: str, out: Path | None, method: str, sentences: bool, limit: int, settings: Any, loading: LoadFlags
) -> int:
    from floatscope.study.plan import Curve

    if out is None:
        raise UserError("A task is run in a folder: name it, with --out.")
    told = given(settings)
    known = {name: told.pop(name) for name in ("length", "steps", "seed") if name in told}
    if told:
        raise UserError(
            f"--{min(told).replace('_', '-')} is set in a study's file: with --task give --length and --steps."
        )
    asking = Asking(model=(model,), task=(task,), out=out, limit=limit, **known, **vars(loading))
    shown = 5 if task.startswith("world") else 0
    curve = Curve("attribution", method, options={"documents": shown, "sentences": sentences})
    return ask("explain", asking, [curve])


def _show(case: Case, told: Attribution, names: list[str]) -> None:
    """The answer token by token in the colour of the document each came from, then bars."""
    from rich.text import Text

    from floatscope.attribution import METHODS

    console, answer, before = literal_console(), Text.assemble(("answer: ", "bold")), ""
    tokens = case.generation.answer[case.slots]
    for place, scores in enumerate(told.by_token.documents):
        text = case.model.tokenizer.decode(tokens[: place + 1].tolist(), skip_special_tokens=True).lstrip()
        best = int(scores.argmax())
        answer.append(one_line_kept(text[len(before) :]), COLOURS[best % len(COLOURS)] if scores[best] > 0 else "")
        before = text
    console.print(answer)
    top, width = max(float(told.documents.max()), 1e-12), max(map(len, names))
    for number, (name, score) in enumerate(zip(names, told.documents, strict=True)):
        bar = "█" * round(_BAR * max(score, 0) / top)
        colour = COLOURS[number % len(COLOURS)]
        console.print(
            Text.assemble(f"doc {number + 1} {one_line(name):<{width}} ", (f"{bar:<{_BAR}}", colour), f" {score:.3f}")
        )
    if not told.by_token.spread and told.documents.max() > 0:
        label = list(case.documents)[told.top]
        own = [pair for pair in zip(told.sentences, told.sentence_spans, strict=True) if pair[1].label == label]
        score, span = max(own, key=lambda pair: pair[0])
        text = case.model.tokenizer.decode(case.canvas.ids[span.start : span.stop].tolist(), skip_special_tokens=True)
        console.print(
            Text.assemble("most of it: ", (one_line(text), COLOURS[told.top % len(COLOURS)]), f" ({score:.3f})")
        )
    unit = "nats of log-probability lost when it is hidden" if METHODS[told.method].causal else "share of attention"
    console.print(
        f"{told.method}: {unit}, {told.sequences} sequences beside the answer; all documents: {told.support:.2f} nats"
    )


def one_line_kept(text: str) -> str:
    """Text for a terminal with the blanks at its ends."""
    ahead = " " if text[:1].isspace() else ""
    return ahead + one_line(text) + (" " if text[-1:].isspace() and text.strip() else "")
