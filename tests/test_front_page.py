"""What `help(fs)` shows: names for models, texts for prompts, runs by their folder."""

import pydoc

import numpy as np
import pytest

import floatscope as fs
from floatscope.analysis import Controls, Options
from floatscope.qa.prompts import text_prompt
from tests.tiny_models import tiny_model
from tests.traces.full_matrices import full_run, to_trace

TEXT = "Ida Ritter founded Ferrox Steel."


@pytest.mark.slow
def test_a_name_and_a_text_are_a_model_and_a_prompt():
    model = fs.load("twin-llada")
    sampler = model.sampler(steps=2, length=2)
    trace = fs.trace("twin-llada", TEXT, sampler)
    ids = [model.tokenizer.bos_token_id, *model.tokenizer(TEXT, add_special_tokens=False)["input_ids"]]
    assert trace.canvas[:-2].tolist() == ids and trace.region_labels == ("bos", "query", "answer")
    np.testing.assert_array_equal(trace.received, fs.trace(model, ids, sampler).received)
    assert trace.prediction == model.text(trace.answer)
    both = fs.generate("twin-llada", [TEXT, f"{TEXT} {TEXT}"], sampler)
    assert [len(one.canvas) for one in both] == [len(ids) + 2, 2 * len(ids) + 1]


def test_a_text_needs_a_tokenizer():
    with pytest.raises(fs.UserError, match=r"no tokenizer beside its weights.*give token ids"):
        fs.generate(tiny_model("llada"), "a text")
    with pytest.raises(fs.UserError, match="prompt is empty"):
        text_prompt(fs.load("twin-arm"), "")


def test_help_shows_the_front_page():
    shown = pydoc.render_doc(fs, renderer=pydoc.plaintext)
    for name in ("analyze", "Run", "read_task", "report", "trace", "generate", "load"):
        assert f"{name}(" in shown, name
        assert name in dir(fs)


@pytest.mark.slow
def test_what_is_easily_written_otherwise():
    """A typo in the name of an array, one trace in place of a list, documents as texts, a result's figure by name."""
    trace = to_trace(full_run(), model="m")
    with pytest.raises(AttributeError, match=r"a Trace has no 'recieved': did you mean 'received'\?"):
        _ = trace.recieved
    found = fs.analyze("absorption", trace)
    assert found.table.equals(fs.analyze("absorption", [trace]).table)
    assert found.figure.name == "absorption" and found.figure._repr_html_() == found._repr_html_()
    model = fs.load("twin-llada")
    prompt = fs.build_prompt(model, "Who founded it?", [TEXT])
    other = fs.build_prompt(model.tokenizer, "Who founded it?", [fs.Document("", TEXT)])
    assert (prompt.text, prompt.regions, list(prompt.ids)) == (other.text, other.regions, list(other.ids))
    assert [region.label for region in prompt.regions if region.label.startswith("doc")] == ["doc 1"]


@pytest.mark.slow
def test_analyze_takes_a_folder(tmp_path):
    own, bare = [], []
    for seed in range(2):
        about = {"sample": f"s{seed}", "task": "a", "condition": "base"}
        own.append(to_trace(full_run(seed=seed), model="m", metadata=about))
        control = about | {"control": "untrained", "control_of": "m"}
        bare.append(to_trace(full_run(seed=seed, sharpness=0.1), model="m", metadata=control))
    for number, trace in enumerate([*own, *bare]):
        trace.save(tmp_path / f"{number}.safetensors", exact=True)
    found = fs.analyze("absorption", tmp_path)
    assert found.table.equals(fs.analyze("absorption", own, Options(), Controls(untrained=bare)).table)
    assert found.table["untrained"].is_not_null().any()
    about = {"sample": "s", "task": "a", "condition": "other"}
    to_trace(full_run(), model="m", metadata=about).save(tmp_path / "other.safetensors")
    with pytest.raises(fs.UserError, match="2 conditions"):
        fs.analyze("absorption", tmp_path)
    assert set(fs.analyze("absorption", tmp_path, condition="other").table["condition"]) == {"other"}
