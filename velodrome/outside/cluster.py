"""Ray, which is an extra: imported when somebody asks for it, and its errors in sentences."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from velodrome.errors import BackendError, ConfigError, MissingDependencyError, RunError, sentence
from velodrome.outside.extras import install

REFUSED = "InvalidAuthToken"  # what Ray prints about a wrong token, and leaves out of its error
INSTALL = f"Ray is not installed: {install('ray')}, on every machine of the cluster."


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
        if address is not None and (why := why_silent(address)) is not None:  # Ray would try for half a minute
            raise RunError(_nobody_there(address, why))
        with told(address or "auto"), _kept_from_the_terminal():
            quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
            ray.init(address=address or "auto", **quiet)
    return ray


def why_silent(address: str, seconds: float = 5.0) -> str | None:
    """Return why nobody answers at "HOST:PORT"; None if somebody does, or if it is no such address."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return None
    try:
        socket.create_connection((host.strip("[]"), int(port)), seconds).close()
    except (OSError, OverflowError) as error:
        return str(error)
    return None


def _nobody_there(address: str, why: str) -> str:
    return (
        f"No Ray cluster answers at {address!r} ({why[:160].rstrip('.')}). Start one on this machine, ray start "
        "--head, or name another's: --address HOST:6379."
    )


@contextlib.contextmanager
def _kept_from_the_terminal() -> Iterator[None]:
    """Keep what Ray prints while it tries to join a cluster, line after line; an error says whether it was refused."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as kept, contextlib.ExitStack() as stack:
        before = os.dup(2)
        stack.callback(os.close, before)
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except Exception as error:
            kept.seek(0)
            if REFUSED.encode() in kept.read():
                raise RuntimeError(REFUSED) from error
            raise
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)


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
                f"Ray's object store is full ({said[:80].rpartition(' ')[0]} …). Start nodes with a larger one, "
                "ray start --object-store-memory=BYTES, or send less with the environments."
            ) from error
        if "ersion mismatch" in said:
            raise RunError(
                f"{sentence(said[:300])} Install the same versions of Ray and Python on all machines."
            ) from error
        if "oken authentication is enabled but" in said:
            raise ConfigError(
                "RAY_AUTH_MODE=token is set here, and there is no token: set RAY_AUTH_TOKEN to the cluster's, or write "
                "it into ~/.ray/auth_token."
            ) from error
        if REFUSED in said:
            raise RunError(
                f"A Ray cluster answers at {address!r} and does not let this process in. Set RAY_AUTH_MODE=token and "
                "its RAY_AUTH_TOKEN here, as on its machines, and the same command works."
            ) from error
        raise RunError(_nobody_there(address, said)) from error
