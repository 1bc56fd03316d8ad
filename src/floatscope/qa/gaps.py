"""Passages on a canvas: the text around a gap, the tokens that belong into it, and how many of them were recovered.

The tokens are those of the whole passage, whatever of it is shown, so that all layouts ask for the same ones.
"""

from typing import Any, Literal

import numpy as np

from floatscope.canvas import ANSWER, BOS, QUERY, SCAFFOLD, Ids, Prompt, regions_from_labels
from floatscope.errors import UserError
from floatscope.qa.prompts import build_canvas, shares
from floatscope.qa.samples import Sample
from floatscope.qa.world import KINDS, score_facts

Layout = Literal["continue", "infill", "mirrored"]
"""Where the slots stand: behind the text that is shown, inside of it, or before it."""


def build_gap(
    tokenizer: Any,
    sample: Sample,
    slots: int,
    *,
    layout: Layout | None = None,
    context: int = 0,
    room: int | None = None,
) -> Prompt:
    """The canvas of a passage: as many slots as its gap has tokens, `slots` at most; `answer` has the tokens.

    layout: what is shown of the text on either side; default: all that the passage has. What a gap has more than slots
    is known text behind them.
    context: tokens to show, on both sides together, those nearest to the slots; 0: all there are.
    room: the most tokens that the canvas may have. The longer side is cut first, and `cut` says by how much.
    """
    whole = build_canvas(tokenizer, sample.before, sample.answers[0], sample.after)
    assert whole.slots is not None and whole.answer is not None
    ids = whole.ids.copy()
    ids[whole.slots] = whole.answer
    own = np.concatenate([whole.slots, *whole.marks.values()])  # without what the tokenizer puts around a text
    first, start, last = int(own.min()), int(whole.slots[0]), int(own.max()) + 1
    stop = min(start + slots, int(whole.slots[-1]) + 1)
    before, after = ids[first:start], ids[stop:last]
    if layout == "mirrored":
        before = before[:0]
    if layout == "continue" or (layout is None and not sample.after):
        after = after[:0]
    lead, trail = ids[:first], ids[last:]
    wanted = min(len(before) + len(after), context or len(ids))
    space = wanted if room is None else min(wanted, room - len(lead) - len(trail) - (stop - start))
    if space < 0:
        raise UserError(f"{stop - start} slots are more than the {room} tokens that the model can see: ask for fewer.")
    left, right = shares((len(before), len(after)), space)
    before, after = before[len(before) - left :], after[:right]
    parts = {BOS: lead, "before": before, ANSWER: ids[start:stop], "after": after, SCAFFOLD: trail}
    labels = [{"before": QUERY, "after": QUERY}.get(name, name) for name, part in parts.items() for _ in part]
    edges = np.cumsum([0, *map(len, parts.values())])
    places = {name: np.arange(edges[at], edges[at + 1]) for at, name in enumerate(parts)}
    canvas = np.concatenate(list(parts.values()))
    canvas[places[ANSWER]] = 0
    return Prompt(
        text="",
        ids=canvas,
        regions=regions_from_labels(labels),
        marks={name: places[name] for name in ("before", "after") if len(places[name])},
        cut=(wanted - space,),
        slots=places[ANSWER],
        answer=parts[ANSWER],
    )


def score_gap(sample: Sample, canvas: Prompt, said: Ids, text: str) -> dict[str, float]:
    """How much of a gap was recovered by the tokens that were `said`, whose text is `text`.

    recovered: the share of slots that hold the true token. common: what the commonest token of the text that is shown
    would recover. Of the world's passages also the facts that are right, wrong and invented (`world.score_facts`).
    """
    assert canvas.answer is not None and canvas.slots is not None
    size = min(len(said), len(canvas.answer))  # an ARM may have ended early
    shown = np.delete(canvas.ids, canvas.slots)
    common = np.bincount(shown).argmax() if len(shown) else -1
    scores = {
        "recovered": float(np.sum(said[:size] == canvas.answer[:size]) / len(canvas.answer)),
        "common": float(np.mean(canvas.answer == common)),
    }
    kind = KINDS.get(str(sample.metadata.get("kind")))
    return scores | (score_facts(sample, text) if kind is not None and kind.layout else {})
