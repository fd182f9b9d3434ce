"""These tests run torch on one thread."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_thread(one_thread: None) -> None:
    """Use it everywhere here."""
