"""Files that came with a task from another machine: where they lie here, by what a configuration calls them."""

from __future__ import annotations

from pathlib import Path

_places: dict[str, Path] = {}


def remember(source: str, place: Path) -> None:
    """Note that what a configuration calls `source` lies at another place in this process."""
    _places[source] = place


def place_of(source: str) -> Path:
    """Return where the files lie that a configuration names."""
    return _places.get(source) or Path(source).expanduser()
