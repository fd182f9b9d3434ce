"""These tests run torch on one thread, and import TorchRL without what it warns of itself."""

from __future__ import annotations

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torchrl.collectors
    import torchrl.objectives  # noqa: F401


@pytest.fixture(autouse=True, scope="session")
def _one_thread(one_thread: None) -> None:
    """Use it everywhere here."""
