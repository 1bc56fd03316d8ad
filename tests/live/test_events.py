"""From a request to events, without a server: what is opened, hidden, revised, timed and handed over as a file."""

import base64
import copy
import dataclasses
import json
import time

import numpy as np
import pytest

import floatscope as fs
from floatscope.live.events import denoise
from floatscope.live.requests import read_request
from tests.live.serving import REQUEST, SAMPLE


@pytest.fixture(scope="module")
def models():
    return {name: fs.load(name) for name in ("twin-llada", "twin-arm")}


def events_of(loaded, **changes):
    found = []
    denoise(loaded, read_request(json.dumps(REQUEST | changes).encode(), loaded), found.append)
    return found


def prompt_of(model):
    return fs.build_prompt(model.tokenizer, SAMPLE.question, SAMPLE.documents, SAMPLE.answers)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["twin-llada", "twin-arm"])
def test_the_page_is_opened_with_the_prompt_and_empty_slots(models, name):
    model, prompt = models[name], prompt_of(models[name])
    opened = events_of(models, models=[name])[0]
    assert (opened["question"], opened["answers"]) == (SAMPLE.question, SAMPLE.answers)
    [run] = opened["runs"]
    size = len(prompt.ids)
    assert run["slots"] == list(range(size, size + 6)) and run["tokens"][size:] == [""] * 6
    shown = "".join(run["tokens"][1:size]).replace("↵", "").replace(" ", "")
    assert shown == "".join(prompt.text.split())
    gold = [f"doc {number}" for number, document in enumerate(SAMPLE.documents, 1) if document.gold]
    assert run["gold"] == gold and len(gold) == 1
    answered = model.tokenizer(SAMPLE.answers[0], add_special_tokens=False)["input_ids"]
    assert prompt.ids[run["marked"]].tolist() == answered
    assert (run["kind"], run["visibility"]) == {"twin-arm": ("arm", "causal")}.get(name, ("mdm", "bidirectional"))
    assert (run["layers"], run["foreseen"], run["unknown"]) == (model.layers, 6, 0)


@pytest.mark.slow
def test_what_is_hidden_ends_with_the_canvas(models):
    size = len(prompt_of(models["twin-llada"]).ids) + 6
    opened = events_of(models, models=["twin-llada", "twin-arm"], hidden=[str(size - 1)])[0]
    assert [run["model"] for run in opened["runs"]] == ["twin-llada", "twin-llada, edited"]  # in the other's place
    with pytest.raises(fs.UserError, match=f"There is no token {size} to hide: the canvas has {size}, counted from 0"):
        events_of(models, hidden=["0", str(size)])


@pytest.mark.slow
def test_a_run_is_timed_and_handed_over_as_its_trace(models, tmp_path):
    model = copy.copy(models["twin-llada"])
    model.name = "some/where: twin"
    began = time.perf_counter()
    *_, finished, handed, _ = events_of({model.name: model}, models=[model.name])
    assert 0 < finished["seconds"] <= time.perf_counter() - began + 0.001
    assert handed["file"] == "where-twin.safetensors"
    path = tmp_path / "trace.safetensors"
    path.write_bytes(base64.b64decode(handed["data"]))
    found = fs.Trace.load(path)
    sampler = fs.LLaDASampler(steps=6, length=6, seed=3, mask_is_candidate=True)
    expected = fs.trace(models["twin-llada"], prompt_of(model), sampler)
    np.testing.assert_allclose(found.received, expected.received, rtol=1e-3, atol=1e-7)  # as 16 bits have it
    np.testing.assert_array_equal(found.canvas, expected.canvas)
    assert found.model == model.name
    assert (found.metadata["question"], found.metadata["answers"]) == (SAMPLE.question, list(SAMPLE.answers))
    text = model.tokenizer.decode(expected.answer, skip_special_tokens=True).strip()
    assert found.metadata["prediction"] == text
    assert found.metadata["accuracy"] == float(SAMPLE.answers[0].lower() in text.lower())


def test_a_token_that_is_revised_is_streamed_again(models):
    """By a sampler that commits everything at once and then replaces whatever the model would now say otherwise."""
    model = copy.copy(models["twin-llada"])
    settings = {"name": "threshold", "threshold": 1e-9, "edit_threshold": 0.0, "edit_steps": 4}
    model.family = dataclasses.replace(model.family, sampler=settings)
    steps = []
    sampler = model.sampler({"steps": 6, "seed": 3}, length=6)
    fs.generate(model, prompt_of(model), sampler, on_step=lambda step: steps.append(step))
    changed = [np.flatnonzero(step.given.slot_tokens[0] != step.tokens[0]).tolist() for step in steps]
    streamed = [
        event["step"].get("commits", []) for event in events_of({model.name: model}) if event["event"] == "step"
    ]
    assert [[slot for slot, *_ in commits] for commits in streamed] == changed
    assert changed[0] == list(range(6)) and any(changed[1:])


def test_nothing_runs_where_the_second_of_two_models_cannot(models):
    told = []
    changes = {"question": "The founder {answer} left .", "documents": [], "models": ["twin-llada", "twin-arm"]}
    with pytest.raises(fs.UserError, match="twin-arm is autoregressive"):
        denoise(models, read_request(json.dumps(REQUEST | changes).encode(), models), told.append)
    assert told == []
