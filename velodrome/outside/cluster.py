"""Ray, which is an extra: imported when somebody asks for it, and its errors in sentences."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from velodrome.errors import BackendError, ConfigError, MissingDependencyError, RunError, sentence

INSTALL = "Ray is not installed: pip install 'velodrome[ray]', on every machine of the cluster."


def import_ray() -> Any:
    """Return Ray, or say how to install it."""
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise MissingDependencyError(INSTALL) from error
    return ray


def joined_cluster(address: str | None = None) -> Any:
    """Return Ray, with this process in a cluster.

    address: of its head, "HOST:PORT"; None: as RAY_ADDRESS says, or the one that this machine is a node of.
    """
    ray = import_ray()
    if address is not None and address.startswith("ray://"):
        raise ConfigError(
            f"--address {address}: that is Ray's client protocol, which Ray itself advises against for machine "
            "learning. Start the command inside the cluster: ray job submit --address http://HOST:8265 -- velodrome "
            "tune … --executor ray"
        )
    if not ray.is_initialized():
        with told(address or "auto"):
            quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
            ray.init(address=address or "auto", **quiet)
    return ray


@contextlib.contextmanager
def told(address: str) -> Iterator[None]:
    """Say in a sentence what is wrong with a cluster."""
    try:
        yield
    except Exception as error:  # Ray's own have no other base
        own = type(error).__module__.partition(".")[0] == "ray"
        if not own and not isinstance(error, RuntimeError | ValueError | OSError):
            raise
        said = " ".join(str(error).split()) or type(error).__name__
        if type(error).__name__ in ("ObjectStoreFullError", "OutOfDiskError"):
            raise BackendError(
                f"Ray's object store is full ({said[:120].rstrip('.')}). Start nodes with a larger one, ray start "
                "--object-store-memory=BYTES, or send less with the environments."
            ) from error
        if "ersion mismatch" in said:
            raise RunError(
                f"{sentence(said[:300])} Install the same versions of Ray and Python on all machines."
            ) from error
        raise RunError(
            f"No Ray cluster answers at {address!r} ({said[:160].rstrip('.')}). Start one on this machine, ray start "
            "--head, or name another's: --address HOST:6379."
        ) from error
