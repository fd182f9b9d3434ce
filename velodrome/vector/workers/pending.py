"""Calls that were begun and not yet waited for: `step_async` and `step_wait`, and the same for reset and call.

Velodrome's errors about them are Gymnasium's too, with Gymnasium's words, so that programs written for its
AsyncVectorEnv catch them.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError

from velodrome.errors import BackendError, ConfigError


class AlreadyPendingError(AlreadyPendingCallError, BackendError):
    """Something was begun and has not been waited for."""


class NothingPendingError(NoAsyncCallError, BackendError):
    """Somebody waits for what was not begun."""


class WaitTimeoutError(BackendError, multiprocessing.TimeoutError):
    """What was begun is not done in time; it goes on."""


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
