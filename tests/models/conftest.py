"""Tiny models on one thread: a thread pool costs more than it gives."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)
