"""This machine, and the processes on it: which they are, whether they live, and how to end them for good.

The processes of a training are one session, so that all of them are found whatever became of the first.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

from velodrome.runs.versions import machine as described

BOOT = Path("/proc/sys/kernel/random/boot_id")
IDENTITY = Path("/etc/machine-id")
PARENT = "VELODROME_BESIDE"  # number of the process that a scheduler was started beside, and ends with
END_SECONDS = 10.0  # how long a killed process may take to be gone; longer is a disk that does not answer


class Machine(NamedTuple):
    """What tells machines, their starts, and the processes that can be seen in them, apart."""

    host: str
    boot: str  # of its kernel, which keeps the locks of files
    processes: str  # the namespace of process numbers: containers have their own

    @classmethod
    def read(cls, text: str) -> Machine | None:
        """Return what a text of `str()` says; None for another text."""
        parts = text.split("|")
        return cls(*parts) if len(parts) == 3 else None

    def is_gone(self, now: Machine) -> bool:
        """Return whether a machine has started anew since, so that none of its processes is left."""
        return self.host == now.host and self.boot != now.boot

    def __str__(self) -> str:
        return "|".join(self)


@functools.cache
def this_machine() -> Machine:
    """Return the machine that this process runs on."""
    boot = BOOT.read_text().strip() if BOOT.exists() else str(int(psutil.boot_time()))
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    own = IDENTITY.read_text().strip()[:8] if IDENTITY.exists() else ""  # of machines of one name
    return Machine(f"{described()['host']}{own and '-'}{own}".replace("|", "-"), boot, namespace)


def started_at(pid: int) -> str:
    """Return what tells a process from another that gets its number later; '' if there is none, or only a corpse."""
    try:
        content = Path(f"/proc/{pid}/stat").read_text()
        after_name = content[content.rindex(")") + 2 :].split()
        return "" if after_name[0] in "ZX" else after_name[19]  # clock ticks since the machine began
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return ""
    except ProcessLookupError:
        return ""
    try:
        process = psutil.Process(pid)
        return "" if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.NoSuchProcess:
        return ""


def handle_of(pid: int) -> str:
    """Return a text by which a process is known for ever; '' if it is gone."""
    begun = started_at(pid)
    return f"{pid}:{begun}" if begun else ""


def session_processes(handle: str) -> list[int]:
    """Return the processes of the session that a process leads, or led: the system keeps its number for them."""
    leader, _, begun = handle.partition(":")
    now = started_at(int(leader))
    if now and now != begun:
        return []  # the number is another's by now, so nothing of the session is left
    found = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == int(leader) and started_at(pid):
                found.append(pid)
        except (ProcessLookupError, PermissionError):
            continue
    return found


def is_alive(handle: str) -> bool:
    """Return whether a process is there, frozen or not."""
    leader, _, begun = handle.partition(":")
    return bool(begun) and started_at(int(leader)) == begun


def is_frozen(handle: str) -> bool:
    """Return whether a process of a session was stopped, as by SIGSTOP; it may hold a lock that others wait for."""
    return any(state_of(pid) in ("T", "t") for pid in session_processes(handle))


def state_of(pid: int) -> str:
    """Return the letter that the system has for what a process does; '' if it is gone."""
    try:
        content = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return content[content.rindex(")") + 2]


def kill_session(handle: str, seconds: float = END_SECONDS) -> bool:
    """End all processes of a session at once, frozen ones too; return whether all are gone."""
    deadline = time.monotonic() + seconds
    while left := session_processes(handle):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def memory_of(handle: str) -> int:
    """Return the bytes that the processes of a session take; what several share counts once."""
    total = 0
    for pid in session_processes(handle):
        try:
            total += _proportional(pid)
        except (OSError, psutil.Error):
            continue
    return total


def _proportional(pid: int) -> int:
    """Return a process's memory; of pages that it shares with others, its part."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except FileNotFoundError:
        pass
    return int(psutil.Process(pid).memory_info().rss)


def leave_with_parent(stop: Callable[[], None]) -> None:
    """Call `stop` when the process that this one was started beside, if there is one, is gone."""
    told = os.environ.pop(PARENT, "")
    if not told.isdecimal():
        return

    def watch() -> None:
        while os.getppid() == int(told):
            time.sleep(1.0)
        stop()

    threading.Thread(target=watch, name="velodrome parent", daemon=True).start()
