"""Verdicts of rules over effects written down by hand: which edit, layers, metric and dose decides."""

import polars as pl

from floatscope.reports.rules import Rule, verdicts

RULE = Rule("top tokens matter", "block top", "unedited", "lower", "log_probability", layers="deep")


def effect(condition: str, value: float, p: float, **others) -> dict:
    rest = {"panel": "block top", "x": "1", "low": value - 1, "high": value + 1, "model": "mdm", "beside": "unedited"}
    return rest | {
        "statistic": "effect", "metric": "log_probability", "condition": condition, "value": value, "p": p
    } | others  # fmt: skip


def verdict(*rows: dict, rule: Rule = RULE, models: tuple[str, ...] = ("mdm",)) -> list[tuple]:
    return [(one["model"], one["verdict"], one["value"]) for one in verdicts(pl.DataFrame(rows), [rule], models)]


def test_the_surest_dose_decides_and_of_equals_the_strongest():
    doses = [effect(f"edit/block top/{k}/deep", v, p) for k, v, p in ((1, -2, 0.04), (3, -1, 0.001), (5, -3, 0.001))]
    assert verdict(*doses) == [("mdm", "present", -3.0)]
    assert verdict(doses[0]) == [("mdm", "present", -2.0)]


def test_an_effect_the_other_way_is_reversed_and_an_unsure_one_absent():
    assert verdict(effect("edit/block top/1/deep", 2.0, 0.01)) == [("mdm", "reversed", 2.0)]
    assert verdict(effect("edit/block top/1/deep", -2.0, 0.05)) == [("mdm", "absent", -2.0)]
    mixed = (effect("edit/block top/1/deep", 4.0, 0.001), effect("edit/block top/3/deep", -1.0, 0.04))
    assert verdict(*mixed) == [("mdm", "present", -1.0)]  # what is claimed comes first, where it is sure


def test_edits_of_other_layers_metrics_models_or_twins_decide_nothing():
    others = (
        effect("edit/block top/1/shallow", -9.0, 0.0),
        effect("edit/block top/1/deep", -9.0, 0.0, metric="accuracy"),
        effect("edit/block top/1/deep", -9.0, 0.0, beside="as much"),
        effect("edit/block top/1/deep", -9.0, 0.0, statistic="score"),
        effect("edit/block topmost/1/deep", -9.0, 0.0),
        effect("edit/block top/1/deep", -9.0, 0.0, model="arm"),
    )
    assert verdict(*others) == [("mdm", "not measured", None)]
    assert verdict(*others, effect("edit/block top/1/deep", -0.5, 0.6)) == [("mdm", "absent", -0.5)]


def test_doses_at_every_place_of_the_gold_document_count():
    rows = (
        effect("edit/block top, gold at 1/1/deep", -1.0, 0.2),
        effect("edit/block top, gold at 3/1/deep", -2.0, 0.01),
    )
    assert verdict(*rows) == [("mdm", "present", -2.0)]


def test_a_rule_is_about_the_models_that_it_names():
    row, other = (effect("edit/block top/1/deep", -1.0, 0.01, model=name) for name in ("mdm", "arm"))
    named = Rule(RULE.claim, RULE.edit, RULE.beside, RULE.expect, RULE.metric, RULE.layers, models=("arm",))
    assert verdict(row, other, rule=named, models=("mdm", "arm")) == [("arm", "present", -1.0)]
    assert [one[0] for one in verdict(row, other, models=("mdm", "arm"))] == ["mdm", "arm"]
