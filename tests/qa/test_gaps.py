"""Gaps of passages: the canvas against plain slices of the tokens of the whole text, the scores against hand counts."""

import numpy as np
import pytest

from floatscope.canvas import Prompt, Region
from floatscope.errors import UserError
from floatscope.qa.gaps import build_gap, score_gap
from floatscope.qa.prompts import surroundings
from floatscope.qa.samples import Sample
from floatscope.qa.world import World
from tests.qa.tokenizers_made import TOKENIZERS

PASSAGE = Sample(
    "p",
    "",
    ("It was born in Port Alden. ",),
    before="Who was it? The Silver River. ",
    after="Who was it, and where?\nPort Alden.",
)


def parts(tokenizer, sample):
    """Tokens of the whole text, before, inside and after the gap: those that begin before its end are its own."""
    text = sample.before + sample.answers[0] + sample.after
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    start, stop = len(sample.before), len(sample.before + sample.answers[0])
    sides = ([], [], [])
    for token, (first, last) in zip(found["input_ids"], found["offset_mapping"], strict=True):
        middle = (first + last) / 2
        sides[(middle >= start) + (middle >= stop)].append(token)
    return sides


def shown(canvas):
    """The tokens of the canvas, None for a slot."""
    assert [region.stop for region in canvas.regions][-1] == len(canvas.ids)
    return [None if place in canvas.slots else token for place, token in enumerate(canvas.ids.tolist())]


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("slots", [1, 4, 1000])
def test_all_layouts_ask_for_the_same_tokens_of_the_whole_text(name, slots):
    tokenizer = TOKENIZERS[name]
    lead, trail = surroundings(tokenizer)
    before, gap, after = parts(tokenizer, PASSAGE)
    size = min(slots, len(gap))
    rest = gap[size:] + after
    wanted = {
        None: (before, rest), "infill": (before, rest), "continue": (before, []), "mirrored": ([], rest),
    }  # fmt: skip
    for layout, (left, right) in wanted.items():
        canvas = build_gap(tokenizer, PASSAGE, slots, layout=layout)
        assert shown(canvas) == [*lead, *left, *[None] * size, *right, *trail]
        assert canvas.answer.tolist() == gap[:size] and canvas.cut == (0,)
        own = {mark: canvas.ids[places].tolist() for mark, places in canvas.marks.items()}
        assert own == {mark: side for mark, side in (("before", left), ("after", right)) if side}
        place = len(lead) + len(left)
        assert Region("answer", place, place + size) in canvas.regions


def test_what_a_gap_has_more_than_slots_is_shown_only_where_text_follows():
    tokenizer = TOKENIZERS["world"] if "world" in TOKENIZERS else next(iter(TOKENIZERS.values()))
    open_end = Sample("p", "", PASSAGE.answers, before=PASSAGE.before)
    canvas = build_gap(tokenizer, open_end, 2)
    assert len(canvas.slots) == 2 and "after" not in canvas.marks


@pytest.mark.parametrize("name", TOKENIZERS)
def test_context_and_room_keep_the_tokens_nearest_to_the_slots(name):
    tokenizer = TOKENIZERS[name]
    lead, trail = surroundings(tokenizer)
    before, gap, after = parts(tokenizer, PASSAGE)
    rest = gap[3:] + after
    for layout, left, right in (("infill", 3, 2), ("continue", 5, 0), ("mirrored", 0, 5)):
        near = [*lead, *(before[-left:] if left else []), None, None, None, *rest[:right], *trail]
        canvas = build_gap(tokenizer, PASSAGE, 3, layout=layout, context=5)
        assert shown(canvas) == near and canvas.cut == (0,)
        canvas = build_gap(tokenizer, PASSAGE, 3, layout=layout, room=len(near))
        total = {"infill": len(before) + len(rest), "continue": len(before), "mirrored": len(rest)}[layout]
        assert shown(canvas) == near and canvas.cut == (total - 5,)
    short = build_gap(tokenizer, PASSAGE, 3, layout="infill", context=2 * len(before) + 6)  # more than stands before
    assert len(short.marks["before"]) == len(before) and len(short.marks["after"]) == len(before) + 6
    with pytest.raises(UserError, match="more than the 2 tokens that the model can see"):
        build_gap(tokenizer, PASSAGE, 3, room=2)


def made(answer, around=(5, 5, 6)) -> Prompt:
    ids = [*around, *[0] * len(answer)]
    regions = (Region("query", 0, len(around)), Region("answer", len(around), len(ids)))
    return Prompt("", ids, regions, slots=np.arange(len(around), len(ids)), answer=answer)


@pytest.mark.parametrize(
    ("said", "recovered"),
    [([7, 5, 9, 5], 1.0), ([7, 5, 5, 9], 0.5), ([5, 7, 5, 9], 0.0), ([7, 5], 0.5), ([], 0.0), ([1, 5, 9, 5], 0.75)],
)
def test_recovered_is_the_share_of_slots_with_their_true_token(said, recovered):
    scores = score_gap(PASSAGE, made([7, 5, 9, 5]), np.array(said, np.int64), "")
    assert scores == {"recovered": recovered, "common": 0.5}  # 5 is the commonest that is shown


def test_facts_of_the_world_are_scored_beside():
    sample = World(0).samples("passages", 1, documents=5)[0]
    told = sample.answers[0].partition(". ")[0] + "."
    scores = score_gap(sample, made([1, 2]), np.array([1, 3]), f"{told} Nothing else.")
    assert (scores["recovered"], scores["right"], scores["wrong"], scores["invented"]) == (0.5, 0.2, 0, 0)
