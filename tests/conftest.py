"""What all tests share: one thread (tiny tensors do not gain from more) and no network."""

import os
import signal

os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported
os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported, which torch may do: its kernels run on the CPU

import hypothesis
import pytest

# In CI the same examples every time, so that a red run means a change; at home new ones. A busy machine is no failure.
hypothesis.settings.register_profile("here", derandomize=bool(os.environ.get("CI")), deadline=None)
hypothesis.settings.load_profile("here")

IN_THE_INNER_LOOP = {"llada", "dream", "sdar", "llama"}
"""Of the tiny models of tests/tiny_models.py, one per way to see: `make quick` leaves the others out."""


def pytest_collection_modifyitems(items):
    from tests.tiny_models import MODELS  # here, since the process that only hands out tests never collects them

    for item in items:
        given = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if any(isinstance(value, str) and value in MODELS.keys() - IN_THE_INNER_LOOP for value in given):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    import torch  # here, since the process that only hands out tests needs none

    torch.set_num_threads(1)


@pytest.fixture
def heard_interrupts():
    """Ctrl-C reaches this process and those it starts, even if it was itself started with SIGINT ignored (`cmd &`)."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    """No test reads or fills the user's cache."""
    monkeypatch.setenv("FLOATSCOPE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
