"""The player: one sample step by step, MDM beside ARM. Traces become the JSON that canvas.js and player.js draw.

The report, notebooks and the live page use the same component; docs/howto/report.md describes its data.
"""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from floatscope.analysis.anchors import detect
from floatscope.analysis.flow import gold_label
from floatscope.analysis.results import Options
from floatscope.analysis.step_map import exchanged
from floatscope.canvas import ANSWER, QUERY, Region, positions, regions_from_labels
from floatscope.report.markup import asset, render
from floatscope.token_text import plain_text, text_class
from floatscope.traces import Trace
from floatscope.traces.trace import array_shape

DETECTOR = "zscore(3)"
BUDGET = 4_000_000
"""Characters of player data in a report: several samples under several models."""
_LEVELS = 65_535
_SIDE = 50
"""Characters of the text on each side of a gap that are told in a list of samples."""
_numbers = count(1)
_CLOSING = re.compile(r"[.,:;?!)\]}’”%]+")


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
        **canvas_data(trace.texts_or_ids, named_regions(trace.regions or whole, trace.marks)),
        **events_data(trace),
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
        "confidence": [None if np.isnan(value) else round(float(value), 4) for value in trace.confidence],
        "steps": [step_data(trace.received[step], anchors[step]) for step in range(trace.steps)],
    }


def events_data(trace: Trace) -> dict[str, Any]:
    """What happened to slots, step by step, where some token was changed or withdrawn: `commit_step` tells the rest.

    A list of [slot, commits or revised or renoised, text] per step.
    """
    events = trace.events if "tokens" in trace.arrays else []
    if not any(name != "commit" for step in events for _, name, _ in step):
        return {}
    names = {"commit": "commits", "revise": "revised", "renoise": "renoised"}
    texts = {int(token): text for token, text in trace.metadata.get("passing_texts", {}).items()}
    texts |= dict(zip(trace.canvas.tolist(), trace.texts_or_ids, strict=True))
    known = dict(zip(texts, canvas_data(list(texts.values()), [])["tokens"], strict=True))
    shown = [[[slot, names[name], known.get(token, f"#{token}")] for slot, name, token in step] for step in events]
    return {"events": shown}


def named_regions(regions: Iterable[Region], marks: Mapping[str, ArrayLike]) -> list[tuple[str, int, int]]:
    """Labels and places of regions; text around the slots of a canvas is called after the side on which it stands."""
    sides = {place: name for name in ("before", "after") for place in np.asarray(marks.get(name, ()), int).tolist()}
    return [(sides.get(r.start, r.label) if r.label == QUERY else r.label, r.start, r.stop) for r in regions]


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


def player_data(traces: Iterable[Trace], budget: int = BUDGET) -> dict[str, Any]:
    """Traces grouped by sample; as many samples as fit into `budget` characters, at least one.

    The samples in which an MDM exchanges most of its anchors between its first and its last step come first, so that
    the player opens on one in which they move. Where even the first does not fit, it comes without its controls.
    """
    samples: dict[tuple[str, ...], list[Trace]] = {}
    for trace in traces:
        key = tuple(str(trace.metadata.get(name, "")) for name in ("task", "condition", "sample"))
        samples.setdefault(key, []).append(trace)
    chosen: list[dict[str, Any]] = []
    used = 0
    for key, group in sorted(samples.items(), key=lambda entry: max(map(moved, entry[1])), reverse=True):
        # two bytes per value, four characters for three bytes
        expected = sum(prod(array_shape(trace.arrays, "received")) * 8 // 3 for trace in group)
        if chosen and used + expected > budget:
            continue
        if expected > budget:
            group = [trace for trace in group if not trace.metadata.get("control")] or group
        used += expected
        chosen.append(
            {
                "id": key[-1],
                "title": " · ".join(part for part in key if part),
                "task": key[0],
                "condition": key[1],
                "question": str(group[0].metadata.get("question") or _asked(group[0])),
                "answers": [str(answer) for answer in group[0].metadata.get("answers", ())],
                "runs": [run_data(trace) for trace in group],
            }
        )
    return {"samples": chosen}


def _asked(trace: Trace) -> str:
    """What a trace that does not say it was asked: the words of its query, or those around the gap it had to fill."""
    shown = canvas_data(trace.texts_or_ids, [])
    glued = set(shown["glued"])

    def words(places: Iterable[int]) -> str:
        return "".join(("" if place in glued else " ") + shown["tokens"][place] for place in places).strip()

    before, after = (words(trace.marks.get(side, ())) for side in ("before", "after"))
    if not before + after:
        return words(positions(trace.regions, QUERY))
    before = before if len(before) <= _SIDE else f"…{before[-_SIDE:]}"
    after = after if len(after) <= _SIDE else f"{after[:_SIDE]}…"
    return f"{before} ▁▁▁ {after}".strip()


def moved(trace: Trace) -> float:
    """The share of anchors that a trained MDM exchanges from its first step to its last; 0 for ARMs and controls."""
    counts = trace.kind != "arm" and not trace.metadata.get("control")
    return exchanged(trace, Options(detector=DETECTOR)) if counts else 0.0


def trace_html(trace: Trace) -> str:
    """The player with this trace alone; a second copy of its scripts in the same notebook does nothing."""
    return render(
        "notebook.html",
        name=f"floatscope-player-{next(_numbers)}",
        about=f"{repr(trace).partition(', arrays')[0]})",
        styles=asset("components.css"),
        scripts=[asset("canvas.js"), asset("player.js")],
        data=player_data([trace]),
    )
