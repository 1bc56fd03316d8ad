"""The verbs on models that are loaded: trace, check, serve; and families, which lists what can be."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from floatscope.cli import flags
from floatscope.cli.shared import (
    FLAG,
    LOAD_BY_DEFAULT,
    REPEATED,
    LoadFlags,
    given,
    literal_console,
    one_line,
    progress_bar,
)  # fmt: skip
from floatscope.errors import UserError

if TYPE_CHECKING:
    from floatscope.decoding import Step
    from floatscope.traces import Trace


def trace(
    model: str,
    *,
    question: str = "",
    text: str = "",
    doc: Annotated[tuple[Path, ...], REPEATED] = (),
    gold: Annotated[tuple[int, ...], REPEATED] = (),
    answer: Annotated[tuple[str, ...], REPEATED] = (),
    replay: str | None = None,
    prompt: str = "default",
    raw: Annotated[bool, FLAG] = False,
    out: Path,
    settings: flags.SamplerFlags | None = None,
    keep: Literal["compact", "rollout", "groups", "heads", "matrices"] = "compact",
    loading: LoadFlags = LOAD_BY_DEFAULT,
) -> None:
    """Answer a question with a model and capture attention at every step into one file.

    Example: floatscope trace GSAI-ML/LLaDA-8B-Instruct --question "Who wrote it?" --doc a.txt --doc b.txt --out t.safetensors

    Parameters
    ----------
    model
        A folder, a .gguf file or a hub id.
    question
        The question to answer.
    text
        In place of a question, a text that the model is shown as it stands, without template or chat markup.
    doc
        A text file to show before the question; repeat for more. A first line that ends in a colon is its title.
    gold
        Number of a document (from 1) that holds the evidence; repeat for more. Gives the mark "evidence".
    answer
        A right answer; repeat for more. Gives the mark "gold_answer" inside gold documents.
    replay
        A text that the answer takes instead of the model's own, token by token (with --order and --tokens-per-step as you like); begin it with a blank where a word follows one.
    prompt
        How question and documents become text: default, paper, or the path of a template of your own.
    raw
        Leave out the chat template, where the tokenizer has one.
    out
        Where the trace goes; its folder must exist.
    keep
        How much to keep: compact, rollout (over the layers, to regions), groups (rows by region at token resolution), heads (every head), matrices (all, for small canvases).
    """  # noqa: E501  an example must stay on one line to be copied
    from floatscope.files import writable
    from floatscope.qa.prompts import build_canvas, build_prompt, text_prompt, unknown_tokens
    from floatscope.qa.templates import read_template
    from floatscope.tracing import trace as run

    if bool(question) == bool(text) or (text and (doc or raw or prompt != "default")):
        raise UserError("Give a question, with --doc, --prompt and --raw as you like, or a text alone with --text.")
    documents = read_documents(doc, gold)
    for words in (question, text, *answer, replay or ""):
        try:
            words.encode()  # bytes of another encoding come as lone surrogates, which no tokenizer takes
        except UnicodeEncodeError as error:
            raise UserError(f"{words!r} is not UTF-8 text: check the encoding of your terminal") from error
    writable(out)
    loaded = loading.load(model)
    if text:
        shown = text_prompt(loaded, text) if replay is None else build_canvas(loaded, text, replay)
    else:
        template = read_template(prompt, loaded.family.name)
        shown = build_prompt(loaded, question, documents, answer, template=template, raw=raw, slots=replay)
    wishes = {"order": "left-to-right", "tokens_per_step": 1} if replay else {}
    how = loaded.sampler(wishes, **({} if shown.slots is None else {"length": len(shown.slots)}) | given(settings))
    if unknown := unknown_tokens(loaded.tokenizer, shown):
        warnings.warn(
            f"{unknown} of the {len(shown.ids)} tokens of the prompt are not in the vocabulary of {model}: it reads "
            "them as unknown.",
            stacklevel=2,
        )
    known = {"sample": question or text, "answers": answer}
    with progress_bar() as progress:
        task = progress.add_task("generating" if loaded.family.is_arm else "denoising", total=None)

        def advance(step: Step) -> None:
            if step.index == 0:
                progress.update(task, total=how.step_bounds(int(step.given.positions[0, 0]), loaded.block)[1])
            progress.advance(task)

        [found] = run(loaded, [shown], how, keep=keep, metadata=known, on_step=advance, replay=replay is not None)
        progress.update(task, total=found.steps)  # it may have ended early
    found.save(out)
    print(f"answer: {found.prediction!r}")
    _show_trace(found, out)


def check(model: str, *, loading: LoadFlags = LOAD_BY_DEFAULT) -> int:
    """Let the tap prove itself on a model: rows sum to 1, output equals SDPA, visibility, effect of tokens and pads.

    Example: floatscope check path/to/checkpoint

    Parameters
    ----------
    model
        A folder, a .gguf file or a hub id.
    """
    from rich.table import Table
    from rich.text import Text

    from floatscope.models.check import check as run
    from floatscope.models.loading import locate, read_config, unread_fields

    loaded = loading.load(model, check=False)
    findings = run(loaded)
    table = Table("check", "result", "detail", title=one_line(repr(loaded)), title_justify="left")
    for finding in findings:
        table.add_row(finding.name, "passed" if finding.passed else Text("failed", "bold red"), finding.detail)
    console = literal_console()
    console.print(table)
    weights = locate(model, loading.revision).weights
    if loaded.family.config and weights.is_dir() and (unread := unread_fields(read_config(weights), loaded.family)):
        console.print(f"Fields of config.json that family {loaded.family.name} does not read: {', '.join(unread)}.")
    return 0 if all(finding.passed for finding in findings) else 1


def serve(
    *models: str,
    port: int = 8765,
    host: str = "127.0.0.1",
    open_page: Annotated[bool, Parameter(name="--open", negative="")] = False,
    loading: LoadFlags = LOAD_BY_DEFAULT,
) -> None:
    """Serve a page on this machine to type a question and documents and watch models denoise, step by step.

    Example: floatscope serve twin-llada twin-arm --open

    Parameters
    ----------
    models
        Folders, .gguf files, hub ids or twins to choose from; default: twin-llada, twin-dream and twin-arm.
    port
        Where the page is served; 0 takes any free port.
    host
        Who can reach it: 127.0.0.1 is this machine only. Another address opens it to the network, without a password.
    open_page
        Open the page in the browser.
    """
    import webbrowser

    from floatscope.live.examples import TWINS
    from floatscope.live.server import LiveServer

    with LiveServer(host, port) as server:  # before the models are loaded: a port in use is told at once
        server.open_with([loading.load(source) for source in models or TWINS])
        names = one_line(", ".join(server.models))
        who = "; whoever reaches this machine can use it" if server.everywhere else ""
        print(f"floatscope: serving {names} at {server.url} (Ctrl-C ends it{who})", flush=True)
        if open_page:
            webbrowser.open(server.url)
        server.serve_forever()


def families() -> None:
    """List the supported families of checkpoints.

    Example: floatscope families
    """
    from rich.table import Table

    from floatscope.models.families import FAMILIES

    table = Table("family", "how it is read", "checkpoints")
    for row in FAMILIES.values():
        mask = "no mask" if row.is_arm or row.noise else f"mask {row.mask_id or 'as the checkpoint says'}"
        how = f"{row.backbone}, {row.visibility}, logits {row.logits}, {mask}, sampler {row.sampler['name']}"
        table.add_row(row.name, how, row.examples)
    console = literal_console()
    console.print(table)
    console.print("Another one can be declared in a TOML file and passed as --family my.toml.")


def read_documents(paths: tuple[Path, ...], gold: tuple[int, ...]) -> list[Any]:
    """The documents of text files; `gold`: numbers of those that hold the evidence, from 1."""
    from floatscope.qa.corpus import titled_text

    for number in gold:
        if not 1 <= number <= len(paths):
            raise UserError(f"--gold {number}: there are {len(paths)} documents, counted from 1")
    return [replace(titled_text(path), gold=number in gold) for number, path in enumerate(paths, 1)]


def _show_trace(found: Trace, out: Path) -> None:
    """For each layer, which token received most at the first and at the last step."""
    from rich.table import Table

    table = Table("layer", "most attended at the first step", "at the last step", title_justify="left")
    table.title = f"{one_line(found.model)}: {found.steps} steps x {found.layers} layers x {len(found.canvas)} tokens"
    for layer, received in enumerate(found.received.swapaxes(0, 1)):  # [step, token]
        cells = []
        for step in (0, -1):
            token = int(received[step].argmax())
            masked = token in found.slots[found.masked[step]]
            text = "still masked" if masked else repr(found.texts_or_ids[token])
            cells.append(f"{text} at {token}: {received[step, token]:.1%}")
        table.add_row(str(layer), *cells)
    literal_console().print(table)
    print(f"{out} ({out.stat().st_size / 1e6:.2f} MB); open it with floatscope.Trace.load")
