"""Cutting documents to fit: the shares are what taking one token at a time from the longest gives."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from floatscope.qa.truncation import cut_text, shares


@given(st.lists(st.integers(0, 30), max_size=6), st.integers(0, 120))
def test_shares_are_those_of_taking_from_the_longest_one_by_one(sizes, room):
    left = list(sizes)
    while sum(left) > room:
        longest = max(left)
        last = max(place for place, size in enumerate(left) if size == longest)
        left[last] -= 1
    assert shares(sizes, room) == left


@given(st.lists(st.sampled_from(["e\u0301", "👩‍🚀", "👍🏽", "a", " ", "ก็", "שָׁ"]), max_size=8), st.integers(0, 20))
def test_a_cut_never_parts_a_character_from_its_marks(characters, stop):
    text = "".join(characters)
    cut = cut_text(text, stop)
    assert text.startswith(cut)
    assert len(cut) <= stop
    assert cut == cut.rstrip()
    whole = ["".join(characters[:count]).rstrip() for count in range(len(characters) + 1)]
    assert cut in whole
    assert not any(unicodedata.category(character).startswith("M") for character in cut[:1])
