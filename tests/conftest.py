"""What all tests share: one thread (tiny tensors do not gain from more) and no network."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    """No test reads or fills the user's cache."""
    monkeypatch.setenv("FLOATSCOPE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
