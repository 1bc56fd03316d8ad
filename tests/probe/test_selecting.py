"""The words that select: pools, heads, tokens that are not there yet, what is drawn by chance, and what is refused."""

import pytest
import torch

import floatscope as fs
from floatscope.probe.selecting import Scene, is_ranked, needs_received, numbers, token_selector

TOKENS = 40


def outliers(*rows):
    """Received attention in which some places hold a part and the others share the rest alike."""
    received = torch.empty(len(rows), TOKENS)
    for own, given in zip(received, rows, strict=True):
        own[:] = (1 - sum(given.values())) / (TOKENS - len(given))
        for place, part in given.items():
            own[place] = part
    return received


def chosen(text, received=None, present=TOKENS, seed=0, **sets):
    """Places that are selected, a list for each row of the selection."""
    there = torch.arange(TOKENS)
    known = {name.replace("_", " "): torch.isin(there, torch.tensor(places)) for name, places in sets.items()}
    found = token_selector(text)(Scene(known, received, seed, there < present))
    return [row.nonzero()[:, 0].tolist() for row in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("anchors(1)", [0]),
        ("anchors(2)", [0, 20]),
        ("anchors(5)", [0, 20]),  # no more stand out
        ("anchors(2, not bos)", [20]),
        ("anchors(2, 1-10)", []),
        ("top(2, 1-30)", [20, 30]),
    ],
)
def test_anchors_stand_out_of_all_tokens_and_are_taken_from_the_pool(text, expected):
    received = outliers({0: 0.3, 20: 0.25, 30: 0.17, 1: 0.02})  # three deviations above the mean are 0.21, two 0.15
    assert chosen(text, received, bos=[0]) == [expected]


def test_an_even_spread_has_no_anchor_whatever_rounding_says():
    received = torch.full((1, TOKENS), 0.025, dtype=torch.float32)
    received[0, 3] += 5e-9
    assert chosen("anchors(3)", received) == [[]]


def test_every_head_picks_for_itself_and_a_twin_holds_as_much_in_each():
    received = outliers({3: 0.4}, {7: 0.2}, {3: 0.1})
    assert chosen("top(1)", received) == [[3], [7], [3]]
    assert chosen("top(1) or bos", received, bos=[0]) == [[0, 3], [0, 7], [0, 3]]
    twins = chosen("like(top(1))", received)
    for row, places, wanted, part in zip(received, twins, (3, 7, 3), (0.4, 0.2, 0.1), strict=True):
        assert wanted not in places and abs(float(row[places].sum()) - part) <= (1 - part) / (TOKENS - 1) / 2 + 1e-6


def test_only_tokens_that_are_there_are_selected():
    received = outliers({30: 0.5, 2: 0.2})
    assert chosen("all", present=5) == [[0, 1, 2, 3, 4]]
    assert chosen("not bos", present=4, bos=[0, 9]) == [[1, 2, 3]]
    assert chosen("doc 1", present=4, doc_1=[2, 3, 4, 5]) == [[2, 3]]
    assert chosen("3-7", present=5) == [[3, 4]]
    assert chosen("top(1)", received, present=30) == [[2]]
    assert chosen("random(4)", present=4) == [[0, 1, 2, 3]]


def test_what_is_drawn_hangs_on_the_seed_alone_and_comes_from_the_pool():
    doc = list(range(10, 20))
    drawn = [chosen("random(3, doc 1)", seed=seed, doc_1=doc)[0] for seed in (*range(12), 0)]
    assert all(len(places) == 3 and {*places} <= {*doc} for places in drawn)
    assert drawn[0] == drawn[-1] and len({*map(tuple, drawn)}) > 8
    held = chosen("random(0.1, doc 1)", outliers({}), doc_1=doc)[0]  # a tenth is four tokens of 40
    assert len(held) == 4 and {*held} <= {*doc}


def test_another_document_is_told_from_absent_ones_and_from_its_own_parts():
    found = {"doc_1": [1, 2, 3], "doc_2": [4, 5, 6], "doc_3": [7, 8, 9, 10, 11], "doc_4": [38]}
    assert chosen("other(doc 2)", **found) == [[1, 2, 3]]
    assert chosen("other(doc 3)", **found, doc_5=[11, 12]) == [[4, 5, 6]]  # that one shares a token with it
    assert chosen("other(doc 1 or doc 2)", **found) == [[7, 8, 9, 10, 11]]
    assert chosen("other(doc 1)", doc_1=[1, 2], doc_2=[], doc_3=[30]) == [[30]]
    assert chosen("other(doc 2)", doc_1=[1, 2, 3], doc_2=[4, 5, 6], doc_3=[7]) == [[1, 2, 3]]  # length counts too
    for sets in ({"doc_1": [1]}, {"doc_1": [], "doc_2": [3]}):
        with pytest.raises(fs.UserError, match="no other document"):
            chosen("other(doc 1)", **sets)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("7-3", "There are no tokens 7-3 on a canvas of 40: positions count from 0"),
        ("40", "There are no tokens 40-40"),
        ("random(3, doc 1)", "3 tokens were to be drawn, and there are 2"),
        ("top(3, doc 1)", "3 tokens were to be picked, and there are 2"),
        ("recent(3, doc 1)", "The last 3 tokens were to be taken, and there are 2"),
        ("doc 11", "There is no 'doc 11' on this canvas: did you mean 'doc 1'"),
        ("topp(3)", r"There is no selection topp\(...\): did you mean 'top'"),
        ("random(1.5)", "from 1 up, or a share of attention between 0 and 1"),
        ("top(0.5)", "from 1 up.$"),
        ("anchors(bos)", "from 1 up.$"),
        ("top(1, bos, doc 1)", "cannot be read"),
        ("(bos", "cannot be read"),
    ],
)
def test_selections_that_cannot_be_are_told(text, sentence):
    with pytest.raises(fs.UserError, match=sentence):
        chosen(text, outliers({}), bos=[0], doc_1=[4, 5])


def test_the_last_token_of_a_canvas_is_one():
    assert chosen("39") == [[39]] and chosen("38-99") == [[38, 39]]


def test_what_needs_a_pass_before_is_told_from_what_does_not():
    texts = ("bos", "random(3)", "recent(2)", "other(doc 1)", "random(0.3)", "random(.3)", "like(bos)", "anchors(2)")
    assert [needs_received(text) for text in texts] == [False] * 4 + [True] * 4
    assert [is_ranked(text) for text in texts] == [False] + [True] * 7


@pytest.mark.parametrize(
    ("text", "count", "what", "expected"),
    [
        ("shallow", 7, "layer", [0, 1, 2]),
        ("middle", 7, "layer", [3, 4]),
        ("deep", 7, "layer", [5, 6]),
        ("middle", 2, "layer", [1]),
        ("deep", 2, "layer", []),
        ("0, 3-4", 5, "layer", [0, 3, 4]),
        ("4", 5, "step", [4]),
        ("25-75%", 4, "step", [1, 2]),
        ("0-10%", 4, "step", []),
        ("0-50%", 5, "step", [0, 1, 2]),  # the third stands at 50%
    ],
)
def test_parts_of_a_stack_and_of_a_run(text, count, what, expected):
    assert sorted(numbers(text, count, what)) == expected


@pytest.mark.parametrize(
    ("text", "what", "sentence"),
    [
        ("3-1", "layer", "There is no layer 3-1: there are 5, counted from 0"),
        ("5", "step", "There is no step 5"),
        ("2-5", "head", "There is no head 2-5"),
        ("deep", "step", r"The steps 'deep' cannot be read: .*\(0-50%\)\.$"),
        ("half", "layer", r"The layers 'half' cannot be read: .*\(0-50%\) or shallow, middle, deep\.$"),
    ],
)
def test_numbers_that_are_not_there_are_told(text, what, sentence):
    with pytest.raises(fs.UserError, match=sentence):
        numbers(text, 5, what)
