"""Prompts hold together or are refused; bare ids become regions; groups follow from regions."""

import numpy as np
import pytest
import torch

from floatscope.canvas import Prompt, Region, group_labels
from floatscope.errors import UserError


def handmade(**changes):
    given = {"text": "", "ids": np.arange(3, 9), "regions": (Region("bos", 0, 1), Region("doc 1", 1, 6)), "marks": {}}
    return Prompt(**given | changes)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"regions": ()}, "the regions of the prompt end at 0, and it has 6 tokens"),
        ({"regions": (Region("a", 0, 5),)}, "the regions of the prompt end at 5, and it has 6 tokens"),
        ({"regions": (Region("a", 0, 7),)}, "the regions of the prompt end at 7, and it has 6 tokens"),
        ({"regions": (Region("a", 0, 2), Region("b", 3, 6))}, r"region 'b' is 3..6 where one from 2 on was expected"),
        ({"regions": (Region("a", 0, 4), Region("b", 3, 6))}, r"region 'b' is 3..6 where one from 4 on was expected"),
        ({"regions": (Region("a", 0, 0), Region("b", 0, 6))}, r"region 'a' is 0..0"),
        ({"regions": (Region("answer", 0, 6),)}, "cannot be called 'answer'"),
        ({"regions": (Region("a:b", 0, 6),)}, "cannot be called 'a:b'"),
        ({"regions": (Region("", 0, 6),)}, "cannot be called ''"),
        ({"marks": {"evidence": np.array([2, 6])}}, "mark 'evidence' should hold token positions from 0 to 5"),
        ({"marks": {"evidence": np.array([-1])}}, "token positions from 0 to 5"),
        ({"marks": {"evidence": np.array([0.5])}}, "token positions from 0 to 5"),
        ({"marks": {"doc 1": np.array([2])}}, "mark 'doc 1' has the name of a region"),
        ({"ids": np.zeros(0, np.int64)}, "the prompt is empty"),
        ({"ids": np.full(6, 0.5)}, "whole numbers from 0 up"),
    ],
)
def test_a_handmade_prompt_that_does_not_fit_together_is_a_sentence(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        handmade(**changes)


def test_what_a_prompt_keeps_are_arrays_of_its_own():
    given = torch.tensor([[3, 4, 5, 6, 7, 8]], dtype=torch.int32)
    prompt = handmade(ids=given, regions=[Region("doc 1", 0, 6)], marks={"evidence": [4, 2, 4], "none": []})
    assert (prompt.ids.tolist(), prompt.ids.dtype) == ([3, 4, 5, 6, 7, 8], np.int64)
    assert prompt.regions == (Region("doc 1", 0, 6),)
    assert {name: found.tolist() for name, found in prompt.marks.items()} == {"evidence": [2, 4], "none": []}
    assert all(found.dtype == np.int64 for found in prompt.marks.values())


def test_bare_ids_are_query_after_their_bos():
    assert Prompt.bare([1, 7, 8], bos_id=1).regions == (Region("bos", 0, 1), Region("query", 1, 3))
    assert Prompt.bare([7, 1, 8], bos_id=1).regions == (Region("query", 0, 3),)
    assert Prompt.bare([1], bos_id=1).regions == (Region("query", 0, 1),)
    assert Prompt.bare([1, 7]).regions == (Region("query", 0, 2),)


def test_the_rows_of_the_answer_are_divided_by_state():
    assert group_labels(["bos", "answer", "query"]) == ("bos", "answer:masked", "answer:committed", "query")
