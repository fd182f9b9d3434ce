"""How to install what Velodrome can use and does not need: from where it came itself."""

from __future__ import annotations

import functools
import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


def install(*extras: str) -> str:
    """Return the command that adds some extras, such as "tune", to this installation."""
    return f"pip install {_source()}[{','.join(extras)}]'"


@functools.cache
def _source() -> str:
    """Return what pip was given, up to the extras: a clone of the repository, or the package's name."""
    came_from = _direct_url()
    folder = Path(unquote(urlsplit(came_from.get("url", "")).path))
    if "dir_info" not in came_from or not (folder / "pyproject.toml").is_file():
        return "'velodrome"
    return f"-e '{folder}" if came_from["dir_info"].get("editable") else f"'{folder}"


def _direct_url() -> dict[str, Any]:
    """Return what pip noted of an installation from elsewhere than an index (PEP 610)."""
    try:
        return json.loads(distribution("velodrome").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return {}
