"""What `keep` stands for, and what it is called afterwards."""

import pytest

from floatscope.errors import UserError
from floatscope.traces.arrays import ARRAYS, SHORT_FORMS, kept_arrays, short_form


def test_each_short_form_holds_the_compact_one_and_its_own():
    compact = kept_arrays("compact")
    own = {word: sorted(kept_arrays(word) - compact) for word in SHORT_FORMS}
    assert own == {
        "compact": [],
        "rollout": ["commit_rollout", "rollout"],
        "groups": ["group_attention"],
        "heads": ["head_attention"],
        "matrices": ["attention", "head_attention", "keys", "matrix_layers", "matrix_steps", "queries"],
    }
    assert {"received", "state", "candidate_kl", "commit_mass", "layer_index", "seen_by"} <= compact
    assert kept_arrays(["rollout", "heads", "qk"]) == kept_arrays("rollout") | kept_arrays("heads")


def test_arrays_by_name_are_called_by_name_and_a_short_form_by_its_word():
    assert kept_arrays(["received", "qk"]) == {"received", "qk"}
    assert kept_arrays("attention") == {"attention"}
    for word in SHORT_FORMS:
        assert short_form(kept_arrays(word)) == word
    assert short_form(kept_arrays(["received", "cos"])) == "cos, received"
    assert short_form(kept_arrays(["compact", "groups", "heads"])).count(", ") == len(kept_arrays("groups"))
    for nothing in ([], ()):
        with pytest.raises(UserError, match="keeps nothing is none: name arrays, or one of compact, rollout"):
            kept_arrays(nothing)
    with pytest.raises(UserError, match="keep='recieved' is no array of a trace: did you mean 'received'"):
        kept_arrays(["qk", "recieved"])


def test_whole_numbers_are_no_half_precision():
    whole = {name for name, row in ARRAYS.items() if row.whole}
    assert whole == {
        "seen_by", "seen_by_step", "group_rows", "commit_keys", "tokens", "state", "candidate_tokens", "computed",
        "layer_index", "matrix_steps", "matrix_layers",
    }  # fmt: skip
