"""Files that anybody may have written: read within bounds of memory and time, or refused with a reason.

Errors are OSError and ValueError, which those who know what the file is for turn into a sentence.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 25  # of a file that is read whole: a hundred times what a run writes
MOST_LINE = 1 << 20  # bytes of a line
PART = 1 << 20  # bytes that are read at a time
DEEPEST = 64  # lists and mappings in one another
# What Python and torch raise at numbers, names and shapes that are of another kind than those that were written.
UNFIT = (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
TOO_DEEP = f"lists or mappings are nested more than {DEEPEST} deep"


def open_regular(path: Path) -> int:
    """Return a descriptor of a file to read; a pipe or a device, at which one could wait for ever, is refused."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return descriptor


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """Return the text of a file in UTF-8 of no more than `most` bytes."""
    content = bytearray()
    with open(open_regular(path), "rb") as file:
        # Asked for all of it at once, Python makes room for `most` bytes however short the file is.
        while len(content) <= most and (part := file.read(PART)):
            content += part
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return content.decode("utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file."""
    return parse_json(read_text(path))


def parse_json(text: str) -> dict[str, Any]:
    """Return the mapping in a JSON text, which must not be nested too deeply."""
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    if text.count("{") + text.count("[") >= DEEPEST:  # fewer are not nested so deeply
        check_depth(found)
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__} where names and values are needed")
    return found


def check_depth(value: Any) -> None:
    """Refuse what is nested so deeply that those who walk through it would run out of stack."""
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for outer in level for inner in _inner(outer)]
        if not level:
            return
    raise ValueError(TOO_DEEP)


def _inner(value: Any) -> Any:
    return value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
