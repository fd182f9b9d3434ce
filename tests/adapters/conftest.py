"""One thread for torch, whose tensors are tiny here, and TorchRL imported without what it warns of itself."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torchrl.collectors
    import torchrl.objectives  # noqa: F401


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
