"""Evaluations of these tests do not paint their charts."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _unpainted_charts(unpainted_charts: None) -> None:
    """Use it everywhere here."""
