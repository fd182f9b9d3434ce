"""From an id, a class or a callable to many environments of it."""

from __future__ import annotations

from typing import Any

from velodrome.errors import BackendError, ConfigError, did_you_mean
from velodrome.vector.assemble import tell
from velodrome.vector.backends import FOREIGN_BACKENDS, TIMEOUT, backend_name
from velodrome.vector.faults import FaultSettings
from velodrome.vector.foreign import ForeignVectorEnv
from velodrome.vector.makers import EnvMaker, UnpicklableError, environment_makers


def make_foreign(
    env: Any, num_envs: int, *, backend: str = "auto", seed: int | None = None, copy: bool = False,
    autoreset: Any = True, workers: int | None = None, start_method: Any = "forkserver", on_fault: Any = "raise",
    max_restarts: int = 10, timeout: float | None = TIMEOUT, memory_limit: int | None = None,
    params: dict[str, Any] | None = None,
) -> ForeignVectorEnv:  # fmt: skip
    """Return many environments of any Gymnasium environment; `make_vec` says what the options mean."""
    backend = backend_name(backend)
    if backend not in FOREIGN_BACKENDS:
        raise ConfigError(
            f"backend = {backend!r} for an environment that is no rule of Velodrome; legal: "
            f"{', '.join(FOREIGN_BACKENDS)}.{did_you_mean(backend, FOREIGN_BACKENDS)}"
        )
    makers = environment_makers(env, params or {})
    faults = FaultSettings(on_fault, max_restarts, timeout, memory_limit)
    if backend == "auto":
        from velodrome.vector.autotune import recommend_backend

        advice = recommend_backend(makers, num_envs)
        backend, workers = advice.backend, workers or advice.workers
        tell(f"{makers[0].name}: {advice.sentence()}")
    shared: dict[str, Any] = {"seed": seed, "copy": copy, "autoreset": autoreset}
    if backend != "serial":
        try:
            return _in_processes(backend)(
                makers, num_envs, workers=workers, start_method=start_method, faults=faults, **shared
            )
        except UnpicklableError as error:
            if backend == "async":
                raise BackendError(
                    f"backend = 'async' cannot serve: {error}. No other has send() and recv()."
                ) from error
            tell(f"backend 'process' cannot serve: {error}. The environments run in this process instead ('serial').")
    if memory_limit is not None:
        raise ConfigError("memory_limit is of a worker process; the serial backend has none. Use backend='process'.")
    from velodrome.vector.serial import SerialVectorEnv

    # Nothing can interrupt an environment that runs in this very process.
    return SerialVectorEnv(makers, num_envs, faults=FaultSettings(on_fault, max_restarts, None, None), **shared)


def _in_processes(backend: str) -> Any:
    if backend == "async":
        from velodrome.vector.asynchronous import AsyncVectorEnv

        return AsyncVectorEnv
    from velodrome.vector.process import ProcessVectorEnv

    return ProcessVectorEnv


def is_foreign(env: Any) -> bool:
    """Return whether this is an environment of another library: an id that is no rule's, a class or a callable."""
    from velodrome.envs.catalog import CATALOG
    from velodrome.envs.contract import World

    if isinstance(env, World):
        return False
    if isinstance(env, str):
        return env not in CATALOG and _gymnasium_knows(env)
    return callable(env) or isinstance(env, EnvMaker | list | tuple)


def _gymnasium_knows(name: str) -> bool:
    import gymnasium

    if ":" in name:  # "module:Id" imports the module that registers the id
        return True
    try:
        gymnasium.spec(name)
    except gymnasium.error.Error as error:
        # A version that is not there, or a package that is missing, is told by Gymnasium better than by us.
        return isinstance(error, gymnasium.error.VersionNotFound | gymnasium.error.DeprecatedEnv)
    return True
