"""Waiting for a word of shared memory to change, and waking the waiter: in microseconds, where a pipe takes tens.

A waiter polls the word for a while (`spin`) and then sleeps in the kernel until it is woken (Linux's futex). Spinning
pays off if there are as many cores as busy processes; otherwise it takes the core from the process that would change
the word. Systems without futex poll with short sleeps.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
import time
from typing import Any

from velodrome.vector.cores import available_cores

FUTEX_WAIT, FUTEX_WAKE = 0, 1
SYSTEM_CALLS = {"x86_64": 202, "aarch64": 98, "arm64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
EVERYBODY = 2**31 - 1
POLLING_SECONDS = 50e-6  # of sleep between two looks, without futex
SPIN_SECONDS = 100e-6  # before sleeping, if cores are free

_barrier = threading.Lock()


class _Seconds(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _system_call() -> Any:
    if sys.platform != "linux" or platform.machine() not in SYSTEM_CALLS or os.environ.get("VELODROME_NO_FUTEX"):
        return None
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    return call


_call = _system_call()
_number = SYSTEM_CALLS.get(platform.machine(), 0)


def order_memory() -> None:
    """Keep later reads and writes from overtaking earlier ones: taking a lock is a full barrier."""
    with _barrier:
        pass


def spin_seconds(processes: int) -> float:
    """Return how long to spin when this many processes, the caller included, want a core."""
    return SPIN_SECONDS if processes <= available_cores() else 0.0


class Word:
    """One 32-bit word of shared memory, with a flag that says whether its waiter sleeps."""

    def __init__(self, words: Any, index: int, sleeping: int) -> None:
        """Use the word `index` of an int32 array, and the word `sleeping` as its flag."""
        self.words = memoryview(words).cast("B").cast("i")
        self.index, self.sleeping = index, sleeping
        self.address = ctypes.c_void_p(words.ctypes.data + 4 * index)

    def set(self, value: int) -> None:
        """Change the word and wake the waiter if it sleeps."""
        order_memory()
        words = self.words
        words[self.index] = value
        order_memory()
        if words[self.sleeping] and _call is not None:
            _call(_number, self.address, FUTEX_WAKE, EVERYBODY, None, None, 0)

    def wait_while(self, value: int, seconds: float, spin: float = 0.0) -> bool:
        """Wait until the word is no longer `value`; return whether that happened in time."""
        words, index = self.words, self.index
        if words[index] != value:
            order_memory()
            return True
        if spin > 0.0:
            clock = time.perf_counter
            end = clock() + spin
            while clock() < end:
                if words[index] != value:
                    order_memory()
                    return True
        deadline = time.perf_counter() + seconds
        words[self.sleeping] = 1
        order_memory()
        try:
            while words[index] == value:
                left = deadline - time.perf_counter()
                if left <= 0.0:
                    return False
                self._sleep(value, left)
        finally:
            words[self.sleeping] = 0
        order_memory()
        return True

    def _sleep(self, value: int, seconds: float) -> None:
        if _call is None:
            time.sleep(min(seconds, POLLING_SECONDS))
            return
        whole = int(seconds)
        limit = _Seconds(whole, int((seconds - whole) * 1e9))
        # Returns at once if the word has changed meanwhile.
        _call(_number, self.address, FUTEX_WAIT, value, ctypes.byref(limit), None, 0)
