"""From an id, a class or a callable to many environments of it."""

from __future__ import annotations

from typing import Any

from velodrome.errors import BackendError, ConfigError, did_you_mean
from velodrome.vector.workers.options import FOREIGN_BACKENDS, TIMEOUT, backend_name
from velodrome.vector.compile.assemble import tell
from velodrome.vector.workers.faults import FaultSettings
from velodrome.vector.workers.foreign_env import ForeignVectorEnv
from velodrome.vector.workers.env_maker import EnvMaker, UnpicklableError, environment_makers


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
    chosen = backend
    makers = environment_makers(env, params or {})
    faults = FaultSettings(on_fault, max_restarts, timeout, memory_limit)
    if backend == "auto":
        from velodrome.vector.workers.autotune import recommend_backend

        advice = recommend_backend(makers, num_envs)
        backend = advice.backend
        workers = workers or advice.workers or None
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
    own_method = None if start_method == "forkserver" else start_method
    own_timeout = None if timeout == TIMEOUT else timeout
    _refuse_worker_options(
        chosen, workers=workers, memory_limit=memory_limit, start_method=own_method, timeout=own_timeout
    )
    from velodrome.vector.workers.serial import SerialVectorEnv

    # Nothing can interrupt an environment that runs in this very process.
    return SerialVectorEnv(makers, num_envs, faults=FaultSettings(on_fault, max_restarts, None, None), **shared)


def _refuse_worker_options(backend: str, **given: Any) -> None:
    """Refuse options of workers where there are none; what a measurement or an exception led to is told instead."""
    for name, value in given.items():
        if value is None:
            continue
        if backend == "serial":
            raise ConfigError(
                f"{name} is of worker processes, and backend = 'serial' has none. Leave it out, or use "
                "backend='process'."
            )
        tell(f"{name} = {value!r} has no effect: the environments run in this process, without workers")


def _in_processes(backend: str) -> Any:
    if backend == "async":
        from velodrome.vector.workers.asynchronous import AsyncVectorEnv

        return AsyncVectorEnv
    from velodrome.vector.workers.process import ProcessVectorEnv

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
