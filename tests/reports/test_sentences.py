"""Sentences of the summary, whole, whatever the numbers say."""

import polars as pl
import pytest

from floatscope.analysis import Result
from floatscope.reports.sentences import summary_sentences
from tests.reports.making import score_row, score_table

KINDS = {"m": "mdm", "a": "arm"}


def made(*differences, task: str | None = "t", before: float = 0.1, **labels) -> pl.DataFrame:
    """The ARM stands first, as in a study that names it first; a guess, F1 and fewer documents are not told."""
    rows = []
    for model, with_two, with_five in (("a", 0.3, 0.6), ("m", 0.9, 0.8)):
        rows += [
            score_row(model, "score", value, value - 0.1, value + 0.05, documents=documents, task=task, **labels)
            for documents, value in ((0, before), (2, with_two), (5, with_five))
        ]
        rows.append(score_row(model, "score", 0.99, 0.99, 0.99, documents=5, task=task, metric="f1"))
        for documents, value in ((2, with_two - before), (5, with_five - before)):
            rows.append(score_row(model, "gain", value, value - 0.1, value + 0.1, documents=documents, task=task))
    rows.append(score_row("other", "guess", 0.25, 0.2, 0.3, documents=5, task=task))
    rows.append(score_row("a", "difference", 0.9, 0.8, 1.0, documents=2, task=task, beside="m"))
    rows += [score_row("a", "difference", *one, documents=5, task=task, beside="m") for one in differences]
    return score_table(rows)


@pytest.mark.parametrize(
    ("difference", "told"),
    [
        ((-0.2, -0.3, -0.05), "m gains more than a, by +20 [+5, +30]"),
        ((0.2, 0.05, 0.3), "m gains less than a, by −20 [−30, −5]"),
        ((0.05, -0.1, 0.2), "between m and a no difference can be told, −5 [−20, +10]"),
        ((-0.2, -0.4, 0.0), "between m and a no difference can be told, +20 [0, +40]"),
    ],
)
def test_the_verdict_follows_the_interval(difference, told):
    meaning, scores, gains = summary_sentences(made(difference), {}, KINDS)
    assert meaning == "Documents help every model."
    assert scores == (
        "With 5 documents m answers 80 % [70, 85] of 40 questions right and a 60 % [50, 65]; without documents 10 %."
    )
    assert gains == f"Documents add +70 points to m and +50 points to a; {told}."


def test_only_pairs_of_an_mdm_and_an_arm_are_told_unless_kinds_are_unknown():
    table = made((-0.2, -0.3, -0.05))
    assert summary_sentences(table, {}, {"m": "mdm", "a": "mdm"})[2] == (
        "Documents add +50 points to a and +70 points to m."
    )
    assert summary_sentences(table, {}, {})[2] == (
        "Documents add +50 points to a and +70 points to m; a gains less than m, by −20 [−30, −5]."
    )


def test_the_average_is_told_where_there_are_several_tasks():
    """The average stands last and its numbers differ from those of the tasks."""
    tasks = [made(task=name, before=0.5) for name in ("t", "u")]
    table = pl.concat([*tasks, made((-0.2, -0.3, -0.1), task=None, n=80)])
    assert summary_sentences(table, {}, KINDS) == (
        "Documents help every model.",
        "With 5 documents, averaged over 2 tasks, m answers 80 % [70, 85] of 80 questions right and a 60 % [50, 65]; "
        "without documents 10 %.",
        "Documents add +70 points to m and +50 points to a; m gains more than a, by +20 [+10, +30].",
    )


def test_the_first_sentence_says_whom_documents_help_for_sure():
    table = made()
    unsure = pl.when((pl.col("statistic") == "gain") & (pl.col("model") == "a")).then(-0.01).otherwise("low")
    assert summary_sentences(table.with_columns(low=unsure), {}, KINDS)[0] == "Documents help m for sure."
    none = pl.when(pl.col("statistic") == "gain").then(-0.01).otherwise("low")
    assert summary_sentences(table.with_columns(low=none), {}, KINDS)[0] == "Documents help no model for sure."


def test_a_model_may_be_called_guess():
    table = made((-0.2, -0.3, -0.1)).with_columns(pl.col("model", "beside").replace({"m": "guess: m"}))
    _, scores, gains = summary_sentences(table, {}, {"guess: m": "mdm", "a": "arm"})
    assert scores.startswith("With 5 documents guess: m answers 80 % [70, 85]") and "other" not in scores
    assert gains.endswith("guess: m gains more than a, by +20 [+10, +30].")


def test_what_differs_between_models_is_told_for_each():
    table = made().with_columns(
        pl.when((pl.col("model") == "a") & (pl.col("documents") == 0)).then(0.2).otherwise("value").alias("value"),
        pl.when(pl.col("model") == "a").then(39).otherwise("n").alias("n"),
    )
    assert summary_sentences(table, {}, KINDS)[1] == (
        "With 5 documents m answers 80 % [70, 85] right and a 60 % [50, 65]; without documents 10 % and 20 %."
    )


def test_attention_is_told_with_its_controls():
    drift = pl.DataFrame(
        {
            "model": ["a", "a", "m", "m", "m"],
            "measure": ["turnover", "turnover", "turnover", "turnover", "other"],
            "value": [None, None, 0.1, 0.3, 9.0],
            "untrained": [None, None, 0.5, 0.7, 9.0],
        }
    )
    first = pl.DataFrame(
        {
            "model": ["a", "m", "m"],
            "set": ["bos", "bos", "anchors"],
            "rows": ["all", "all", "all"],
            "value": [4.5, 0.5, 60.0],
            "uniform": [4.1, None, 50.0],
        },
    )
    results = {"drift": Result("drift", {"drift": drift}), "absorption": Result("absorption", {"absorption": first})}
    nothing = made().clear()
    assert summary_sentences(nothing, results, KINDS) == (
        "From step to step the share of anchors that change is 20.0 % in m (untrained 60.0 %); the first token "
        "receives 0.5 % in m and 4.5 % in a (uniform 4.1 %) of all attention.",
    )
    del results["drift"]
    assert summary_sentences(nothing, results, KINDS)[0].startswith("The first token receives 0.5 % in m")


def verdict(model, claim, side, value, low, high, verdict, beside=None, task="t") -> dict:
    keys = ("model", "task", "condition", "side", "claim", "beside", "value", "low", "high", "verdict")
    return dict(zip(keys, (model, task, side, side, claim, beside, value, low, high, verdict), strict=True))


def test_floating_and_its_direction_are_told_in_place_of_steps():
    rows = [
        verdict("m", "floating", "right", 0.1, -0.05, 0.2, "undecided", "a", task="one layout only"),
        verdict("m", "floating", "right", 0.6, 0.52, 0.67, "floating", "a"),
        verdict("m", "floating", "left", 0.9, 0.8, 1.0, "floating", "a"),  # the first condition is told
        verdict("n", "floating", "right", 0.02, -0.01, 0.05, "absent", "a"),
        verdict("o", "floating", "right", 0.1, -0.01, 0.3, "undecided", "a"),
        verdict("p", "floating", "right", 0.5, None, None, "too few samples", "a"),
        verdict("m", "rightward", "left", -0.49, -0.55, -0.43, "absent"),
        verdict("m", "rightward", "right", 0.58, 0.51, 0.65, "absent"),
        verdict("m", "towards", "right", 0.58, 0.51, 0.65, "towards"),
        verdict("m", "towards", "left", 0.49, 0.43, 0.55, "towards"),
        verdict("n", "rightward", "right", 0.3, 0.2, 0.4, "rightward"),
        verdict("n", "rightward", "left", 0.2, 0.1, 0.3, "rightward"),
        verdict("o", "rightward", "right", 0.3, 0.2, 0.4, "one layout only"),
        verdict("p", "rightward", "right", 0.004, -0.2, 0.4, "undecided"),
        verdict("p", "rightward", "left", 0.0, -0.1, 0.3, "undecided"),
    ]
    steps = pl.DataFrame({"model": ["m"], "measure": ["turnover"], "value": [0.1], "untrained": [0.5]})
    tables = {"drift": steps, "drift_verdicts": pl.DataFrame(rows, infer_schema_length=None)}
    assert summary_sentences(made().clear(), {"drift": Result("drift", tables)}, KINDS) == (
        "Attention floats in m while it denoises.",
        "From the first step to the last, the share of anchors that change is +60 [+52, +67] points more in m than in "
        "a (it floats), +2 [−1, +5] points more in n than in a (it does not float) and +10 [−1, +30] points more in o "
        "than in a (too close to tell).",
        "The most attended position moves towards the answer in m (+0.58 [+0.51, +0.65] with the answer at the right, "
        "−0.49 [−0.55, −0.43] with it at the left), to the right in n (+0.30 [+0.20, +0.40] with the answer at the "
        "right, +0.20 [+0.10, +0.30] with it at the left) and neither way for sure in p (+0.00 [−0.20, +0.40] with the "
        "answer at the right, +0.00 [−0.10, +0.30] with it at the left); Spearman with the step.",
    )


def test_several_models_denoise():
    rows = [verdict(model, "floating", "right", 0.6, 0.52, 0.67, "floating", "a") for model in ("m", "n")]
    tables = {"drift_verdicts": pl.DataFrame(rows, infer_schema_length=None)}
    told = summary_sentences(made().clear(), {"drift": Result("drift", tables)}, KINDS)
    assert told[0] == "Attention floats in m and n while they denoise."


def test_nothing_to_sum_up():
    assert summary_sentences(made().clear(), {}, {}) == ()
    assert summary_sentences(made().filter(documents=0), {}, KINDS) == ()


def test_of_several_conditions_on_one_side_the_first_is_told():
    rows = [
        verdict("m", "rightward", "right", 0.5, 0.4, 0.6, "rightward"),
        verdict("m", "rightward", "left", 0.3, 0.2, 0.4, "rightward"),
        verdict("m", "rightward", "left", 0.9, 0.8, 1.0, "rightward"),
        verdict("m", "towards", "right", 0.5, 0.4, 0.6, "towards"),
    ]
    tables = {"drift": pl.DataFrame(), "drift_verdicts": pl.DataFrame(rows)}
    assert summary_sentences(made().clear(), {"drift": Result("drift", tables)}, KINDS) == (
        "The most attended position moves to the right in m (+0.50 [+0.40, +0.60] with the answer at the right, +0.30 "
        "[+0.20, +0.40] with it at the left); Spearman with the step.",
    )


def test_attention_floats_only_where_every_row_of_a_model_says_so():
    """Beside two ARMs a model floats where it does beside both; and it joins what documents do."""
    rows = [
        verdict("m", "floating", "right", 0.6, 0.5, 0.7, "floating", "a"),
        verdict("m", "floating", "right", 0.1, -0.1, 0.3, "undecided", "b"),
        verdict("n", "floating", "right", 0.6, 0.5, 0.7, "floating", "a"),
        verdict("n", "floating", "right", 0.5, 0.4, 0.6, "floating", "b"),
        verdict("o", "floating", "right", 0.5, 0.4, 0.6, "floating", "b"),
    ]
    tables = {"drift": pl.DataFrame(), "drift_verdicts": pl.DataFrame(rows)}
    first, *_ = summary_sentences(made(), {"drift": Result("drift", tables)}, KINDS)
    assert first == "Documents help every model, and attention floats in n and o while they denoise."


def test_documents_of_their_own_are_called_so():
    """Samples with their own documents have no number of them; it is told after none, and not fewer of them."""
    own = made((-0.2, -0.3, -0.05)).with_columns(
        documents=pl.when(pl.col("documents") == 5).then(None).otherwise("documents")
    )
    assert summary_sentences(own, {}, KINDS) == (
        "Documents help every model.",
        "With their own documents m answers 80 % [70, 85] of 40 questions right and a 60 % [50, 65]; without documents "
        "10 %.",
        "Documents add +70 points to m and +50 points to a; m gains more than a, by +20 [+5, +30].",
    )


def test_one_model_that_documents_help_goes_by_its_name():
    alone = made().filter(model="m")
    assert summary_sentences(alone, {}, KINDS)[0] == "Documents help m."


def test_the_first_token_is_told_of_all_rows_and_beside_even_attention():
    rows = [
        ("m", "bos", "answer", 70.0, 8.0, 9.0),
        ("m", "bos", "all", 2.0, 4.0, 6.0),
        ("m", "bos", "all", 4.0, 5.0, 7.0),
    ]
    columns = ["model", "set", "rows", "value", "uniform", "untrained"]
    table = pl.DataFrame(rows, schema=columns, orient="row")
    told = summary_sentences(made().clear(), {"absorption": Result("absorption", {"absorption": table})}, KINDS)
    assert told == ("The first token receives 3.0 % in m (uniform 4.5 %) of all attention.",)
