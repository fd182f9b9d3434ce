"""Which executor a name means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from velodrome.errors import ConfigError, did_you_mean
from velodrome.runs.bucket.place import url_of
from velodrome.service.executor import Executor, LocalExecutor

EXECUTORS = ("local", "ray", "slurm")


def executor_named(
    name: str, folder: str | Path, store: str | None = None, address: str | None = None, cores: int | None = None
) -> Executor:
    """Return an executor by its name.

    folder, store: of the runs; machines other than this one need a store by URL. address: of a Ray cluster's head, or
    Slurm's kind of cluster. cores: of all trainings together.
    """
    if name not in EXECUTORS:
        raise ConfigError(f"--executor {name}: there are {', '.join(EXECUTORS)}.{did_you_mean(name, EXECUTORS)}")
    if name == "local":
        if address is not None:
            raise ConfigError(f"--address {address} is of a cluster, and --executor local is this machine. Use ray.")
        return LocalExecutor()
    if name == "ray":
        from velodrome.service.executors.ray import RayExecutor

        return RayExecutor(address, is_shared=store is not None and not store.startswith("sqlite"))
    from velodrome.service.executors.slurm import SlurmExecutor

    if (url := url_of(folder)) is not None:
        raise ConfigError(
            f"--folder {url}: with --executor slurm it is a folder that all machines see, because jobs are handed over "
            "in files there; --executor ray takes a URL."
        )
    given: dict[str, Any] = {} if address is None else {"cluster": address}
    return SlurmExecutor(Path(folder).resolve(), cores, **given)
