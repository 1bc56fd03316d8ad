"""What the page may send: each limit refuses with a sentence, and what is allowed comes through as it was typed."""

import json
import re

import pytest

from floatscope.live.requests import Limits, Refused, Request, read_request
from floatscope.qa.samples import Document

GOOD = {
    "question": " Who founded it? ",
    "documents": [{"title": "Axion", "text": "It was founded by Ada.", "gold": True}, {"text": "Another."}],
    "answers": ["Ada"],
    "models": ["twin-llada", "twin-arm"],
    "slots": 8,
    "steps": 4,
    "seed": 3,
}
MODELS = ("twin-llada", "twin-arm")


def read(changes=None, limits=None):
    given = {name: value for name, value in (GOOD | (changes or {})).items() if value is not ...}
    return read_request(json.dumps(given).encode(), MODELS, limits or Limits())


def test_a_good_request_is_read():
    assert read() == Request(
        question="Who founded it?",
        documents=(Document("Axion", "It was founded by Ada.", True), Document("", "Another.", False)),
        answers=("Ada",),
        models=("twin-llada", "twin-arm"),
        slots=8,
        steps=4,
        seed=3,
    )
    assert read({"documents": ..., "answers": ..., "seed": ...}).seed == 0


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"question": "  "}, "question is empty"),
        ({"question": ...}, "question should be a text"),
        ({"question": "x" * 2001}, "2,001 characters: this page takes at most 2,000"),
        ({"question": "\ud800"}, "question should be a text"),
        ({"documents": [{"text": "x"}] * 25}, "There are 25 documents: this page takes at most 24"),
        ({"documents": "x"}, "documents should be a list"),
        ({"documents": [{"title": "t" * 201, "text": "x"}]}, "title of document 1"),
        ({"documents": [{"text": "x"}, {"text": "x" * 8001}]}, "text of document 2 has 8,001 characters"),
        ({"documents": [{"text": ""}]}, "text of document 1 is empty"),
        ({"documents": [{"text": "x", "gold": 1}]}, "gold should be true or false"),
        ({"documents": [{"text": "x", "path": "/etc/passwd"}]}, "unknown entry 'path'"),
        ({"documents": ["x"]}, "Document 1 should be a JSON object"),
        ({"answers": ["x"] * 9}, "There are 9 right answers"),
        ({"models": []}, "Choose one model"),
        ({"models": ["twin-arm", "twin-arm"]}, "two different ones"),
        ({"models": ["twin-llada", "twin-arm", "twin-arm"]}, "There are 3 models"),
        ({"models": ["../../etc"]}, "no such model here: this page serves twin-llada, twin-arm"),
        ({"models": [["twin-arm"]]}, "no such model"),
        ({"slots": 0}, "answer slots should be a whole number from 1 to 128"),
        ({"slots": 129}, "from 1 to 128"),
        ({"slots": True}, "whole number"),
        ({"slots": 8.0}, "whole number"),
        ({"steps": ...}, "steps should be a whole number from 1 to 256"),
        ({"seed": -1}, "seed should be a whole number"),
        ({"device": "cuda"}, "unknown entry 'device'"),
        ({"question": "a {answer} b {answer}", "documents": []}, "Write {answer} once, in a text"),
        ({"question": " {answer}", "documents": []}, "Write {answer} once, in a text"),
        ({"question": "a {answer}"}, "remove the documents"),
    ],
)
def test_what_is_too_much_or_wrong_is_refused(changes, told):
    with pytest.raises(Refused, match=re.escape(told)) as refused:
        read(changes)
    assert refused.value.status == 400


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b"null", b"[]", b'"text"'])
def test_what_is_no_json_object_is_refused(body):
    with pytest.raises(Refused, match="JSON"):
        read_request(body, MODELS)


def test_limits_can_be_narrower():
    with pytest.raises(Refused, match="from 1 to 4"):
        read(limits=Limits(slots=4))


def test_documents_and_tokens_can_be_hidden():
    assert read({"hidden": ["doc 2", "17"]}).hidden == ("doc 2", "17")
    for wrong, told in (("doc 3", "no document 3"), ("bos", "should be documents"), (17, "should be documents")):
        with pytest.raises(Refused, match=told):
            read({"hidden": [wrong]})
    with pytest.raises(Refused, match="at most 1"):
        read({"hidden": ["1", "2"]}, Limits(hidden=1))


@pytest.mark.parametrize(
    "changes",
    [
        {"question": "x" * 2000},
        {"documents": [{"title": "t" * 200, "text": "x" * 8000}] * 24},
        {"answers": ["x" * 2000] * 8},
        {"slots": 128, "steps": 256, "seed": 2**31 - 1},
        {"slots": 1, "steps": 1, "seed": 0, "models": ["twin-arm"]},
        {"question": "a {answer}", "documents": []},
        {"hidden": ["doc 1"] * 64},
    ],
)
def test_the_most_and_the_least_that_may_be_asked_for_is_served(changes):
    found = read(changes)
    for name, value in changes.items():
        if name != "documents":
            assert getattr(found, name) == (tuple(value) if isinstance(value, list) else value)
    assert len(found.documents) == len(changes.get("documents", GOOD["documents"]))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"documents": [{"text": "x"}, {"title": 3, "text": "x"}]}, "The title of document 2 should be a text"),
        ({"documents": [{"text": "x"}, {"text": "x", "gold": None}]}, "Document 2: gold should be true or false"),
        ({"answers": ["x", " "]}, "A right answer is empty"),
        ({"answers": ["x" * 2001]}, "A right answer has 2,001 characters"),
        ({"models": ...}, "The models should be a list"),
        ({"steps": 257}, "steps should be a whole number from 1 to 256"),
        ({"seed": 2**31}, "from 0 to 2147483647"),
        ({"hidden": ["doc 0"]}, "There is no document 0 to hide"),
        ({"hidden": ["1", "-1"]}, "should be documents"),
        ({"hidden": ["1234567"]}, "should be documents"),
    ],
)
def test_the_second_of_a_list_is_looked_at_as_well(changes, told):
    with pytest.raises(Refused, match=re.escape(told)):
        read(changes)
