"""Finds the recorded reference data that lies beside the checkout, where there is any."""

from __future__ import annotations

from pathlib import Path


def shared_folder(name: str) -> Path | None:
    """Return a folder of ../shared, or None on a machine that has none."""
    folder = Path(__file__).resolve().parents[2] / "shared" / name
    return folder if folder.is_dir() else None
