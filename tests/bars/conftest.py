"""What tests of price files share."""

from __future__ import annotations

import pytest


@pytest.fixture
def write(tmp_path):
    def write_file(*lines: str, name: str = "TEST.csv"):
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        return path

    return write_file
