"""Every method equals an independent computation: full T x T attention in numpy, tokens hidden by hand."""

from dataclasses import replace

import numpy as np
import pytest

import floatscope as fs
from floatscope.attribution import METHODS, explain
from floatscope.attribution.case import Case
from floatscope.attribution.recorded import record
from floatscope.attribution.row_attention import read_heads
from floatscope.attribution.surrogate import lasso
from floatscope.canvas import Region
from tests.plain_attention import watch
from tests.probe.plain_edits import hide, run_edited
from tests.probe.test_edits import canvas
from tests.tiny_models import tiny_model

DOCS = {"doc 1": range(4, 8), "doc 2": range(8, 13)}
SENTENCES = (Region("doc 1", 4, 8), Region("doc 2", 8, 10), Region("doc 2", 10, 13))
PROMPT = replace(canvas(13), sentences=SENTENCES)


def case_of(name, steps=4):
    model = tiny_model(name)
    sampler = model.sampler({"steps": steps}, length=4)
    return Case.of(model, PROMPT, sampler, fs.generate(model, PROMPT, sampler, [3]), 3)


def canvas_before(case, slot, own):
    """The canvas on which a slot is read: at its own commit, or at the answer's first."""
    generation = case.generation
    if case.model.is_arm:
        return generation.canvas
    step = generation.commit_step[slot] if own else generation.commit_step[case.slots].min()
    tokens = generation.canvas.copy()
    tokens[generation.slots[generation.commit_step >= step]] = case.model.mask_id
    return tokens


def row_of(case, slot):
    return int(case.generation.slots[slot]) - (case.model.family.logits != "same")


def logs(case, logits, slot):
    logits = np.array(logits, np.float64)
    if case.model.mask_id is not None:
        logits[..., case.model.mask_id] = -np.inf
    return (logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max())[case.generation.answer[slot]]


def plain_log(case, slot, span, own, tokens=None):
    """log p of a slot's token from a full T x T computation with the columns of a span hidden."""
    tokens = canvas_before(case, slot, own) if tokens is None else tokens
    hidden = np.zeros((len(tokens), len(tokens)), bool)
    hidden[:, list(span)] = True
    logits, _ = run_edited(case.model, tokens, lambda layer, scores: hide(scores, hidden))
    place = row_of(case, slot) if case.model.is_arm else int(case.generation.slots[slot])  # an MDM's are shifted back
    return logs(case, logits[place], slot)


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", ["llada", "dream", "sdar", "llama"])
def test_leave_one_out_is_the_fall_with_the_columns_hidden(name, own):
    case = case_of(name)
    found = explain(case, "leave_one_out_commits" if own else "leave_one_out", sentences=True)
    spans = [*DOCS.values(), *(range(one.start, one.stop) for one in SENTENCES)]
    falls = [
        [plain_log(case, slot, (), own) - plain_log(case, slot, span, own) for span in spans] for slot in case.slots
    ]
    np.testing.assert_allclose(found.by_token.documents, np.array(falls)[:, :2], atol=1e-3)
    np.testing.assert_allclose(found.by_token.sentences, np.array(falls)[:, 2:], atol=1e-3)
    np.testing.assert_allclose(found.documents, np.array(falls)[:, :2].sum(0), atol=2e-3)
    moments = 1 if case.model.is_arm or not own else len(set(case.generation.commit_step[case.slots].tolist()))
    assert found.sequences == (1 + len(set(spans))) * moments  # the first document is one sentence, run once
    np.testing.assert_allclose(found.tokens[8:10].sum(), found.sentences[1], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llada", "dream", "llama"])
def test_a_rerun_reads_each_token_where_its_slot_commits_anew(name):
    case = case_of(name)
    found = explain(case, "leave_one_out_rerun")
    before = [plain_log(case, slot, (), True) for slot in case.slots]
    for place, (label, span) in enumerate(DOCS.items()):
        again = fs.generate(case.model, PROMPT, case.sampler, [3], edits=[fs.Edit("block", keys=label)])
        for slot in case.slots:
            if slot >= len(again.slots):
                expected = before[slot] + np.log(case.model.vocabulary)
            else:
                tokens = again.canvas.copy()
                if not case.model.is_arm:
                    masked = again.commit_step >= again.commit_step[slot]
                    tokens[again.slots[masked]] = case.model.mask_id
                expected = before[slot] - plain_log(case, slot, span, True, tokens)
            np.testing.assert_allclose(found.by_token.documents[slot, place], expected, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llada", "dream", "llama"])
def test_attention_methods_read_the_committing_row(name):
    case, share = case_of(name), 2
    plain = {"attention": [], "value_weighted": [], "retrieval_heads": [], "rollout": []}
    for slot in case.slots:
        row, layers = row_of(case, slot), watch(case.model, canvas_before(case, slot, True))
        size = layers[0]["attention"].shape[-1]
        weights = np.stack([layer["attention"][:, row] for layer in layers])  # [L, H, T]
        norms = np.stack([np.linalg.norm(layer["value"], axis=-1).repeat(share, 0) for layer in layers])
        valued = (weights * norms).mean((0, 1))
        rolled = np.eye(size)
        for layer in layers:
            rolled = (layer["attention"].mean(0) + np.eye(size)) / 2 @ rolled
        plain["attention"].append(weights.mean((0, 1)))
        plain["value_weighted"].append(valued / valued.sum())
        plain["retrieval_heads"].append((weights[0, 1] + weights[2, 3]) / 2)
        plain["rollout"].append(rolled[row])
    for method, rows in plain.items():
        found = explain(case, method, **({"heads": "0.1,2.3"} if method == "retrieval_heads" else {}))
        by_document = [[row[list(span)].sum() for span in DOCS.values()] for row in rows]
        by_sentence = [[row[one.start : one.stop].sum() for one in SENTENCES] for row in rows]
        np.testing.assert_allclose(found.by_token.documents, by_document, atol=1e-5, err_msg=method)
        np.testing.assert_allclose(found.by_token.sentences, by_sentence, atol=1e-5, err_msg=method)
        np.testing.assert_allclose(found.documents, np.mean(by_document, 0), atol=1e-5, err_msg=method)
        if method != "rollout":
            np.testing.assert_allclose(found.by_token.tokens[:, 4:13], np.array(rows)[:, 4:13], atol=1e-5)


def test_attention_summed_until_the_commit_has_every_step():
    case = case_of("llada")
    found = explain(case, "attention_sum")
    generation = case.generation
    for slot in case.slots:
        total = np.zeros(len(generation.canvas))
        for step in range(generation.commit_step[slot] + 1):
            tokens = generation.canvas.copy()
            tokens[generation.slots[generation.commit_step >= step]] = case.model.mask_id
            total += np.stack([one["attention"][:, row_of(case, slot)] for one in watch(case.model, tokens)]).mean(
                (0, 1)
            )
        np.testing.assert_allclose(found.by_token.tokens[slot, 4:13], total[4:13], atol=1e-5)
    assert found.sequences == generation.commit_step[case.slots].max() + 1


def test_support_is_the_fall_with_all_documents_hidden_and_shares_the_pass_with_nothing_hidden():
    case = case_of("llada")
    found = explain(case, "leave_one_out", support=True)
    falls = [plain_log(case, slot, (), False) - plain_log(case, slot, range(4, 13), False) for slot in case.slots]
    assert found.support == pytest.approx(sum(falls), abs=2e-3)
    assert found.sequences == 1 + 2 + 1


def test_five_documents_are_six_sequences_in_one_batch():
    model = tiny_model("llada")
    regions = [Region("bos", 0, 1), Region("query", 1, 4)]
    regions += [Region(f"doc {number}", 2 * number + 2, 2 * number + 4) for number in range(1, 6)]
    prompt = fs.Prompt("", np.arange(3, 17), tuple(regions))
    sampler = model.sampler(length=4)
    case = Case.of(model, prompt, sampler, fs.generate(model, prompt, sampler), 0)
    assert len(explain(case, "leave_one_out").documents) == 5
    assert case.run == [6]
    assert fs.attribute(model, prompt, sampler).documents.tolist() == explain(case, "leave_one_out").documents.tolist()


def test_the_surrogate_finds_a_sparse_linear_effect():
    rng = np.random.default_rng(0)
    features = (rng.random((64, 6)) < 0.5).astype(float)
    target = 1.5 + 2 * features[:, 1] - 0.7 * features[:, 4]
    weights = lasso(features, target, 0.01)
    np.testing.assert_allclose(weights, [0, 2, 0, 0, -0.7, 0], atol=0.06)
    # The conditions of a minimum: the pull of a weight that is 0 is below the penalty, of another equal to it.
    x, left = features - features.mean(0), target - target.mean() - (features - features.mean(0)) @ weights
    pull, threshold = (x * left[:, None]).mean(0), 0.01 * target.std()
    assert (np.abs(pull) <= threshold + 1e-9).all()
    np.testing.assert_allclose(pull[weights != 0], threshold * np.sign(weights[weights != 0]), atol=1e-9)


@pytest.mark.slow
def test_the_surrogate_of_an_answer_is_the_fit_of_hidden_passes():
    case = case_of("llada")
    found = explain(case, "surrogate", draws=8)
    kept = np.random.default_rng(3).random((8, 3)) < 0.5
    for slot in case.slots:
        passes = []
        for own in kept:
            hidden = [
                place
                for one, stays in zip(SENTENCES, own, strict=True)
                if not stays
                for place in range(one.start, one.stop)
            ]
            passes.append(plain_log(case, slot, hidden, False))
        expected = lasso(kept.astype(float), np.array(passes), 0.01)
        np.testing.assert_allclose(found.by_token.sentences[slot], expected, atol=2e-3)
    np.testing.assert_allclose(found.documents, [found.sentences[0], found.sentences[1:].sum()])


def test_baselines_run_nothing():
    case = case_of("llada")
    assert explain(case, "position").documents.tolist() == [1, 0.5]
    np.testing.assert_allclose(explain(case, "uniform").documents, [4 / 9, 5 / 9])
    lexical = explain(case, "lexical").documents
    answer, asked = case.generation.answer[case.slots], set(PROMPT.ids[1:4].tolist())
    for score, span in zip(lexical, DOCS.values(), strict=True):
        words = PROMPT.ids[list(span)].tolist()
        same = np.mean([words.count(token) for token in answer])
        assert score == pytest.approx(same + sum(word in asked for word in words) / len(asked) / len(answer))
    assert case.run == []


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda case: explain(case, "leave_one_owt"), "did you mean 'leave_one_out'"),
        (lambda case: explain(case, "attention", sentences=True), "has no option 'sentences'"),
        (lambda case: explain(case, "retrieval_heads"), "No retrieval heads"),
        (lambda case: explain(case, "retrieval_heads", heads="9.9"), "There is no head 9.9"),
        (lambda case: explain(case, "retrieval_heads", heads="nine"), "layer.head pairs"),
        (lambda case: fs.attribute(case.model, [1, 2, 3], case.sampler), "no documents"),
    ],
)
def test_mistakes_are_sentences(make, sentence):
    with pytest.raises(fs.UserError, match=sentence):
        make(case_of("llada"))


def test_heads_come_from_the_table_of_a_run(tmp_path):
    import polars as pl

    rows = {
        "model": ["a", "a", "b"],
        "score": ["evidence"] * 3,
        "rank": [1, 2, 1],
        "layer": [2, 0, 1],
        "head": [1, 3, 0],
    }
    pl.DataFrame(rows).write_parquet(tmp_path / "heads.parquet")
    assert read_heads(tmp_path / "heads.parquet", "a") == [(2, 1), (0, 3)]
    assert read_heads(str(tmp_path / "heads.parquet"), "a", most=1) == [(2, 1)]
    assert read_heads("3.1, 5.0", "a") == [(3, 1), (5, 0)]
    with pytest.raises(fs.UserError, match=r"There is no table of heads gone\.parquet"):
        read_heads("gone.parquet", "a")
    pl.DataFrame(rows).drop("rank").write_parquet(tmp_path / "other.parquet")
    with pytest.raises(fs.UserError, match=r"other\.parquet has no column 'rank'"):
        read_heads(tmp_path / "other.parquet", "a")


def test_a_result_names_its_best_document_and_reads_as_a_line():
    """Of two answers: the scores of all its tokens together, in nats for a causal method."""
    found = explain(case_of("llada"), "leave_one_out", support=True)
    assert found.top == [*found.documents].index(max(found.documents)) and found.sequences == 4
    first, second = (f"{score:.3g}" for score in found.documents)
    assert repr(found) == (
        f"Attribution({found.answer!r} by leave_one_out: doc 1: {first}, doc 2: {second}; 4 sequences)"
    )
    turned = replace(found, documents=found.documents[::-1])
    assert turned.top == 1 - found.top
    np.testing.assert_allclose(found.by_token.documents.sum(0), found.documents)


def test_an_arm_has_one_moment_and_an_mdm_one_per_commit():
    arm, mdm = case_of("llama"), case_of("llada")
    assert [*arm.commits] == [*arm.until] == [0] and arm.commits[0].tolist() == arm.slots.tolist() == arm.until[
        0
    ].tolist()
    commit = mdm.generation.commit_step[mdm.slots]
    assert {step: own.tolist() for step, own in mdm.commits.items()} == {
        int(step): np.flatnonzero(commit == step).tolist() for step in sorted(set(commit))
    }
    assert {step: own.tolist() for step, own in mdm.until.items()} == {
        step: np.flatnonzero(commit >= step).tolist() for step in range(int(commit.max()) + 1)
    }
    assert {step: own.tolist() for step, own in mdm.first.items()} == {int(commit.min()): mdm.slots.tolist()}


def test_every_method_says_its_cost():
    assert all(row.summary and row.cost for row in METHODS.values())


def test_the_text_of_an_answer_ends_before_its_first_eos_and_has_one_token_at_least():
    case = case_of("llada")
    (eos, *_) = case.model.eos_ids
    for place, kept in ((2, [0, 1]), (0, [0])):
        canvas = case.generation.canvas.copy()
        canvas[case.generation.slots] = [5, 6, 7, 8]
        canvas[case.generation.slots[place]] = eos
        made = Case.of(case.model, PROMPT, case.sampler, replace(case.generation, canvas=canvas), 3)
        assert made.slots.tolist() == kept


def test_the_seed_of_an_answer_can_be_given():
    model = tiny_model("llada")
    sampler = model.sampler({"steps": 4}, length=4, temperature=2.0, seed=1)
    own, given = (fs.attribute(model, PROMPT, sampler, "lexical", **how).answer for how in ({}, {"seed": 5}))
    by_hand = [fs.generate(model, PROMPT, sampler, [seed]).answer for seed in (1, 5)]
    assert [own, given] == [" ".join(map(str, answer)) for answer in by_hand] and own != given


def test_what_a_study_keeps_are_falls_of_every_set_and_the_mass_of_every_head():
    """By hand from the passes themselves, and from the rows at the commits."""
    case = case_of("llada")
    found = record(case, ["leave_one_out", "retrieval_heads"], removal=True)
    spans = [[*DOCS["doc 1"]], [*DOCS["doc 2"]], [*DOCS["doc 1"], *DOCS["doc 2"]]]
    falls = [
        sum(plain_log(case, slot, (), False) - plain_log(case, slot, span, False) for slot in case.slots)
        for span in spans
    ]
    assert found["falls"] == pytest.approx(falls, abs=2e-3)
    assert list(found["methods"]) == ["leave_one_out"]
    heads = np.array(found["heads"])  # [layer, head, document]
    assert heads.shape == (case.model.layers, case.model.config.num_attention_heads, 2)
    plain = explain(case, "attention").documents  # the mean over layers, heads and tokens of the answer
    np.testing.assert_allclose(heads.mean((0, 1)), plain, rtol=1e-3)
    one = explain(case, "retrieval_heads", heads=[(1, 2)]).documents
    np.testing.assert_allclose(heads[1, 2], one, rtol=1e-3)


def test_without_sentences_a_document_s_score_is_shared_by_its_tokens():
    case = case_of("llada")
    found = explain(case, "leave_one_out")
    for score, tokens in zip(found.documents, DOCS.values(), strict=True):
        np.testing.assert_allclose(found.tokens[list(tokens)], score / len(tokens))
    first, second = found.documents
    np.testing.assert_allclose(found.sentences, [first, second * 2 / 5, second * 3 / 5])
    assert found.by_token.spread and not explain(case, "leave_one_out", sentences=True).by_token.spread
    assert not found.tokens[[*range(4), *range(13, 17)]].any()
    assert found.sentence_spans == SENTENCES and found.support is None
    assert not explain(case, "attention").tokens[[*range(4), *range(13, 17)]].any()


def test_sequences_are_run_in_batches_of_no_more_than_so_many(monkeypatch):
    """Each comes back to its own document, step and slot."""
    whole = {}
    for most in (16, 3):
        monkeypatch.setattr("floatscope.attribution.case.AT_ONCE", most)
        case = case_of("llada")
        commits = explain(case, "leave_one_out_commits", sentences=True)
        summed = explain(case, "attention_sum")
        whole[most] = commits.by_token.sentences, commits.by_token.documents, summed.by_token.tokens
        assert max(case.run) == min(most, 16 if most == 16 else 3)
    for one, other in zip(*whole.values(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_a_document_in_two_parts_is_hidden_in_both():
    """Its label stands twice on the canvas, with another between."""
    edges = [
        (name, *span) for name, span in (("bos", (0, 1)), ("query", (1, 4)), ("doc 1", (4, 7)), ("doc 2", (7, 10)))
    ]
    prompt = fs.Prompt("", PROMPT.ids, tuple(Region(*one) for one in (*edges, ("doc 1", 10, 13))))
    model = tiny_model("llada")
    sampler = model.sampler({"steps": 4}, length=4)
    case = Case.of(model, prompt, sampler, fs.generate(model, prompt, sampler, [3]), 3)
    assert case.documents["doc 1"].tolist() == [4, 5, 6, 10, 11, 12]
    assert [edit.keys for edit in case.hiding(case.documents["doc 1"])] == ["4-6 or 10-12"]
    found = explain(case, "leave_one_out")
    spans = [4, 5, 6, 10, 11, 12], [7, 8, 9]
    falls = [
        sum(plain_log(case, slot, (), False) - plain_log(case, slot, span, False) for slot in case.slots)
        for span in spans
    ]
    np.testing.assert_allclose(found.documents, falls, atol=2e-3)
    assert [one.label for one in found.sentence_spans] == ["doc 1", "doc 2", "doc 1"]  # each span is a sentence
    assert explain(case, "uniform").documents.tolist() == pytest.approx([2 / 3, 1 / 3])


def test_what_is_attributed_to_several_prompts_is_each_one_s_own():
    model = tiny_model("llada")
    sampler = model.sampler({"steps": 4}, length=4)
    other = replace(canvas(18, seed=1), sentences=())
    both = fs.attribute(model, [PROMPT, other], sampler, "attention", seed=7, support=True)
    for prompt, found in zip((PROMPT, other), both, strict=True):
        alone = fs.attribute(model, prompt, sampler, "attention", seed=7, support=True)
        np.testing.assert_allclose(found.documents, alone.documents, atol=1e-5)
        assert (found.answer, found.sentence_spans) == (alone.answer, alone.sentence_spans)
        assert found.support == pytest.approx(alone.support, abs=1e-3)
        assert found.answer_tokens == tuple(found.answer.split())
    assert [len(found.sentences) for found in both] == [3, 2]


@pytest.mark.parametrize("name", ["llada", "dream", "llama"])
def test_signals_are_those_of_the_commits(name):
    """Mean confidence and entropy where each token committed, and the fall with all documents hidden."""
    from floatscope.attribution.recorded import signals

    case = case_of(name)
    found, entropies, falls = signals(case), [], []
    for slot in case.slots:
        tokens = canvas_before(case, slot, True)
        logits, _ = run_edited(case.model, tokens, lambda layer, scores: hide(scores, np.zeros(scores.shape[1:], bool)))
        row = np.array(logits[row_of(case, slot) if case.model.is_arm else case.generation.slots[slot]], np.float64)
        if case.model.mask_id is not None:
            row[case.model.mask_id] = -np.inf
        chance = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        entropies.append(-(chance[chance > 0] * np.log(chance[chance > 0])).sum())
        falls.append(plain_log(case, slot, (), False) - plain_log(case, slot, range(4, 13), False))
    assert list(found) == ["support", "confidence", "entropy"]
    assert found["entropy"] == pytest.approx(np.mean(entropies), abs=1e-3)
    assert found["support"] == pytest.approx(sum(falls), abs=2e-3)
    assert found["confidence"] == pytest.approx(float(np.mean(case.generation.confidence[case.slots])))


def test_a_record_has_sentences_where_a_method_scores_them_and_the_step_of_every_token():
    case = case_of("llada")
    for asked in (False, True):
        found = record(case, ["leave_one_out", "rollout", "position"], sentences=asked)
        kept = {name for name, one in found["methods"].items() if "sentences" in one}
        assert kept == ({"leave_one_out", "rollout"} if asked else {"rollout"})
        assert "falls" not in found and "heads" not in found
        assert found["commits"] == case.generation.commit_step[case.slots].tolist()
        assert found["steps"] == case.generation.steps == 4
        plain = explain(case, "leave_one_out")
        np.testing.assert_allclose(found["methods"]["leave_one_out"]["tokens"], plain.by_token.documents, rtol=1e-4)
        np.testing.assert_allclose(found["methods"]["leave_one_out"]["documents"], plain.documents, rtol=1e-4)


def test_curves_of_removal_end_where_there_are_too_many_sets(monkeypatch):
    monkeypatch.setattr("floatscope.attribution.recorded.MOST_REMOVED", 1)
    assert "falls" not in record(case_of("llada"), ["position"], removal=True)
    monkeypatch.setattr("floatscope.attribution.recorded.MOST_REMOVED", 2)
    assert len(record(case_of("llada"), ["position"], removal=True)["falls"]) == 3


def test_the_best_heads_of_a_table_are_those_of_one_score(tmp_path):
    import polars as pl

    rows = [("a", score, rank, rank, head) for score, head in (("copy", 0), ("evidence", 1)) for rank in range(1, 11)]
    names = ["model", "score", "rank", "layer", "head"]
    pl.DataFrame(rows, schema=names, orient="row").write_parquet(tmp_path / "heads.parquet")
    assert read_heads(tmp_path / "heads.parquet", "a") == [(rank, 1) for rank in range(1, 9)]
    assert read_heads(tmp_path / "heads.parquet", "a", 2, "copy") == [(1, 0), (2, 0)]
    with pytest.raises(fs.UserError, match="No retrieval heads of b are given"):
        read_heads(tmp_path / "heads.parquet", "b")


def test_words_of_the_question_break_ties():
    """Three words are asked for, of which the second document has two; no word of the answer is in either."""
    case = case_of("llada")
    ids = case.canvas.ids.copy()
    ids[4:13] = 91
    ids[[8, 12]] = ids[1], ids[3]
    answer = case.generation.canvas.copy()
    answer[case.generation.slots] = [92, 93, 94, 92]
    canvas, generation = replace(case.canvas, ids=ids), replace(case.generation, canvas=answer)
    found = explain(Case(case.model, PROMPT, canvas, generation, case.sampler, 3), "lexical")
    assert len({*ids[1:4].tolist()}) == 3
    np.testing.assert_allclose(found.documents, [0, 2 / 3 / 4])
