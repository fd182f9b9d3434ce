"""A class of ours that also is one of another library, which is imported only when the class is needed."""

from __future__ import annotations

import importlib
from typing import Any

from velodrome.errors import MissingDependencyError
from velodrome.outside.extras import install


def with_base(ours: type, module: str, base: str, library: str, needed_by: str) -> Any:
    """Return our class with a class of a library as its second base. needed_by: "to_" and the name of the extra."""
    try:
        theirs = getattr(importlib.import_module(module), base)
    except ImportError as error:
        extra = needed_by.removeprefix("to_")
        raise MissingDependencyError(
            f"{needed_by} needs {library}, which cannot be imported ({error}): {install(extra)}."
        ) from error
    return type(ours.__name__, (ours, theirs), {"__doc__": ours.__doc__, "__module__": ours.__module__})
