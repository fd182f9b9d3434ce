"""Whose is a folder? Code is loaded from some, so nobody but this user and root may be able to change what is there.

Each part of a path is looked at from the root on. Where all parts so far are safe, nobody else can put another folder
in the place of the next one, so that what was found stays true after the look.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from pathlib import Path

MOST_LINKS = 40  # symbolic links on a path, as the system counts
ROOT = 0  # uid
WRITABLE = stat.S_IWGRP | stat.S_IWOTH


def make_private_folder(folder: Path) -> None:
    """Make a folder and those above it that are missing, for this user alone, whatever the umask is."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        try:
            place.mkdir(mode=0o700)
            place.chmod(0o700)
        except FileExistsError:  # another process was faster
            continue


def why_not_private(folder: Path, own: int = 1) -> str | None:
    """Return who else could change what lies in a folder, as the end of a sentence; None if nobody could.

    own: parts at the end of the path that must not be open to any group. Further up a group is nobody else if only
    this user is in it, as in systems that give each user one.
    """
    if not hasattr(os, "getuid"):  # Windows has other permissions, and nobody shares a folder by these
        return None
    place, pending, links = Path("/"), deque(Path(os.path.abspath(folder)).parts[1:]), 0
    fault = _fault(place, os.lstat(place), own=False)
    while pending and fault is None:
        part = pending.popleft()
        if part == "..":
            place = place.parent
            continue
        status = os.lstat(place / part)
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if status.st_uid not in _us() or links > MOST_LINKS:
                return f"{place / part} is a link of {_user(status.st_uid)}"
            target = Path(os.readlink(place / part))
            place = Path("/") if target.is_absolute() else place
            pending.extendleft(reversed(target.parts[1:] if target.is_absolute() else target.parts))
            continue
        place /= part
        if not stat.S_ISDIR(status.st_mode):
            return f"{place} is no folder"
        fault = _fault(place, status, len(pending) < own, last=not pending)
    return fault


def why_not_own_files(folder: Path) -> str | None:
    """Return which file below a private folder somebody else put there, as the end of a sentence; None if none."""
    if not hasattr(os, "getuid"):
        return None
    for entry in os.scandir(folder):
        status = entry.stat(follow_symlinks=False)
        if status.st_uid not in _us():
            return f"{entry.path} belongs to {_user(status.st_uid)}"
        if stat.S_ISDIR(status.st_mode):
            if inner := _fault(Path(entry.path), status, own=True, last=True) or why_not_own_files(Path(entry.path)):
                return inner
        elif not stat.S_ISREG(status.st_mode):
            return f"{entry.path} is no regular file"
        elif status.st_mode & WRITABLE and status.st_nlink > 1:  # by another name, others can reach it
            return f"{entry.path} has a second name somewhere and can be written by others"
    return None


def _us() -> tuple[int, int]:
    return ROOT, os.getuid()


def _fault(place: Path, status: os.stat_result, own: bool, last: bool = False) -> str | None:
    """Return what is wrong with one part of a path. last: what lies in it is what matters, not only its name."""
    # In a container that has no root user of its own, the owner of the file system is another; it holds everything.
    trusted = _us() if own else (*_us(), os.lstat("/").st_uid)
    if status.st_uid not in trusted:
        return f"{place} belongs to {_user(status.st_uid)}"
    if stat.S_ISVTX & status.st_mode and not last:  # nobody can remove or rename what is another's, as in /tmp
        return None
    if status.st_mode & stat.S_IWOTH:
        return f"{place} can be written by everybody (mode {stat.S_IMODE(status.st_mode):04o})"
    if status.st_mode & stat.S_IWGRP and (own or not _alone_in_group(status.st_gid)):
        return f"{place} can be written by the group {status.st_gid} (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


def _alone_in_group(group: int) -> bool:
    """Return whether a group is this user's private one: it has the user's name and nobody else in it."""
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return group == user.pw_gid and found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name}


def _user(number: int) -> str:
    import pwd

    try:
        return f"the user {pwd.getpwuid(number).pw_name} ({number})"
    except KeyError:
        return f"the user {number}"
