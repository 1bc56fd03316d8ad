"""Every edit equals a plain T x T computation: its logits and the attention that comes of it."""

import numpy as np
import pytest
import torch

import floatscope as fs
from floatscope.canvas import Prompt, Region
from floatscope.decoding.generation import make_batch
from floatscope.models.edited import EditedModel, make_editors
from floatscope.probe.editing import token_sets
from floatscope.probe.edits import Edit
from floatscope.probe.selecting import Scene, numbers, token_selector
from tests.probe.plain_edits import hide, run_edited, softmax
from tests.tiny_models import MASK, tiny_model

FAMILIES = ("llada", "dream", "bert", "sdar", "modernbert")
SLOTS = 4


def canvas(length, seed=0):
    """bos, a query, two documents, slots."""
    ids = np.random.default_rng(seed).integers(3, 90, length)
    edges = [0, 1, 4, 4 + (length - 4) // 2, length]
    names = ("bos", "query", "doc 1", "doc 2")
    regions = tuple(Region(*of) for of in zip(names, edges[:-1], edges[1:], strict=True))
    return Prompt("", ids, regions, {"gold_answer": np.array([6, 7])})


def logits_of(model, prompts, edits):
    """Logits [B][A, V] of all slots at step 0, by the edited model."""
    sampler = fs.ThresholdSampler(length=SLOTS)
    batch = make_batch(model, prompts, sampler, [11 + place for place in range(len(prompts))])
    canvases = [prompt.with_slots(SLOTS) for prompt in prompts]
    edited = EditedModel(model, make_editors(model, canvases, edits, sampler, batch))
    with torch.no_grad():
        return edited.score(batch, batch.slots).numpy()


def tokens_of(prompt):
    return np.concatenate([prompt.ids, np.full(SLOTS, MASK)])


def check(model, edit, change, after=lambda layer, output: output, length=13):
    prompt = canvas(length)
    found = logits_of(model, [prompt], edit if isinstance(edit, list) else [edit])[0]
    expected, _ = run_edited(model, tokens_of(prompt), change, after)
    np.testing.assert_allclose(found, expected[-SLOTS:], atol=2e-4, rtol=1e-4)
    plain, _ = run_edited(model, tokens_of(prompt), lambda layer, scores: softmax(scores))
    assert np.abs(plain[-SLOTS:] - expected[-SLOTS:]).max() > 1e-3  # the edit does something


def pairs(rows, keys, tokens=13 + SLOTS):
    """bool [T, T]."""
    found = np.zeros((tokens, tokens), bool)
    found[np.ix_(rows, keys)] = True
    return found


DOC_2 = list(range(8, 13))
EVERY = list(range(13 + SLOTS))
ANSWER = list(range(13, 13 + SLOTS))


@pytest.mark.parametrize("name", FAMILIES)
def test_block_hides_keys_from_rows(name):
    hidden = pairs(EVERY, DOC_2)
    check(tiny_model(name), Edit("block", keys="doc 2"), lambda layer, scores: hide(scores, hidden))


@pytest.mark.parametrize("name", FAMILIES)
def test_block_of_the_first_token_leaves_every_row_something(name):
    hidden = pairs(EVERY, [0])
    check(tiny_model(name), Edit("block", keys="bos"), lambda layer, scores: hide(scores, hidden))


def test_rows_layers_and_heads_bound_an_edit():
    hidden = pairs(ANSWER, DOC_2)

    def change(layer, scores):
        found = softmax(scores)
        if layer == 1:
            found[[0, 3]] = hide(scores, hidden)[[0, 3]]
        return found

    edit = Edit("block", keys="doc 2", rows="answer", layers="1", heads="0,3")
    check(tiny_model("llada"), edit, change)


@pytest.mark.parametrize("name", FAMILIES)
def test_keep_hides_everything_else(name):
    hidden = ~pairs(EVERY, [0, *DOC_2])
    check(tiny_model(name), Edit("keep", keys="bos or doc 2"), lambda layer, scores: hide(scores, hidden))


@pytest.mark.parametrize("name", FAMILIES)
def test_zero_loses_the_mass(name):
    left = np.where(pairs(EVERY, [1, 2, 3]), 0, 1)
    check(tiny_model(name), Edit("zero", keys="query"), lambda layer, scores: softmax(scores) * left)


def test_scale_before_and_after_the_softmax():
    bias = np.where(pairs(EVERY, DOC_2), np.log(0.25), 0)
    edit = Edit("scale", keys="doc 2", factor=0.25, when="before")
    check(tiny_model("llada"), edit, lambda layer, scores: softmax(scores + bias))
    factor = np.where(pairs(EVERY, DOC_2), 3.0, 1)
    check(tiny_model("llada"), Edit("scale", keys="doc 2", factor=3.0), lambda layer, scores: softmax(scores) * factor)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_sink_takes_its_part_of_every_row(name):
    def change(layer, scores):
        wider = np.concatenate([scores, np.zeros((*scores.shape[:2], 1))], -1)
        return softmax(wider)[..., :-1]

    check(tiny_model(name), Edit("sink"), change)


def test_sinks_of_different_rows_are_there_together():
    def change(layer, scores):
        found = softmax(scores)
        wider = np.concatenate([scores, np.zeros((*scores.shape[:2], 1))], -1)
        rows = [1, 2, 3, *ANSWER]
        found[:, rows] = softmax(wider)[:, rows, :-1]
        return found

    check(tiny_model("llada"), [Edit("sink", rows="query"), Edit("sink", rows="answer")], change)


@pytest.mark.slow
@pytest.mark.parametrize("edit", [Edit("block", keys="doc 2"), Edit("zero", keys="query"), Edit("sink")])
def test_matrices_show_attention_as_it_was_changed(edit):
    """The same sums of rows as the kernel counted, and others than without the edit."""
    model, prompt = tiny_model("llada"), canvas(13)
    sampler = fs.LLaDASampler(steps=SLOTS, length=SLOTS)
    found, plain = (fs.trace(model, prompt, sampler, keep="matrices", edits=edits) for edits in ([edit], []))
    sums = found.head_attention.sum(3)  # [step, layer, head, token]
    np.testing.assert_allclose(found.attention.sum(3), sums, atol=1e-5)
    assert np.abs(plain.attention[0] - found.attention[0]).max() > 1e-3


def test_heads_go_to_zero_or_to_their_mean():
    def zero(layer, output):
        return output * np.where((np.arange(4) == 2) & (layer == 1), 0, 1)[None, :, None]

    check(tiny_model("llada"), Edit("heads", heads="1.2"), lambda layer, scores: softmax(scores), zero)

    def mean(layer, output):
        found = output.copy()
        found[:, 2] = output[:, 2].mean(0)
        return found if layer == 1 else output

    edit = Edit("heads", heads="1.2", to_mean=True)
    check(tiny_model("llada"), edit, lambda layer, scores: softmax(scores), mean)


def test_edits_of_different_heads_of_a_layer_act_together():
    def mean(layer, output):
        found = output.copy()
        found[:, [0, 2]] = output[:, [0, 2]].mean(0)
        return found if layer == 1 else output

    edits = [Edit("heads", heads=head, to_mean=True) for head in ("1.2", "1.0")]
    prompt = canvas(13)
    found = logits_of(tiny_model("llada"), [prompt], edits)[0]
    expected, _ = run_edited(tiny_model("llada"), tokens_of(prompt), lambda layer, scores: softmax(scores), mean)
    np.testing.assert_allclose(found, expected[-SLOTS:], atol=2e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("by_head", [False, True])
@pytest.mark.parametrize("name", ["llada", "dream", "sdar"])
def test_top_keys_are_picked_per_layer_from_the_pass_without_edits(name, by_head):
    model, prompt = tiny_model(name), canvas(13)
    _, unedited = run_edited(model, tokens_of(prompt), lambda layer, scores: softmax(scores))

    def change(layer, scores):
        received = unedited[layer].mean(1)  # [H, T]
        if not by_head:
            received = np.repeat(received.mean(0, keepdims=True), len(received), 0)
        hidden = np.zeros(scores.shape, bool)
        for head, row in enumerate(received):
            hidden[head][:, np.argsort(-row)[:3]] = True
        return hide(scores, hidden)

    check(model, Edit("block", keys="top(3)", by_head=by_head), change)


def test_pinned_keys_keep_the_mass_of_the_first_pass_where_something_else_changes_it():
    model, prompt = tiny_model("llada"), canvas(13)
    _, unedited = run_edited(model, tokens_of(prompt), lambda layer, scores: softmax(scores))
    hidden, pinned = pairs(EVERY, DOC_2), [0, 1, 2, 3]

    def change(layer, scores):
        found = hide(scores, hidden)
        mass = unedited[layer][..., pinned].sum(-1, keepdims=True)
        held = found[..., pinned].sum(-1, keepdims=True)
        inside = np.isin(np.arange(found.shape[-1]), pinned)
        return np.where(inside, found * mass / held, found * (1 - mass) / (1 - held))

    prompt = canvas(13)
    edits = [Edit("block", keys="doc 2"), Edit("pin", keys="bos or query")]
    found = logits_of(model, [prompt], edits)[0]
    expected, _ = run_edited(model, tokens_of(prompt), change)
    np.testing.assert_allclose(found, expected[-SLOTS:], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_each_sample_of_a_padded_batch_has_its_own_edits(name):
    model, prompts = tiny_model(name), [canvas(13), canvas(18, seed=1), canvas(9, seed=2)]
    lists = [[Edit("block", keys="doc 2")], [], [Edit("zero", keys="query"), Edit("block", keys="bos", rows="answer")]]
    together = logits_of(model, prompts, lists)
    for number, (prompt, edits) in enumerate(zip(prompts, lists, strict=True)):
        alone = logits_of(model, [prompt], [edits] if edits else [[]])
        np.testing.assert_allclose(together[number], alone[0], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_hiding_alone_is_a_mask_for_sdpa_and_the_same_in_the_kernel(name):
    """A block that the kernel runs, beside an edit that changes nothing, gives what SDPA gives with a mask."""
    model, prompt = tiny_model(name), canvas(13)
    masked = logits_of(model, [prompt], [Edit("block", keys="doc 2")])
    kernel = logits_of(model, [prompt], [Edit("block", keys="doc 2"), Edit("scale", keys="bos", factor=1.0)])
    np.testing.assert_allclose(masked, kernel, atol=2e-4, rtol=1e-4)


def test_an_edit_that_selects_nothing_leaves_every_bit():
    model, prompt = tiny_model("llada"), canvas(13)
    batch = make_batch(model, [prompt], fs.ThresholdSampler(length=SLOTS))
    with torch.no_grad():
        plain = model.score(batch, batch.slots).numpy()
    idle = [Edit("zero", keys="doc 2", steps="3"), Edit("zero", keys="answer:committed")]
    idle += [Edit("heads", heads="2.1", layers="0"), Edit("block", keys="bos", steps="1-3")]
    found = [logits_of(model, [prompt], [edit]) for edit in idle]
    for one in found[:3]:
        assert np.array_equal(one, found[0])  # the kernel's own path
        np.testing.assert_allclose(one, plain, atol=1e-5)
    assert np.array_equal(found[3], plain)  # SDPA's


def scene(received=(0.4, 0.1, 0.05, 0.2, 0.05, 0.2), seed=0):
    places = torch.arange(6)
    sets = {"bos": places < 1, "doc 2": (places > 0) & (places < 3)}
    return Scene(sets, torch.tensor([received]), seed, torch.ones(6, dtype=torch.bool))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("doc 2", [1, 2]),
        ("not doc 2", [0, 3, 4, 5]),
        ("bos or doc 2", [0, 1, 2]),
        ("not (bos or doc 2)", [3, 4, 5]),
        ("not bos and 0-3", [1, 2, 3]),
        ("top(1)", [0]),
        ("top(1, not bos)", [3]),
        ("top(3) and not bos", [3, 5]),
        ("4", [4]),
        ("all", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_selections(text, expected):
    assert token_selector(text)(scene())[0].nonzero()[:, 0].tolist() == expected


def test_tokens_that_are_not_there_yet_make_no_anchor_stand_out():
    """One of eight lies 2.6 deviations above their mean; eight more, of which an ARM has written none, are no part."""
    received = torch.tensor([[0.4, *[0.1] * 7, *[0.0] * 8]])
    for present, expected in ((8, 0), (16, 1)):
        at = Scene({}, received, present=torch.arange(16) < present)
        assert int(token_selector("anchors(1)")(at).sum()) == expected


def test_columns_of_like_mass_hold_as_much_and_none_of_the_picked():
    rng = np.random.default_rng(0)
    received = rng.dirichlet(np.full(200, 0.5))
    sets = {"gold_answer": torch.arange(200) < 100}
    for seed in range(20):
        at = Scene(sets, torch.tensor(received[None], dtype=torch.float32), seed, torch.ones(200, dtype=torch.bool))
        chosen = token_selector("like(top(5), not gold_answer)")(at)[0].numpy()
        assert not chosen[:100].any() and not chosen[np.argsort(-received)[:5]].any()
        assert abs(received[chosen].sum() - np.sort(received)[-5:].sum()) <= np.sort(received)[-6]
        drawn = token_selector("random(7)")(at)[0]
        assert int(drawn.sum()) == 7


@pytest.mark.parametrize(("share", "expected"), [(0.3, 2), (0.35, 3), (0.65, 5), (0.7, 6)])
def test_a_share_of_attention_is_drawn_as_nearly_as_tokens_allow(share, expected):
    """Of eight tokens that hold an eighth each: 2.4 are two, 2.8 three."""
    at = Scene({}, torch.full((1, 8), 0.125), 0, torch.ones(8, dtype=torch.bool))
    assert int(token_selector(f"random({share})")(at).sum()) == expected


def test_the_other_document_is_the_one_of_like_length_and_place():
    places = torch.arange(30)
    sets = {
        "doc 1": places < 5,
        "doc 2": (places >= 5) & (places < 10),
        "doc 3": (places >= 10) & (places < 11),
        "doc 4": places >= 11,
    }
    at = Scene(sets, None, 0, torch.ones(30, dtype=torch.bool))
    assert token_selector("other(doc 2)")(at)[0].tolist() == sets["doc 1"].tolist()


@pytest.mark.parametrize(
    ("text", "count", "what", "expected"),
    [
        ("all", 4, "layer", [0, 1, 2, 3]),
        ("shallow", 6, "layer", [0, 1]),
        ("deep", 6, "layer", [4, 5]),
        ("first,last", 5, "step", [0, 4]),
        ("1-3", 5, "step", [1, 2, 3]),
        ("0-50%", 4, "step", [0, 1]),
        ("50-100%", 4, "step", [2, 3]),
    ],
)
def test_layers_and_steps(text, count, what, expected):
    assert sorted(numbers(text, count, what)) == expected


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Edit("blok", keys="bos"), "did you mean 'block'"),
        (lambda: Edit("block"), "name some, with keys"),
        (lambda: Edit("block", keys="top(0)"), "from 1 up"),
        (lambda: Edit("block", keys="bos and"), "cannot be read"),
        (lambda: Edit("block", keys="bos", rows="top(3)"), "picked by rank"),
        (lambda: Edit("scale", keys="bos", factor=float("nan")), "number from 0 up"),
        (lambda: logits_of(tiny_model("llada"), [canvas(13)], [Edit("block", keys="doc 9")]), "There is no 'doc 9'"),
        (lambda: logits_of(tiny_model("llada"), [canvas(13)], [Edit("block", keys="top(99)")]), "99 tokens"),
        (lambda: logits_of(tiny_model("llada"), [canvas(13)], [Edit("heads", heads="0.9")]), "There is no head 0.9"),
        (lambda: logits_of(tiny_model("llada"), [canvas(13)], [Edit("heads", layers="7")]), "There is no layer 7"),
        (
            lambda: logits_of(tiny_model("llada"), [canvas(13)], [Edit("keep", keys="answer:committed")]),
            "nothing would",
        ),
    ],
)
def test_impossible_edits_are_refused_in_a_sentence(make, sentence):
    with pytest.raises(fs.UserError, match=sentence):
        make()


def test_controls_are_edits_of_the_same_size():
    edit = Edit("block", keys="anchors(3)", layers="deep")
    found = edit.controls()
    assert {name: one.keys for name, one in found.items()} == {
        "as many": "random(3)",
        "as much": "like(anchors(3))",
        "as much, answer spared": "like(anchors(3), not gold_answer)",
    }
    assert all(one.layers == "deep" and one.op == "block" for one in found.values())
    assert Edit("block", keys="doc 2").controls()["another document"].keys == "other(doc 2)"
    others = Edit("heads", heads="1.2, 1.3").controls()["other heads"]
    chosen = others.heads_at(1, 3, 4, seed=5)
    assert int(chosen.sum()) == 2 and not chosen[2:].any() and not others.heads_at(0, 3, 4, seed=5).any()


def test_recent_tokens_are_the_last_of_the_pool():
    sets = {"answer": torch.tensor([False] * 6 + [True] * 2)}
    scene = Scene(sets, present=torch.tensor([True] * 7 + [False]))
    assert token_selector("recent(2)")(scene)[0].nonzero()[:, 0].tolist() == [5, 6]
    assert token_selector("recent(3, not answer) or answer")(scene)[0].nonzero()[:, 0].tolist() == [3, 4, 5, 6]
    with pytest.raises(fs.UserError, match="The last 9 tokens"):
        token_selector("recent(9)")(scene)


def test_twins_stand_where_what_is_picked_stood():
    keys = {name: twin.keys for name, twin in Edit("keep", keys="top(8, not answer) or answer").controls().items()}
    assert keys == {
        "as many": "random(8, not answer) or answer",
        "as much": "like(top(8, not answer), not answer) or answer",
        "most recent": "recent(8, not answer) or answer",
    }
    spared = Edit("block", keys="anchors(3, not bos)").controls()["as much, answer spared"].keys
    assert spared == "like(anchors(3, not bos), (not bos) and not gold_answer)"
    token_selector(spared)
    assert [twin.keys for twin in Edit("block", keys="class structural").controls().values()] == [
        "like(class structural)"
    ]


def test_structural_and_lexical_tokens_share_the_prompt():
    prompt = canvas(13).with_slots(2)
    classes = ["special", "content", "number", "function", "punctuation", *["content"] * 10]
    sets = token_sets(prompt, classes)
    assert sets["class structural"].nonzero()[:, 0].tolist() == [0, 4]
    assert sets["class lexical"].nonzero()[:, 0].tolist() == [1, 2, *range(5, 13)]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Edit("scale", keys="bos", when="during"), "when='during' is not known: Known are before, after"),
        (lambda: Edit("block", keys="bos", source="last"), "source='last' is not known"),
        (lambda: Edit("block", keys="bos", outputs=True), "outputs is of the edit patch, and not of block"),
        (lambda: Edit("scale", keys="bos", factor=0.0, when="before"), "above 0 before the softmax"),
        (lambda: Edit("scale", keys="bos", factor=-0.5), "from 0 up"),
        (lambda: Edit("zero"), "An edit that zeros all keys"),
        (lambda: Edit("pin"), "An edit that pins all keys"),
        (lambda: Edit("heads", heads="1.4").heads_at(0, 3, 4, 0), "There is no head 1.4: .* 3 layers of 4 heads"),
        (lambda: Edit("heads", heads="0.1, 3.0").heads_at(0, 3, 4, 0), "There is no head 3.0"),
        (
            lambda: logits_of(tiny_model("llada"), [canvas(13)], [Edit("pin", keys="bos"), Edit("pin", keys="query")]),
            "give one pin, or pins of different layers",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(make, sentence):
    with pytest.raises(fs.UserError, match=sentence):
        make()


def test_pins_of_different_layers_hold_each_its_own_keys():
    model, prompt = tiny_model("llada"), canvas(13)
    _, unedited = run_edited(model, tokens_of(prompt), lambda layer, scores: softmax(scores))
    hidden = pairs(EVERY, DOC_2)

    def change(layer, scores):
        found = hide(scores, hidden)
        if layer == 2:
            return found
        inside = np.isin(np.arange(found.shape[-1]), [0] if layer == 0 else [1, 2, 3])
        mass = unedited[layer][..., inside].sum(-1, keepdims=True)
        held = found[..., inside].sum(-1, keepdims=True)
        return np.where(inside, found * mass / held, found * (1 - mass) / (1 - held))

    edits = [Edit("block", keys="doc 2"), Edit("pin", keys="bos", layers="0"), Edit("pin", keys="query", layers="1")]
    check(model, edits, change)


def test_a_pin_of_some_heads_and_rows_leaves_the_others():
    model, prompt = tiny_model("llada"), canvas(13)
    _, unedited = run_edited(model, tokens_of(prompt), lambda layer, scores: softmax(scores))
    hidden, inside = pairs(EVERY, DOC_2), np.isin(np.arange(17), [1, 2, 3])

    def change(layer, scores):
        found = hide(scores, hidden)
        mass = unedited[layer][..., inside].sum(-1, keepdims=True)
        held = found[..., inside].sum(-1, keepdims=True)
        pinned = np.where(inside, found * mass / held, found * (1 - mass) / (1 - held))
        for head in (1, 3):
            found[head, 13:] = pinned[head, 13:]
        return found

    check(model, [Edit("block", keys="doc 2"), Edit("pin", keys="query", rows="answer", heads="1,3")], change)


@pytest.mark.parametrize(
    ("edit", "static", "needs_pass", "twins"),
    [
        (Edit("block", keys="doc 1"), True, False, ["another document"]),
        (Edit("keep", keys="doc 1 or bos"), True, False, []),
        (Edit("block", keys="doc 1", rows="open"), False, False, ["another document"]),
        (Edit("block", keys="answer:committed"), False, False, []),
        (Edit("block", keys="recent(2)"), False, False, []),
        (Edit("block", keys="random(0.2)"), False, True, []),
        (Edit("zero", keys="doc 1"), False, False, ["another document"]),
        (Edit("pin", keys="bos"), False, True, []),
        (Edit("sink"), False, False, []),
        (Edit("heads", heads="0,3"), False, False, []),
        (Edit("heads", heads="0.3"), False, False, ["other heads"]),
        (Edit("heads", heads="random(0.3)"), False, False, []),
        (Edit("zero", keys="class content"), False, False, ["as much"]),
    ],
)
def test_what_an_edit_needs_and_what_it_is_held_to(edit, static, needs_pass, twins):
    assert (edit.is_static, edit.needs_pass, [*edit.controls()]) == (static, needs_pass, twins)


def test_heads_of_a_layer_and_others_by_chance_in_their_place():
    edit = Edit("heads", heads="2.0, 0.3, 2.1")
    assert [edit.heads_at(layer, 3, 4, 0).nonzero()[:, 0].tolist() for layer in range(3)] == [[3], [], [0, 1]]
    twin = edit.controls()["other heads"]
    assert twin.heads == "random(2.0, 0.3, 2.1)"
    drawn = [twin.heads_at(0, 3, 4, seed).nonzero()[:, 0].tolist() for seed in range(20)]
    assert {tuple(one) for one in drawn} == {(0,), (1,), (2,)}
    most = Edit("heads", heads="random(1.0, 1.1, 1.2)").heads_at(1, 3, 4, 0)
    assert most.tolist() == [False, False, False, True]  # there is no other than this one


def test_classes_of_tokens_are_named_where_they_are_known():
    prompt = canvas(13).with_slots(2)
    sets = token_sets(prompt, ["special", *["content"] * 3, "number", *["content"] * 10])
    assert sets["class number"].nonzero()[:, 0].tolist() == [4]
    assert sets["gold_answer"].nonzero()[:, 0].tolist() == [6, 7]
    assert not any(name.startswith("class") for name in token_sets(prompt))
    scaffold = Prompt("", np.arange(5), (Region("scaffold", 0, 2), Region("query", 2, 4), Region("scaffold", 4, 5)))
    sets = token_sets(scaffold, ["content", "function", "content", "function", "number"])
    assert sets["class structural"].nonzero()[:, 0].tolist() == [0, 1, 4]
    assert sets["class lexical"].nonzero()[:, 0].tolist() == [2]


def test_what_one_seed_draws_another_does_not():
    model, prompt = tiny_model("llada"), canvas(13)
    drawn = [logits_of(model, [prompt], [Edit("zero", keys="random(4)", seed=seed)]) for seed in (0, 0, 1)]
    assert np.array_equal(drawn[0], drawn[1]) and np.abs(drawn[0] - drawn[2]).max() > 1e-3


def test_a_block_of_single_heads_is_one_in_their_layers_alone():
    hidden = pairs(EVERY, DOC_2)

    def change(layer, scores):
        found = softmax(scores)
        for head in {0: [1], 2: [0, 3]}.get(layer, []):
            found[head] = hide(scores, hidden)[head]
        return found

    check(tiny_model("llada"), Edit("block", keys="doc 2", heads="2.0, 0.1, 2.3"), change)


def test_a_pin_holds_a_mass_where_some_attention_is_lost():
    model, prompt = tiny_model("llada"), canvas(13)
    _, unedited = run_edited(model, tokens_of(prompt), lambda layer, scores: softmax(scores))
    left, inside = np.where(pairs(EVERY, DOC_2), 0, 1), np.isin(np.arange(17), [1, 2, 3])

    def change(layer, scores):
        found = softmax(scores) * left
        whole, held = found.sum(-1, keepdims=True), found[..., inside].sum(-1, keepdims=True)
        mass = unedited[layer][..., inside].sum(-1, keepdims=True)
        return np.where(inside, found * mass / held, found * (whole - mass) / (whole - held))

    check(model, [Edit("zero", keys="doc 2"), Edit("pin", keys="query")], change)


def test_each_sample_of_a_batch_draws_by_its_own_seed():
    model, prompt = tiny_model("llada"), canvas(13)
    one, other = logits_of(model, [prompt, prompt], [Edit("zero", keys="random(4)")])  # seeds 11 and 12
    assert np.abs(one - other).max() > 1e-3
