"""Calls that are under way: begun and not yet waited for (`step_async`, `step_wait` …), or made by another thread.

Velodrome's errors about the former are Gymnasium's too, with Gymnasium's words, so that programs written for its
AsyncVectorEnv catch them.
"""

from __future__ import annotations

import functools
import multiprocessing
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError

from velodrome.errors import BackendError, ConfigError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Taken(Protocol):
    """Environments with a lock that the thread holds which calls them."""

    _thread: threading.RLock
    closing: bool


Own = TypeVar("Own", bound=Taken)


class AlreadyPendingError(AlreadyPendingCallError, BackendError):
    """Something was begun and has not been waited for."""


class NothingPendingError(NoAsyncCallError, BackendError):
    """Somebody waits for what was not begun."""


class WaitTimeoutError(BackendError, multiprocessing.TimeoutError):
    """What was begun is not done in time; it goes on."""


def by_one_thread(
    method: Callable[Concatenate[Own, Arguments], Result],
) -> Callable[Concatenate[Own, Arguments], Result]:
    """Refuse a method while another thread is in one of the same environments: it would take the other's answers."""

    @functools.wraps(method)
    def called(self: Own, *arguments: Arguments.args, **keywords: Arguments.kwargs) -> Result:
        if not self._thread.acquire(False):
            raise taken_by_another_thread(method.__name__)
        try:
            return method(self, *arguments, **keywords)
        except Exception as error:
            if self.closing:
                raise closed_meanwhile(method.__name__) from error
            raise
        finally:
            self._thread.release()

    return called


def taken_by_another_thread(called: str) -> BackendError:
    """Return what to say about a method that is called while another thread is in one."""
    return BackendError(
        f"{called}() was called while another thread is in a call of the same environments, which one thread at a time "
        "may step, reset and ask: give each thread environments of its own, or share a lock."
    )


def closed_meanwhile(called: str) -> ClosedEnvironmentError:
    """Return what to say about a method whose environments were closed while it ran."""
    return ClosedEnvironmentError(f"these environments were closed during {called}(), by another thread; make new ones")


def already_pending(called: str, pending: str) -> AlreadyPendingError:
    """Return what to say about a method that is called while another call is pending."""
    return AlreadyPendingError(
        f"Calling `{called}` while waiting for a pending call to `{pending}` to complete: call {pending}_wait() first.",
        pending,
    )


def nothing_pending(name: str) -> NothingPendingError:
    """Return what to say to somebody who waits for nothing."""
    return NothingPendingError(f"Calling `{name}_wait` without any prior call to `{name}_async`.", name)


def timed_out(name: str, timeout: float) -> WaitTimeoutError:
    """Return what to say about a call that takes longer than its caller wanted to wait."""
    return WaitTimeoutError(
        f"The call to `{name}_wait` has timed out after {timeout:g} second(s). The {name} goes on: call {name}_wait() "
        f"again, or anything else, which waits for its end first."
    )


def checked_timeout(timeout: Any) -> float:
    """Return a number of seconds to wait, or refuse it."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise ConfigError(f"timeout = {timeout!r}: seconds, at least 0, or None to wait for the end")
    return float(timeout)
