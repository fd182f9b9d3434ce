"""Code that a run names. Importing runs it, so a run that came from elsewhere imports nothing until a person says so.

What is trusted is a name together with the file that Python finds for it now. Training notes the names that it is told
by its user, so nobody is asked about runs of their own; `--trust` notes those of a run from elsewhere, once.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from velodrome.outside.files import read_text
from velodrome.outside.folders import make_private_folder, why_not_private

FILE_NAME = "trusted_code"
IMPORTED = ("env", "network.kind")  # settings that name a module; others are texts that somebody's code is given
SHOWN = 60  # characters of a name that the list shows
log = logging.getLogger("velodrome.runs")
_now: set[str] = set()  # noted by this process, also where nothing can be written


def trusted_list() -> Path:
    """Return the file of trusted names: a line for each, a hash and what it is about."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "velodrome" / FILE_NAME


def untrusted(names: Iterable[str]) -> list[str]:
    """Return the names, such as network.kind = module:Class, that are not trusted yet."""
    names = list(names)
    known = _known() if names else set()
    return [name for name in names if _mark(name) not in known]


def trust(names: Iterable[str]) -> None:
    """Note that these names may be imported from now on."""
    new = untrusted(names)
    _now.update(map(_mark, new))
    if not new:
        return
    path = trusted_list()
    try:
        make_private_folder(path.parent)
        if fault := why_not_private(path.parent, own=1):
            raise PermissionError(0, fault)
        lines = "".join(f"{_mark(name)} {name.partition(' = ')[0]} = {_shown(name)}\n" for name in new)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(lines)
    except OSError as error:
        log.warning("%s: that this code is trusted is not remembered (%s); --trust says it again", path, error.strerror)


def origin(name: str) -> str:
    """Return the file that Python finds for the module of "what = module:Class" without importing it; '' if none."""
    what, _, value = name.partition(" = ")
    module, colon, _ = value.rpartition(":")
    if what not in IMPORTED or not colon:
        return ""
    package = module.partition(".")[0]  # further parts could not be looked up without importing this one
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):  # a script, or what a program put together itself
        file = getattr(sys.modules.get(package), "__file__", None)
        return os.path.abspath(file) if file else ""
    if found is None:
        return ""
    places = [found.origin] if found.origin else list(found.submodule_search_locations or ())
    return os.pathsep.join(map(os.path.abspath, places))


def _known() -> set[str]:
    path = trusted_list()
    try:
        # A list that others can write says nothing; it might be theirs.
        lines = [] if why_not_private(path.parent) else read_text(path).splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    return {line.partition(" ")[0] for line in lines} | _now


def _mark(name: str) -> str:
    return hashlib.sha256(f"{name}\n{origin(name)}".encode("utf-8", "surrogatepass")).hexdigest()


def _shown(name: str) -> str:
    """Return what the list shows of a name: of code all, of other texts, which may hold passwords, nothing."""
    place = origin(name)
    return f"{name.partition(' = ')[2][:SHOWN]!r} from {place}" if place else "…"
