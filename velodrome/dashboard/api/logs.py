"""Parts of log files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import Field

from velodrome.dashboard.answers import Asked, Refusal
from velodrome.outside.files import open_regular

MOST = 1 << 20  # bytes at once


class Part(Asked):
    """Which part of a file; its end if neither `after` nor `before` is given."""

    after: int | None = Field(None, ge=0, le=1 << 50, description="byte to begin at")
    before: int | None = Field(None, ge=0, le=1 << 50, description="byte to end before")
    limit: int = Field(65536, ge=1, le=MOST, description="bytes at most")


def part_of(path: Path, asked: Part) -> dict[str, Any]:
    """Return a part of a file as text, with the bytes that it begins and ends at; of none, nothing."""
    try:
        descriptor = open_regular(path)
    except FileNotFoundError:
        return {"text": "", "from": 0, "to": 0, "size": 0}
    except OSError as error:
        raise Refusal(403, f"{path.name}: cannot be read ({error.strerror}).") from error
    with open(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        end = size if asked.before is None else min(asked.before, size)
        begin = max(0, end - asked.limit) if asked.after is None else min(asked.after, size)
        file.seek(begin)
        part = file.read(min(asked.limit, max(end - begin, 0)))
    return {"text": part.decode("utf-8", "replace"), "from": begin, "to": begin + len(part), "size": size}
