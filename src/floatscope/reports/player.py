"""The player: one sample step by step, MDM beside ARM. Traces become the JSON that run.js and canvas.js draw.

The report, notebooks and the live page use the same component; docs/howto/report.md describes its data.
"""

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from floatscope.analysis.anchors import detect
from floatscope.analysis.flow import gold_label
from floatscope.analysis.results import Options
from floatscope.analysis.step_map import exchanged
from floatscope.canvas import ANSWER, BOS, QUERY, SCAFFOLD, Region, positions, regions_from_labels
from floatscope.reports.markup import asset, render
from floatscope.token_text import plain_text, text_class
from floatscope.traces import Trace
from floatscope.traces.trace import array_shape

DETECTOR = "zscore(3)"
BUDGET = 4_000_000
"""Characters of player data in a report: several samples under several models."""
MOST_LAYERS = 10
"""Layers of a run in a report: of a deeper model so many, evenly spaced, the first and the last among them."""
TOP_KEYS = 6
VIEWS = ("received_answer", "received_masked")
"""What a token receives from some rows only, beside `received`, which is from all."""
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


def encode_shades(values: ArrayLike) -> dict[str, Any]:
    """Numbers >= 0 as base64 of bytes on a square-root scale: enough for a shade, and half as long as numbers."""
    array = np.asarray(values, dtype=np.float64)
    scale = float(array.max(initial=0.0))
    levels = np.round(np.sqrt(array / scale) * 255) if scale > 0 else np.zeros(array.shape)
    return {"root": scale, "data": base64.b64encode(levels.astype("u1").tobytes()).decode("ascii")}


def run_data(trace: Trace, detector: str = DETECTOR, whole: bool = True) -> dict[str, Any]:
    """One trace as a run of the player; of a report, which has many, not `whole`: fewer layers, no single heads."""
    anchors = detect(trace, detector) > 0.5
    known = trace.metadata
    layers = np.arange(trace.layers)
    if not whole and trace.layers > MOST_LAYERS:
        layers = np.linspace(0, trace.layers - 1, MOST_LAYERS).round().astype(int)
    is_slot = np.isin(np.arange(len(trace.canvas)), trace.slots)
    all_slots = regions_from_labels(np.where(is_slot, ANSWER, QUERY).tolist())
    accuracy = known.get("accuracy")
    return {
        **canvas_data(trace.texts_or_ids, named_regions(trace.regions or all_slots, trace.marks)),
        **events_data(trace),
        "model": str(known.get("control_of", trace.model)),
        "kind": trace.kind,
        "visibility": trace.visibility,
        "control": str(known.get("control", "")),
        "control_name": str(known.get("control_name") or known.get("control", "")),
        "prediction": known.get("prediction"),
        "correct": None if accuracy is None else bool(accuracy),
        "gold": [] if gold_label(trace) == "none" else gold_label(trace).split(" + "),
        "marked": trace.marks.get("gold_answer", np.zeros(0, np.int64)).tolist(),
        "slots": trace.slots.tolist(),
        "layers": len(layers),
        "layer_names": layers.tolist(),
        "of_layers": trace.layers,
        "commit_step": trace.commit_step.tolist(),
        "confidence": [None if np.isnan(value) else round(float(value), 4) for value in trace.confidence],
        "steps": [_step(trace, step, layers, anchors[step, layers]) for step in range(trace.steps)],
        **_regions_data(trace, layers),
        **_commit_data(trace, layers, whole),
        **_candidates_data(trace),
    }


def _step(trace: Trace, step: int, layers: NDArray[np.int64], anchors: NDArray[np.bool_]) -> dict[str, Any]:
    """A step with what tokens receive from the rows of the answer and from masked slots, where the trace has it."""
    views = [name for name in VIEWS if name in trace.arrays and not trace.metadata.get("control")]
    views = [name for name in views if trace.kind != "arm" or name != "received_masked"]
    shades = {name.removeprefix("received_"): encode_shades(trace.arrays[name][step, layers]) for name in views}
    return step_data(trace.received[step, layers], anchors) | shades


def _region_names(trace: Trace) -> tuple[list[str], NDArray[np.float64]]:
    """Documents, question, answer, and all template words as one; and which region belongs to which [region, name].

    What stands around a gap is no question, and called text.
    """
    asked = "text" if {"before", "after"} & set(trace.marks) else QUERY
    called = {BOS: "template", SCAFFOLD: "template", QUERY: asked}
    own = [called.get(one, one) for one in trace.region_labels]
    names = list(dict.fromkeys(own))
    names.sort(key=lambda name: (not name.startswith("doc"), name == "template"))  # stable: else as on the canvas
    return names, np.array([[float(one == name) for name in names] for one in own])


def _regions_data(trace: Trace, layers: NDArray[np.int64]) -> dict[str, Any]:
    """The mass on each document and region at every step, seen from all rows, the answer and masked slots: exact sums.

    `mass`: [view, step, layer, region], head mean.
    """
    if "region_attention" not in trace.arrays or "group_rows" not in trace.arrays or not trace.regions:
        return {}
    names, member = _region_names(trace)
    attention = trace.region_attention[:, layers].mean(axis=2)[..., : len(member)] @ member  # [step, layer, group, n]
    groups = np.array(trace.group_labels)
    rows = trace.group_rows.astype(np.float64)  # [step, group]
    masks = (np.ones(len(groups), bool), np.char.startswith(groups, ANSWER), groups == f"{ANSWER}:masked")
    weights = [rows * mask / np.maximum((rows * mask).sum(axis=1, keepdims=True), 1) for mask in masks]
    mass = np.stack([np.einsum("slgn,sg->sln", attention, weight) for weight in weights])
    return {"by_region": {"names": names, "mass": encode_values(mass)}}


def _commit_data(trace: Trace, layers: NDArray[np.int64], heads: bool) -> dict[str, Any]:
    """Of the row that filled each slot: its strongest keys and its mass on each region; with `heads` those of each.

    [answer, layer, 1 + heads, rank]: first the mean over heads. A key counts in the mean for the heads that have it
    among their strongest, so its mass there is at least what is told.
    """
    if not {"commit_keys", "commit_key_mass", "commit_mass"} <= set(trace.arrays):
        return {}
    keys, mass = (trace.arrays[name][:, layers] for name in ("commit_keys", "commit_key_mass"))  # [A, L, H, K]
    slots, depth, count, ranks = keys.shape
    total = np.zeros((slots, depth, len(trace.canvas)))
    where = np.ogrid[:slots, :depth]
    for head in range(count):
        for rank in range(ranks):
            np.add.at(total, (*where, keys[:, :, head, rank].astype(int)), mass[:, :, head, rank] / count)
    top = min(TOP_KEYS, ranks, total.shape[-1])
    best = np.argsort(-total, axis=-1, kind="stable")[..., :top]  # [A, L, top]
    shown, weights = best[:, :, None], np.take_along_axis(total, best, -1)[:, :, None]
    names, member = _region_names(trace)
    by_region = trace.commit_mass[:, layers, :, : len(member)] @ member  # [A, L, H, name]
    regions = by_region.mean(axis=2, keepdims=True)
    if heads:
        shown = np.concatenate([shown, keys[..., :top]], axis=2)
        weights = np.concatenate([weights, mass[..., :top]], axis=2)
        regions = np.concatenate([regions, by_region], axis=2)
    encoded = base64.b64encode(shown.astype("<u2").tobytes()).decode("ascii")
    told = {"heads": shown.shape[2], "ranks": top, "keys": encoded, "mass": encode_values(weights)}
    return {"commit": told | {"names": names, "regions": encode_values(regions)}}


def _candidates_data(trace: Trace) -> dict[str, Any]:
    """For each step the open slots: [slot, [[text, probability], ...], margin, entropy, KL to the step before]."""
    if not {"candidate_tokens", "candidate_probability", "candidate_entropy", "candidate_kl"} <= set(trace.arrays):
        return {}
    known, tokens = token_texts(trace), trace.candidate_tokens
    steps = []
    for step in range(trace.steps):
        found = []
        for slot in np.flatnonzero(tokens[step, :, 0] >= 0).tolist():
            chances = zip(tokens[step, slot].tolist(), trace.candidate_probability[step, slot].tolist(), strict=True)
            told = [[known.get(token, f"#{token}"), round(chance, 4)] for token, chance in chances if chance >= 5e-4]
            numbers = (trace.arrays[f"candidate_{name}"][step, slot] for name in ("margin", "entropy", "kl"))
            found.append([slot, told, *(None if value < 0 else round(float(value), 4) for value in numbers)])
        steps.append(found)
    return {"candidates": steps}


def token_texts(trace: Trace) -> dict[int, str]:
    """How tokens are shown by id: those of the canvas, and those that slots held or might have taken meanwhile."""
    known = trace.metadata.get("passing_texts", {})
    texts = {int(token): text for token, text in known.items() if token.isdecimal()}
    texts |= dict(zip(trace.canvas.tolist(), trace.texts_or_ids, strict=True))
    return dict(zip(texts, canvas_data(list(texts.values()), [])["tokens"], strict=True))


def events_data(trace: Trace) -> dict[str, Any]:
    """What happened to slots, step by step, where some token was changed or withdrawn: `commit_step` tells the rest.

    A list of [slot, commits or revised or renoised, text] per step.
    """
    events = trace.events if "tokens" in trace.arrays else []
    if not any(name != "commit" for step in events for _, name, _ in step):
        return {}
    names = {"commit": "commits", "revise": "revised", "renoise": "renoised"}
    known = token_texts(trace)
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
        and not (place and (special[place - 1] or plain[place - 1].endswith("\n")))
        and bool((marked and text[:1] not in "Ġ▁ ") or text.startswith("##") or _CLOSING.fullmatch(text))
        for place, text in enumerate(texts)
    ]
    return {
        "tokens": [
            text and (text.strip(" ").replace("\n", "↵").replace("\t", "⇥") or ("\u00a0" if glues else "␣"))
            for text, glues in zip(plain, [*glued[1:], False], strict=True)  # a blank before "1887" is just that
        ],
        "glued": [place for place, sticks in enumerate(glued) if sticks],
        "special": [place for place, faint in enumerate(special) if faint],
        "regions": [list(region) for region in regions],
    }


def player_data(traces: Iterable[Trace], budget: int | None = BUDGET) -> dict[str, Any]:
    """Traces grouped by sample; as many samples as fit into `budget` characters, at least one; None: all, and whole.

    The sample in which an MDM exchanges most of its anchors between its first and its last step comes first, one with
    controls (which those chosen by their answers lack) and beside an ARM if there is any, so that the player opens on
    one in which they move; then those that a model got wrong. Where even the first does not fit, it comes without its
    controls.
    """
    samples: dict[tuple[str, ...], list[Trace]] = {}
    for trace in traces:
        key = tuple(str(trace.metadata.get(name, "")) for name in ("task", "condition", "sample"))
        samples.setdefault(key, []).append(trace)
    chosen: list[dict[str, Any]] = []
    used = 0
    whole = budget is None

    def most(entry: tuple[Any, list[Trace]]) -> tuple[bool, bool, float]:
        far = max(map(moved, entry[1]))
        beside = [bool(trace.metadata.get("control")) for trace in entry[1]], [one.kind == "arm" for one in entry[1]]
        return far > 0 and any(beside[0]), far > 0 and any(beside[1]), far

    ordered = sorted(samples.items(), key=most, reverse=True)
    ordered[1:] = sorted(ordered[1:], key=lambda entry: not any(map(_is_wrong, entry[1])))
    for key, group in ordered:
        expected = sum(map(_characters, group))
        if not whole and chosen and used + expected > budget:
            continue
        if not whole and expected > budget:
            group = [trace for trace in group if not trace.metadata.get("control")] or group
        chosen.append(
            {
                "id": key[-1],
                "title": " · ".join(part for part in key if part),
                "task": key[0],
                "condition": key[1],
                "question": str(group[0].metadata.get("question") or _asked(group[0])),
                "answers": [str(answer) for answer in group[0].metadata.get("answers", ())],
                "runs": [run_data(trace, whole=whole) for trace in group],
            }
        )
        used += len(json.dumps(chosen[-1]))
    return {"samples": chosen}


def _is_wrong(trace: Trace) -> bool:
    return not trace.metadata.get("control") and trace.metadata.get("accuracy") == 0


def _characters(trace: Trace) -> int:
    """About how long a run is in a report: two bytes per value and one per shade, four characters for three bytes."""
    steps, layers, tokens = array_shape(trace.arrays, "received")
    views = 0 if trace.metadata.get("control") else 1 if trace.kind == "arm" else 2
    return steps * min(layers, MOST_LAYERS) * tokens * (2 + views) * 4 // 3


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
    """The player with this trace alone."""
    return traces_html([trace])


def traces_html(traces: Sequence[Trace]) -> str:
    """The player for a cell of a notebook; a second copy of its scripts in the same notebook does nothing."""
    return render(
        "notebook.html",
        name=f"floatscope-player-{next(_numbers)}",
        about=" · ".join(f"{repr(trace).partition(', arrays')[0]})" for trace in traces),
        styles=asset("components.css"),
        scripts=[asset(name) for name in ("run.js", "canvas.js", "player.js")],
        data=player_data(traces, None),
    )
