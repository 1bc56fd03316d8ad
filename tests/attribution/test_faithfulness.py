"""Measures of faithfulness on records whose values are known by hand."""

import numpy as np
import pytest

from floatscope.attribution.faithfulness import auroc, faithfulness, measures, removal, with_heads
from floatscope.attribution.recorded import subsets
from floatscope.reports.sources import MEASURES, source_tables


def record(scores, gold=(0, 1, 0), stands=(0, 1, 0), sentences=(0, 0, 1), heads=None, falls=None):
    found = {"methods": scores, "gold": list(gold), "stands": list(stands), "gold_sentences": list(sentences)}
    return found | ({"heads": heads} if heads else {}) | ({"falls": falls} if falls else {})


def scores(*documents, sentences=(1, 2, 3)):
    return {"documents": list(documents), "sentences": list(sentences)}


def test_top_documents_count_ties_by_chance_and_have_guess_levels():
    one = record({"a": scores(1, 2, 0), "b": scores(2, 2, 0), "c": scores(3, 2, 0)}, stands=(1, 0, 1))
    found = measures(one, one["methods"])
    assert [found[name, "top_gold"] for name in "abc"] == [(1, 1 / 3), (0.5, 1 / 3), (0, 1 / 3)]
    assert [found[name, "top_stands"][0] for name in "abc"] == [0, 0.5, 1]
    assert found["a", "top_stands"][1] == pytest.approx(2 / 3)
    nowhere = record({"a": scores(1, 2, 0)}, stands=(0, 0, 0), sentences=(0, 0, 0))
    assert measures(nowhere, nowhere["methods"]).keys() == {("a", "top_gold")}


def test_ranks_are_held_to_leave_one_out():
    methods = {"leave_one_out": scores(3, 2, 1), "same": scores(30, 2, 1), "other": scores(1, 2, 3)}
    found = measures(record(methods), methods)
    assert found["same", "rank"][0] == pytest.approx(1)
    assert found["other", "rank"][0] == pytest.approx(-1)
    assert ("leave_one_out", "rank") not in found


def test_sentences_by_the_chance_that_the_gold_one_is_above():
    assert auroc(np.array([3.0, 1, 2, 2]), np.array([False, False, True, False])) == pytest.approx((0 + 1 + 0.5) / 3)
    assert np.isnan(auroc(np.array([1.0, 2]), np.array([True, True])))
    one = record({"a": scores(1, 2, 3, sentences=(5, 1, 3))})
    assert measures(one, one["methods"])["a", "sentence_auc"] == (0.5, 0.5)


def test_removal_follows_the_ranking_through_the_subsets():
    falls = {(0,): 1.0, (1,): 4.0, (2,): 0.0, (0, 1): 6.0, (0, 2): 1.0, (1, 2): 4.0, (0, 1, 2): 7.0}
    told = [falls[own] for own in subsets(3)]
    assert removal(np.array([2.0, 3, 1]), told) == (pytest.approx((4 + 6) / 2), pytest.approx((5 / 3 + 11 / 3) / 2))
    assert removal(np.array([1.0, 2, 3]), told)[0] == pytest.approx((0 + 4) / 2)


def rows(heads):
    """Samples 0 to 3: even ones have their evidence under head 0.0, odd ones under 0.1."""
    made = []
    for number in range(4):
        masses = [[[0.1, 0.1, 0.1] for _ in range(2)]]
        masses[0][number % 2][1] = 0.9
        one = record({"leave_one_out": scores(0, 3, number)}, heads=masses if heads else None)
        numbers = {"support": float(number), "confidence": 0.5, "entropy": -float(number)}
        made.append(
            {"model": "m", "task": "t", "condition": "c", "number": number, "accuracy": float(number > 1)}
            | {"attribution": one} | numbers
        )  # fmt: skip
    return made


def test_heads_are_chosen_on_the_other_half(monkeypatch):
    monkeypatch.setattr("floatscope.attribution.faithfulness.CHOSEN_HEADS", 1)
    found = with_heads(rows(True), 0)["retrieval_heads"]["documents"]
    assert found == [0.1, 0.1, 0.1]  # the odd samples would take head 0.1, which does not see this one's evidence


def test_the_table_has_right_and_wrong_answers_and_auroc():
    table = faithfulness(rows(False))
    own = table.filter(method="leave_one_out", measure="top_gold")
    assert dict(zip(own["answers"], own["n"], strict=True)) == {"all": 4, "right": 2, "wrong": 2}
    assert dict(zip(own["answers"], own["value"], strict=True)) == {"all": 0.875, "right": 0.75, "wrong": 1.0}
    found = {row["method"]: row["value"] for row in table.filter(measure="auroc").iter_rows(named=True)}
    assert found == {"support": 1.0, "confidence": 0.5, "entropy": 1.0}


def test_the_table_for_people_has_a_line_per_method_and_blanks_where_nothing_is_known():
    methods = {"leave_one_out": scores(3, 2, 1), "attention": scores(1, 2, 3), "uniform": {"documents": [1, 1, 1]}}
    made = [one | {"attribution": record(methods)} for one in rows(False)]
    [table] = source_tables(faithfulness(made))
    told = {row[0]: row[1:] for row in table.rows}
    assert list(told) == [*methods, "a guess"] and table.columns[1:] == [
        MEASURES[name] for name in ("top_gold", "top_stands", "sentence_auc", "rank")
    ]
    assert told["attention"] == ["0.00 [0.00, 0.00]"] * 2 + ["1.00 [1.00, 1.00]", "−1.00 [−1.00, −1.00]"]
    assert told["uniform"] == ["0.33 [0.33, 0.33]"] * 2 + ["", ""]  # every document alike: a guess, and no rank
    assert told["leave_one_out"][3] == "" and told["a guess"] == ["0.33", "0.33", "0.50", "0.00"]


def test_what_two_documents_or_no_other_sample_cannot_tell_is_left_out(monkeypatch):
    methods = {"leave_one_out": scores(3, 1), "attention": scores(1, 2)}
    two = record(methods, gold=(1, 0), stands=(1, 1))
    assert measures(two, methods).keys() == {
        (method, measure) for method in methods for measure in ("top_gold", "sentence_auc")
    }  # a rank of two is a coin, and what stands in all documents tells nothing
    alone = rows(True)[:1]
    assert "retrieval_heads" not in with_heads(alone, 0)  # heads are chosen on others, and there are none
    both = [one | {"number": 2 * place} for place, one in enumerate(rows(True)[:2])]
    assert "retrieval_heads" not in with_heads(both, 0)  # an even number is of the same half


def test_tokens_are_measured_by_the_step_at_which_they_committed():
    """Of 16 steps two make a part: the tokens of steps 0 and 1 add up, that of step 9 stands alone."""
    one = record({"a": scores(0, 0, 0) | {"tokens": [[0, 2, 0], [3, 0, 0], [0, 0, 4]]}, "old": scores(1, 0, 0)})
    one |= {"commits": [0, 1, 9], "steps": 16}
    row = {"model": "m", "task": "t", "condition": "c", "number": 0, "accuracy": 1.0, "attribution": one}
    split = faithfulness([row]).drop_nulls("step").filter(measure="top_gold")
    assert split.select("step", "method", "value").rows() == [(0, "a", 0.0), (8, "a", 0.0)]
    one["methods"]["a"]["tokens"] = [[0, 4, 0], [3, 0, 0], [0, 0, 4]]
    assert faithfulness([row]).drop_nulls("step").filter(measure="top_gold")["value"].to_list() == [1.0, 0.0]
    del one["commits"], one["steps"]
    assert faithfulness([row])["step"].is_null().all()  # a run from before steps were kept


def test_whole_runs_are_a_reference_of_their_own():
    methods = {"leave_one_out": scores(3, 2, 1), "leave_one_out_rerun": scores(1, 2, 3), "attention": scores(2, 3, 1)}
    found = measures(record(methods), methods)
    assert found["attention", "rank"][0] == pytest.approx(0.5) and found["attention", "rank_rerun"][0] == pytest.approx(
        -0.5
    )
    assert found["leave_one_out", "rank_rerun"][0] == found["leave_one_out_rerun", "rank"][0] == pytest.approx(-1)
    assert ("leave_one_out_rerun", "rank_rerun") not in found


def test_tied_documents_are_hidden_in_their_order_and_all_of_them_never():
    told = [1.0, 5.0, 2.0, 8.0]  # of (0,), (1,), (0, 1) and so on, for two documents
    assert removal(np.array([1.0, 1.0]), told[:3]) == (1.0, 3.0)
    methods = {"a": scores(1, 2)}
    two = record(methods, gold=(0, 1), stands=(0, 1), falls=told[:3])
    assert measures(two, methods)["a", "removal"] == (5.0, 3.0)
    one = record({"a": scores(1)}, gold=(1,), stands=(1,), falls=[4.0])
    assert ("a", "removal") not in measures(one, one["methods"])


def test_each_model_task_and_condition_has_rows_of_its_own_and_an_unknown_score_is_wrong():
    own = rows(False)
    other = [one | {"condition": "d", "accuracy": None} for one in rows(False)]
    third = [one | {"model": "n", "support": None, "confidence": float(one["number"])} for one in rows(False)]
    table = faithfulness([*own, *other, *third])
    first = table.filter(model="m", condition="c").drop("condition")
    assert first.equals(faithfulness(own).drop("condition"))
    counts = table.filter(condition="d", method="leave_one_out", measure="top_gold")
    assert dict(counts.select("answers", "n").iter_rows()) == {"all": 4, "wrong": 4}
    assert table.filter(condition="d", measure="auroc").is_empty()  # all are wrong
    fifth = rows(False)
    fifth[1]["support"] = None  # of one answer alone it is not known
    known = faithfulness(fifth).filter(method="support", measure="auroc")
    assert known.select("value", "n").row(0) == (1.0, 3)
    signals = table.filter(model="n", measure="auroc")
    assert dict(signals.select("method", "value").iter_rows()) == {"confidence": 1.0, "entropy": 1.0}
    assert signals["n"].to_list() == [4, 4] and signals["guess"].to_list() == [0.5, 0.5]


def test_the_mean_and_guess_of_a_measure_are_over_the_answers_that_have_it():
    methods = {"a": scores(2, 1, 0)}
    made = [
        ("0", record(methods, gold=(1, 0, 0))), ("1", record(methods, gold=(0, 1, 1))),
        ("2", record(methods, gold=(0, 0, 0))),
    ]  # fmt: skip
    about = {"model": "m", "task": "t", "condition": "c", "accuracy": 1.0}
    table = faithfulness([about | {"number": int(name), "attribution": one} for name, one in made])
    row = table.filter(answers="all", measure="top_gold").row(0, named=True)
    assert (row["value"], row["guess"], row["n"]) == (0.5, pytest.approx(0.5), 2)
    assert 0 <= row["low"] <= 0.5 <= row["high"] <= 1 and row["step"] is None
