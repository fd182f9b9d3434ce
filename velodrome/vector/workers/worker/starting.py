"""Starting a worker process without running the user's script in it a second time.

Environments are sent by value, so a worker does not need the script; and a script without the usual
`if __name__ == "__main__"` would start workers of its own.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.spawn
import os
import threading
from collections.abc import Iterator
from typing import Any

from velodrome.vector.workers.options import StartMethod

# What every worker needs: its loop, and what environments are unpacked with.
PRELOADED = ["velodrome.vector.workers.worker.worker_side", "cloudpickle"]
_this_thread = threading.local()


def process_context(method: StartMethod) -> Any:
    """Return what starts processes; a fork server loads what every worker needs once, for all of them."""
    context = multiprocessing.get_context(method)
    if method == "forkserver" and _nothing_preloaded():
        context.set_forkserver_preload(PRELOADED)
    return context


def _nothing_preloaded() -> bool:
    """Return whether nobody has told the one fork server of this process what to load; others' choices are kept."""
    server = getattr(multiprocessing.forkserver, "_forkserver", None)
    return getattr(server, "_preload_modules", ["__main__"]) == ["__main__"]


def _leave_fork_server_to_the_parent() -> None:
    """Let a forked process have a fork server of its own: it cannot wait for that of its parent, which it would try."""
    server: Any = getattr(multiprocessing.forkserver, "_forkserver", None)
    if getattr(server, "_forkserver_pid", None) is None:
        return
    server._lock = threading.Lock()
    if server._forkserver_alive_fd is not None:  # as long as it is open anywhere, the parent's server lives
        os.close(server._forkserver_alive_fd)
    server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None


os.register_at_fork(after_in_child=_leave_fork_server_to_the_parent)


@contextlib.contextmanager
def without_main_module() -> Iterator[None]:
    """Keep processes that this thread starts inside from loading the script; other threads are not affected."""
    _extend_multiprocessing()
    _this_thread.leaves_main_out = True
    try:
        yield
    finally:
        _this_thread.leaves_main_out = False


@contextlib.contextmanager
def also_from_daemons() -> Iterator[None]:
    """Let a daemonic process, such as one of multiprocessing.Pool, start workers.

    multiprocessing forbids it children because it is killed without a chance to end them; workers notice and end.
    """
    config: dict[str, Any] = getattr(multiprocessing.current_process(), "_config", {})
    daemonic = config.get("daemon")
    if daemonic:
        config["daemon"] = False
    try:
        yield
    finally:
        if daemonic:
            config["daemon"] = daemonic


@functools.cache
def _extend_multiprocessing() -> None:
    """Let the data that a new process is prepared with depend on the thread that starts it; done once."""
    original = multiprocessing.spawn.get_preparation_data

    @functools.wraps(original)
    def get_preparation_data(name: str) -> dict[str, Any]:
        data = original(name)
        if getattr(_this_thread, "leaves_main_out", False):
            data = {key: value for key, value in data.items() if not key.startswith("init_main_from_")}
        return data

    multiprocessing.spawn.get_preparation_data = get_preparation_data
