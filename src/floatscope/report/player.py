"""The player: one sample step by step, MDM beside ARM. Traces become the JSON that canvas.js and player.js draw.

The report, notebooks and the live page use the same component. Its data, in JSON:

    {"samples": [{"id", "title", "question", "answers": [text], "runs": [run, ...]}, ...]}

    run = {
      "model", "kind": "mdm" | "arm", "visibility", "control": "" | "untrained" | ...,
      "prediction": text or null, "correct": true | false | null,
      "tokens": [text, ...]         the canvas as it ends; "" for a slot whose token is not known yet (live)
      "glued": [position, ...]      tokens that follow the one before without a space
      "special": [position, ...]    tokens such as <bos>: drawn faint
      "regions": [[label, start, stop], ...], "gold": [label, ...]
      "marked": [position, ...]     the answer inside the evidence
      "prompt": P, "layers": L,
      "commit_step": [step, ...], "confidence": [number, ...]    one a slot; step null: not committed yet (live)
      "steps": [step, ...]
    }
    step = {
      "received": {"scale": number, "data": base64 of uint16 [layer, token], little endian},  value = scale * q / 65535
      "anchors": [[position, ...], ...]         a list a layer: what the project's detector found
      "commits": [[slot, text, confidence, "" | "special" | "glued"], ...]    in a streamed step (`commits_data`)
    }

In the page: `new floatscope.Player(element, data)`; a live page makes runs without steps (with "foreseen", how many
there will be) and calls `player.push(run, step)` (number of the run in the sample) as steps arrive, then
`player.finish(run, data)`. The browser computes only the shade.
"""

import base64
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from floatscope.analysis.anchors import detect
from floatscope.analysis.flow import gold_label
from floatscope.analysis.token_text import plain_text, text_class
from floatscope.canvas import ANSWER, QUERY, regions_from_labels
from floatscope.traces import Trace
from floatscope.traces.trace import array_shape

DETECTOR = "zscore(3)"
BUDGET = 4_000_000
"""Characters of player data in a report: several samples under several models."""
_LEVELS = 65_535
_CLOSING = re.compile(r"[.,:;?!)\]}’”%]+")


@cache
def asset(name: str) -> str:
    """The text of a file beside this module: CSS or JavaScript that goes into the page."""
    return files("floatscope.report").joinpath("assets", name).read_text(encoding="utf-8")


def encode_values(values: ArrayLike) -> dict[str, Any]:
    """Numbers >= 0 as base64 of uint16 with their scale; the error is at most scale / 131070."""
    array = np.asarray(values, dtype=np.float64)
    scale = float(array.max(initial=0.0))
    levels = np.round(array / scale * _LEVELS) if scale > 0 else np.zeros(array.shape)
    return {"scale": scale, "data": base64.b64encode(levels.astype("<u2").tobytes()).decode("ascii")}


def step_data(received: ArrayLike, anchors: NDArray[np.bool_], commits: Sequence[Sequence[Any]] = ()) -> dict[str, Any]:
    """One step: received attention and anchors [layer, token], and for a live page `commits_data`."""
    step: dict[str, Any] = {
        "received": encode_values(received),
        "anchors": [np.flatnonzero(row).tolist() for row in anchors],
    }
    return step | {"commits": [list(commit) for commit in commits]} if commits else step


def commits_data(texts: Sequence[str], positions: Mapping[int, int], confidence: Sequence[float]) -> list[list[Any]]:
    """Tokens that a live step has committed: slots and where they stand, their confidence; texts of the canvas now."""
    shown = canvas_data(texts, [])
    kinds = dict.fromkeys(shown["glued"], "glued") | dict.fromkeys(shown["special"], "special")
    return [
        [slot, shown["tokens"][place], round(float(value), 4), kinds.get(place, "")]
        for (slot, place), value in zip(positions.items(), confidence, strict=True)
    ]


def run_data(trace: Trace, detector: str = DETECTOR) -> dict[str, Any]:
    """One trace as a run of the player."""
    anchors = detect(trace, detector) > 0.5
    known = trace.metadata
    whole = regions_from_labels(np.where(np.isin(np.arange(len(trace.canvas)), trace.slots), ANSWER, QUERY).tolist())
    accuracy = known.get("accuracy")
    return {
        **canvas_data(trace.texts_or_ids, [(r.label, r.start, r.stop) for r in trace.regions or whole]),
        "model": str(known.get("control_of", trace.model)),
        "kind": trace.kind,
        "visibility": trace.visibility,
        "control": str(known.get("control", "")),
        "prediction": known.get("prediction"),
        "correct": None if accuracy is None else bool(accuracy),
        "gold": [] if gold_label(trace) == "none" else gold_label(trace).split(" + "),
        "marked": trace.marks.get("gold_answer", np.zeros(0, np.int64)).tolist(),
        "slots": trace.slots.tolist(),
        "layers": trace.layers,
        "commit_step": trace.commit_step.tolist(),
        "confidence": [round(float(value), 4) for value in trace.confidence],
        "steps": [step_data(trace.received[step], anchors[step]) for step in range(trace.steps)],
    }


def canvas_data(texts: Sequence[str], regions: Sequence[tuple[str, int, int]]) -> dict[str, Any]:
    """How tokens are shown: plain texts, which ones stick to the one before, which ones are special."""
    marked = any(text.startswith(("Ġ", "▁")) for text in texts)
    plain = [plain_text(text) for text in texts]
    special = [text != "" and text_class(text) == "special" for text in texts]
    glued = [
        not special[place]
        and bool((marked and text[:1] not in "Ġ▁ ") or text.startswith("##") or _CLOSING.fullmatch(text))
        for place, text in enumerate(texts)
    ]
    return {
        "tokens": [text and (text.strip(" ").replace("\n", "↵").replace("\t", "⇥") or "␣") for text in plain],
        "glued": [place for place, sticks in enumerate(glued) if sticks],
        "special": [place for place, faint in enumerate(special) if faint],
        "regions": [list(region) for region in regions],
    }


def player_data(traces: Iterable[Trace], detector: str = DETECTOR, budget: int = BUDGET) -> dict[str, Any]:
    """Traces grouped by sample, in order; as many samples as fit into `budget` characters, at least one.

    Where even the first does not fit, it comes without its controls.
    """
    samples: dict[tuple[str, ...], list[Trace]] = {}
    for trace in traces:
        key = tuple(str(trace.metadata.get(name, "")) for name in ("task", "condition", "sample"))
        samples.setdefault(key, []).append(trace)
    chosen: list[dict[str, Any]] = []
    used = 0
    for key, group in samples.items():
        expected = sum(map(_characters, group))
        if chosen and used + expected > budget:
            continue
        if expected > budget:
            group = [trace for trace in group if not trace.metadata.get("control")] or group
        used += expected
        chosen.append(_sample(key, group, detector))
    return {"samples": chosen}


def script_json(data: Any) -> str:
    """JSON that may stand inside a script element: no text can end the element or open a comment."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def escape(text: object) -> str:
    """Text for the inside of an element or a quoted attribute."""
    return html.escape(str(text), quote=True)


def _characters(trace: Trace) -> int:
    """Two bytes a value, four characters for three bytes."""
    return prod(array_shape(trace.arrays, "received")) * 8 // 3


def _sample(key: tuple[str, ...], traces: Sequence[Trace], detector: str) -> dict[str, Any]:
    task, condition, sample = key
    first = traces[0]
    words = _words(first, "query")
    return {
        "id": sample,
        "title": " · ".join(part for part in (task, condition, sample) if part),
        "question": str(first.metadata.get("question") or words),
        "answers": [str(answer) for answer in first.metadata.get("answers", ())],
        "runs": [run_data(trace, detector) for trace in traces],
    }


def _words(trace: Trace, label: str) -> str:
    """The text of a region, put together from its tokens."""
    shown = canvas_data(trace.texts_or_ids, [])
    glued = set(shown["glued"])
    text = ""
    for region in trace.regions:
        if region.label == label:
            for place in range(region.start, region.stop):
                text += ("" if place in glued else " ") + shown["tokens"][place]
    return text.strip()
