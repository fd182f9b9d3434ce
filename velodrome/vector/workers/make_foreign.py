"""From an id, a class or a callable to many environments of it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from velodrome.errors import BackendError, ConfigError, did_you_mean
from velodrome.vector.messages import tell
from velodrome.vector.workers.env_maker import UnpicklableError, environment_makers
from velodrome.vector.workers.foreign_env import ForeignVectorEnv
from velodrome.vector.workers.options import FOREIGN_BACKENDS, PROCESS_OPTIONS, WorkerOptions, backend_name

CLASSES = {
    "serial": ("serial", "SerialVectorEnv"),
    "process": ("process", "ProcessVectorEnv"),
    "async": ("asynchronous", "AsyncVectorEnv"),
}


def make_foreign(
    env: Any, num_envs: int, *, backend: str, given: Mapping[str, Any], params: dict[str, Any], **shared: Any
) -> ForeignVectorEnv:
    """Return many environments of any Gymnasium environment.

    given: the options of workers that the caller has named; the others keep their defaults.
    params: of the environment. shared: seed, copy and autoreset, as `make_vec` has them.
    """
    backend = backend_name(backend)
    if backend not in FOREIGN_BACKENDS:
        raise ConfigError(
            f"backend = {backend!r} for an environment that is no rule of Velodrome; legal: "
            f"{', '.join(FOREIGN_BACKENDS)}.{did_you_mean(backend, FOREIGN_BACKENDS)}"
        )
    makers = environment_makers(env, params)
    options = WorkerOptions(**given)
    idle = {name: given[name] for name in PROCESS_OPTIONS if given.get(name) is not None}
    if backend == "serial" and idle:
        raise ConfigError(
            f"{next(iter(idle))} is of worker processes, and backend = 'serial' has none. Leave it out, or use "
            "backend='process'."
        )
    if backend == "auto":
        from velodrome.vector.workers.autotune import recommend_backend

        advice = recommend_backend(makers, num_envs)
        backend = advice.backend
        options = replace(options, workers=options.workers or advice.workers or None)
        tell(f"{makers[0].name}: {advice.sentence()}")
    shared["options"] = options
    if backend != "serial":
        try:
            return _backend_class(backend)(makers, num_envs, **shared)
        except UnpicklableError as error:
            if backend == "async":
                raise BackendError(
                    f"backend = 'async' cannot serve: {error}. No other has send() and recv()."
                ) from error
            tell(f"backend 'process' cannot serve: {error}. The environments run in this process instead ('serial').")
    for name, value in idle.items():
        tell(f"{name} = {value!r} has no effect: the environments run in this process, without workers")
    return _backend_class("serial")(makers, num_envs, **shared)


def _backend_class(backend: str) -> Any:
    """Import a backend when it is needed."""
    module, name = CLASSES[backend]
    return getattr(importlib.import_module(f"velodrome.vector.workers.{module}"), name)
