"""A revision of a hub id is the one that is loaded and written down; the hub is a cache that was filled here."""

import pytest
import torch

import floatscope as fs
from floatscope.study.plan import ModelPlan
from floatscope.study.store import describe_model
from tests.tiny_models import tiny_model


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Two commits of one model, of which a tag and the main branch name one each."""
    folder = tmp_path / "hub" / "models--owner--two"
    (folder / "refs").mkdir(parents=True)
    for seed, (name, commit) in enumerate((("v1", "a" * 40), ("main", "b" * 40))):
        tiny_model("llama", seed=seed).backbone.save_pretrained(folder / "snapshots" / commit)
        (folder / "refs" / name).write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.mark.slow
@pytest.mark.usefixtures("hub")
def test_a_revision_is_loaded_and_kept_in_the_manifest():
    for revision, seed in (("v1", 0), ("a" * 40, 0), (None, 1)):
        table = fs.load("owner/two", revision=revision).backbone.get_input_embeddings().weight
        assert torch.equal(table, tiny_model("llama", seed=seed).backbone.get_input_embeddings().weight)
    old, new = (describe_model(ModelPlan("m", "owner/two", revision=revision)) for revision in ("v1", None))
    assert (old["revision"], old["commit"], new["commit"]) == ("v1", "a" * 40, "b" * 40) and "revision" not in new
    assert old["sha256"]["model.safetensors"] != new["sha256"]["model.safetensors"]
    with pytest.raises(fs.UserError, match="the hub did not give it at revision 'v3'"):
        fs.load("owner/two", revision="v3")


def test_what_is_on_this_machine_has_no_revisions():
    with pytest.raises(fs.UserError, match="twin-arm is on this machine, and only a hub id has revisions"):
        fs.load("twin-arm", revision="v1")
