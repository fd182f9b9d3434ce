"""Evaluations of these tests do not paint their charts, but for the tests that look at them."""

from __future__ import annotations

import pytest

# Those of charts, and those that compare files with what another process has written.
PAINTING = ("report", "test_kill", "test_kill_writers")


@pytest.fixture(scope="module", autouse=True)
def _unpainted_charts(request: pytest.FixtureRequest) -> None:
    """Use it everywhere else here."""
    if not {request.path.stem, request.path.parent.name} & set(PAINTING):
        request.getfixturevalue("unpainted_charts")
