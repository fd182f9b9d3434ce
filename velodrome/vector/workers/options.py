"""Names of the backends, ours and those that users of other libraries know; imports nothing."""

from __future__ import annotations

FOREIGN_BACKENDS = ("auto", "serial", "process", "async")
# What other libraries call it, and the backend that does the same here.
SPELLINGS = {
    "DummyVecEnv": "serial",
    "SyncVectorEnv": "serial",
    "SubprocVecEnv": "process",
    "ShmemVecEnv": "process",
    "AsyncVectorEnv": "process",
}
TIMEOUT = 60.0  # seconds that one call of an environment in a worker may take


def backend_name(backend: str) -> str:
    """Return our name of a backend, given ours or another library's."""
    return SPELLINGS.get(backend, backend)
