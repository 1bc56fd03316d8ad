"""Likelihoods and patches under edits, against full T x T attention in numpy, pass by pass."""

from itertools import combinations
from math import comb

import numpy as np
import polars as pl
import pytest

import floatscope as fs
from floatscope.models.likelihood import Pair, log_likelihoods, replayed
from floatscope.probe.edits import Edit, read_edit
from tests.probe.plain_edits import hide, run_edited, softmax
from tests.probe.test_edits import canvas
from tests.tiny_models import MASK, tiny_model

PROMPTS = [canvas(13), canvas(18, seed=1)]
ANSWERS = [np.array([7, 30, 8]), np.array([12, 5])]
LENGTH = 4
BLOCK = [fs.Edit("block", keys="doc 2")]


def hidden_in(prompt, width):
    found = np.zeros((width, width), bool)
    region = prompt.regions[-1]
    found[:, region.start : region.stop] = True
    return found


def log_softmax(logits, masked=True):
    logits = logits.astype(float).copy()
    if masked:
        logits[..., MASK] = -1e9
    return np.log(np.maximum(softmax(logits), 1e-300))


def plain_replay(model, prompt, answer, edited=True):
    """The sum over the answer's slots, and log-probabilities [slots, V] of all slots at step 0."""
    start, tokens = len(prompt.ids), np.concatenate([prompt.ids, np.full(LENGTH, MASK)])
    total, first = 0.0, np.zeros(0)
    for step, token in enumerate(answer):
        hidden = hidden_in(prompt, len(tokens)) & edited
        logits, _ = run_edited(model, tokens, lambda layer, scores, hidden=hidden: hide(scores, hidden))
        first = log_softmax(logits[start:]) if step == 0 else first
        total += log_softmax(logits[start + step])[token]
        tokens[start + step] = token
    return total, first


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llada", "dream"])
def test_a_replay_of_an_mdm_is_that_of_plain_passes(name):
    model = tiny_model(name)
    found = replayed(model, PROMPTS, ANSWERS, LENGTH, [0, 1], BLOCK)
    for one, prompt, answer in zip(found, PROMPTS, ANSWERS, strict=True):
        total, after = plain_replay(model, prompt, answer)
        _, before = plain_replay(model, prompt, answer, edited=False)
        assert one["log_probability"] == pytest.approx(total, abs=2e-4)
        apart = (np.exp(before) * (before - after)).sum(-1).mean()
        assert one["kl"] == pytest.approx(apart, abs=1e-4) and apart > 1e-4
        tokens = np.concatenate([prompt.ids, np.full(LENGTH, MASK)])
        _, attention = run_edited(model, tokens, lambda layer, scores: softmax(scores))
        span = slice(prompt.regions[-1].start, prompt.regions[-1].stop)
        held = [layer.mean((0, 1))[span].sum() for layer in attention]
        single = replayed(model, [prompt], [answer[:1]], LENGTH, [0], BLOCK)[0]
        assert single["removed"] == pytest.approx(np.mean(held), abs=1e-5)
        total, _ = plain_replay(model, prompt, answer, edited=False)
        assert replayed(model, [prompt], [answer], LENGTH, [0])[0] == pytest.approx(
            {"log_probability": total}, abs=2e-4
        )


@pytest.mark.slow
def test_of_a_batch_each_has_the_divergence_of_its_own_open_slots():
    """Blocks of 4 from position 0: at step 0 three slots are open after 13 tokens, and two after 18."""
    model = tiny_model("sdar")
    assert model.block == 4
    together = replayed(model, PROMPTS, ANSWERS, LENGTH, [0, 1], BLOCK)
    for one, prompt, answer in zip(together, PROMPTS, ANSWERS, strict=True):
        alone = replayed(model, [prompt], [answer], LENGTH, [0], BLOCK)[0]
        assert one["kl"] == pytest.approx(alone["kl"], rel=1e-4) and one["kl"] > 1e-4


@pytest.mark.slow
def test_a_replay_of_an_arm_is_the_chain_rule_in_one_causal_pass():
    model = tiny_model("llama")
    found = replayed(model, PROMPTS, ANSWERS, LENGTH, [0, 1], BLOCK)
    pairs = [Pair(tuple(p.ids.tolist()), tuple(a.tolist()), p) for p, a in zip(PROMPTS, ANSWERS, strict=True)]
    likelihoods = log_likelihoods(model, pairs, edits=BLOCK)
    for one, value, prompt, answer in zip(found, likelihoods, PROMPTS, ANSWERS, strict=True):
        tokens, start = np.concatenate([prompt.ids, answer[:-1]]), len(prompt.ids)
        hidden = hidden_in(prompt, len(tokens))
        edited, _ = run_edited(model, tokens, lambda layer, scores, hidden=hidden: hide(scores, hidden))
        plain, _ = run_edited(model, tokens, lambda layer, scores: softmax(scores))
        rows = log_softmax(edited[start - 1 :], masked=False)
        total = rows[range(len(answer)), answer].sum()
        assert one["log_probability"] == pytest.approx(total, abs=2e-4)
        assert value == pytest.approx(total, abs=2e-4)
        before, after = (log_softmax(logits[start - 1], masked=False) for logits in (plain, edited))
        assert one["kl"] == pytest.approx((np.exp(before) * (before - after)).sum(), abs=1e-4)


def test_what_an_edit_removes_from_an_arm_is_the_mean_over_all_rows_so_far():
    """The rows that may fill a slot lose the document; at each step, how much of it those before have been given."""
    model, prompt, answer = tiny_model("llama"), PROMPTS[0], ANSWERS[0]
    edit = fs.Edit("block", keys="doc 2", rows="open")
    found = replayed(model, [prompt], [answer], LENGTH, [0], [edit])[0]["removed"]
    tokens, start, span = np.concatenate([prompt.ids, answer[:-1]]), len(prompt.ids), prompt.regions[-1]
    hidden = np.zeros((len(tokens), len(tokens)), bool)
    hidden[start - 1 :, span.start : span.stop] = True
    held = []
    for rows, edited in ((start, False), (start, True), (start + 1, True)):  # the first step has a pass before it
        change = (lambda layer, scores: hide(scores, hidden)) if edited else (lambda layer, scores: softmax(scores))
        _, attention = run_edited(model, tokens, change)
        held += [layer[:, :rows, span.start : span.stop].sum(-1).mean() for layer in attention]
    assert found == pytest.approx(np.mean(held), abs=1e-5)


def test_the_bound_under_edits_is_the_mean_over_all_maskings():
    model, prompt, answer = tiny_model("llada"), PROMPTS[0], np.array([7, 30, 8])
    start, expected = len(prompt.ids), 0.0
    for size in range(1, 4):
        for chosen in combinations(range(3), size):
            tokens = np.concatenate([prompt.ids, answer])
            tokens[[start + slot for slot in chosen]] = MASK
            hidden = hidden_in(prompt, len(tokens))
            logits, _ = run_edited(model, tokens, lambda layer, scores, hidden=hidden: hide(scores, hidden))
            # the harness scores every token of the vocabulary, the mask too
            logs = log_softmax(logits[start:], masked=False)
            expected += sum(logs[slot, answer[slot]] for slot in chosen) / (size * comb(3, size))
    pair = Pair(tuple(prompt.ids.tolist()), tuple(answer.tolist()), prompt)
    assert log_likelihoods(model, [pair], samples=7, batch_size=3, edits=BLOCK)[0] == pytest.approx(expected, abs=3e-4)
    assert abs(log_likelihoods(model, [pair], samples=7)[0] - expected) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [False, True])
@pytest.mark.parametrize("name", ["llada", "dream", "llama"])
def test_a_patch_is_that_of_plain_passes(name, outputs):
    """At one layer and step the rows that may fill a slot follow the donor's; before and after, the prompt's own."""
    model, answer = tiny_model(name), np.array([7, 30])
    prompt, donor = canvas(13), canvas(13, seed=5)
    found = fs.patch(model, prompt, donor, answer, outputs=outputs, batch=3)
    arm = model.is_arm

    def rows_at(step):
        if arm:
            return [12 + step]
        return [slot - (name == "dream") for slot in range(13 + step, 15)]

    def tokens_at(ids, step):
        tail = answer[:1] if arm else np.where(np.arange(2) < step, answer, MASK)
        return np.concatenate([ids, tail])

    for layer in range(model.layers):
        for patched in range(2):
            total = 0.0
            for step in range(2):
                rows = rows_at(patched)
                given = {}

                def keep(at, output, given=given):
                    given[at] = output
                    return output

                _, theirs = run_edited(model, tokens_at(donor.ids, step), lambda at, scores: softmax(scores), keep)

                def change(at, scores, theirs=theirs, step=step, rows=rows, layer=layer, patched=patched):
                    own = softmax(scores)
                    if not outputs and at == layer and (arm or step == patched):
                        own[:, rows] = theirs[at][:, rows]
                    return own

                def after(at, output, given=given, step=step, rows=rows, layer=layer, patched=patched):
                    if outputs and at == layer and (arm or step == patched):
                        output[rows] = given[at][rows]
                    return output

                logits, _ = run_edited(model, tokens_at(prompt.ids, step), change, after)
                total += log_softmax(logits[(12 if arm else 13) + step], masked=not arm)[answer[step]]
            assert found.patched[layer, patched] == pytest.approx(total, abs=3e-4)
    assert np.ptp(found.patched) > 1e-4

    def unpatched(ids):
        passes = [run_edited(model, tokens_at(ids, step), lambda _, scores: softmax(scores))[0] for step in range(2)]
        rows = [log_softmax(logits[(12 if arm else 13) + step], masked=not arm) for step, logits in enumerate(passes)]
        return sum(row[token] for row, token in zip(rows, answer, strict=True))

    assert found.prompt == pytest.approx(unpatched(prompt.ids), abs=3e-4)
    assert found.donor == pytest.approx(unpatched(donor.ids), abs=3e-4)
    way = found.donor - found.prompt
    np.testing.assert_allclose(found.recovered, (found.patched - found.prompt) / way)


def test_a_donor_of_another_length_is_refused():
    with pytest.raises(fs.UserError, match="equal length"):
        fs.patch(tiny_model("llada"), canvas(13), canvas(14), [5])


def test_heads_are_read_from_a_table_for_each_model(tmp_path):
    rows = [
        {"model": model, "task": task, "condition": "c", "score": score, "layer": layer, "head": head, "value": value}
        for model, flip in (("a", 1.0), ("b", -1.0))
        for task in ("t", "u")
        for score, sign in (("evidence", 1.0), ("copy", -1.0))
        for layer, head, value in ((0, 0, 0.1), (1, 2, 0.9 * flip * sign), (2, 1, 0.5 * flip * sign))
    ]
    (tmp_path / "tables").mkdir()
    pl.DataFrame(rows).write_parquet(tmp_path / "tables" / "retrieval_heads.parquet")
    edit = Edit("heads", heads="retrieval(2)", table=str(tmp_path))
    assert edit.for_model("a").heads == "1.2, 2.1" and edit.for_model("b").heads == "0.0, 2.1"
    assert Edit("heads", heads="retrieval(1, copy)", table=str(tmp_path)).for_model("b").heads == "1.2"
    (twin,) = edit.controls().values()
    assert twin.for_model("a").heads == "random(1.2, 2.1)"
    for wrong, sentence in ((edit, "none of c"), (Edit("heads", heads="retrieval(2)"), "read from a table")):
        with pytest.raises(fs.UserError, match=sentence):
            wrong.for_model("c")
    with pytest.raises(fs.UserError, match="no score 'evidnce'"):
        Edit("heads", heads="retrieval(2, evidnce)", table=str(tmp_path))
    with pytest.raises(fs.UserError, match="There is no table of heads"):
        Edit("heads", heads="retrieval(2)", table=str(tmp_path / "nothing"))


def test_an_edit_is_read_from_a_line():
    assert read_edit("block anchors(3)") == Edit("block", keys="anchors(3)")
    assert read_edit("scale doc 2 by 0.5") == Edit("scale", keys="doc 2", factor=0.5)
    assert read_edit("heads 2.0, 5.3") == Edit("heads", heads="2.0, 5.3")
    assert read_edit("sink") == Edit("sink")
    with pytest.raises(fs.UserError, match="no number after by"):
        read_edit("scale doc 2 by half")


def test_a_patch_of_some_heads_and_rows_leaves_the_others():
    model, prompt, donor, answer = tiny_model("llada"), canvas(13), canvas(13, seed=5), np.array([7, 30])
    found = fs.patch(model, prompt, donor, answer, rows="query", heads="0,2", slots=3)
    start, rows = 13, [1, 2, 3]
    for layer in range(model.layers):
        for patched in range(2):
            total = 0.0
            for step in range(2):
                tail = np.array([answer[0] if step else MASK, MASK, MASK])  # a slot more than the answer has tokens
                own, theirs_ids = np.concatenate([prompt.ids, tail]), np.concatenate([donor.ids, tail])
                _, theirs = run_edited(model, theirs_ids, lambda at, scores: softmax(scores))

                def change(at, scores, theirs=theirs, step=step, layer=layer, patched=patched):
                    matrix = softmax(scores)
                    if (at, step) == (layer, patched):
                        for head in (0, 2):
                            matrix[head, rows] = theirs[at][head, rows]
                    return matrix

                logits, _ = run_edited(model, own, change)
                total += log_softmax(logits[start + step], masked=True)[answer[step]]
            assert found.patched[layer, patched] == pytest.approx(total, abs=3e-4)


def test_a_way_that_is_none_has_no_share_and_too_few_slots_are_refused():
    model, prompt = tiny_model("llada"), canvas(13)
    same = fs.patch(model, prompt, prompt, [7])
    assert same.prompt == pytest.approx(same.donor) and np.isnan(same.recovered).all()
    assert same.patched.shape == (model.layers, 1)
    np.testing.assert_allclose(same.patched, same.prompt, atol=1e-4)
    with pytest.raises(fs.UserError, match="The answer has 3 tokens and there are 2 slots: ask for more"):
        fs.patch(model, prompt, prompt, [7, 8, 9], slots=2)
